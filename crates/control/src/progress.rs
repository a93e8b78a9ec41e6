//! How far the consumer is in each partition (protocol 5.1 step 3).

use std::collections::HashSet;

use sqlx::FromRow;
use usage_schemas::Marker;
use usage_service::fail_point;

use crate::completeness::{Forward, note};
use crate::quota_counters::{self, QuotaKey};
use crate::{Control, ControlError};

/// The progress of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromRow)]
pub struct Progress {
    pub kafka_partition: i32,
    /// Number of the last batch that was done; 0 before the first.
    pub batch_seq: i64,
    /// The first offset that is not done; `None` before the first batch.
    pub next_offset: Option<i64>,
    /// Offsets below were held to quotas and counted when they were read the first time; `None` if there are none.
    pub quotas_from: Option<i64>,
}

/// A batch that was done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advance {
    pub partition: i32,
    pub batch_seq: i64,
    /// One after the batch's last offset.
    pub next_offset: i64,
    /// The markers of the batch.
    pub markers: Vec<Marker>,
    /// The records that the batch produced again onto other partitions.
    pub forwards: Vec<Forward>,
    /// How many records the batch kept of what quotas count.
    pub quota_counts: Vec<(QuotaKey, i64)>,
}

impl Control {
    /// The progress of a partition at takeover; makes its row if there is none.
    ///
    /// # Errors
    /// What the database says.
    pub async fn open_progress(&self, partition: i32) -> Result<Progress, ControlError> {
        self.within(async {
            let insert = sqlx::query(
                "INSERT INTO consumer_progress (kafka_partition) VALUES ($1) ON CONFLICT DO NOTHING",
            );
            insert.bind(partition).execute(&self.pool).await?;
            let select = sqlx::query_as(
                "SELECT kafka_partition, batch_seq, next_offset, quotas_from FROM consumer_progress
                 WHERE kafka_partition = $1",
            );
            Ok(select.bind(partition).fetch_one(&self.pool).await?)
        })
        .await
    }

    /// The partition's log ends at `end`: what was done from there on is gone, and other records will have its offsets. Who skips
    /// those leaves a gap.
    ///
    /// # Errors
    /// What the database says.
    pub async fn lower_progress(&self, partition: i32, end: i64) -> Result<(), ControlError> {
        self.within(async {
            let update = sqlx::query(
                "UPDATE consumer_progress SET
                   next_offset = CASE WHEN next_offset > $2 THEN $2 ELSE next_offset END,
                   quotas_from = CASE WHEN quotas_from > $2 THEN $2 ELSE quotas_from END,
                   updated_at = now()
                 WHERE kafka_partition = $1 AND (next_offset > $2 OR quotas_from > $2)",
            );
            update.bind(partition).bind(end).execute(&self.pool).await?;
            Ok(())
        })
        .await
    }

    /// Moves the progress of several partitions in one transaction, and with it what is known of the sources' completeness and what
    /// quotas have counted. Per item, in order: true if this call moved it, false if the batch was done before (a repetition after a crash or a lost
    /// answer) and nothing was changed for it.
    ///
    /// # Errors
    /// [`ControlError::NoProgress`] for a partition without a row, then nothing is changed; what the database says. After an
    /// error that may pass the transaction may have been committed: the repetition then says false.
    pub async fn advance(&self, items: &[Advance]) -> Result<Vec<bool>, ControlError> {
        let mut partitions = HashSet::with_capacity(items.len());
        for item in items {
            if !partitions.insert(item.partition) {
                return Err(ControlError::PartitionTwice(item.partition));
            }
        }
        if items.is_empty() {
            return Ok(Vec::new());
        }
        self.within(self.advance_all(items)).await
    }

    async fn advance_all(&self, items: &[Advance]) -> Result<Vec<bool>, ControlError> {
        let column = |pick: fn(&Advance) -> i64| items.iter().map(pick).collect::<Vec<i64>>();
        let partitions: Vec<i32> = items.iter().map(|item| item.partition).collect();
        let mut transaction = self.pool.begin().await?;
        // Rows are locked in the order of their partition, so that two workers never wait for each other in a circle.
        let found: Vec<i32> = sqlx::query_scalar(
            "SELECT kafka_partition FROM consumer_progress WHERE kafka_partition = ANY($1)
             ORDER BY kafka_partition FOR UPDATE",
        )
        .bind(&partitions)
        .fetch_all(&mut *transaction)
        .await?;
        if let Some(missing) = partitions.iter().find(|partition| !found.contains(partition)) {
            return Err(ControlError::NoProgress(*missing));
        }
        let moved: Vec<i32> = sqlx::query_scalar(
            "UPDATE consumer_progress AS p
             SET batch_seq = a.batch_seq, next_offset = a.next_offset, updated_at = now()
             FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) AS a (kafka_partition, batch_seq, next_offset)
             WHERE p.kafka_partition = a.kafka_partition AND p.batch_seq < a.batch_seq
             RETURNING p.kafka_partition",
        )
        .bind(&partitions)
        .bind(column(|item| item.batch_seq))
        .bind(column(|item| item.next_offset))
        .fetch_all(&mut *transaction)
        .await?;
        let done: Vec<&Advance> = items.iter().filter(|item| moved.contains(&item.partition)).collect();
        note(&mut transaction, &done).await?;
        quota_counters::add(&mut transaction, &done).await?;
        fail_point!("control.advance");
        transaction.commit().await?;
        Ok(partitions.iter().map(|partition| moved.contains(partition)).collect())
    }

    /// The progress of all partitions, ascending.
    ///
    /// # Errors
    /// What the database says.
    pub async fn progress(&self) -> Result<Vec<Progress>, ControlError> {
        self.within(async {
            let select = sqlx::query_as(
                "SELECT kafka_partition, batch_seq, next_offset, quotas_from FROM consumer_progress
                 ORDER BY kafka_partition",
            );
            Ok(select.fetch_all(&self.pool).await?)
        })
        .await
    }
}
