//! The query API: answers what was used, over HTTP.

use clap::Parser;
use usage_query_api::config::{Config, SETTINGS};
use usage_query_api::process;
use usage_service::config::{self, Cli, OpenSection, Resolved};
use usage_service::{fail_points, lifecycle, telemetry};

/// Answers usage queries over HTTP
#[derive(Parser)]
#[command(name = "usage-query-api", version)]
struct Arguments {
    #[command(flatten)]
    cli: Cli,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    fail_points::arm();
    let Arguments { cli } = Arguments::parse();
    if cli.check_config {
        let config: Config = config::load(SETTINGS, &cli)?;
        config.validate().map_err(anyhow::Error::msg)?;
        println!("{}", config::check::<Config>(SETTINGS, &cli)?);
        return Ok(());
    }
    let resolved = Resolved::from_process(SETTINGS, &cli)?;
    let config: Config = resolved.value()?;
    let telemetry = telemetry::init(&config.telemetry, "usage-query-api")?;
    resolved.open_sections()?.into_iter().for_each(OpenSection::warn);
    let shutdown = lifecycle::shutdown_on_signals()?;
    process::run(config, telemetry, shutdown).await?;
    tracing::info!("stopped");
    Ok(())
}
