//! `devstack-hold DIR ENV_FILE`: starts the three servers, writes their addresses, and holds them until a signal comes.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use usage_devstack::{Stack, env_file, interrupt, process};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    interrupt::handle()?;
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let usage = "usage: devstack-hold DIR ENV_FILE";
    let dir = arguments.next().context(usage)?;
    let env = arguments.next().context(usage)?;
    let stack = Stack::start(&dir)?;
    env_file::write(&env, &stack.env())?;
    eprintln!("ready: {}", env.display());
    while !interrupt::came() {
        process::nap(Duration::from_millis(100));
    }
    stack.stop()
}
