//! `usage-consumer`: from Kafka to storage.

use std::os::unix::process::CommandExt as _;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser;
use usage_consumer::config::{Config, SETTINGS};
use usage_consumer::service;
use usage_service::config::{OpenSection, Resolved};
use usage_service::health::Health;
use usage_service::lifecycle::{self, STOP_WITHIN};
use usage_service::{config, fail_points, health, telemetry};
use usage_storage::clickhouse::ClickHouseStorage;

/// Takes usage records from Kafka and stores every one exactly once.
#[derive(Debug, Parser)]
#[command(name = "usage-consumer", version)]
struct Arguments {
    #[command(flatten)]
    config: config::Cli,
}

fn main() -> anyhow::Result<()> {
    fail_points::arm();
    let arguments = Arguments::parse();
    let resolved = Resolved::from_process(SETTINGS, &arguments.config)?;
    let config: Config = resolved.value()?;
    config.validate().map_err(anyhow::Error::msg)?;
    if arguments.config.check_config {
        print!("{resolved}");
        return Ok(());
    }
    limit_arenas();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("beside")
        .enable_all()
        .build()
        .context("the runtime")?;
    let result = runtime.block_on(run(config, resolved.open_sections()?));
    // Reads that still block have nothing to finish.
    runtime.shutdown_background();
    result
}

/// Variable of the C library: how many heaps its allocator keeps.
const ARENAS: &str = "MALLOC_ARENA_MAX";

/// Starts this program anew with two heaps, unless somebody has said how many. librdkafka's threads allocate messages that the
/// owner frees, and every heap keeps its peak: draining 3,000,000 records took 181 to 208 MB with two, 262 to 314 MB without a
/// limit, 294 to 396 MB with mimalloc, at the same speed (three rounds each). The C library reads the variable only at the start.
fn limit_arenas() {
    if std::env::var_os(ARENAS).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    // Same process id, same descriptors. It returns only if it fails, and then more memory is used, no more.
    let _ = std::process::Command::new(program).args(std::env::args_os().skip(1)).env(ARENAS, "2").exec();
}

async fn run(config: Config, open: Vec<OpenSection>) -> anyhow::Result<()> {
    let telemetry = telemetry::init(&config.telemetry, "usage-consumer")?;
    open.into_iter().for_each(OpenSection::warn);
    let shutdown = lifecycle::shutdown_on_signals().context("signals")?;
    let health = Health::new(telemetry);
    health::serve(&config.telemetry.listen, health.clone(), shutdown.clone())
        .await
        .with_context(|| format!("telemetry.listen {}", config.telemetry.listen))?;
    let storage = Arc::new(ClickHouseStorage::connect(config.clickhouse.clone()));
    let policy = config.policy_point()?;
    let work = service::run(config, storage, policy, health, shutdown.clone());
    lifecycle::graceful(&shutdown, STOP_WITHIN, work).await??;
    Ok(())
}
