//! A database of its own for each test, filled with rows in the shape that the writer gives them.

use std::{collections::BTreeMap, fmt::Write as _};

use usage_devstack::testing;
use uuid::Uuid;

use super::samples::Sample;
use crate::{
    Storage as _,
    clickhouse::{
        ClickHouseReader, ClickHouseStorage,
        client::{Client, Profile},
        config::ClickHouseConfig,
        read::aggregate::Sizes,
    },
};

/// Records per insert, so that there are several parts a month.
const CHUNK: usize = 200;

/// A database on the run's server. It is dropped by [`Self::drop`] only, so a failed test leaves it to be looked at.
pub struct Database {
    config: ClickHouseConfig,
    client: Client,
}

impl Database {
    pub async fn create() -> Self {
        let name = format!("test_read_{}", Uuid::new_v4().simple());
        let config = ClickHouseConfig::new(testing::clickhouse_url(), name.as_str()).with_dev_passwords();
        ClickHouseStorage::connect(config.clone()).migrate().await.unwrap();
        let client = Client::new(&config, Profile::Writer);
        Self { config, client }
    }

    pub async fn drop(self) {
        self.run(&format!("DROP DATABASE {}", self.config.database)).await;
    }

    pub async fn run(&self, sql: &str) {
        self.client.execute(sql).await.unwrap_or_else(|error| panic!("{error:?} of {sql:.2000}"));
    }

    /// A reader that asks the rollups whenever they fit, or never; the records in short stretches.
    pub fn reader(&self, rollups: bool) -> ClickHouseReader {
        let mut reader = ClickHouseReader::new(&self.config);
        reader.sizes =
            Sizes { rollup_rows: if rollups { 0 } else { u64::MAX }, stretch_rows: 300, ..reader.sizes };
        reader
    }

    pub fn config(&self) -> &ClickHouseConfig {
        &self.config
    }

    pub async fn insert(&self, samples: &[Sample]) {
        for chunk in samples.chunks(CHUNK) {
            let mut sql = String::from(
                "INSERT INTO usage_records SELECT record_id, tenant_id, source, metric, kind, value, \
                 fromUnixTimestamp64Micro(timestamp), idempotency_key, resource_id, resource_type, subject_id, subject_type, \
                 metadata, fromUnixTimestamp64Micro(ingested_at), status, \
                 if(inactive_at IS NULL, NULL, fromUnixTimestamp64Micro(assumeNotNull(inactive_at))), version, \
                 unhex('00112233445566778899aabbccddeeff'), kafka_partition, kafka_offset, batch_seq \
                 FROM input('record_id UUID, tenant_id UUID, source String, metric String, kind String, \
                 value Decimal(38, 18), timestamp Int64, idempotency_key Nullable(String), resource_id Nullable(UUID), \
                 resource_type Nullable(String), subject_id Nullable(UUID), subject_type Nullable(String), \
                 metadata Nullable(String), ingested_at Int64, status String, inactive_at Nullable(Int64), version UInt32, \
                 kafka_partition Int32, kafka_offset Int64, batch_seq Int64') FORMAT JSONEachRow ",
            );
            for sample in chunk {
                writeln!(sql, "{}", line(sample)).unwrap();
            }
            self.run(&sql).await;
        }
    }

    /// Rolls up every partition and month to its horizon (partition, YYYYMM), in two flushes, as the writer does: the
    /// rows and their horizon in one insert.
    pub async fn roll_up(&self, horizons: &BTreeMap<(i32, u32), i64>) {
        for (&(partition, month), &horizon) in horizons {
            let half = horizon / 2;
            self.flush(partition, month, -1, half).await;
            self.flush(partition, month, half, horizon).await;
        }
    }

    async fn flush(&self, partition: i32, month: u32, after: i64, to: i64) {
        let bounds = format!("batch_seq > {after} AND batch_seq <= {to}");
        let rows = rolled_up(
            0,
            &format!("kafka_partition = {partition} AND toYYYYMM(timestamp) = {month} AND {bounds}"),
        );
        self.run(&format!(
            "INSERT INTO usage_rollups {rows} UNION ALL SELECT toUUID('{}'), '', '', 'counter', \
             toDateTime('{}-{:02}-01 00:00:00', 'UTC'), {partition}, toUInt32(0), toUInt64(0), toDecimal256(0, 18), NULL, NULL, {NEUTRAL}, \
             toInt64({to})",
            Uuid::nil(),
            month / 100,
            month % 100,
        ))
        .await;
    }

    /// Rolls buckets (their starts in seconds) up anew under a generation, to the given horizons. The rows of the
    /// generation before are spoiled first, so that an answer that counts them is wrong.
    pub async fn roll_up_anew(&self, generation: u32, buckets: &[i64], horizons: &BTreeMap<(i32, u32), i64>) {
        let list = buckets.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        let spoiled = generation - 1;
        self.run(&format!(
            "INSERT INTO usage_rollups SELECT tenant_id, metric, source, kind, bucket, kafka_partition, {spoiled}, 1000, \
             toDecimal256('12345', 18), toDecimal128('-99999999999999999999', 18), toDecimal128('99999999999999999999', 18), \
             {SPOILED}, 0 FROM usage_rollups WHERE tenant_id != toUUID('{}') AND generation = {spoiled} \
             AND toUnixTimestamp(bucket) IN ({list})",
            Uuid::nil(),
        ))
        .await;
        for (&(partition, month), &horizon) in horizons {
            let rows = rolled_up(
                generation,
                &format!(
                    "kafka_partition = {partition} AND toYYYYMM(timestamp) = {month} AND batch_seq <= {horizon} \
                     AND toUnixTimestamp(toStartOfFifteenMinutes(timestamp)) IN ({list})"
                ),
            );
            self.run(&format!("INSERT INTO usage_rollups {rows}")).await;
        }
    }
}

const NEUTRAL: &str =
    "(toDateTime64('1900-01-01 00:00:00', 6, 'UTC'), toFixedString('', 16), toDecimal128(0, 18))";
const SPOILED: &str =
    "(toDateTime64('2200-01-01 00:00:00', 6, 'UTC'), toFixedString('spoiled', 16), toDecimal128(7, 18))";

/// The rollup of the records that fit the condition. Inactive records count nothing but keep their key.
fn rolled_up(generation: u32, condition: &str) -> String {
    format!(
        "SELECT tenant_id, metric, source, kind, toDateTime(toStartOfFifteenMinutes(timestamp), 'UTC') AS start, \
         kafka_partition, toUInt32({generation}), countIf(status = 'active'), sumIf(toDecimal256(value, 18), status = 'active'), \
         minIf(toNullable(value), status = 'active'), maxIf(toNullable(value), status = 'active'), \
         max(if(status = 'active', (timestamp, UUIDToNum(record_id), value), {NEUTRAL})), toInt64(0) \
         FROM usage_records WHERE {condition} \
         GROUP BY tenant_id, metric, source, kind, start, kafka_partition"
    )
}

fn line(sample: &Sample) -> serde_json::Value {
    let record = &sample.record;
    serde_json::json!({
        "record_id": record.record_id,
        "tenant_id": record.tenant_id,
        "source": record.source,
        "metric": record.metric,
        "kind": record.kind.as_str(),
        "value": record.value.to_string(),
        "timestamp": record.timestamp,
        "idempotency_key": record.idempotency_key,
        "resource_id": record.resource_id,
        "resource_type": record.resource_type,
        "subject_id": record.subject_id,
        "subject_type": record.subject_type,
        "metadata": record.metadata,
        "ingested_at": record.ingested_at,
        "status": if record.active { "active" } else { "inactive" },
        "inactive_at": record.inactive_at,
        "version": record.version,
        "kafka_partition": sample.partition,
        "kafka_offset": sample.offset,
        "batch_seq": sample.batch_seq,
    })
}
