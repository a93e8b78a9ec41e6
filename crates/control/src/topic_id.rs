//! Which topic the offsets of a partition belong to: one that was made anew has another id.

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
}
