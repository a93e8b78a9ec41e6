//! The partition counts that the topic of records has and had (protocol 5.4).

use crate::{Control, ControlError};

/// By which counts tenants were and are spread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partitions {
    /// The count by which workers store now.
    pub current: i32,
    /// Every count under which rows may lie, ascending; `current` is among them.
    pub known: Vec<i32>,
    /// The topic is being grown: workers that take a partition over wait.
    pub growing: bool,
}

impl Partitions {
    /// True while what was decided by `count` holds.
    pub fn decides(&self, count: i32) -> bool {
        !self.growing && self.current == count
    }

    /// True if `in_kafka` is more than every count that is known.
    pub fn exceeded_by(&self, in_kafka: i32) -> bool {
        self.known.iter().all(|known| *known < in_kafka)
    }
}

impl Control {
    /// Records the count of a topic that was just made. The same count again changes nothing.
    ///
    /// # Errors
    /// [`ControlError::OtherPartitionCount`]: growing is an operation of its own.
    pub async fn init_partitions(&self, count: i32) -> Result<(), ControlError> {
        if count < 1 {
            return Err(ControlError::invalid("partitions", "must be at least 1"));
        }
        let recorded = self.within(async {
            let mut transaction = self.pool.begin().await?;
            // The count belongs to the state: if another process is first with another count, this one must leave no trace.
            sqlx::query("LOCK TABLE partition_state IN SHARE ROW EXCLUSIVE MODE")
                .execute(&mut *transaction)
                .await?;
            let current = sqlx::query_scalar("SELECT current FROM partition_state");
            if let Some(recorded) = current.fetch_optional(&mut *transaction).await? {
                return Ok(recorded);
            }
            let known =
                sqlx::query("INSERT INTO partition_counts (count) VALUES ($1) ON CONFLICT DO NOTHING");
            known.bind(count).execute(&mut *transaction).await?;
            let state = sqlx::query("INSERT INTO partition_state (current) VALUES ($1)");
            state.bind(count).execute(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(count)
        });
        match recorded.await? {
            recorded if recorded == count => Ok(()),
            recorded => Err(ControlError::OtherPartitionCount { recorded, asked: count }),
        }
    }

    /// The counts, from the primary, as of one moment.
    ///
    /// # Errors
    /// [`ControlError::NoPartitionCount`] before `usagectl topics create`; what the database says.
    pub async fn partition_counts(&self) -> Result<Partitions, ControlError> {
        self.within(async {
            let row: Option<(i32, bool, Vec<i32>)> = sqlx::query_as(
                "SELECT current, growing, ARRAY(SELECT count FROM partition_counts ORDER BY count)
                 FROM partition_state",
            )
            .fetch_optional(&self.pool)
            .await?;
            let (current, growing, known) = row.ok_or(ControlError::NoPartitionCount)?;
            Ok(Partitions { current, known, growing })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_holds_until_the_topic_begins_to_grow() {
        let mut counts = Partitions { current: 2, known: vec![2, 4], growing: false };
        assert!(counts.decides(2) && !counts.decides(4), "known is not current");
        counts.growing = true;
        assert!(!counts.decides(2) && !counts.decides(4));
    }

    #[test]
    fn only_what_nobody_announced_exceeds() {
        let counts = Partitions { current: 2, known: vec![2, 4], growing: false };
        assert!(counts.exceeded_by(5) && !counts.exceeded_by(4) && !counts.exceeded_by(3));
    }
}
