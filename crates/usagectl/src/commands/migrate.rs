//! `usagectl control migrate`, `storage migrate`, `outbox migrate`.

use sqlx::postgres::PgPoolOptions;
use usage_service::config::{DatabaseConfig, Resolved};
use usage_storage::Storage as _;
use usage_storage::clickhouse::{ClickHouseConfig, ClickHouseStorage};

pub(super) async fn control(config: &Resolved) -> anyhow::Result<()> {
    super::control(config).await?.migrate().await.map_err(super::wrong_setting)?;
    println!("the control database is up to date");
    Ok(())
}

pub(super) async fn storage(config: &Resolved) -> anyhow::Result<()> {
    let clickhouse: ClickHouseConfig = config.section("clickhouse")?;
    ClickHouseStorage::connect(clickhouse).migrate().await?;
    println!("storage is up to date");
    Ok(())
}

pub(super) async fn outbox(config: &Resolved) -> anyhow::Result<()> {
    let database: DatabaseConfig = config.section("source_database")?;
    let pool = PgPoolOptions::new().max_connections(1).connect_with(database.options()?).await?;
    usage_producer::outbox::migrate(&pool).await?;
    pool.close().await;
    println!("the outbox is up to date");
    Ok(())
}
