//! What a process has used, read from `/proc`.

use anyhow::Context as _;

/// CPU time and memory of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessUsage {
    /// User and system time of all its threads since it started, in milliseconds.
    pub cpu_millis: u64,
    /// Greatest resident memory so far, in KiB.
    pub peak_resident_kib: u64,
}

/// Clock ticks a second in `/proc/PID/stat`: fixed at 100 by the kernel's interface.
const TICKS: u64 = 100;

impl ProcessUsage {
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        let stat =
            std::fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid}"))?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        Self::parse(&stat, &status).with_context(|| format!("/proc/{pid} reads otherwise than expected"))
    }

    fn parse(stat: &str, status: &str) -> Option<Self> {
        // The name in parentheses may hold anything; utime and stime are fields 14 and 15.
        let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().skip(11);
        let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let peak_resident_kib = peak.trim().trim_end_matches(" kB").parse().ok()?;
        Some(Self { cpu_millis: ticks * 1_000 / TICKS, peak_resident_kib })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_process_has_used_something() {
        let usage = ProcessUsage::of(std::process::id()).unwrap();
        assert!(usage.peak_resident_kib > 500, "{usage:?}");
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 150 25 0 0 20 0 1 0 100 0 0";
        let usage = ProcessUsage::parse(stat, "Name:\tx\nVmHWM:\t    2048 kB\n").unwrap();
        assert_eq!(usage, ProcessUsage { cpu_millis: 1_750, peak_resident_kib: 2_048 });
        assert_eq!(ProcessUsage::parse("7 (x", "VmHWM: 1 kB"), None);
    }
}
