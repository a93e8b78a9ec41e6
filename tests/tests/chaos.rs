//! The short run of the chaos: two seeds, a minute each.

use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use usage_devstack::process::{Life, spawn};

/// Seeds whose schedules have every kind of fault within the minute (each minute has: see the schedule's tests).
const SEEDS: [u64; 2] = [4, 17];

#[test]
fn two_minutes_of_faults_lose_double_and_misreport_nothing() {
    // One after the other: each runs a dozen processes.
    for seed in SEEDS {
        let mut command = Command::new(env!("CARGO_BIN_EXE_usage-chaos"));
        command.args(["--seed", &seed.to_string(), "--minutes", "1", "--rate", "40"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = spawn(command, Life::Attached(Signal::SIGTERM)).unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{complained}");
        assert!(said.contains(&format!("seed {seed}: no difference")), "{said}");
    }
}

#[test]
fn a_seed_prints_its_schedule_and_what_is_asked_wrongly_is_refused() {
    let chaos = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_usage-chaos")).args(arguments).output().unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    };
    let (good, schedule) = chaos(&["--plan", "--seed", "4", "--minutes", "1"]);
    assert!(good && schedule.starts_with("seed 4\n"), "{schedule}");
    assert!(schedule.lines().count() > 12, "{schedule}");
    assert_eq!(chaos(&["--plan", "--seed", "4", "--minutes", "1"]).1, schedule);
    assert!(!chaos(&["--minutes", "0"]).0);
    let (good, refusal) = chaos(&["--faults", "fire"]);
    assert!(!good && refusal.contains("kill"), "{refusal}");
}
