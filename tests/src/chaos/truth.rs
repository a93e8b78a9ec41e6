//! The source's own table: what it emitted, written in the same transactions. The oracle believes nothing else.

use anyhow::Context as _;
use sqlx::{PgConnection, PgPool};
use time::OffsetDateTime;
use usage_schemas::{Kind, Quantity};
use usage_service::clock;
use uuid::Uuid;

use super::oracle::{Content, Emission, Fate};

/// Makes the table. It has no index: it is written by every transaction and read once.
pub async fn migrate(pool: &PgPool) -> anyhow::Result<()> {
    sqlx::query(
        "CREATE TABLE emitted (
             tenant_id uuid NOT NULL, record_id uuid NOT NULL, metric text NOT NULL, kind text NOT NULL,
             value numeric(38, 18) NOT NULL, occurred_at timestamptz NOT NULL, fate text NOT NULL,
             emitted_at timestamptz NOT NULL DEFAULT clock_timestamp())",
    )
    .execute(pool)
    .await
    .context("can't create the table emitted")?;
    Ok(())
}

/// What the source is about to say; the rest of an [`Emission`] is known once it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub tenant: Uuid,
    pub record_id: Uuid,
    pub content: Content,
    pub fate: Fate,
}

/// Remembers an emit in its transaction, after the outbox row was written: so `emitted_at` here is never before the outbox's.
pub async fn remember(connection: &mut PgConnection, said: &Said) -> anyhow::Result<()> {
    sqlx::query("INSERT INTO emitted VALUES ($1, $2, $3, $4, $5::numeric, $6, $7)")
        .bind(said.tenant)
        .bind(said.record_id)
        .bind(&said.content.metric)
        .bind(said.content.kind.as_str())
        .bind(said.content.value.to_string())
        .bind(clock::from_micros(said.content.timestamp))
        .bind(said.fate.as_str())
        .execute(connection)
        .await
        .context("can't write to the table emitted")?;
    Ok(())
}

type Row = (Uuid, Uuid, String, String, String, OffsetDateTime, String, OffsetDateTime);

/// Everything that committed.
pub async fn read(pool: &PgPool) -> anyhow::Result<Vec<Emission>> {
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT tenant_id, record_id, metric, kind, trim_scale(value)::text, occurred_at, fate, emitted_at FROM emitted",
    )
    .fetch_all(pool)
    .await
    .context("can't read the truth")?;
    rows.into_iter().map(emission).collect()
}

fn emission(row: Row) -> anyhow::Result<Emission> {
    let (tenant, record_id, metric, kind, value, occurred_at, fate, emitted_at) = row;
    Ok(Emission {
        identity: (tenant, record_id),
        content: Content {
            metric,
            kind: self::kind(&kind)?,
            value: Quantity::parse(&value).with_context(|| value.clone())?,
            timestamp: clock::to_micros(occurred_at),
        },
        fate: Fate::parse(&fate).with_context(|| format!("no fate {fate:?}"))?,
        emitted_at: clock::to_micros(emitted_at),
    })
}

/// A kind by its word.
pub fn kind(word: &str) -> anyhow::Result<Kind> {
    [Kind::Counter, Kind::Gauge]
        .into_iter()
        .find(|kind| kind.as_str() == word)
        .with_context(|| format!("no kind {word:?}"))
}
