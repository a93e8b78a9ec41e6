//! Which workers a control database belongs to: one consumer group of one topic.

use crate::{Control, ControlError};

impl Control {
    /// The first workers that come say whose database this is; from then on it takes no others.
    ///
    /// # Errors
    /// [`ControlError::OtherWorkers`] if it belongs to another group or topic; what the database says.
    pub async fn belong_to(&self, consumer_group: &str, records_topic: &str) -> Result<(), ControlError> {
        self.within(async {
            sqlx::query(
                "INSERT INTO workers (consumer_group, records_topic) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            )
            .bind(consumer_group)
            .bind(records_topic)
            .execute(&self.pool)
            .await?;
            let select = sqlx::query_as("SELECT consumer_group, records_topic FROM workers");
            let (group, topic): (String, String) = select.fetch_one(&self.pool).await?;
            if (group.as_str(), topic.as_str()) == (consumer_group, records_topic) {
                Ok(())
            } else {
                Err(ControlError::OtherWorkers { group, topic })
            }
        })
        .await
    }
}
