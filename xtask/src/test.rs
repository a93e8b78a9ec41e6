//! `cargo xtask test`: everything that must pass.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use usage_devstack::process::ProcessId;

use crate::servers::{self, PrivateServers};
use crate::state::State;
use crate::totals::Totals;
use crate::{disk, paths, run, up};

/// What lets tests end and freeze programs at chosen points.
const FAIL_POINTS: &str = "usage-service/failpoints";
/// Tests of one program at a time: most wait for servers, leases and sessions, so two cores carry more of them than two.
const AT_ONCE: &str = "4";

/// Formatting, lints, then all tests on servers of their own.
pub fn test() -> Result<()> {
    disk::warn_if_short(&paths::target()?);
    let started = Instant::now();
    let mut times = Vec::new();
    let mut timed = |name: &'static str, step: &mut dyn FnMut() -> Result<()>| {
        let begin = Instant::now();
        println!("== {name}");
        let result = step().with_context(|| name.to_owned());
        times.push((name, begin.elapsed()));
        result
    };
    let mut totals = Totals::default();
    timed("formatting", &mut || run::run(run::cargo(&["fmt", "--all", "--check"])?))?;
    timed("tools", &mut up::build_tools)?;
    timed("lints", &mut || {
        run::run(run::cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])?)
    })?;
    timed("programs", &mut || {
        // With the programs that the tests start; one build, since a second one with other features costs minutes and disk.
        run::run(run::cargo(&["test", "--workspace", "--features", FAIL_POINTS, "--no-run"])?)
    })?;
    let result = timed("tests", &mut || with_private_servers(|env| tests(env, &mut totals)));
    for (name, time) in &times {
        println!("{name:>12}: {:>6} s", time.as_secs());
    }
    println!("{totals}");
    println!("{} tests in {} s", totals.run(), started.elapsed().as_secs());
    result
}

fn tests(env: &servers::Env, totals: &mut Totals) -> Result<()> {
    let mut command = run::cargo(&["test", "--workspace", "--features", FAIL_POINTS, "--no-fail-fast"])?;
    command.envs(env).env("USAGE_BIN_DIR", paths::bin_dir(false)?);
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        command.env("RUST_TEST_THREADS", AT_ONCE);
    }
    let passed = run::run_lines(command, |line| totals.read(line))?;
    if !passed {
        bail!("some tests failed");
    }
    if totals.run() == 0 {
        bail!("no test ran");
    }
    Ok(())
}

/// Runs the work beside servers in a directory of this process; the directory goes afterwards, the logs stay on failure.
pub fn with_private_servers(work: impl FnOnce(&servers::Env) -> Result<()>) -> Result<()> {
    // Addresses of the stack that `up` started are in the environment when its env file was sourced: not for tests.
    let own = up::own_addresses(&State::load(&paths::stack())?);
    let preset = servers::foreign(servers::preset(), &own);
    let runs = paths::root().join("target/private");
    remove_stale(&runs)?;
    let dir = runs.join(std::process::id().to_string());
    let result = PrivateServers::start(&dir, preset).and_then(|servers| {
        let result = work(&servers.env);
        let stopped = servers.stop();
        result.and(stopped)
    });
    if result.is_err() {
        let kept = paths::root().join("target/private-logs");
        keep_logs(&dir, &kept)?;
        eprintln!("logs of the servers: {}", kept.display());
    }
    usage_devstack::stack::purge(&dir)?;
    result
}

/// Directories of runs that were killed.
fn remove_stale(runs: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(runs) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        let pid = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        if pid.is_none_or(|pid| ProcessId::of(pid).is_none()) {
            usage_devstack::stack::purge(&path)?;
        }
    }
    Ok(())
}

fn keep_logs(dir: &Path, kept: &Path) -> Result<()> {
    fs::create_dir_all(kept)?;
    for name in ["kafka", "clickhouse", "postgres"] {
        let log: PathBuf = dir.join(name).join(format!("{name}.log"));
        if log.exists() {
            fs::copy(log, kept.join(format!("{name}.log")))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_dead_runs_are_removed_and_those_of_live_ones_kept() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join(std::process::id().to_string());
        // Above the greatest process id there can be.
        let dead = dir.path().join("4194305");
        for path in [&own, &dead] {
            fs::create_dir(path).unwrap();
        }
        remove_stale(dir.path()).unwrap();
        assert!(own.exists());
        assert!(!dead.exists());
    }
}
