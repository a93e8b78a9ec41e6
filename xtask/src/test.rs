//! `cargo xtask test`: everything that must pass.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use usage_devstack::process::ProcessId;

use crate::programs::{self, Program};
use crate::servers::{self, PrivateServers};
use crate::state::State;
use crate::totals::Totals;
use crate::{disk, paths, run, up};

/// What lets tests end and freeze programs at chosen points.
const FAIL_POINTS: &str = "usage-service/failpoints";
/// Tests of one program at once: most wait for servers, leases and sessions, so two cores carry more of them than two.
const TESTS_AT_ONCE: &str = "4";

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
    let mut programs = Vec::new();
    timed("programs", &mut || {
        // With the programs that the tests start; one build, since a second one with other features costs minutes and disk.
        let build = cargo_test(&["--no-run", "--message-format", "json-render-diagnostics"])?;
        run::run_lines(build, |line| programs.extend(Program::parse(line)))
    })?;
    let result = timed("tests", &mut || {
        with_private_servers(|dir, env| {
            tests(std::mem::take(&mut programs), &dir.join("output"), env, &mut totals)
        })
    });
    for (name, time) in &times {
        println!("{name:>12}: {:>6} s", time.as_secs());
    }
    println!("{totals}");
    println!("{} tests in {} s", totals.run(), started.elapsed().as_secs());
    result
}

fn cargo_test(arguments: &[&str]) -> Result<Command> {
    let mut command = run::cargo(&["test", "--workspace", "--features", FAIL_POINTS])?;
    command.args(arguments);
    Ok(command)
}

fn tests(mut programs: Vec<Program>, output: &Path, env: &servers::Env, totals: &mut Totals) -> Result<()> {
    programs
        .push(Program { name: "examples in the documentation".to_owned(), command: cargo_test(&["--doc"])? });
    let bin_dir = paths::bin_dir(false)?;
    for program in &mut programs {
        program.command.envs(env).env("USAGE_BIN_DIR", &bin_dir);
        if std::env::var_os("RUST_TEST_THREADS").is_none() {
            program.command.env("RUST_TEST_THREADS", TESTS_AT_ONCE);
        }
    }
    let failed = programs::run_all(programs, output, totals)?;
    ensure!(failed.is_empty(), "tests failed in {}", failed.join(", "));
    ensure!(totals.run() > 0, "no test ran");
    Ok(())
}

/// Runs the work beside servers in a directory of this process; the directory goes afterwards, the logs stay on failure.
pub fn with_private_servers(work: impl FnOnce(&Path, &servers::Env) -> Result<()>) -> Result<()> {
    // Addresses of the stack that `up` started are in the environment when its env file was sourced: not for tests.
    let own = up::own_addresses(&State::load(&paths::stack())?);
    let preset = servers::foreign(servers::preset(), &own);
    let runs = paths::root().join("target/private");
    remove_stale(&runs)?;
    let dir = runs.join(std::process::id().to_string());
    let result = PrivateServers::start(&dir, preset).and_then(|servers| {
        let result = work(&dir, &servers.env);
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
