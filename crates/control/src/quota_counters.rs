//! How much of the quotas is used (protocol 5.1): counted once for each batch number, since only the transaction that moves a
//! partition's progress adds to the counters.

use std::collections::BTreeMap;

use sqlx::{FromRow, PgConnection};
use time::OffsetDateTime;
use usage_service::{clock, fail_point};
use uuid::Uuid;

use crate::{Advance, Control, ControlError};

/// What is counted together: the kept records of a source and tenant within one window.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QuotaKey {
    pub source: String,
    pub tenant_id: Uuid,
    pub window_seconds: i32,
    /// Seconds since the Unix epoch.
    pub window_start: i64,
}

impl QuotaKey {
    fn starts_at(&self) -> OffsetDateTime {
        clock::from_micros(self.window_start.saturating_mul(1_000_000))
    }

    /// Seconds since the Unix epoch; outside of the window.
    pub fn window_end(&self) -> i64 {
        self.window_start.saturating_add(i64::from(self.window_seconds))
    }
}

/// Counters as of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuotaCounts {
    /// The partition's last batch that they contain.
    pub batch_seq: i64,
    /// In the order of the question; 0 where nothing was counted.
    pub records: Vec<i64>,
}

/// A window that has been counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaUse {
    pub window_seconds: i32,
    /// Seconds since the Unix epoch.
    pub window_start: i64,
    pub records: i64,
}

/// Columns of keys, for `unnest`.
#[derive(Default)]
struct Columns {
    source: Vec<String>,
    tenant_id: Vec<Uuid>,
    window_seconds: Vec<i32>,
    window_start: Vec<OffsetDateTime>,
}

impl Columns {
    fn push(&mut self, key: &QuotaKey) {
        self.source.push(key.source.clone());
        self.tenant_id.push(key.tenant_id);
        self.window_seconds.push(key.window_seconds);
        self.window_start.push(key.starts_at());
    }
}

/// Adds what the batches `done` kept, whose numbers the same transaction has just moved.
pub(crate) async fn add(connection: &mut PgConnection, done: &[&Advance]) -> Result<(), sqlx::Error> {
    // In one order, so that two workers never wait for each other in a circle; and each key once, as the statement wants it.
    let mut counts = BTreeMap::<&QuotaKey, (i64, i32)>::new();
    for advance in done {
        for (key, records) in advance.quota_counts.iter().filter(|(_, records)| *records > 0) {
            let (sum, partition) = counts.entry(key).or_default();
            *sum += records;
            *partition = advance.partition;
        }
    }
    if counts.is_empty() {
        return Ok(());
    }
    fail_point!("control.count");
    let mut columns = Columns::default();
    let (mut ends, mut records, mut partitions) = (Vec::new(), Vec::new(), Vec::new());
    for (key, (sum, partition)) in counts {
        columns.push(key);
        ends.push(clock::from_micros(key.window_end().saturating_mul(1_000_000)));
        records.push(sum);
        partitions.push(partition);
    }
    sqlx::query(
        "INSERT INTO quota_counters AS c
           (source, tenant_id, window_seconds, window_start, window_end, records, kafka_partition)
         SELECT * FROM unnest($1::text[], $2::uuid[], $3::integer[], $4::timestamptz[], $5::timestamptz[],
           $6::bigint[], $7::integer[])
         ON CONFLICT (source, tenant_id, window_seconds, window_start)
         DO UPDATE SET records = c.records + excluded.records, kafka_partition = excluded.kafka_partition",
    )
    .bind(columns.source)
    .bind(columns.tenant_id)
    .bind(columns.window_seconds)
    .bind(columns.window_start)
    .bind(ends)
    .bind(records)
    .bind(partitions)
    .execute(connection)
    .await?;
    fail_point!("control.counted");
    Ok(())
}

impl Control {
    /// The counters of `keys`, and up to which batch of the partition they are: in one statement, so that whoever has later
    /// batches in hand adds exactly those.
    ///
    /// # Errors
    /// [`ControlError::NoProgress`] for a partition without a row; what the database says.
    pub async fn quota_counts(&self, partition: i32, keys: &[QuotaKey]) -> Result<QuotaCounts, ControlError> {
        let mut columns = Columns::default();
        keys.iter().for_each(|key| columns.push(key));
        self.within(async {
            let rows: Vec<(i64, i64)> = sqlx::query_as(
                "SELECT p.batch_seq, coalesce(c.records, 0)
                 FROM consumer_progress AS p
                 CROSS JOIN unnest($2::text[], $3::uuid[], $4::integer[], $5::timestamptz[]) WITH ORDINALITY
                   AS k (source, tenant_id, window_seconds, window_start, place)
                 LEFT JOIN quota_counters AS c USING (source, tenant_id, window_seconds, window_start)
                 WHERE p.kafka_partition = $1 ORDER BY k.place",
            )
            .bind(partition)
            .bind(columns.source)
            .bind(columns.tenant_id)
            .bind(columns.window_seconds)
            .bind(columns.window_start)
            .fetch_all(&self.pool)
            .await?;
            let batch_seq = rows.first().map(|(batch_seq, _)| *batch_seq);
            match batch_seq {
                None if !keys.is_empty() => Err(ControlError::NoProgress(partition)),
                batch_seq => {
                    let records = rows.into_iter().map(|(_, records)| records).collect();
                    Ok(QuotaCounts { batch_seq: batch_seq.unwrap_or(0), records })
                }
            }
        })
        .await
    }

    /// The windows of a source and tenant that were counted, the latest first, at most `most`.
    ///
    /// # Errors
    /// What the database says.
    pub async fn quota_use(
        &self,
        source: &str,
        tenant: Uuid,
        most: i64,
    ) -> Result<Vec<QuotaUse>, ControlError> {
        #[derive(FromRow)]
        struct Row {
            window_seconds: i32,
            window_start: OffsetDateTime,
            records: i64,
        }
        self.within(async {
            let rows: Vec<Row> = sqlx::query_as(
                "SELECT window_seconds, window_start, records FROM quota_counters
                 WHERE source = $1 AND tenant_id = $2 ORDER BY window_start DESC, window_seconds LIMIT $3",
            )
            .bind(source)
            .bind(tenant)
            .bind(most)
            .fetch_all(&self.pool)
            .await?;
            let used = |row: Row| QuotaUse {
                window_seconds: row.window_seconds,
                window_start: row.window_start.unix_timestamp(),
                records: row.records,
            };
            Ok(rows.into_iter().map(used).collect())
        })
        .await
    }

    /// Removes counters of windows that ended before a time (seconds since the Unix epoch, for each partition its own), at most
    /// `most` of a partition; gives how many.
    ///
    /// # Errors
    /// What the database says.
    pub async fn sweep_quota_counters(&self, ended: &[(i32, i64)], most: i64) -> Result<u64, ControlError> {
        let partitions: Vec<i32> = ended.iter().map(|(partition, _)| *partition).collect();
        let before = |(_, seconds): &(i32, i64)| clock::from_micros(seconds.saturating_mul(1_000_000));
        let before: Vec<OffsetDateTime> = ended.iter().map(before).collect();
        self.within(async {
            let deleted = sqlx::query(
                "DELETE FROM quota_counters AS c
                 USING unnest($1::integer[], $2::timestamptz[]) AS a (partition, before),
                 LATERAL (SELECT o.ctid AS place FROM quota_counters AS o
                   WHERE o.kafka_partition = a.partition AND o.window_end < a.before
                   ORDER BY o.window_end LIMIT $3) AS old
                 WHERE c.ctid = old.place AND c.kafka_partition = a.partition AND c.window_end < a.before",
            )
            .bind(partitions)
            .bind(before)
            .bind(most)
            .execute(&self.pool)
            .await?;
            Ok(deleted.rows_affected())
        })
        .await
    }

    /// What the log holds below each partition's present offset will be read again: it was held to quotas and counted when it was read
    /// first. Repeating it changes nothing.
    ///
    /// # Errors
    /// What the database says.
    pub async fn spare_quotas(&self) -> Result<(), ControlError> {
        self.within(async {
            sqlx::query(
                "UPDATE consumer_progress SET quotas_from = greatest(quotas_from, next_offset)
                 WHERE next_offset IS NOT NULL",
            )
            .execute(&self.pool)
            .await?;
            Ok(())
        })
        .await
    }
}
