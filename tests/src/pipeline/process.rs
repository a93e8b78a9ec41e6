//! One process of the pipeline: started from a configuration file, watched, killed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::Signal;
use usage_devstack::process::{Launch, Life, Server};
use usage_devstack::{ports, probe};

/// How long a process may take until it is ready.
const READY: Duration = Duration::from_secs(300);
/// It has 10 s by its own clock; a busy machine may take longer to end it.
const STOP: Duration = Duration::from_secs(60);

/// A process of the pipeline; it ends with the test.
pub struct Process {
    server: Server,
    port: u16,
}

impl Process {
    /// Starts the program and waits until `/health/ready` answers 200.
    pub fn start(program: &Path, config: &Path, env: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let port = ports::free()?;
        let mut command = Command::new(program);
        command
            .arg("--config")
            .arg(config)
            .args(["--set", &format!("telemetry.listen=127.0.0.1:{port}")])
            .envs(env);
        let log = config.with_extension("log");
        let server = Server::start(Launch { command, log, life: Life::Attached(Signal::SIGKILL) })?;
        let mut process = Self { server, port };
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        probe::await_ready(&name, &mut process.server, READY, || {
            probe::http_ok(port, "/health/ready").map(drop)
        })?;
        Ok(process)
    }

    pub fn pid(&self) -> u32 {
        self.server.id().pid
    }

    /// The end of a process that nothing can prepare for.
    pub fn kill9(&mut self) {
        self.server.kill9();
    }

    /// SIGTERM, then the exit; killed after a minute.
    pub fn terminate(&mut self) -> anyhow::Result<()> {
        self.server.stop(Signal::SIGTERM, STOP)
    }

    /// Stops it in its tracks: SIGSTOP.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.server.signal(Signal::SIGSTOP).map(drop)
    }

    /// Lets it go on: SIGCONT.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.server.signal(Signal::SIGCONT).map(drop)
    }

    /// Its metrics as Prometheus reads them.
    pub fn metrics(&self) -> anyhow::Result<String> {
        probe::http_ok(self.port, "/metrics")
    }

    /// What it logged so far.
    pub fn log(&self) -> anyhow::Result<String> {
        std::fs::read_to_string(self.server.log()).context("can't read the log")
    }
}
