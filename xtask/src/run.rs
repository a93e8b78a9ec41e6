//! Programs that xtask runs in the foreground.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use usage_devstack::interrupt::{self, Foreground};
use usage_devstack::process::{self, Life};

use crate::paths;

/// `cargo` in the root of the checkout, into the target directory that xtask itself is in.
pub fn cargo(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.args(arguments).current_dir(paths::root()).env("CARGO_TARGET_DIR", paths::target()?);
    Ok(command)
}

/// Runs the program to its end; an error unless it succeeds. A signal to xtask goes on to it.
pub fn run(mut command: Command) -> Result<()> {
    let text = describe(&command);
    command.stdin(Stdio::null());
    let (mut child, foreground) = start(command)?;
    let status = child.wait()?;
    drop(foreground);
    interrupt::check()?;
    ensure!(status.success(), "`{text}` failed ({status})");
    Ok(())
}

/// Runs the program and hands each line of its standard output on; an error unless it succeeds.
pub fn run_lines(mut command: Command, mut line: impl FnMut(&str)) -> Result<()> {
    let text = describe(&command);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let (mut child, foreground) = start(command)?;
    let output = child.stdout.take().context("the output was not piped")?;
    for bytes in BufReader::new(output).split(b'\n') {
        line(&String::from_utf8_lossy(&bytes?));
    }
    let status = child.wait()?;
    drop(foreground);
    interrupt::check()?;
    ensure!(status.success(), "`{text}` failed ({status})");
    Ok(())
}

/// Runs the program with all its output in the file; says whether it succeeded.
pub fn run_into(mut command: Command, output: &Path) -> Result<bool> {
    let file = File::create(output).with_context(|| format!("making {}", output.display()))?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let (mut child, foreground) = start(command)?;
    let status = child.wait()?;
    drop(foreground);
    interrupt::check()?;
    Ok(status.success())
}

fn start(command: Command) -> Result<(Child, Foreground)> {
    interrupt::check()?;
    let text = describe(&command);
    let child = process::spawn(command, Life::Attached(Signal::SIGTERM))
        .with_context(|| format!("running `{text}`"))?;
    let foreground = Foreground::set(child.id());
    Ok((child, foreground))
}

/// Program and arguments as one would type them, without the directories of the program.
#[must_use]
pub fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program()).to_string_lossy().into_owned();
    let arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
    std::iter::once(name).chain(arguments).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_failure_names_program_and_status() {
        let error = run(shell("exit 7")).unwrap_err().to_string();
        assert_eq!(error, "`sh -c exit 7` failed (exit status: 7)");
        run(shell("exit 0")).unwrap();
    }

    #[test]
    fn lines_are_handed_on() {
        let mut lines = Vec::new();
        run_lines(shell("echo one; printf two"), |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(lines, ["one", "two"]);
        let error = run_lines(shell("exit 1"), |_| {}).unwrap_err().to_string();
        assert_eq!(error, "`sh -c exit 1` failed (exit status: 1)");
    }

    #[test]
    fn output_and_errors_go_into_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("output");
        assert!(!run_into(shell("echo one; echo two >&2; exit 1"), &file).unwrap());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\ntwo\n");
    }
}
