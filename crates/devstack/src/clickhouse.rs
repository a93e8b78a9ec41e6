//! The real ClickHouse server.
//!
//! One thing differs from a server that was installed as such: `clickhouse local` ends its process when a connection's thread
//! throws before it has a request, that is when a client resets the connection inside the head of a request or sends what is
//! not HTTP and resets (measured; broken bodies, aborted queries and closed connections do no harm). A test that does such
//! things on purpose has to start it again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use crate::install::clickhouse as install;
use crate::process::{Launch, Life, ProcessId, Server};
use crate::{ports, probe};

const READY: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(20);
/// Listens until standard input ends.
const SERVE: &str = "SYSTEM START LISTEN HTTP; SYSTEM START LISTEN TCP; SELECT count() FROM file('stdin','LineAsString','l String')";

/// A ClickHouse server with its data in one directory.
#[derive(Debug)]
pub struct ClickHouse {
    dir: PathBuf,
    http: u16,
    tcp: u16,
    life: Life,
    environment: Vec<(String, String)>,
    server: Server,
}

impl ClickHouse {
    /// Starts a server that ends with this process; the data of an earlier one in `dir` is kept.
    pub fn start(dir: &Path) -> Result<Self> {
        Self::start_as(dir, Life::Attached(Signal::SIGKILL))
    }

    /// Starts a server with the given life.
    pub fn start_as(dir: &Path, life: Life) -> Result<Self> {
        Self::launch(dir, life, Vec::new())
    }

    /// Starts a server that ends with this process, with additional variables in its environment, also at each restart.
    pub fn start_with(dir: &Path, environment: Vec<(String, String)>) -> Result<Self> {
        Self::launch(dir, Life::Attached(Signal::SIGKILL), environment)
    }

    fn launch(dir: &Path, life: Life, environment: Vec<(String, String)>) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let dir = dir.canonicalize()?;
        fs::write(dir.join("config.xml"), CONFIG.replace("{dir}", &dir.display().to_string()))?;
        fs::write(dir.join("users.xml"), USERS)?;
        let [http, tcp] = ports::kept(&dir)?;
        let server = launch(&dir, http, tcp, life, &environment)?;
        let mut this = Self { dir, http, tcp, life, environment, server };
        this.await_ready()?;
        Ok(this)
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        Self::address(self.http)
    }

    /// `http://127.0.0.1:PORT` of a server that another process started.
    #[must_use]
    pub fn address(port: u16) -> String {
        format!("http://127.0.0.1:{port}")
    }

    /// The port of the HTTP interface.
    #[must_use]
    pub fn http_port(&self) -> u16 {
        self.http
    }

    /// The port of the native protocol.
    #[must_use]
    pub fn tcp_port(&self) -> u16 {
        self.tcp
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.id().pid
    }

    /// Id and start time of the process.
    #[must_use]
    pub fn id(&self) -> ProcessId {
        self.server.id()
    }

    /// The log file.
    #[must_use]
    pub fn log(&self) -> &Path {
        self.server.log()
    }

    /// Kills it at once, as a crash of the machine's process would.
    pub fn kill9(&mut self) {
        self.server.kill9();
    }

    /// Starts it again on the same ports and data; one that still runs is killed first.
    pub fn restart(&mut self) -> Result<()> {
        self.server.kill9();
        self.server = launch(&self.dir, self.http, self.tcp, self.life, &self.environment)?;
        self.await_ready()
    }

    /// Stops it in order, with everything written.
    pub fn stop(mut self) -> Result<()> {
        self.server.stop(Signal::SIGTERM, GRACE)
    }

    /// Freezes the process (SIGSTOP): connections stay open and nothing answers.
    pub fn pause(&self) {
        let _ = self.server.signal(Signal::SIGSTOP);
    }

    /// Lets a frozen process go on.
    pub fn resume(&self) {
        let _ = self.server.signal(Signal::SIGCONT);
    }

    fn await_ready(&mut self) -> Result<()> {
        let port = self.http;
        probe::await_ready("ClickHouse", &mut self.server, READY, || {
            // An ordinary query, so that users and profiles have been read too.
            let answer = probe::http_ok(port, "/?query=SELECT%201")?;
            ensure!(answer.trim() == "1", "SELECT 1 gave {answer:?}");
            Ok(())
        })
    }
}

fn launch(dir: &Path, http: u16, tcp: u16, life: Life, environment: &[(String, String)]) -> Result<Server> {
    // The program keeps the definitions of the system's log tables in memory only and then trips over their data.
    let logs_of_before = dir.join("data/data/system");
    if logs_of_before.exists() {
        fs::remove_dir_all(&logs_of_before)
            .with_context(|| format!("removing {}", logs_of_before.display()))?;
    }
    let library = install::library()?;
    let mut command = Command::new(install::launcher()?);
    command.current_dir(dir).envs(environment.iter().cloned()).arg(library);
    command.arg("--config-file").arg(dir.join("config.xml")).arg("--path").arg(dir.join("data"));
    command.args(["--listen_host", "127.0.0.1", "--log-level", "warning"]);
    command.args(["--http_port", &http.to_string(), "--tcp_port", &tcp.to_string()]);
    command.args(["--multiquery", "--query", SERVE]);
    Server::start(Launch { command, log: dir.join("clickhouse.log"), life })
}

/// - `system.query_log` and `part_log` are off unless named; benches and tests read them.
/// - The program would give the schedule pool as many threads as there are cores; with 2 it pauses merges' planning all the time.
/// - `<logger>` is what makes it log at all; the level is an argument.
const CONFIG: &str = r#"<clickhouse>
  <users_config>{dir}/users.xml</users_config>
  <logger><console>1</console></logger>
  <background_schedule_pool_size>16</background_schedule_pool_size>
  <mark_cache_size>67108864</mark_cache_size>
  <query_log><database>system</database><table>query_log</table><flush_interval_milliseconds>2000</flush_interval_milliseconds></query_log>
  <part_log><database>system</database><table>part_log</table><flush_interval_milliseconds>2000</flush_interval_milliseconds></part_log>
</clickhouse>
"#;

/// `http_receive_timeout` counts only in the default profile: with 5 s a half-sent insert can be killed in 5 s instead of 30.
/// The lower the number, the higher a query's priority.
const USERS: &str = include_str!("../clickhouse-users.xml");
