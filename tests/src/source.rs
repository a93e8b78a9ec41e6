//! The usage source under test: an application whose own table is the truth that the pipeline is judged by.

use std::collections::BTreeMap;

use anyhow::Context as _;
use sqlx::PgPool;
use uuid::Uuid;

/// One line of work that was billed: what the application itself remembers, written in the transaction that emits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    pub tenant_id: Uuid,
    pub metric: String,
    /// Plain decimal text.
    pub value: String,
    /// What makes the work unique; a gauge sample may have none.
    pub key: Option<String>,
}

/// Count and exact sum per (tenant, metric), as plain decimal text without trailing zeros.
pub type Totals = BTreeMap<(Uuid, String), Total>;

/// What one tenant used of one metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Total {
    pub count: String,
    pub sum: String,
}

/// Makes the application's own table.
pub async fn migrate(pool: &PgPool) -> anyhow::Result<()> {
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS work (
             tenant_id uuid NOT NULL, metric text NOT NULL, value numeric(38, 18) NOT NULL, key text,
             UNIQUE (tenant_id, metric, key))",
    )
    .execute(pool)
    .await
    .context("can't create the table work")?;
    Ok(())
}

/// Remembers a line of work; work that is already there (a key sent twice) stays one line.
pub async fn remember(connection: &mut sqlx::PgConnection, work: &Work) -> anyhow::Result<()> {
    sqlx::query("INSERT INTO work VALUES ($1, $2, $3::numeric, $4) ON CONFLICT DO NOTHING")
        .bind(work.tenant_id)
        .bind(&work.metric)
        .bind(&work.value)
        .bind(&work.key)
        .execute(connection)
        .await
        .context("can't write to the table work")?;
    Ok(())
}

/// The truth: what committed.
pub async fn truth(pool: &PgPool) -> anyhow::Result<Totals> {
    let rows: Vec<(Uuid, String, String, String)> = sqlx::query_as(
        "SELECT tenant_id, metric, count(*)::text, trim_scale(sum(value))::text FROM work GROUP BY tenant_id, metric",
    )
    .fetch_all(pool)
    .await
    .context("can't read the truth")?;
    Ok(rows
        .into_iter()
        .map(|(tenant, metric, count, sum)| ((tenant, metric), Total { count, sum }))
        .collect())
}
