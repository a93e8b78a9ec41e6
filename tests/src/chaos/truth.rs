//! The source's own table: what it emitted, written in the same transactions. The oracle believes nothing else.

use anyhow::Context as _;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgPool, Postgres, QueryBuilder, Row as _};
use time::OffsetDateTime;
use usage_schemas::{Kind, Quantity};
use usage_service::clock;
use uuid::Uuid;

use super::oracle::{Content, Details, Emission, Fate};

/// Makes the table. It has no index: it is written by every transaction and read once.
pub async fn migrate(pool: &PgPool) -> anyhow::Result<()> {
    sqlx::query(
        "CREATE TABLE emitted (
             tenant_id uuid NOT NULL, record_id uuid NOT NULL, metric text NOT NULL, kind text NOT NULL,
             value numeric(38, 18) NOT NULL, occurred_at timestamptz NOT NULL, fate text NOT NULL,
             source text NOT NULL, idempotency_key text, resource_id uuid, resource_type text, subject_id uuid,
             subject_type text, metadata text,
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

/// Remembers emits in their transaction, after their outbox rows were written: so `emitted_at` here is never before the outbox's.
pub async fn remember(connection: &mut PgConnection, said: &[Said]) -> anyhow::Result<()> {
    let mut insert = QueryBuilder::<Postgres>::new(
        "INSERT INTO emitted (tenant_id, record_id, metric, kind, value, occurred_at, fate, source, idempotency_key,
         resource_id, resource_type, subject_id, subject_type, metadata) ",
    );
    insert.push_values(said, |mut row, said| {
        let (content, details) = (&said.content, &said.content.details);
        row.push_bind(said.tenant).push_bind(said.record_id).push_bind(&content.metric);
        row.push_bind(content.kind.as_str());
        row.push_bind(content.value.to_string()).push_unseparated("::numeric");
        row.push_bind(clock::from_micros(content.timestamp)).push_bind(said.fate.as_str());
        row.push_bind(&details.source).push_bind(&details.idempotency_key);
        row.push_bind(details.resource_id).push_bind(&details.resource_type);
        row.push_bind(details.subject_id).push_bind(&details.subject_type).push_bind(&details.metadata);
    });
    insert.build().execute(connection).await.context("can't write to the table emitted")?;
    Ok(())
}

/// Everything that committed.
pub async fn read(pool: &PgPool) -> anyhow::Result<Vec<Emission>> {
    let rows = sqlx::query("SELECT *, trim_scale(value)::text AS digits FROM emitted")
        .fetch_all(pool)
        .await
        .context("can't read the truth")?;
    rows.iter().map(emission).collect()
}

fn emission(row: &PgRow) -> anyhow::Result<Emission> {
    let (word, digits, fate): (String, String, String) =
        (row.try_get("kind")?, row.try_get("digits")?, row.try_get("fate")?);
    let micros = |column: &str| row.try_get::<OffsetDateTime, _>(column).map(clock::to_micros);
    Ok(Emission {
        identity: (row.try_get("tenant_id")?, row.try_get("record_id")?),
        content: Content {
            metric: row.try_get("metric")?,
            kind: kind(&word)?,
            value: Quantity::parse(&digits).with_context(|| digits.clone())?,
            timestamp: micros("occurred_at")?,
            details: Details {
                source: row.try_get("source")?,
                idempotency_key: row.try_get("idempotency_key")?,
                resource_id: row.try_get("resource_id")?,
                resource_type: row.try_get("resource_type")?,
                subject_id: row.try_get("subject_id")?,
                subject_type: row.try_get("subject_type")?,
                metadata: row.try_get("metadata")?,
            },
        },
        fate: Fate::parse(&fate).with_context(|| format!("no fate {fate:?}"))?,
        emitted_at: micros("emitted_at")?,
    })
}

/// A kind by its word.
pub fn kind(word: &str) -> anyhow::Result<Kind> {
    [Kind::Counter, Kind::Gauge]
        .into_iter()
        .find(|kind| kind.as_str() == word)
        .with_context(|| format!("no kind {word:?}"))
}
