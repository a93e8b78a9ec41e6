//! Which topic the offsets of a partition belong to: one that was made anew has another id.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::{Control, ControlError};

impl Control {
    /// The id recorded for a partition; `None` if there is none.
    ///
    /// # Errors
    /// [`ControlError::NoProgress`] for a partition without a row; what the database says.
    pub async fn topic_id(&self, partition: i32) -> Result<Option<Uuid>, ControlError> {
        self.within(async {
            let select =
                sqlx::query_scalar("SELECT topic_id FROM consumer_progress WHERE kafka_partition = $1");
            let row: Option<Option<Uuid>> = select.bind(partition).fetch_optional(&self.pool).await?;
            row.ok_or(ControlError::NoProgress(partition))
        })
        .await
    }

    /// Records the id; call it once the group's commit speaks of that topic.
    ///
    /// # Errors
    /// [`ControlError::NoProgress`] for a partition without a row; what the database says.
    pub async fn set_topic_id(&self, partition: i32, id: Uuid) -> Result<(), ControlError> {
        self.within(async {
            let update = sqlx::query("UPDATE consumer_progress SET topic_id = $2 WHERE kafka_partition = $1");
            let updated = update.bind(partition).bind(id).execute(&self.pool).await?;
            if updated.rows_affected() == 0 { Err(ControlError::NoProgress(partition)) } else { Ok(()) }
        })
        .await
    }

    /// As [`Self::set_topic_id`], of a topic that was made anew and whose log is `log` (its first offset, and the one behind its last):
    /// it is read from its beginning. What was forwarded to the old one and is not known to be done is in nobody's log any more; the
    /// gap that was recorded before says so. What lies in the new one already may have been forwarded there. `after_seq`: number of the last
    /// batch of the old one.
    ///
    /// # Errors
    /// [`ControlError::NoProgress`] for a partition without a row; what the database says.
    pub async fn begin_topic(
        &self,
        partition: i32,
        id: Uuid,
        after_seq: i64,
        log: (i64, i64),
    ) -> Result<(), ControlError> {
        self.within(async {
            let mut transaction = self.pool.begin().await?;
            let update = sqlx::query(
                "UPDATE consumer_progress
                 SET topic_id = $2, next_offset = $3, topic_after_seq = $4, quotas_from = NULL, updated_at = now()
                 WHERE kafka_partition = $1",
            );
            let updated = update.bind(partition).bind(id).bind(log.0).bind(after_seq).execute(&mut *transaction).await?;
            if updated.rows_affected() == 0 {
                return Err(ControlError::NoProgress(partition));
            }
            let delete =
                sqlx::query("DELETE FROM source_forwards WHERE to_partition = $1 AND to_offset >= $2");
            delete.bind(partition).bind(log.1).execute(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(())
        })
        .await
    }

    /// The partitions whose topic was made anew, each with the number of the last batch before that.
    ///
    /// # Errors
    /// What the database says.
    pub async fn topics_made_anew(&self) -> Result<BTreeMap<i32, i64>, ControlError> {
        self.within(async {
            let select = sqlx::query_as(
                "SELECT kafka_partition, topic_after_seq FROM consumer_progress WHERE topic_after_seq IS NOT NULL",
            );
            let rows: Vec<(i32, i64)> = select.fetch_all(&self.pool).await?;
            Ok(rows.into_iter().collect())
        })
        .await
    }
}
