//! `usage-consumer`: from Kafka to storage.

use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser;
use usage_consumer::config::{Config, SETTINGS};
use usage_consumer::service;
use usage_service::health::Health;
use usage_service::lifecycle::{self, STOP_WITHIN};
use usage_service::{config, health, telemetry};
use usage_storage::clickhouse::ClickHouseStorage;

/// Takes usage records from Kafka and stores every one exactly once.
#[derive(Debug, Parser)]
#[command(name = "usage-consumer", version)]
struct Arguments {
    #[command(flatten)]
    config: config::Cli,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if arguments.config.check_config {
        print!("{}", config::check::<Config>(SETTINGS, &arguments.config)?);
        return Ok(());
    }
    let config: Config = config::load(SETTINGS, &arguments.config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("beside")
        .enable_all()
        .build()
        .context("the runtime")?;
    let result = runtime.block_on(run(config));
    // Reads that still block have nothing to finish.
    runtime.shutdown_background();
    result
}

async fn run(config: Config) -> anyhow::Result<()> {
    let telemetry = telemetry::init(&config.telemetry, "usage-consumer")?;
    let shutdown = lifecycle::shutdown_on_signals().context("signals")?;
    let health = Health::new(telemetry);
    health::serve(&config.telemetry.listen, health.clone(), shutdown.clone())
        .await
        .with_context(|| format!("telemetry.listen {}", config.telemetry.listen))?;
    let storage = Arc::new(ClickHouseStorage::connect(config.clickhouse.clone()));
    let work = service::run(config, storage, health, shutdown.clone());
    lifecycle::graceful(&shutdown, STOP_WITHIN, work).await??;
    Ok(())
}
