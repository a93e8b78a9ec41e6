//! `cargo xtask up`: the whole system on this machine.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context as _, Result, anyhow};
use nix::sys::signal::Signal;
use usage_devstack::install::apt;
use usage_devstack::process::{Life, ProcessId, Server};
use usage_devstack::stack::start_postgres;
use usage_devstack::{ClickHouse, Kafka, Postgres, env_file};

use crate::prepare::{self, Prepared};
use crate::servers::{self, CLICKHOUSE, Env, KAFKA};
use crate::services::{self, SERVICES};
use crate::state::{Part, State};
use crate::{paths, run};

/// The API's address.
pub const API: &str = "USAGE_API_URL";

/// Where `usagectl token` finds the key, from whatever directory it is called.
const TOKEN_KEY: &str = "USAGE_TOKEN_KEY_FILE";
/// Where it finds the key under which the sources' keys are sealed.
const MASTER_KEY: &str = "USAGE_CONTROL_DATABASE_MASTER_KEY_FILE";

/// A tenant for the example that is printed.
const EXAMPLE: &str = "6f1c2d34-0000-4000-8000-000000000001";

/// The stack while xtask itself holds it. Parts that live as long as xtask end when this is dropped.
#[derive(Debug)]
pub struct Up {
    /// Whether something of it ran before.
    pub ran_before: bool,
    /// The variables of the env file.
    pub env: Env,
    usagectl: PathBuf,
    kafka: Option<Kafka>,
    clickhouse: Option<ClickHouse>,
    postgres: Option<Postgres>,
    services: Vec<Server>,
}

/// How to bring the stack up.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Services built with `--release`.
    pub release: bool,
    /// Whether the parts end with xtask; otherwise they stay until `down`.
    pub attached: bool,
    /// Packages to build beside the services'.
    pub packages: &'static [&'static str],
}

/// Starts what does not run; returns when everything is ready.
pub fn up(options: Options) -> Result<Up> {
    let dir = paths::stack();
    fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    let lock = File::create(dir.join("lock"))?;
    lock.lock().context("waiting for another xtask that works on the stack")?;
    link_logs(&dir)?;
    build(options)?;
    let mut state = State::load(&dir)?;
    let mut this = Up {
        ran_before: state.any_running(),
        env: Env::new(),
        usagectl: paths::bin_dir(options.release)?.join("usagectl"),
        kafka: None,
        clickhouse: None,
        postgres: None,
        services: Vec::new(),
    };
    let preset = servers::foreign(servers::preset(), &own_addresses(&state));
    let started = this.start_servers(&mut state, &preset, options);
    // Before anything else can fail: `down` must know what runs.
    state.save(&dir)?;
    started?;
    this.env = own_addresses(&state);
    this.env.extend(preset);
    this.env.insert(TOKEN_KEY, prepare::signing_key(&dir).to_string_lossy().into_owned());
    this.env.insert(MASTER_KEY, prepare::master_key(&dir).to_string_lossy().into_owned());
    let prepared = prepare::run(&dir, &paths::bin_dir(options.release)?, &this.env)?;
    this.start_services(&mut state, &prepared, options)?;
    env_file::write(&dir.join("env"), &this.env)?;
    this.summary(&state);
    Ok(this)
}

impl Up {
    fn start_servers(&mut self, state: &mut State, preset: &Env, options: Options) -> Result<()> {
        let dir = paths::stack();
        let missing = |name: &str, needed: bool| {
            if !needed {
                say(name, "preset, not started");
            } else if state.running(name).is_some() {
                say(name, "already running");
            }
            needed && state.running(name).is_none()
        };
        let [kafka, clickhouse, postgres] = servers::needed(preset);
        let (kafka, clickhouse, postgres) =
            (missing("kafka", kafka), missing("clickhouse", clickhouse), missing("postgres", postgres));
        let life = |signal| if options.attached { Life::Attached(signal) } else { Life::Detached };
        let (kafka, clickhouse, postgres) = thread::scope(|scope| {
            let (dir, life) = (&dir, &life);
            let kafka = kafka
                .then(|| scope.spawn(move || Kafka::start_as(&dir.join("kafka"), life(Signal::SIGKILL))));
            let clickhouse = clickhouse.then(|| {
                scope.spawn(move || ClickHouse::start_as(&dir.join("clickhouse"), life(Signal::SIGKILL)))
            });
            let postgres = postgres
                .then(|| scope.spawn(move || start_postgres(&dir.join("postgres"), life(Signal::SIGINT))));
            (kafka.map(joined), clickhouse.map(joined), postgres.map(joined))
        });
        let mut failed = Vec::new();
        self.kafka = kept(kafka, &mut failed);
        self.clickhouse = kept(clickhouse, &mut failed);
        self.postgres = kept(postgres, &mut failed);
        if let Some(kafka) = &self.kafka {
            started(state, self.ran_before, "kafka", kafka.id(), vec![kafka.port()]);
        }
        if let Some(clickhouse) = &self.clickhouse {
            let ports = vec![clickhouse.http_port(), clickhouse.tcp_port()];
            started(state, self.ran_before, "clickhouse", clickhouse.id(), ports);
        }
        if let Some(postgres) = &self.postgres {
            started(state, self.ran_before, "postgres", postgres.id(), vec![postgres.port()]);
        }
        failed.into_iter().next().map_or(Ok(()), Err)
    }

    fn start_services(&mut self, state: &mut State, prepared: &Prepared, options: Options) -> Result<()> {
        let dir = paths::stack();
        let life = if options.attached { Life::Attached(Signal::SIGKILL) } else { Life::Detached };
        let mut waiting = Vec::new();
        for service in &SERVICES {
            if state.running(service.name).is_some() {
                say(service.name, "already running");
                continue;
            }
            let ports = services::ports(service, state.parts.get(service.name))?;
            let server =
                services::start(service, &dir, &paths::bin_dir(options.release)?, prepared, &ports, life)?;
            started(state, self.ran_before, service.name, server.id(), ports.clone());
            state.save(&dir)?;
            waiting.push((service, server, ports));
        }
        for (service, mut server, ports) in waiting {
            services::await_ready(service, &mut server, &ports)?;
            self.services.push(server);
        }
        if let Some(api) = state.parts.get("query-api").and_then(|part| part.ports.get(1)) {
            self.env.insert(API, format!("http://127.0.0.1:{api}"));
        }
        Ok(())
    }

    fn summary(&self, state: &State) {
        println!();
        for (name, part) in &state.parts {
            println!("{name:>12}  pid {:<8} log {}", part.process.pid, part.log.display());
        }
        println!();
        for (name, value) in &self.env {
            println!("  {name}={value}");
        }
        let env = paths::stack().join("env");
        println!("\nall of these: . {}\nfor example:", env.display());
        println!(
            "  psql \"$USAGE_SOURCE_DATABASE_URL\" -c \"SELECT usage_emit('{EXAMPLE}', 'llm.requests', 1, 'first')\""
        );
        println!(
            "  curl -H \"Authorization: Bearer $({} token --tenant {EXAMPLE})\" \\",
            self.usagectl.display()
        );
        println!("       \"$USAGE_API_URL/v1/usage/raw?from=2026-01-01T00:00:00Z&to=2099-01-01T00:00:00Z\"");
    }
}

/// The servers keep their logs beside their data; all logs are to be found in one directory.
fn link_logs(dir: &Path) -> Result<()> {
    let logs = dir.join("logs");
    fs::create_dir_all(&logs).with_context(|| format!("making {}", logs.display()))?;
    for name in ["kafka", "clickhouse", "postgres"] {
        let link = logs.join(format!("{name}.log"));
        match symlink(format!("../{name}/{name}.log"), &link) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("linking {}", link.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Tools without which the services cannot be compiled.
pub fn build_tools() -> Result<()> {
    let mut tools = apt::BUILD_TOOLS.to_vec();
    tools.push(apt::PKG_CONFIG);
    apt::ensure(&tools)
}

fn build(options: Options) -> Result<()> {
    build_tools()?;
    println!("building the services");
    let mut command = run::cargo(&["build", "--bins"])?;
    for package in services::PACKAGES.iter().chain(options.packages) {
        command.args(["--package", package]);
    }
    if options.release {
        command.arg("--release");
    }
    run::run(command)
}

/// Addresses of the servers that `up` started, running or not.
#[must_use]
pub fn own_addresses(state: &State) -> Env {
    let port = |name: &str| state.parts.get(name).and_then(|part| part.ports.first()).copied();
    let mut env = Env::new();
    env.extend(port("kafka").map(|port| (KAFKA, Kafka::address(port))));
    env.extend(port("clickhouse").map(|port| (CLICKHOUSE, ClickHouse::address(port))));
    if let Some(port) = port("postgres") {
        env.extend(servers::database_urls(|name| Postgres::address(port, name)));
    }
    env
}

/// Notes a started part. In a stack of which something ran, it is one that had ended.
fn started(state: &mut State, again: bool, name: &str, process: ProcessId, ports: Vec<u16>) {
    let log = paths::stack().join("logs").join(format!("{name}.log"));
    state.parts.insert(name.to_owned(), Part { process, ports, log });
    say(name, if again { "was not running: started again" } else { "started" });
}

fn say(name: &str, what: &str) {
    println!("{name:>12}  {what}");
}

fn kept<T>(result: Option<Result<T>>, failed: &mut Vec<anyhow::Error>) -> Option<T> {
    match result? {
        Ok(value) => Some(value),
        Err(error) => {
            failed.push(error);
            None
        }
    }
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err(anyhow!("a starting thread panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(ports: &[u16]) -> Part {
        Part { process: ProcessId { pid: 1, start_ticks: 1 }, ports: ports.to_vec(), log: "x".into() }
    }

    #[test]
    fn addresses_follow_from_the_state() {
        let mut state = State::default();
        assert!(own_addresses(&state).is_empty());
        state.parts.insert("kafka".to_owned(), part(&[1]));
        state.parts.insert("clickhouse".to_owned(), part(&[2, 3]));
        state.parts.insert("postgres".to_owned(), part(&[4]));
        state.parts.insert("consumer".to_owned(), part(&[5]));
        let env = own_addresses(&state);
        assert_eq!(env[KAFKA], "127.0.0.1:1");
        assert_eq!(env[CLICKHOUSE], "http://127.0.0.1:2");
        assert_eq!(env[servers::CONTROL], "postgres://usage:usage@127.0.0.1:4/usage_control");
        assert_eq!(env[servers::SOURCE], "postgres://usage:usage@127.0.0.1:4/usage_source");
        assert_eq!(env.len(), 4);
    }

    #[test]
    fn the_servers_logs_are_found_beside_the_others() {
        let dir = tempfile::tempdir().unwrap();
        link_logs(dir.path()).unwrap();
        link_logs(dir.path()).unwrap();
        fs::create_dir_all(dir.path().join("kafka")).unwrap();
        fs::write(dir.path().join("kafka/kafka.log"), "said").unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("logs/kafka.log")).unwrap(), "said");
    }
}
