//! The contract suite on ClickHouse, and what is ClickHouse's own.

mod contract;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use contract::{Bench, Server, Stored, basics, crash, fences, late};
use usage_devstack::ClickHouse;
use usage_storage::Storage;
use usage_storage::clickhouse::{ClickHouseConfig, ClickHouseStorage};
use uuid::Uuid;

/// A database of its own on some server.
struct Database {
    url: String,
    name: String,
}

impl Database {
    fn on(url: String) -> Self {
        Self { url, name: format!("test_{}", Uuid::new_v4().simple()) }
    }

    /// On the run's shared server.
    fn shared() -> Self {
        Self::on(usage_devstack::testing::clickhouse_url())
    }

    fn config(&self) -> ClickHouseConfig {
        let mut config = ClickHouseConfig::new(&self.url, &self.name).with_dev_passwords();
        config.flush_age = Duration::ZERO;
        config.rollup_rows = 0;
        config
    }

    /// Asks as the server's own user; rows of tab-separated fields.
    async fn query(&self, sql: &str) -> Vec<Vec<String>> {
        let client = ::clickhouse::Client::default().with_url(&self.url).with_database(&self.name);
        let bytes = client.query_raw(sql).fetch_bytes("TSV").unwrap().collect().await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
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
        Arc::new(ClickHouseStorage::connect(self.config()))
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
struct OwnServer {
    server: ClickHouse,
    _dir: tempfile::TempDir,
}

impl OwnServer {
    fn start() -> (Self, Database) {
        let dir = tempfile::tempdir().unwrap();
        let server = ClickHouse::start(dir.path()).unwrap();
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

macro_rules! on_shared_server {
    ($($room:ident :: $name:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            $room::$name(&Database::shared()).await;
        }
    )*};
}

on_shared_server! {
    basics::migrations_run_at_once,
    basics::what_is_written_is_read,
    basics::ids_are_streamed_by_partition,
    basics::stored_ids_are_found,
    basics::numbers_never_go_back,
    basics::large_values_are_exact,
    basics::refused_rows_are_found,
    fences::a_stale_writer_is_fenced,
    fences::a_joint_insert_is_fenced_as_a_whole,
    fences::a_takeover_ends_joint_inserts,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_writer_stores_nothing_later() {
    let (server, database) = OwnServer::start();
    fences::a_frozen_writer_stores_nothing_later(&database, &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_request_is_never_stored_twice() {
    let (server, database) = OwnServer::start();
    late::a_late_request_is_never_stored_twice(&database, &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_flush_is_never_counted_twice() {
    let (server, database) = OwnServer::start();
    late::a_late_flush_is_never_counted_twice(&database, &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_the_middle_of_writes() {
    let (mut server, database) = OwnServer::start();
    crash::killed_in_the_middle_of_writes(&database, &mut server, 15).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_the_middle_of_flushes() {
    let (mut server, database) = OwnServer::start();
    crash::killed_in_the_middle_of_flushes(&database, &mut server, 15).await;
}
