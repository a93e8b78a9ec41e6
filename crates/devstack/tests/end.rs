//! What is attached to a process ends with it, also when it is killed without a chance to do anything.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use usage_devstack::process::{ProcessId, children_of, wait_until};

const LIMIT: Duration = Duration::from_secs(120);

fn hold(dir: &Path) -> (Child, Vec<ProcessId>) {
    let env = dir.join("env");
    let child = Command::new(env!("CARGO_BIN_EXE_devstack-hold"))
        .args([dir, env.as_path()])
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    assert!(wait_until(LIMIT, || env.exists()), "the stack did not come up");
    let servers = children_of(child.id());
    assert_eq!(servers.len(), 3, "{servers:?}");
    (child, servers)
}

#[test]
fn servers_end_when_their_starter_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, servers) = hold(dir.path());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(wait_until(LIMIT, || !servers.iter().any(|id| id.is_running())), "{servers:?}");
}

#[test]
fn servers_are_stopped_in_order_when_their_starter_is_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, servers) = hold(dir.path());
    ProcessId::of(child.id()).unwrap().signal(nix::sys::signal::Signal::SIGINT).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!servers.iter().any(|id| id.is_running()), "{servers:?}");
    let env = fs::read_to_string(dir.path().join("env")).unwrap();
    for name in [
        "USAGE_KAFKA_BROKERS",
        "USAGE_CLICKHOUSE_URL",
        "USAGE_CONTROL_DATABASE_URL",
        "USAGE_SOURCE_DATABASE_URL",
    ] {
        assert_eq!(env.matches(&format!("export {name}=")).count(), 1, "{env}");
    }
}
