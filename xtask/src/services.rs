//! The services of the stack: their programs, ports and configuration files.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use usage_devstack::process::{Launch, Life, Server};
use usage_devstack::{ports, probe};

use crate::prepare::Prepared;
use crate::state::Part;

/// Packages whose programs `up` needs; that of usage-devstack starts ClickHouse.
pub const PACKAGES: [&str; 5] =
    ["usage-devstack", "usagectl", "usage-producer", "usage-consumer", "usage-query-api"];

const READY: Duration = Duration::from_secs(60);

/// One process of the system.
#[derive(Debug)]
pub struct Service {
    /// How the stack calls it.
    pub name: &'static str,
    /// Its program in cargo's target directory.
    pub program: &'static str,
    /// Telemetry first, then the API if it has one.
    pub ports: usize,
    /// The configuration file.
    config: fn(&Prepared, &[u16]) -> String,
}

/// In the order in which they are started; stopped in the opposite one.
pub const SERVICES: [Service; 3] = [
    Service { name: "consumer", program: "usage-consumer", ports: 1, config: consumer },
    Service { name: "query-api", program: "usage-query-api", ports: 2, config: query_api },
    Service { name: "relay", program: "usage-relay", ports: 1, config: relay },
];

/// The ports it had before if they are free, else new ones.
pub fn ports(service: &Service, before: Option<&Part>) -> Result<Vec<u16>> {
    if let Some(part) = before
        && part.ports.len() == service.ports
        && ports::take(&part.ports)?
    {
        return Ok(part.ports.clone());
    }
    (0..service.ports).map(|_| ports::free()).collect()
}

/// Writes its configuration and starts it.
pub fn start(
    service: &Service,
    dir: &Path,
    bin: &Path,
    prepared: &Prepared,
    ports: &[u16],
    life: Life,
) -> Result<Server> {
    let config = dir.join("config").join(format!("{}.toml", service.name));
    fs::create_dir_all(dir.join("config"))?;
    fs::write(&config, (service.config)(prepared, ports))
        .with_context(|| format!("writing {}", config.display()))?;
    let mut command = Command::new(bin.join(service.program));
    command.arg("--config").arg(&config).current_dir(dir);
    // What is per process must come from its own file.
    for variable in ["USAGE_TELEMETRY_LISTEN", "USAGE_API_LISTEN"] {
        command.env_remove(variable);
    }
    let log = dir.join("logs").join(format!("{}.log", service.name));
    Server::start(Launch { command, log, life })
}

/// Waits until it says that it is ready.
pub fn await_ready(service: &Service, server: &mut Server, ports: &[u16]) -> Result<()> {
    let telemetry = ports[0];
    probe::await_ready(service.name, server, READY, || probe::http_ok(telemetry, "/health/ready").map(drop))
}

fn consumer(prepared: &Prepared, ports: &[u16]) -> String {
    let control = prepared.control_database_with_keys();
    [telemetry(ports[0]), prepared.kafka(), prepared.clickhouse(), control].concat()
}

fn query_api(prepared: &Prepared, ports: &[u16]) -> String {
    [telemetry(ports[0]), prepared.api(ports[1]), prepared.clickhouse(), prepared.control_database()].concat()
}

fn relay(prepared: &Prepared, ports: &[u16]) -> String {
    [telemetry(ports[0]), prepared.kafka(), prepared.source_database(), prepared.relay()].concat()
}

fn telemetry(port: u16) -> String {
    format!("[telemetry]\nlisten = \"127.0.0.1:{port}\"\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use usage_devstack::process::ProcessId;

    fn part(ports: Vec<u16>) -> Part {
        Part { process: ProcessId { pid: 1, start_ticks: 1 }, ports, log: "x".into() }
    }

    #[test]
    fn ports_are_kept_while_they_are_free() {
        let service = &SERVICES[1];
        let first = ports(service, None).unwrap();
        assert_eq!(first.len(), 2);
        assert_ne!(first[0], first[1]);
        assert_eq!(ports(service, Some(&part(first.clone()))).unwrap(), first);
        let taken = std::net::TcpListener::bind(("127.0.0.1", first[1])).unwrap();
        assert_ne!(ports(service, Some(&part(first.clone()))).unwrap(), first);
        drop(taken);
        // A part of another shape: written by an older xtask.
        assert_eq!(ports(service, Some(&part(vec![first[0]]))).unwrap().len(), 2);
    }
}
