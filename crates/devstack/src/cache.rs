//! The user's cache of downloaded parts: verified, complete or absent, shared by all checkouts.
//!
//! `ROOT/NAME/VERSION/` appears by a rename after everything in it was checked, so a directory that is there is whole.
//! What a killed installation leaves is a `.tmp-` directory, which the next one removes.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::signal::Signal;
use sha2::{Digest as _, Sha256};

use crate::interrupt::{self, Foreground};
use crate::process::{self, Life};

/// The cache directory: `$XDG_CACHE_HOME/usage-collector`, else `~/.cache/usage-collector`.
pub fn root() -> Result<PathBuf> {
    root_from(env::var_os("XDG_CACHE_HOME").map(PathBuf::from), env::var_os("HOME").map(PathBuf::from))
}

fn root_from(xdg: Option<PathBuf>, home: Option<PathBuf>) -> Result<PathBuf> {
    let base = match xdg.filter(|path| path.is_absolute()) {
        Some(path) => path,
        None => {
            home.context("neither XDG_CACHE_HOME nor HOME is set: no place for downloads")?.join(".cache")
        }
    };
    Ok(base.join("usage-collector"))
}

/// The directory of a part. If it is not there, `fill` fills a new one, which then takes the name in one step.
/// Processes that ask at once wait for the first.
pub fn part(
    root: &Path,
    name: &str,
    version: &str,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let parent = root.join(name);
    let target = parent.join(version);
    if target.is_dir() {
        return Ok(target);
    }
    fs::create_dir_all(&parent).with_context(|| format!("making {}", parent.display()))?;
    let lock = File::create(parent.join(".lock"))?;
    lock.lock().with_context(|| format!("waiting for another installation of {name}"))?;
    if target.is_dir() {
        return Ok(target);
    }
    let temporary = parent.join(format!(".tmp-{version}"));
    if temporary.exists() {
        fs::remove_dir_all(&temporary)
            .with_context(|| format!("removing what is left in {}", temporary.display()))?;
    }
    fs::create_dir(&temporary)?;
    fill(&temporary).with_context(|| format!("installing {name} {version}"))?;
    fs::rename(&temporary, &target).with_context(|| format!("naming {}", target.display()))?;
    Ok(target)
}

/// Lower-case hex SHA-256 of a file; the bar, if any, moves by the bytes read.
pub fn sha256(path: &Path, bar: Option<&ProgressBar>) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        hash.update(&buffer[..count]);
        if let Some(bar) = bar {
            bar.inc(count as u64);
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Fails unless the file has that SHA-256.
pub fn verify(path: &Path, expected: &str) -> Result<()> {
    let bar = bytes_bar(&format!("checking {}", file_name(path)), fs::metadata(path)?.len());
    let found = sha256(path, Some(&bar))?;
    bar.finish_and_clear();
    ensure!(found == expected, "{} has SHA-256 {found}, expected {expected}", path.display());
    Ok(())
}

/// A tarball by its file name, downloaded by `download` into the given directory unless a good one is there.
/// A bad one that was left from before is fetched anew once; a bad fresh one is an error.
pub fn tarball(
    dir: &Path,
    name: &str,
    expected: &str,
    download: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    fs::create_dir_all(dir)?;
    let path = dir.join(name);
    if path.exists() {
        match verify(&path, expected) {
            Ok(()) => return Ok(path),
            Err(error) => {
                eprintln!("{error:#}: downloading it again");
                fs::remove_file(&path)?;
            }
        }
    }
    download(dir)?;
    ensure!(path.exists(), "the download did not leave {}", path.display());
    if let Err(error) = verify(&path, expected) {
        fs::remove_file(&path)?;
        return Err(error.context("the download is not what was pinned"));
    }
    Ok(path)
}

/// Unpacks members of a `.tgz` into a directory, without the first part of their paths.
pub fn unpack(tarball: &Path, into: &Path, members: &[&str]) -> Result<()> {
    let spinner = spinner(&format!("unpacking {}", file_name(tarball)));
    let mut command = Command::new("tar");
    command
        .arg("-xzf")
        .arg(tarball)
        .arg("-C")
        .arg(into)
        .arg("--strip-components=1")
        .arg("--no-same-owner")
        .args(members);
    let result = run_quietly(command);
    spinner.finish_and_clear();
    result
}

/// Runs a program; on failure the error has the end of what it printed.
pub fn run_quietly(mut command: Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = process::spawn(command, Life::Attached(Signal::SIGTERM))
        .with_context(|| format!("running {program}"))?;
    let foreground = Foreground::set(child.id());
    let output = child.wait_with_output()?;
    drop(foreground);
    interrupt::check()?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    bail!("{program} failed ({}):\n{}", output.status, lines[lines.len().saturating_sub(20)..].join("\n"))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A spinner with the time that went by, for work whose size is not known. Nothing is drawn when stderr is no terminal, so
/// the message is then printed as a line.
#[must_use]
pub fn spinner(message: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message.to_owned());
    if bar.is_hidden() {
        eprintln!("{message} …");
    }
    let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    bar.set_style(style);
    bar.enable_steady_tick(std::time::Duration::from_millis(120));
    bar
}

fn bytes_bar(message: &str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style).with_message(message.to_owned())
}

#[cfg(test)]
mod tests;
