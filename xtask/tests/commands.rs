//! The program itself: exit codes, and what `down` ends and leaves alone.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use nix::sys::signal::Signal;
use usage_devstack::process::{Launch, Life, ProcessId, Server};

fn xtask(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).args(arguments).env("USAGE_STACK_DIR", dir).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A process that stands for a part of the stack; it ends at the signal given in the script, or at none.
fn part(dir: &Path, script: &str) -> Server {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    let launch = Launch { command, log: dir.join("part.log"), life: Life::Attached(Signal::SIGKILL) };
    Server::start(launch).unwrap()
}

fn state(parts: &[(&str, ProcessId)]) -> String {
    let parts: Vec<String> = parts
        .iter()
        .map(|(name, id)| {
            let ProcessId { pid, start_ticks } = id;
            format!(
                r#""{name}":{{"process":{{"pid":{pid},"start_ticks":{start_ticks}}},"ports":[1],"log":"x.log"}}"#
            )
        })
        .collect();
    format!(r#"{{"parts":{{{}}}}}"#, parts.join(","))
}

#[test]
fn what_is_not_understood_prints_the_usage() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [&["start"][..], &[], &["down", "--prune"], &["bench", "none"]] {
        let output = xtask(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains("usage: cargo xtask COMMAND"), "{arguments:?}");
    }
    let output = xtask(dir.path(), &["help"]);
    assert!(output.status.success());
    assert!(text(&output.stdout).starts_with("usage:"));
}

#[test]
fn down_ends_what_up_started_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let kafka = part(dir.path(), "exec sleep 60");
    // A part whose process ended, and whose number another process has now.
    let stranger = part(dir.path(), "exec sleep 60");
    let relay = ProcessId { start_ticks: stranger.id().start_ticks - 1, ..stranger.id() };
    fs::write(dir.path().join("state.json"), state(&[("kafka", kafka.id()), ("relay", relay)])).unwrap();
    fs::write(dir.path().join("env"), "export USAGE_KAFKA_BROKERS=127.0.0.1:1\n").unwrap();

    let output = xtask(dir.path(), &["down"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.contains("kafka  stopped"), "{said}");
    assert!(said.contains("relay  was not running"), "{said}");
    assert!(!kafka.id().is_running());
    assert!(stranger.id().is_running());
    assert!(!dir.path().join("env").exists());

    let again = xtask(dir.path(), &["down"]);
    assert!(again.status.success());
    assert!(text(&again.stdout).contains("nothing was running"));
}

#[test]
fn purge_removes_the_data() {
    let dir = tempfile::tempdir().unwrap();
    let stack = dir.path().join("stack");
    fs::create_dir_all(stack.join("postgres/data")).unwrap();
    assert!(xtask(&stack, &["down"]).status.success());
    assert!(stack.join("postgres/data").exists());
    assert!(xtask(&stack, &["down", "--purge"]).status.success());
    assert!(!stack.exists());
    let nothing = xtask(&stack, &["down", "--purge"]);
    assert!(nothing.status.success());
    assert!(text(&nothing.stdout).contains("nothing is up"));
}

#[test]
fn a_spoilt_state_is_an_error_not_a_guess() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("state.json"), "{").unwrap();
    let output = xtask(dir.path(), &["down"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("state.json"));
}
