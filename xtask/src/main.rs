//! `cargo xtask`: the commands that work on the whole checkout. Needs no C library and builds in seconds.

mod args;
mod bench;
mod chaos;
mod demo;
mod disk;
mod down;
mod paths;
mod prepare;
mod programs;
mod run;
mod servers;
mod services;
mod state;
mod test;
mod totals;
mod up;

use std::process::ExitCode;

use anyhow::Result;
use usage_devstack::install::apt;
use usage_devstack::interrupt;

use args::Command;

fn main() -> ExitCode {
    let command = match args::parse(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("{error}\n\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if interrupt::came() => {
            eprintln!("interrupted: everything that was started is stopped");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    if command == Command::Help {
        println!("{}", args::USAGE);
        return Ok(());
    }
    interrupt::handle()?;
    match command {
        Command::Up { release } => up::up(up::Options { release, attached: false, packages: &[] }).map(drop),
        Command::Down { purge } => down::down(purge),
        Command::Demo { keep, rest } => demo::demo(keep, &rest),
        Command::Test => test::test(),
        Command::Bench { name, rest } => bench::bench(&name, &rest),
        Command::Chaos { release, rest } => chaos::chaos(release, &rest),
        Command::Ci => ci(),
        Command::Help => Ok(()),
    }
}

/// Tests, then licences and advisories where cargo-deny is installed.
fn ci() -> Result<()> {
    test::test()?;
    if apt::on_path("cargo-deny").is_none() {
        println!("cargo-deny is not installed: licences were not checked (cargo install cargo-deny)");
        return Ok(());
    }
    run::run(run::cargo(&["deny", "check", "licenses", "bans", "sources"])?)
}
