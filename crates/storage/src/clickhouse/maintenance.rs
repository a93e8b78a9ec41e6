//! The operators' side of the plugin.

use std::time::Duration;

use async_trait::async_trait;
use usage_service::clock;
use uuid::Uuid;

use super::ClickHouseConfig;
use super::client::{Client, Profile, literal};
use super::fence::{Fences, RANDOM_BITS};
use super::rowbinary::RowReader;
use super::{reroll, verify};
use crate::StorageError;
use crate::maintenance::{BucketKey, Difference, LastBatch, Maintenance, PreviousBatch, Scope, Verified};

/// One statement may read a month of a large tenant.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(600);

/// Reads as the maintenance user, and writes fences and rollups as the writing user does.
pub(crate) struct ClickHouseMaintenance {
    client: Client,
    writer: Client,
    fences: Fences,
    reader_user: String,
    write_timeout: Duration,
}

impl ClickHouseMaintenance {
    pub(crate) fn new(config: &ClickHouseConfig) -> Self {
        let writer = Client::new(config, Profile::Writer).with_timeout(STATEMENT_TIMEOUT);
        let mut client = Client::new(config, Profile::Maintenance).with_timeout(STATEMENT_TIMEOUT);
        for (name, value) in verify::SETTINGS {
            client = client.with_setting(name, *value);
        }
        Self {
            client,
            fences: Fences::new(writer.clone(), Uuid::new_v4()),
            writer,
            reader_user: config.reader_user.clone(),
            write_timeout: config.write_timeout,
        }
    }
}

#[async_trait]
impl Maintenance for ClickHouseMaintenance {
    async fn verify(
        &self,
        scope: &Scope,
        sink: &mut (dyn FnMut(Difference) + Send),
    ) -> Result<Verified, StorageError> {
        verify::verify(&self.client, scope, sink).await
    }

    async fn rebuild(&self, buckets: &[BucketKey]) -> Result<(), StorageError> {
        reroll::reroll(&self.writer, &self.fences, buckets, self.write_timeout).await
    }

    async fn fence_above_all(&self, partitions: &[i32]) -> Result<(), StorageError> {
        // Epochs count takeovers, in their upper bits: there were fewer of them than seconds since 1970.
        let floor = (clock::now_millis() / 1_000) << RANDOM_BITS;
        let held = self.fences.raise_above(partitions, floor).await?;
        self.fences.end_older(&held).await
    }

    async fn last_batches(&self) -> Result<Vec<LastBatch>, StorageError> {
        let sql = "WITH (kafka_partition, batch_seq) IN \
                   (SELECT kafka_partition, max(batch_seq) FROM usage_records GROUP BY kafka_partition) AS is_last \
                   SELECT kafka_partition, maxIf(batch_seq, is_last), minIf(kafka_offset, is_last), \
                   countIf(NOT is_last), maxIf(batch_seq, NOT is_last), \
                   argMaxIf(kafka_offset, (batch_seq, kafka_offset), NOT is_last) \
                   FROM usage_records GROUP BY kafka_partition ORDER BY kafka_partition";
        let bytes = self.client.fetch(sql).await?;
        let mut rows = RowReader::new(&bytes);
        let mut batches = Vec::new();
        while !rows.is_empty() {
            let (partition, batch_seq, first_offset) = (rows.i32()?, rows.i64()?, rows.i64()?);
            let earlier = rows.u64()?;
            let previous = PreviousBatch { batch_seq: rows.i64()?, last_offset: rows.i64()? };
            let previous = (earlier > 0).then_some(previous);
            batches.push(LastBatch { partition, batch_seq, first_offset, previous });
        }
        Ok(batches)
    }

    async fn empty_rollups(&self) -> Result<(), StorageError> {
        // The server's guard against dropping large tables by mistake is not meant here.
        let client = self.client.clone().with_setting("max_table_size_to_drop", "0");
        Ok(client.execute("TRUNCATE TABLE usage_rollups").await?)
    }

    async fn running_questions(&self) -> Result<u64, StorageError> {
        let sql = format!(
            "SELECT count() FROM system.processes WHERE user = {} AND current_database = currentDatabase()",
            literal(&self.reader_user)
        );
        let bytes = self.client.fetch(&sql).await?;
        Ok(RowReader::new(&bytes).u64()?)
    }
}
