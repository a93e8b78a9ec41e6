//! What `up` registers and the demo plays.

/// Usage types of the stack: name, kind, unit.
pub const USAGE_TYPES: [(&str, &str, &str); 5] = [
    ("llm.requests", "counter", "requests"),
    ("llm.input_tokens", "counter", "tokens"),
    ("llm.output_tokens", "counter", "tokens"),
    ("gpu.utilization", "gauge", "percent"),
    ("vm.memory", "gauge", "bytes"),
];
