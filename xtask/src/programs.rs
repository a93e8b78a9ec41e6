//! The test programs that cargo built, run several at once.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use serde::Deserialize;

use crate::run;
use crate::totals::Totals;

/// Programs that leave the cores little rest, the longest first. One after the other, beside those that mostly wait for
/// leases and sessions to end.
const BUSY: [&str; 7] = [
    "consumer zombies",
    "tests chaos",
    "consumer kills",
    "tests growing",
    "storage clickhouse",
    "query-api http",
    "consumer crash",
];

/// A program that tests.
#[derive(Debug)]
pub struct Program {
    /// Directory of the package and target: `consumer zombies`.
    pub name: String,
    /// How it is run.
    pub command: Command,
}

#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl Program {
    /// From one line of `cargo test --no-run --message-format=json`; `None` if it tells of anything but a test program.
    pub fn parse(line: &str) -> Option<Self> {
        // Messages of other kinds lack these fields.
        let artifact: Artifact = serde_json::from_str(line).ok()?;
        let executable = artifact.executable.filter(|_| artifact.profile.test)?;
        let package = artifact.manifest_path.parent()?;
        let name = format!("{} {}", package.file_name()?.to_string_lossy(), artifact.target.name);
        let mut command = Command::new(executable);
        // As cargo would run it.
        command.current_dir(package).env("CARGO_MANIFEST_DIR", package);
        Some(Self { name, command })
    }

    fn rank(&self) -> usize {
        BUSY.iter().position(|busy| *busy == self.name).unwrap_or(BUSY.len())
    }
}

/// Runs all of them, two at once, whatever fails, and shows what each printed when it has ended; until then it is in a file
/// of the directory. The names of those that failed come back.
pub fn run_all(mut programs: Vec<Program>, directory: &Path, totals: &mut Totals) -> Result<Vec<String>> {
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    programs.sort_by_key(Program::rank);
    let waiting = Mutex::new(VecDeque::from(programs));
    let mut failed = Vec::new();
    let results = Mutex::new((totals, &mut failed));
    let lane = |next: fn(&mut VecDeque<Program>) -> Option<Program>| -> Result<()> {
        loop {
            let Some(Program { name, command }) = next(&mut locked(&waiting)) else { return Ok(()) };
            println!("     running {name}");
            let begin = Instant::now();
            let file = directory.join(name.replace(' ', "-"));
            let passed = run::run_into(command, &file)?;
            let output = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
            // Held while it is shown: no other program's output comes between.
            let mut results = locked(&results);
            for line in String::from_utf8_lossy(&output).lines() {
                println!("{line}");
                results.0.read(line);
            }
            let how = if passed { "passed" } else { "FAILED" };
            println!("      {how} {name}: {} s\n", begin.elapsed().as_secs());
            if !passed {
                results.1.push(name);
            }
        }
    };
    thread::scope(|scope| {
        let lane = &lane;
        let waits = scope.spawn(move || lane(VecDeque::pop_back));
        let busy = lane(VecDeque::pop_front);
        busy.and(waits.join().unwrap_or_else(|_| Err(anyhow!("a thread that runs tests panicked"))))
    })?;
    Ok(failed)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Program {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Program { name: name.to_owned(), command }
    }

    fn message(executable: &str, test: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"path+file:///w/consumer#usage-consumer@0.1.0",
            "manifest_path":"/w/consumer/Cargo.toml","target":{{"kind":["test"],"name":"zombies"}},
            "profile":{{"opt_level":"0","test":{test}}},"features":[],"executable":{executable},"fresh":true}}"#
        )
    }

    #[test]
    fn test_programs_are_found_among_cargos_messages() {
        let program = Program::parse(&message(r#""/w/target/debug/deps/zombies-1f""#, true)).unwrap();
        assert_eq!(program.name, "consumer zombies");
        assert_eq!(program.command.get_program(), "/w/target/debug/deps/zombies-1f");
        assert_eq!(program.command.get_current_dir(), Some(Path::new("/w/consumer")));
        let others =
            [message("null", true), message(r#""/w/target/debug/usage-consumer""#, false), "{}".to_owned()];
        for other in others {
            assert!(Program::parse(&other).is_none(), "{other}");
        }
    }

    #[test]
    fn every_program_runs_and_those_that_failed_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let result = |counts: &str| format!("echo 'test result: {counts}; 0 ignored; 0 measured'");
        let programs = vec![
            shell("a unit", &result("ok. 3 passed; 0 failed")),
            shell("b unit", &format!("{}; exit 101", result("FAILED. 1 passed; 1 failed"))),
            // Ends before it can say anything.
            shell("c unit", "kill -ABRT $$"),
            shell("d unit", &result("ok. 5 passed; 0 failed")),
        ];
        let mut totals = Totals::default();
        let mut failed = run_all(programs, dir.path(), &mut totals).unwrap();
        failed.sort();
        assert_eq!(failed, ["b unit", "c unit"]);
        assert_eq!(totals.to_string(), "9 passed, 1 failed, 0 skipped");
        assert!(fs::read_to_string(dir.path().join("d-unit")).unwrap().contains("5 passed"));
    }

    #[test]
    fn a_program_waits_for_no_other_while_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Each end of the pipe opens only while the other does; alone it would wait for ever.
        let end =
            |name: &str, verb: &str| shell(name, &format!("timeout 20 sh -c '{verb} {}'", path.display()));
        let (writes, reads) = (end("writes", "echo x >"), end("reads", "read x <"));
        let failed = run_all(vec![writes, reads], &dir.path().join("out"), &mut Totals::default()).unwrap();
        assert!(failed.is_empty(), "{failed:?}");
    }
}
