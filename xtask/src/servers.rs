//! The three servers: preset ones are used, the others started.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;
use std::thread;

use anyhow::{Result, anyhow};
use nix::sys::signal::Signal;
use usage_devstack::process::Life;
use usage_devstack::stack::{CONTROL_DATABASE, SOURCE_DATABASE, start_postgres};
use usage_devstack::{ClickHouse, Kafka, Postgres};

/// Variables with the addresses of the servers.
pub const KAFKA: &str = "USAGE_KAFKA_BROKERS";
/// ClickHouse over HTTP.
pub const CLICKHOUSE: &str = "USAGE_CLICKHOUSE_URL";
/// The control database.
pub const CONTROL: &str = "USAGE_CONTROL_DATABASE_URL";
/// The source's database.
pub const SOURCE: &str = "USAGE_SOURCE_DATABASE_URL";

/// Values of `USAGE_…` variables by name.
pub type Env = BTreeMap<&'static str, String>;

/// Addresses of the servers that the caller's environment names.
#[must_use]
pub fn preset() -> Env {
    let value =
        |name: &'static str| env::var(name).ok().filter(|value| !value.is_empty()).map(|value| (name, value));
    [KAFKA, CLICKHOUSE, CONTROL, SOURCE].into_iter().filter_map(value).collect()
}

/// Without what is only our own stack's address, sourced from its env file: that part must be started if it is down.
#[must_use]
pub fn foreign(preset: Env, own: &Env) -> Env {
    preset.into_iter().filter(|(name, value)| own.get(name) != Some(value)).collect()
}

/// Which servers must be started when these are preset: Kafka, ClickHouse, Postgres.
#[must_use]
pub fn needed(preset: &Env) -> [bool; 3] {
    let databases = preset.contains_key(CONTROL) && preset.contains_key(SOURCE);
    [!preset.contains_key(KAFKA), !preset.contains_key(CLICKHOUSE), !databases]
}

/// The databases' addresses in a Postgres on that port.
pub fn database_urls(url: impl Fn(&str) -> String) -> [(&'static str, String); 2] {
    [(CONTROL, url(CONTROL_DATABASE)), (SOURCE, url(SOURCE_DATABASE))]
}

/// Servers of one run, which end with it.
#[derive(Debug)]
pub struct PrivateServers {
    kafka: Option<Kafka>,
    clickhouse: Option<ClickHouse>,
    postgres: Option<Postgres>,
    /// Addresses of preset and of own servers.
    pub env: Env,
}

impl PrivateServers {
    /// Starts what is not preset, all at once.
    pub fn start(dir: &Path, preset: Env) -> Result<Self> {
        let [kafka, clickhouse, postgres] = needed(&preset);
        let (kafka, clickhouse, postgres) = thread::scope(|scope| {
            let kafka = kafka.then(|| scope.spawn(|| Kafka::start(&dir.join("kafka"))));
            let clickhouse = clickhouse.then(|| scope.spawn(|| ClickHouse::start(&dir.join("clickhouse"))));
            let start = || start_postgres(&dir.join("postgres"), Life::Attached(Signal::SIGINT));
            let postgres = postgres.then(|| scope.spawn(start));
            (kafka.map(joined), clickhouse.map(joined), postgres.map(joined))
        });
        let (kafka, clickhouse, postgres) =
            (kafka.transpose()?, clickhouse.transpose()?, postgres.transpose()?);
        let mut env = Env::new();
        env.extend(kafka.iter().map(|kafka| (KAFKA, kafka.brokers())));
        env.extend(clickhouse.iter().map(|clickhouse| (CLICKHOUSE, clickhouse.url())));
        env.extend(postgres.iter().flat_map(|postgres| database_urls(|name| postgres.url(name))));
        env.extend(preset);
        Ok(Self { kafka, clickhouse, postgres, env })
    }

    /// Stops them in order; tries each even if one fails.
    pub fn stop(self) -> Result<()> {
        let results = [
            self.kafka.map(Kafka::stop),
            self.clickhouse.map(ClickHouse::stop),
            self.postgres.map(Postgres::stop),
        ];
        results.into_iter().flatten().collect()
    }
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err(anyhow!("a starting thread panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&'static str, &str)]) -> Env {
        pairs.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
    }

    #[test]
    fn what_is_preset_is_not_started() {
        assert_eq!(needed(&Env::new()), [true, true, true]);
        assert_eq!(needed(&env(&[(KAFKA, "k")])), [false, true, true]);
        assert_eq!(needed(&env(&[(CLICKHOUSE, "c")])), [true, false, true]);
        assert_eq!(needed(&env(&[(CONTROL, "p"), (SOURCE, "p")])), [true, true, false]);
        assert_eq!(needed(&env(&[(CONTROL, "p")])), [true, true, true]);
    }

    #[test]
    fn the_own_addresses_are_not_taken_for_preset_ones() {
        let own = env(&[(KAFKA, "127.0.0.1:1"), (CLICKHOUSE, "http://127.0.0.1:2")]);
        let sourced = env(&[(KAFKA, "127.0.0.1:1"), (CLICKHOUSE, "http://elsewhere:2")]);
        assert_eq!(foreign(sourced, &own), env(&[(CLICKHOUSE, "http://elsewhere:2")]));
    }
}
