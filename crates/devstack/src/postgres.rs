//! The real Postgres server.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use nix::unistd::User;

use crate::install::postgres as install;
use crate::pgwire::Connection;
use crate::process::{Launch, Life, ProcessId, Server, children_of, nap, wait_until};
use crate::{cache, ports, probe};

const READY: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(20);
/// The role of the stack: it may create databases. Loopback connections are trusted.
const USER: &str = "usage";

/// A Postgres server with its data in one directory.
#[derive(Debug)]
pub struct Postgres {
    bin: PathBuf,
    dir: PathBuf,
    port: u16,
    life: Life,
    server: Server,
}

impl Postgres {
    /// Starts a server that ends with this process; the data of an earlier one in `dir` is kept.
    pub fn start(dir: &Path) -> Result<Self> {
        // SIGINT is Postgres' fast shutdown: its own children end with it.
        Self::start_as(dir, Life::Attached(Signal::SIGINT))
    }

    /// The same with the programs of the npm package, whatever version the distribution has: a second one for tests.
    pub fn start_packaged(dir: &Path) -> Result<Self> {
        let bin = install::packaged(&install::shared_cache()?)?;
        Self::start_from(bin, dir, Life::Attached(Signal::SIGINT))
    }

    /// Starts a server with the given life.
    pub fn start_as(dir: &Path, life: Life) -> Result<Self> {
        Self::start_from(install::bin_dir()?, dir, life)
    }

    fn start_from(bin: PathBuf, dir: &Path, life: Life) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let dir = dir.canonicalize()?;
        let data = data_dir(&dir)?;
        if !data.join("PG_VERSION").exists() {
            init(&bin, &data)?;
        }
        let [port] = ports::kept(&dir)?;
        let server = start(&bin, &dir, &data, port, life)?;
        Ok(Self { bin, dir, port, life, server })
    }

    /// Removes the directory of a server that has ended, with its data wherever that lies.
    pub fn purge(dir: &Path) -> Result<()> {
        let Ok(dir) = dir.canonicalize() else { return Ok(()) };
        for path in [outside(&dir), dir] {
            if path.exists() {
                fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// `postgres://usage:usage@127.0.0.1:PORT/DATABASE`.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        Self::address(self.port, database)
    }

    /// The same for a server that another process started.
    #[must_use]
    pub fn address(port: u16, database: &str) -> String {
        format!("postgres://{USER}:{USER}@127.0.0.1:{port}/{database}")
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id of the postmaster.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.id().pid
    }

    /// Id and start time of the postmaster.
    #[must_use]
    pub fn id(&self) -> ProcessId {
        self.server.id()
    }

    /// The log file.
    #[must_use]
    pub fn log(&self) -> &Path {
        self.server.log()
    }

    /// The user and group that the server runs as: who a directory for a tablespace has to belong to.
    pub fn owner(&self) -> Result<(u32, u32)> {
        let data = fs::metadata(data_dir(&self.dir)?)?;
        Ok((data.uid(), data.gid()))
    }

    /// Runs one statement outside of any transaction and gives its rows as text.
    pub fn query(&self, database: &str, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        Connection::open(self.port, USER, database, Duration::from_secs(10))?.query(sql)
    }

    /// Makes a database unless it is there.
    pub fn ensure_database(&self, name: &str) -> Result<()> {
        let found = self.query("postgres", &format!("SELECT 1 FROM pg_database WHERE datname = '{name}'"))?;
        if found.is_empty() {
            self.query("postgres", &format!("CREATE DATABASE \"{name}\""))?;
        }
        Ok(())
    }

    /// Kills the postmaster and all its backends at once, as a power cut would.
    pub fn kill9(&mut self) {
        // Each backend leads a session of its own and would go on until it notices.
        let backends = children_of(self.pid());
        self.server.kill9();
        for backend in &backends {
            let _ = backend.signal(Signal::SIGKILL);
        }
        wait_until(GRACE, || !backends.iter().any(|backend| backend.is_running()));
    }

    /// Starts it again on the same port and data; one that still runs is killed first.
    pub fn restart(&mut self) -> Result<()> {
        self.kill9();
        self.launch_again()
    }

    /// Postgres' immediate shutdown (SIGQUIT: no checkpoint, recovery at the next start), then a start.
    pub fn restart_immediate(&mut self) -> Result<()> {
        self.server.stop(Signal::SIGQUIT, GRACE)?;
        self.launch_again()
    }

    /// Stops it in order (fast shutdown: open transactions are rolled back).
    pub fn stop(mut self) -> Result<()> {
        self.server.stop(Signal::SIGINT, GRACE)
    }

    /// Freezes the postmaster and its backends (SIGSTOP).
    pub fn pause(&self) {
        // The postmaster first, so that no new backend comes.
        let _ = self.server.signal(Signal::SIGSTOP);
        self.signal_backends(Signal::SIGSTOP);
    }

    /// Lets frozen processes go on.
    pub fn resume(&self) {
        self.signal_backends(Signal::SIGCONT);
        let _ = self.server.signal(Signal::SIGCONT);
    }

    fn signal_backends(&self, signal: Signal) {
        for backend in children_of(self.pid()) {
            let _ = backend.signal(signal);
        }
    }

    fn launch_again(&mut self) -> Result<()> {
        self.server = start(&self.bin, &self.dir, &data_dir(&self.dir)?, self.port, self.life)?;
        Ok(())
    }
}

/// Launches the server and waits until it takes queries.
///
/// After a `kill -9` of a postmaster its backends live on for a moment, and a new one refuses to start beside them.
fn start(bin: &Path, dir: &Path, data: &Path, port: u16, life: Life) -> Result<Server> {
    let deadline = Instant::now() + GRACE;
    loop {
        let mut server = launch(bin, dir, data, port, life)?;
        let ready = probe::await_ready("Postgres", &mut server, READY, || {
            Connection::open(port, USER, "postgres", Duration::from_secs(2))?.query("SELECT 1").map(drop)
        });
        match ready {
            Ok(()) => return Ok(server),
            Err(error) if is_left_over(&error) && Instant::now() < deadline => {
                nap(Duration::from_millis(100))
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_left_over(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}");
    text.contains("pre-existing shared memory block")
        || text.contains("lock file \"postmaster.pid\" already exists")
}

/// Who runs the server: Postgres refuses to run as root.
fn unprivileged() -> Result<Option<User>> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(None);
    }
    for name in ["postgres", "nobody"] {
        if let Some(user) = User::from_name(name)? {
            return Ok(Some(user));
        }
    }
    anyhow::bail!("running as root, and there is no user postgres or nobody to run Postgres as")
}

fn run_as(command: &mut Command, user: Option<&User>) {
    if let Some(user) = user {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    // The directory that root stands in may be closed to that user.
    command.current_dir("/").env("LC_ALL", "C.UTF-8");
}

/// `DIR/data`; when an unprivileged user runs the server and some directory above is closed to it, a place under the
/// system's directory for temporary files that lasts as long.
fn data_dir(dir: &Path) -> Result<PathBuf> {
    let data = match unprivileged()? {
        Some(user) if !can_reach(dir, &user)? => outside(dir),
        _ => dir.join("data"),
    };
    Ok(data)
}

fn can_reach(dir: &Path, user: &User) -> Result<bool> {
    for path in dir.ancestors() {
        let meta = fs::metadata(path)?;
        let mode = meta.permissions().mode();
        let owns = meta.uid() == user.uid.as_raw() && mode & 0o100 != 0;
        if !owns && mode & 0o001 == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn outside(dir: &Path) -> PathBuf {
    use sha2::Digest as _;
    let hash = sha2::Sha256::digest(dir.as_os_str().as_encoded_bytes());
    let name: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    Path::new("/var/tmp").join(format!("usage-postgres-{name}"))
}

fn init(bin: &Path, data: &Path) -> Result<()> {
    if data.exists() {
        // initdb was killed before it wrote PG_VERSION, or it refuses a directory with remains.
        fs::remove_dir_all(data)?;
    }
    fs::create_dir_all(data)?;
    let user = unprivileged()?;
    if let Some(user) = &user {
        chown(data, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
    }
    let mut command = Command::new(bin.join("initdb"));
    command
        .args([
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-instructions",
            "--username",
            USER,
            "-D",
        ])
        .arg(data);
    run_as(&mut command, user.as_ref());
    cache::run_quietly(command).context("making Postgres' data directory")
}

fn launch(bin: &Path, dir: &Path, data: &Path, port: u16, life: Life) -> Result<Server> {
    let mut command = Command::new(bin.join("postgres"));
    command.arg("-D").arg(data).arg("-p").arg(port.to_string());
    for setting in SETTINGS {
        command.arg("-c").arg(setting);
    }
    run_as(&mut command, unprivileged()?.as_ref());
    Server::start(Launch { command, log: dir.join("postgres.log"), life })
}

/// Prepared transactions are for tests of writers that hang; fsync stays on because crash tests would prove nothing without.
const SETTINGS: [&str; 8] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=400",
    "max_prepared_transactions=20",
    "fsync=on",
    "shared_buffers=128MB",
    "log_min_messages=warning",
    "timezone=UTC",
];
