//! Progress where no worker has been yet: new partitions, and a storage that was restored.

use sqlx::PgConnection;

use crate::{Control, ControlError};

/// Gives each partition from the greatest known count below `count`, and from what Kafka has, up to `count` every source's present
/// minimum: what was emitted before lies in the old partitions. Belongs into the transaction that makes `count` known, so that no reader misses
/// the new partitions' progress. Repeating it lowers nothing. An outbox that was not heard everywhere yet gets nothing.
async fn seed_new_partitions(
    connection: &mut PgConnection,
    count: i32,
    in_kafka: i32,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO source_progress (source, outbox, kafka_partition, complete_until)
         SELECT p.source, p.outbox, added, min(p.complete_until)
         FROM (SELECT max(count) AS partitions FROM partition_counts WHERE count < $1) AS known
         CROSS JOIN LATERAL generate_series(greatest(known.partitions, $2), $1 - 1) AS added
         JOIN source_progress AS p ON p.kafka_partition < known.partitions
         GROUP BY p.source, p.outbox, added, known.partitions
         HAVING count(*) = known.partitions
         ON CONFLICT DO NOTHING",
    )
    .bind(count)
    .bind(in_kafka)
    .execute(connection)
    .await?;
    Ok(())
}

impl Control {
    /// The first step of growing the topic (protocol 5.4): makes `count` known, so that readers look into the new partitions, and
    /// gives each of them every source's present minimum. Not those that Kafka has already, which are below `in_kafka`: somebody
    /// added them by hand, and what producers put there meanwhile is older than that; nothing is known until a marker has passed
    /// there. The same count again changes nothing.
    ///
    /// # Errors
    /// [`ControlError::Shrinks`]; [`ControlError::OtherGrowth`] if a greater count is known; what the database says.
    pub async fn announce_partitions(&self, count: i32, in_kafka: i32) -> Result<(), ControlError> {
        self.within(async {
            let mut transaction = self.pool.begin().await?;
            // As in `init_partitions`: one process at a time.
            sqlx::query("LOCK TABLE partition_state IN SHARE ROW EXCLUSIVE MODE")
                .execute(&mut *transaction)
                .await?;
            let state = sqlx::query_as(
                "SELECT current, (SELECT max(count) FROM partition_counts) FROM partition_state",
            );
            let (current, greatest): (i32, i32) =
                state.fetch_optional(&mut *transaction).await?.ok_or(ControlError::NoPartitionCount)?;
            if count < current {
                return Err(ControlError::Shrinks { recorded: current, asked: count });
            }
            if count < greatest {
                return Err(ControlError::OtherGrowth { begun: greatest, asked: count });
            }
            if greatest < count {
                seed_new_partitions(&mut transaction, count, in_kafka).await?;
                let known = sqlx::query("INSERT INTO partition_counts (count) VALUES ($1)");
                known.bind(count).execute(&mut *transaction).await?;
                transaction.commit().await?;
            }
            Ok(())
        })
        .await
    }

    /// Forgets the sources' progress, for a storage that was restored from an older backup (protocol 6.6): nothing is known until
    /// every partition has passed again what it had done before. Consumers must not run.
    ///
    /// # Errors
    /// What the database says.
    pub async fn forget_source_progress(&self) -> Result<(), ControlError> {
        self.within(async {
            let mut transaction = self.pool.begin().await?;
            // Markers between the restored offset and the old one were sent after records that another partition had forwarded to
            // here, and which that partition need not read again: so no partition counts before it is where it was.
            sqlx::query(
                "INSERT INTO source_forwards (source, from_partition, to_partition, to_offset, complete_until)
                 SELECT s.source, c.kafka_partition, c.kafka_partition, c.next_offset - 1, '-infinity'
                 FROM (SELECT source FROM source_keys UNION SELECT source FROM source_progress) AS s, consumer_progress AS c
                 WHERE c.next_offset > 0
                 ON CONFLICT (to_partition, to_offset, source) DO UPDATE SET complete_until = '-infinity'",
            )
            .execute(&mut *transaction)
            .await?;
            sqlx::query("DELETE FROM source_progress").execute(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(())
        })
        .await
    }
}
