//! `--check-config` of the program: it shows only what would start, and no secret.

use std::process::Command;

const REQUIRED: [&str; 3] = [
    "kafka.brokers=127.0.0.1:9092",
    "clickhouse.url=http://127.0.0.1:8123",
    "control_database.url=postgres://usage@127.0.0.1/usage",
];

/// Whether it was taken, and all that was written.
fn check(more: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_usage-consumer"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("USAGE_")) {
        command.env_remove(name);
    }
    command.arg("--check-config");
    for setting in REQUIRED.iter().chain(more) {
        command.args(["--set", setting]);
    }
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.success(), text)
}

#[test]
fn a_master_key_that_is_none_is_named_and_not_shown() {
    let key = format!("control_database.master_key={}", "5a".repeat(32));
    let (taken, shown) = check(&[&key]);
    assert!(taken && shown.contains("master_key = \"***\"") && !shown.contains("5a5a"), "{shown}");
    let long = format!("{key}5a");
    let no_hex = format!("control_database.master_key={}", "5z".repeat(32));
    for (more, part) in [
        (&[][..], "`control_database.master_key`"),
        (&["control_database.master_key=5a5a"], "control_database.master_key: expected 32 bytes in hex"),
        (&[&long], "control_database.master_key: expected 32 bytes in hex"),
        (&[&no_hex], "control_database.master_key: expected 32 bytes in hex"),
        (&[&key, "control_database.other_master_key=5a5a"], "control_database.other_master_key: expected"),
        (&["control_database.master_key_file=/nonexistent/master.key"], "/nonexistent/master.key"),
        (&[&key, "policy.folder=/a", "policy.url=https://pdp.example"], "policy.folder and policy.url"),
    ] {
        let (taken, shown) = check(more);
        assert!(!taken && shown.contains(part), "{more:?}: {shown}");
        assert!(!shown.contains("5a5a") && !shown.contains("5z5z"), "{more:?}: {shown}");
    }
}
