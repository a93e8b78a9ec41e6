//! Sources and outboxes for which nobody waits any more, and how far each outbox is.

use sqlx::FromRow;
use time::OffsetDateTime;
use usage_service::clock;
use uuid::Uuid;

use crate::{Control, ControlError};

/// How far one outbox of a source is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxProgress {
    pub source: String,
    pub outbox: Uuid,
    pub retired: bool,
    /// Partitions in which it was heard, of those that are known.
    pub partitions: i64,
    /// The least of its progress in these partitions, and the partition that holds it down; microseconds since the Unix epoch.
    pub complete_until: i64,
    pub slowest_partition: i32,
}

#[derive(FromRow)]
struct Row {
    source: String,
    outbox: Uuid,
    retired: bool,
    partitions: i64,
    complete_until: OffsetDateTime,
    slowest_partition: i32,
}

impl Control {
    /// How far the outboxes of all sources are, ascending by source and outbox.
    ///
    /// # Errors
    /// What the database says.
    pub async fn outbox_progress(&self) -> Result<Vec<OutboxProgress>, ControlError> {
        self.within(async {
            let rows: Vec<Row> = sqlx::query_as(
                "SELECT p.source, p.outbox, count(*) AS partitions, min(p.complete_until) AS complete_until,
                   (array_agg(p.kafka_partition ORDER BY p.complete_until, p.kafka_partition))[1] AS slowest_partition,
                   EXISTS (SELECT FROM retired_sources AS r
                     WHERE r.source = p.source AND (r.outbox = p.outbox OR r.outbox IS NULL)) AS retired
                 FROM source_progress AS p
                 WHERE p.kafka_partition < (SELECT max(count) FROM partition_counts)
                 GROUP BY p.source, p.outbox ORDER BY p.source, p.outbox",
            )
            .fetch_all(&self.pool)
            .await?;
            let outbox = |row: Row| OutboxProgress {
                source: row.source,
                outbox: row.outbox,
                retired: row.retired,
                partitions: row.partitions,
                complete_until: clock::to_micros(row.complete_until),
                slowest_partition: row.slowest_partition,
            };
            Ok(rows.into_iter().map(outbox).collect())
        })
        .await
    }

    /// Takes a source, or one of its outboxes, out of completeness; true if it was not before.
    ///
    /// # Errors
    /// [`ControlError::NoSource`] for one that never was; what the database says.
    pub async fn retire(&self, source: &str, outbox: Option<Uuid>) -> Result<bool, ControlError> {
        self.within(async {
            let known: bool = sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM source_progress WHERE source = $1 AND outbox = coalesce($2, outbox))
                   OR ($2 IS NULL AND EXISTS (SELECT FROM source_keys WHERE source = $1))",
            )
            .bind(source)
            .bind(outbox)
            .fetch_one(&self.pool)
            .await?;
            if !known {
                return Err(ControlError::NoSource { source_name: source.into(), outbox });
            }
            let insert =
                sqlx::query("INSERT INTO retired_sources (source, outbox) VALUES ($1, $2) ON CONFLICT DO NOTHING");
            let inserted = insert.bind(source).bind(outbox).execute(&self.pool).await?;
            Ok(inserted.rows_affected() > 0)
        })
        .await
    }

    /// Takes it in again; true if it was retired. What it has not sent meanwhile holds completeness down from now on, and so does
    /// every record of the source that is under way to another partition: it may be this outbox's, whose progress did not bound it.
    ///
    /// # Errors
    /// What the database says.
    pub async fn unretire(&self, source: &str, outbox: Option<Uuid>) -> Result<bool, ControlError> {
        self.within(async {
            let mut transaction = self.pool.begin().await?;
            // Workers that are noting a forwarded record by what was retired are waited for; those that come later see what is not.
            sqlx::query("LOCK TABLE source_forwards IN SHARE ROW EXCLUSIVE MODE")
                .execute(&mut *transaction)
                .await?;
            let delete = sqlx::query(
                "DELETE FROM retired_sources WHERE source = $1 AND outbox IS NOT DISTINCT FROM $2",
            );
            let deleted = delete.bind(source).bind(outbox).execute(&mut *transaction).await?;
            if deleted.rows_affected() == 0 {
                return Ok(false);
            }
            let unbound =
                sqlx::query("UPDATE source_forwards SET complete_until = '-infinity' WHERE source = $1");
            unbound.bind(source).execute(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(true)
        })
        .await
    }
}
