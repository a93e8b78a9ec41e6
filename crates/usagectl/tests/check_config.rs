//! `--check-config`: what would not work is refused, and nothing secret is shown.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

struct Ran {
    code: i32,
    out: String,
    err: String,
}

/// Without a variable of whoever runs the tests.
fn run(env: &BTreeMap<String, String>, line: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_usagectl"));
    let output = command.args(line).env_clear().envs(env).output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn check_config_refuses_a_master_key_that_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let none = BTreeMap::new();
    let (key, short) = (dir.path().join("master.key"), dir.path().join("short.key"));
    std::fs::write(&key, "5a".repeat(32)).unwrap();
    std::fs::write(&short, "c0ffee").unwrap();
    let file = |setting: &str, path: &Path| format!("control_database.{setting}={}", path.display());
    let taken = run(&none, &["--check-config", "--set", &file("master_key_file", &key)]);
    assert_eq!(taken.code, 0, "{}", taken.err);
    let long = format!("control_database.master_key={}c0ffee", "5a".repeat(32));
    let no_hex = format!("control_database.master_key=c0ffee{}", "x".repeat(58));
    for (set, part) in [
        (vec!["control_database.master_key=c0ffee"], "control_database.master_key: expected 32 bytes in hex"),
        (vec![&long], "control_database.master_key: expected 32 bytes in hex"),
        (vec![&no_hex], "control_database.master_key: expected 32 bytes in hex"),
        (vec![&file("master_key_file", &short)], "control_database.master_key: expected 32 bytes in hex"),
        (vec![&file("master_key_file", dir.path())], "control_database.master_key_file"),
        (vec![&file("other_master_key_file", &key)], "control_database.other_master_key: only beside"),
        (
            vec![&file("master_key_file", &key), "control_database.other_master_key=c0ffee"],
            "control_database.other_master_key: expected 32 bytes in hex",
        ),
    ] {
        let mut line = vec!["--check-config"];
        line.extend(set.iter().flat_map(|setting| ["--set", setting]));
        let ran = run(&none, &line);
        assert_eq!(ran.code, 2, "{line:?}: {}", ran.err);
        assert!(
            ran.err.contains(part) && !ran.err.contains("c0ffee") && ran.out.is_empty(),
            "{line:?}: {}",
            ran.err
        );
    }
}

#[test]
fn check_config_hides_secrets_and_needs_no_command() {
    let env = BTreeMap::from([(
        "USAGE_CONTROL_DATABASE_URL".to_string(),
        "postgres://u:hunter2@localhost/d".to_string(),
    )]);
    let ran = run(&env, &["--check-config"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.out.contains("[control_database]\nallow_plaintext = false\nurl = \"***\"")
            && !ran.out.contains("hunter2"),
        "{}",
        ran.out
    );
    let refused = run(&env, &["--check-config", "--set", "clickhouse.url=http://ch.internal"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("`clickhouse.url`") && !refused.err.contains("internal"), "{}", refused.err);
    let help = run(&env, &["--help"]);
    assert!(help.code == 0 && help.out.contains("USAGE_KAFKA_BROKERS"), "{}", help.out);
}
