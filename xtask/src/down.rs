//! `cargo xtask down`: ends what `up` started.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use usage_devstack::stack::purge;

use crate::paths;
use crate::services::SERVICES;
use crate::state::State;

const GRACE: Duration = Duration::from_secs(15);

/// Stops services, then servers; `purge` removes all data.
pub fn down(purge_data: bool) -> Result<()> {
    let dir = paths::stack();
    if !dir.exists() {
        println!("nothing is up");
        return Ok(());
    }
    let lock = File::create(dir.join("lock"))?;
    lock.lock().context("waiting for another xtask that works on the stack")?;
    let state = State::load(&dir)?;
    let services = SERVICES.iter().rev().map(|service| (service.name, Signal::SIGTERM));
    // SIGINT is Postgres' fast shutdown; with SIGTERM it would wait for its clients.
    let servers = [("kafka", Signal::SIGTERM), ("clickhouse", Signal::SIGTERM), ("postgres", Signal::SIGINT)];
    let mut ended = 0;
    for (name, signal) in services.chain(servers) {
        let Some(part) = state.parts.get(name) else { continue };
        if part.process.end(signal, GRACE)? {
            ended += 1;
            println!("{name:>12}  stopped");
        } else {
            println!("{name:>12}  was not running");
        }
    }
    if ended == 0 {
        println!("nothing was running");
    }
    if purge_data {
        purge(&dir)?;
        println!("removed {}", dir.display());
        return Ok(());
    }
    // The state stays, so that the next `up` takes the same ports.
    match fs::remove_file(dir.join("env")) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).context("removing the env file"),
        _ => Ok(()),
    }
}
