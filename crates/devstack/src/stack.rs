//! The three servers together.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;

use anyhow::{Context as _, Result, anyhow};

use crate::process::Life;
use crate::{ClickHouse, Kafka, Postgres};
use nix::sys::signal::Signal;

/// The control database of the stack.
pub const CONTROL_DATABASE: &str = "usage_control";
/// The source database of the stack.
pub const SOURCE_DATABASE: &str = "usage_source";

/// Kafka, ClickHouse and Postgres, each in a directory of its own.
#[derive(Debug)]
pub struct Stack {
    /// The broker.
    pub kafka: Kafka,
    /// Storage.
    pub clickhouse: ClickHouse,
    /// Control and source databases.
    pub postgres: Postgres,
}

impl Stack {
    /// Starts all three at once; they end with this process.
    pub fn start(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let (kafka, clickhouse, postgres) = thread::scope(|scope| {
            let kafka = scope.spawn(|| Kafka::start(&dir.join("kafka")));
            let clickhouse = scope.spawn(|| ClickHouse::start(&dir.join("clickhouse")));
            let postgres =
                scope.spawn(|| start_postgres(&dir.join("postgres"), Life::Attached(Signal::SIGINT)));
            (joined(kafka), joined(clickhouse), joined(postgres))
        });
        Ok(Self { kafka: kafka?, clickhouse: clickhouse?, postgres: postgres? })
    }

    /// The variables that tests and services read.
    #[must_use]
    pub fn env(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            ("USAGE_KAFKA_BROKERS", self.kafka.brokers()),
            ("USAGE_CLICKHOUSE_URL", self.clickhouse.url()),
            ("USAGE_CONTROL_DATABASE_URL", self.postgres.url(CONTROL_DATABASE)),
            ("USAGE_SOURCE_DATABASE_URL", self.postgres.url(SOURCE_DATABASE)),
        ])
    }

    /// Stops all three in order; tries each even if one fails.
    pub fn stop(self) -> Result<()> {
        let results = [self.kafka.stop(), self.clickhouse.stop(), self.postgres.stop()];
        results.into_iter().collect()
    }
}

/// Postgres with the two databases of the stack.
pub fn start_postgres(dir: &Path, life: Life) -> Result<Postgres> {
    let postgres = Postgres::start_as(dir, life)?;
    postgres.ensure_database(CONTROL_DATABASE)?;
    postgres.ensure_database(SOURCE_DATABASE)?;
    Ok(postgres)
}

/// Removes a directory of servers that have ended, with data of theirs that had to lie elsewhere.
pub fn purge(dir: &Path) -> Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    Postgres::purge(&dir.join("postgres"))?;
    fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err(anyhow!("a starting thread panicked")))
}
