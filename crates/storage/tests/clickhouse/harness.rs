//! A ClickHouse database as a bench of the contract suite.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use usage_devstack::ClickHouse;
use usage_storage::Storage;
use usage_storage::clickhouse::{ClickHouseConfig, ClickHouseStorage};
use uuid::Uuid;

use crate::contract::{Bench, Server, Stored};

/// A database of its own on some server.
pub struct Database {
    pub url: String,
    pub name: String,
}

impl Database {
    pub fn on(url: String) -> Self {
        Self { url, name: format!("test_{}", Uuid::new_v4().simple()) }
    }

    /// On the run's shared server.
    pub fn shared() -> Self {
        Self::on(usage_devstack::testing::clickhouse_url())
    }

    pub fn config(&self) -> ClickHouseConfig {
        let mut config = ClickHouseConfig::new(&self.url, &self.name).with_dev_passwords();
        config.flush_age = Duration::ZERO;
        config.rollup_rows = 0;
        // So that new owners sometimes leave the rebuilding to the server.
        config.rebuild_rows = 2_000;
        config
    }

    /// Asks as the server's own user; rows of tab-separated fields.
    pub async fn query(&self, sql: &str) -> Vec<Vec<String>> {
        self.try_query(sql).await.unwrap()
    }

    /// The same where the server may die over it.
    pub async fn try_query(&self, sql: &str) -> Result<Vec<Vec<String>>, ::clickhouse::error::Error> {
        let client = ::clickhouse::Client::default().with_url(&self.url).with_database(&self.name);
        let bytes = client.query_raw(sql).fetch_bytes("TSV")?.collect().await?;
        let text = String::from_utf8(bytes.to_vec()).expect("answers are UTF-8");
        Ok(text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
    }
}

/// What is rolled up under the highest generation of each key, and the records up to the horizons, side by side.
const DIFFERENCES: &str = "
WITH horizons AS (
    SELECT kafka_partition, toYYYYMM(bucket) AS month, max(horizon) AS through FROM usage_rollups
    WHERE tenant_id = toUUID('00000000-0000-0000-0000-000000000000') GROUP BY kafka_partition, month),
rolled AS (
    SELECT tenant_id, metric, source, kind, bucket, kafka_partition, generation, sum(record_count) AS c, sum(value_sum) AS s,
        min(value_min) AS lo, max(value_max) AS hi, max(latest) AS l
    FROM usage_rollups WHERE tenant_id != toUUID('00000000-0000-0000-0000-000000000000')
    GROUP BY tenant_id, metric, source, kind, bucket, kafka_partition, generation
    ORDER BY generation DESC LIMIT 1 BY tenant_id, metric, source, kind, bucket, kafka_partition),
records AS (
    SELECT tenant_id, metric, source, kind, toStartOfFifteenMinutes(timestamp) AS bucket, usage_records.kafka_partition AS kafka_partition,
        count() AS c, sum(toDecimal256(value, 18)) AS s, min(value) AS lo, max(value) AS hi,
        max((timestamp, UUIDToNum(record_id), value)) AS l
    FROM usage_records JOIN horizons
        ON horizons.kafka_partition = usage_records.kafka_partition AND horizons.month = toYYYYMM(timestamp)
    WHERE batch_seq <= through AND status = 'active'
    GROUP BY tenant_id, metric, source, kind, bucket, kafka_partition)
SELECT tenant_id, metric, source, kind, bucket, kafka_partition, countIf(side = 'rolled'), countIf(side = 'records'), groupArray(c)
FROM (SELECT 'rolled' AS side, tenant_id, metric, source, kind, bucket, kafka_partition, c, s, assumeNotNull(lo) AS lo, assumeNotNull(hi) AS hi, l FROM rolled WHERE c > 0
    UNION ALL SELECT 'records', tenant_id, metric, source, kind, bucket, kafka_partition, c, s, lo, hi, l FROM records)
GROUP BY tenant_id, metric, source, kind, bucket, kafka_partition
HAVING count() != 2 OR uniqExact(tuple(c, s, lo, hi, l)) != 1
LIMIT 20";

#[async_trait]
impl Bench for Database {
    fn storage(&self) -> Arc<dyn Storage> {
        let mut config = self.config();
        // A busy machine is no reason to fail.
        config.read_timeout = Duration::from_secs(60);
        Arc::new(ClickHouseStorage::connect(config))
    }

    fn impatient(&self, write_timeout: Duration, address: Option<SocketAddr>) -> Arc<dyn Storage> {
        let mut config = self.config();
        config.write_timeout = write_timeout;
        if let Some(address) = address {
            config.url = format!("http://{address}");
        }
        Arc::new(ClickHouseStorage::connect(config))
    }

    async fn stored(&self) -> Stored {
        let sql = "SELECT kafka_partition, batch_seq, toYYYYMM(timestamp) AS month, count() FROM usage_records \
                   GROUP BY kafka_partition, batch_seq, month";
        let rows = self.query(sql).await;
        let parse = |row: &Vec<String>| {
            let key = (row[0].parse().unwrap(), row[1].parse().unwrap(), row[2].parse().unwrap());
            (key, row[3].parse().unwrap())
        };
        rows.iter().map(parse).collect::<BTreeMap<_, _>>()
    }

    async fn rollup_differences(&self) -> Vec<String> {
        self.query(DIFFERENCES).await.into_iter().map(|row| row.join(" ")).collect()
    }

    async fn rollup_keys(&self) -> u64 {
        let sql = "SELECT uniqExact(tenant_id, metric, source, kind, bucket, kafka_partition) FROM usage_rollups \
                   WHERE record_count > 0";
        self.query(sql).await[0][0].parse().unwrap()
    }

    async fn refuse_metric(&self, metric: &str) {
        self.query(&format!("ALTER TABLE usage_records ADD CONSTRAINT refused CHECK metric != '{metric}'"))
            .await;
    }
}

/// A server that a test has for itself.
pub struct OwnServer {
    server: ClickHouse,
    _dir: tempfile::TempDir,
}

impl OwnServer {
    pub fn start() -> (Self, Database) {
        Self::start_with(Vec::new())
    }

    /// With additional variables in the server's environment.
    pub fn start_with(environment: Vec<(String, String)>) -> (Self, Database) {
        let dir = tempfile::tempdir().unwrap();
        let server = ClickHouse::start_with(dir.path(), environment).unwrap();
        let database = Database::on(server.url());
        (Self { server, _dir: dir }, database)
    }
}

impl Server for OwnServer {
    fn kill(&mut self) {
        self.server.kill9();
    }

    fn restart(&mut self) {
        self.server.restart().unwrap();
    }

    fn pause(&self) {
        self.server.pause();
    }

    fn resume(&self) {
        self.server.resume();
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.server.http_port()))
    }
}
