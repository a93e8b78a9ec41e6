//! Growing the topic (protocol 5.4): what follows after [`Control::announce_partitions`]. Each step may be repeated.
//!
//! A count is listed as known long before it is the current one, so that every reader looks for rows where it will put them. Counts
//! only grow; a count that was listed is one that the topic must reach.

use std::time::Duration;

use sqlx::{Postgres, Transaction};

use crate::{Control, ControlError};

/// No reader answers by counts that are older than this: how long growing waits after a count was listed.
pub const READERS_RELOAD_WITHIN: Duration = Duration::from_secs(20);

impl Control {
    /// From now on workers that take a partition over wait. False if the topic has grown to `count` before.
    ///
    /// # Errors
    /// [`ControlError::OtherGrowth`] if it is growing to more.
    pub async fn begin_growing(&self, count: i32) -> Result<bool, ControlError> {
        let begin = "UPDATE partition_state SET growing = true, growing_to = $1, updated_at = now()
                     WHERE current < $1 AND (growing_to IS NULL OR growing_to <= $1)";
        self.move_growth(begin, count).await
    }

    /// Records `count` as the current one; workers go on. The caller has fenced every partition after [`Self::begin_growing`], so that
    /// nobody stores by another count any more. False if another caller did it before.
    ///
    /// # Errors
    /// [`ControlError::OtherGrowth`] if it is growing to more.
    pub async fn end_growing(&self, count: i32) -> Result<bool, ControlError> {
        let end =
            "UPDATE partition_state SET current = $1, growing = false, growing_to = NULL, updated_at = now()
                   WHERE growing_to = $1";
        self.move_growth(end, count).await
    }

    async fn move_growth(&self, update: &'static str, count: i32) -> Result<bool, ControlError> {
        self.within(async {
            let mut transaction = self.pool.begin().await?;
            let current = locked_count(&mut transaction).await?;
            let moved = sqlx::query(update).bind(count).execute(&mut *transaction).await?.rows_affected() > 0;
            if !moved && current < count {
                let growing_to: Option<i32> = sqlx::query_scalar("SELECT growing_to FROM partition_state")
                    .fetch_one(&mut *transaction)
                    .await?;
                let begun = growing_to.ok_or(ControlError::NotGrowing(count))?;
                return Err(ControlError::OtherGrowth { begun, asked: count });
            }
            transaction.commit().await?;
            Ok(moved)
        })
        .await
    }
}

/// The current count, which nobody else changes while the transaction runs.
async fn locked_count(transaction: &mut Transaction<'_, Postgres>) -> Result<i32, ControlError> {
    let select = sqlx::query_scalar("SELECT current FROM partition_state FOR UPDATE");
    select.fetch_optional(&mut **transaction).await?.ok_or(ControlError::NoPartitionCount)
}
