//! The stack that `cargo xtask up` started, as the demo sees it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::Signal;
use usage_access::SIGNING_FILE;
use usage_devstack::process::{Launch, Life, Server};

use super::{api, bins};
use crate::answers::Api;

/// How long one life of the second relay is.
const LIFE: Duration = Duration::from_secs(3);

fn stack_dir() -> PathBuf {
    std::env::var_os("USAGE_STACK_DIR").map_or_else(|| "target/stack".into(), PathBuf::from)
}

/// The stack's API, with tokens of the stack's key.
pub fn stack_api() -> anyhow::Result<Api> {
    let url = std::env::var("USAGE_API_URL").context("USAGE_API_URL is not set: run `cargo xtask demo`")?;
    api(url, &stack_dir().join("keys").join(SIGNING_FILE))
}

/// A second relay beside the stack's, killed with SIGKILL and started again every few seconds.
pub struct RelayAgain {
    stop: Sender<()>,
    thread: JoinHandle<usize>,
}

impl RelayAgain {
    pub fn start() -> anyhow::Result<Self> {
        let program = bins()?.join("usage-relay");
        let dir = stack_dir();
        let launch = move || {
            let mut command = Command::new(&program);
            command
                .arg("--config")
                .arg(dir.join("config/relay.toml"))
                .args(["--set", "telemetry.listen=127.0.0.1:0"]);
            let log = dir.join("logs/relay-again.log");
            Server::start(Launch { command, log, life: Life::Attached(Signal::SIGKILL) })
        };
        let mut relay = launch().context("can't start a second relay")?;
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut restarts = 0;
            while stopped.recv_timeout(LIFE) == Err(RecvTimeoutError::Timeout) {
                relay.kill9();
                match launch() {
                    Ok(started) => relay = started,
                    Err(_) => break,
                }
                restarts += 1;
            }
            relay.kill9();
            restarts
        });
        Ok(Self { stop, thread })
    }

    /// Ends it for good; how often it was restarted.
    pub fn stop(self) -> usize {
        // The thread may have ended by itself: then there is nobody to tell.
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}
