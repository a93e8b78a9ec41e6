//! The relay as a program: one per source database, or several that share its outbox.

use anyhow::Context as _;
use clap::Parser;
use serde::Deserialize;
use usage_producer::relay::{Relay, RelayConfig, RelaySettings, SETTINGS, Status};
use usage_service::config::{Cli, DatabaseConfig, KafkaConfig, OpenSection, Resolved};
use usage_service::health::Health;
use usage_service::telemetry::TelemetryConfig;
use usage_service::{fail_points, health, lifecycle, telemetry};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    telemetry: TelemetryConfig,
    kafka: KafkaConfig,
    source_database: DatabaseConfig,
    #[serde(default)]
    relay: RelaySettings,
}

/// Brings committed usage records from a source's outbox to Kafka.
#[derive(Parser)]
#[command(name = "usage-relay", version)]
struct Arguments {
    #[command(flatten)]
    config: Cli,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    fail_points::arm();
    let arguments = Arguments::parse();
    let resolved = Resolved::from_process(SETTINGS, &arguments.config)?;
    let Config { telemetry: telemetry_config, kafka, source_database, relay } = resolved.value()?;
    let config = RelayConfig { source_database, kafka, relay };
    config.validate()?;
    if arguments.config.check_config {
        print!("{resolved}");
        return Ok(());
    }
    let telemetry = telemetry::init(&telemetry_config, "usage-relay")?;
    resolved.open_sections()?.into_iter().for_each(OpenSection::warn);
    let shutdown = lifecycle::shutdown_on_signals().context("cannot listen for signals")?;
    let relay = Relay::new(config)?;
    let health = Health::new(telemetry);
    let look = |part: fn(&Status) -> Option<String>| {
        let status = relay.status();
        move || {
            let reason = part(&status.borrow());
            async move { reason.map_or(Ok(()), Err) }
        }
    };
    health.check("source_database", look(|status| status.database.clone()));
    health.check("kafka", look(|status| status.kafka.clone()));
    health.check("completeness", look(|status| status.completeness.clone()));
    health::serve(&telemetry_config.listen, health, shutdown.clone())
        .await
        .with_context(|| format!("cannot listen on {}", telemetry_config.listen))?;
    lifecycle::graceful(&shutdown, lifecycle::STOP_WITHIN, relay.serve(shutdown.clone())).await?;
    Ok(())
}
