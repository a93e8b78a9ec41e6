//! Offsets that nobody read: while one is not accepted, nothing is known to be complete (protocol 5.2).

use sqlx::FromRow;
use usage_service::clock;
use uuid::Uuid;

use crate::{Control, ControlError};

/// Offsets `[from_offset, to_offset)` that nobody read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    pub kafka_partition: i32,
    pub from_offset: i64,
    pub to_offset: i64,
    /// Microseconds since the Unix epoch.
    pub noticed_at: i64,
    /// An operator said that it is known.
    pub accepted: bool,
}

/// Which gaps an operator accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gaps {
    All,
    Of { kafka_partition: i32 },
    At { kafka_partition: i32, from_offset: i64 },
}

#[derive(FromRow)]
struct Row {
    kafka_partition: i32,
    from_offset: i64,
    to_offset: i64,
    noticed_at: time::OffsetDateTime,
    accepted: bool,
}

impl From<Row> for Gap {
    fn from(row: Row) -> Self {
        Self {
            kafka_partition: row.kafka_partition,
            from_offset: row.from_offset,
            to_offset: row.to_offset,
            noticed_at: clock::to_micros(row.noticed_at),
            accepted: row.accepted,
        }
    }
}

impl Control {
    /// Notes that the offsets `[from_offset, to_offset)` of a topic are skipped. The same gap again changes nothing; the same
    /// offsets of another topic are a new gap, which nobody has accepted.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for an empty gap; what the database says.
    pub async fn record_gap(
        &self,
        partition: i32,
        from_offset: i64,
        to_offset: i64,
        topic_id: Option<Uuid>,
    ) -> Result<(), ControlError> {
        if from_offset >= to_offset {
            return Err(ControlError::invalid("to_offset", "must be after from_offset"));
        }
        self.within(async {
            let insert = sqlx::query(
                "INSERT INTO gaps AS g (kafka_partition, from_offset, to_offset, topic_id) VALUES ($1, $2, $3, $4)
                 ON CONFLICT (kafka_partition, from_offset, to_offset)
                 DO UPDATE SET accepted_at = NULL, noticed_at = now(), topic_id = excluded.topic_id
                 WHERE g.topic_id IS DISTINCT FROM excluded.topic_id AND excluded.topic_id IS NOT NULL",
            );
            let insert = insert.bind(partition).bind(from_offset).bind(to_offset).bind(topic_id);
            insert.execute(&self.pool).await?;
            Ok(())
        })
        .await
    }

    /// Notes that what the offsets `[from_offset, to_offset)` held was lost just now: the same gap is open again, even if it was
    /// accepted before.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for an empty gap; what the database says.
    pub async fn record_gap_anew(
        &self,
        partition: i32,
        from_offset: i64,
        to_offset: i64,
    ) -> Result<(), ControlError> {
        self.record_gap(partition, from_offset, to_offset, None).await?;
        self.within(async {
            let update = sqlx::query(
                "UPDATE gaps SET accepted_at = NULL, noticed_at = now()
                 WHERE kafka_partition = $1 AND from_offset = $2 AND to_offset = $3 AND accepted_at IS NOT NULL",
            );
            update.bind(partition).bind(from_offset).bind(to_offset).execute(&self.pool).await?;
            Ok(())
        })
        .await
    }

    /// All gaps, ascending by partition and offset.
    ///
    /// # Errors
    /// What the database says.
    pub async fn gaps(&self) -> Result<Vec<Gap>, ControlError> {
        self.within(async {
            let rows: Vec<Row> = sqlx::query_as(
                "SELECT kafka_partition, from_offset, to_offset, noticed_at, accepted_at IS NOT NULL AS accepted
                 FROM gaps ORDER BY kafka_partition, from_offset, to_offset",
            )
            .fetch_all(&self.pool)
            .await?;
            Ok(rows.into_iter().map(Gap::from).collect())
        })
        .await
    }

    /// Accepts gaps; gives those that were not accepted before, ascending by partition and offset.
    ///
    /// # Errors
    /// What the database says.
    pub async fn accept_gaps(&self, which: Gaps) -> Result<Vec<Gap>, ControlError> {
        let (partition, from_offset) = match which {
            Gaps::All => (None, None),
            Gaps::Of { kafka_partition } => (Some(kafka_partition), None),
            Gaps::At { kafka_partition, from_offset } => (Some(kafka_partition), Some(from_offset)),
        };
        self.within(async {
            let rows: Vec<Row> = sqlx::query_as(
                "WITH accepted AS (
                   UPDATE gaps SET accepted_at = now()
                   WHERE accepted_at IS NULL AND kafka_partition = coalesce($1, kafka_partition)
                     AND from_offset = coalesce($2, from_offset)
                   RETURNING kafka_partition, from_offset, to_offset, noticed_at)
                 SELECT *, true AS accepted FROM accepted ORDER BY kafka_partition, from_offset, to_offset",
            )
            .bind(partition)
            .bind(from_offset)
            .fetch_all(&self.pool)
            .await?;
            Ok(rows.into_iter().map(Gap::from).collect())
        })
        .await
    }
}
