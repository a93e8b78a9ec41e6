//! The API over the real ClickHouse and Postgres, held against the API over memory on the same records, byte for byte.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use usage_access::policy::Constraints;
use usage_control::testing::TestDatabase;
use usage_devstack::testing;
use usage_query_api::store::Bounds;
use usage_schemas::ids::content_hash;
use usage_schemas::partition::partition_of;
use usage_schemas::{Kind, Quantity, RecordRef, Timestamp};
use usage_storage::clickhouse::{ClickHouseConfig, ClickHouseStorage};
use usage_storage::{PlannedBatch, Rows, Storage as _, StoredRecord};
use uuid::Uuid;

use crate::memory::record;
use crate::policy::Says;
use crate::support::{Harness, Setup, router};

const PARTITIONS: i32 = 12;
/// 2025-03-25T00:00:00Z, shortly before clocks change in Europe; the records span 40 days and three months.
const START: i64 = 1_742_860_800_000_000;
const SPAN: i64 = 40 * 86_400_000_000;

/// Two real databases of this test's own.
pub struct Databases {
    pub control: TestDatabase,
    pub clickhouse: ClickHouseConfig,
    pub storage: ClickHouseStorage,
}

impl Databases {
    pub async fn create() -> Self {
        Self::on(testing::clickhouse_url()).await
    }

    /// On a ClickHouse server of the test's own.
    pub async fn on(clickhouse_url: String) -> Self {
        let control = TestDatabase::create(&testing::control_database_url()).await;
        let database = control.control().await;
        database.migrate().await.unwrap();
        database.init_partitions(PARTITIONS).await.unwrap();
        let name = format!("test_api_{}", Uuid::new_v4().simple());
        let mut clickhouse = ClickHouseConfig::new(clickhouse_url, name).with_dev_passwords();
        // Rolled up at every tick, and asked for at every question.
        clickhouse.flush_age = Duration::ZERO;
        clickhouse.rollup_rows = 0;
        // A busy machine is no reason to fail.
        clickhouse.read_timeout = Duration::from_secs(300);
        let storage = ClickHouseStorage::connect(clickhouse.clone());
        storage.migrate().await.unwrap();
        Self { control, clickhouse, storage }
    }

    pub async fn drop(self) {
        self.control.drop().await;
        let address = self.clickhouse.url.trim_start_matches("http://").trim_end_matches('/');
        let mut stream = TcpStream::connect(address).await.unwrap();
        let sql = format!("DROP DATABASE {}", self.clickhouse.database);
        let request = format!(
            "POST / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{sql}",
            sql.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// The API over these databases, with the tenant, the policies and the usage types of a harness over memory.
    pub async fn api(&self, like: &Harness, page_rows: usize) -> Harness {
        let patient = Duration::from_secs(300);
        let bounds = Bounds { timeout: patient, ..Bounds::default() };
        let policy = like.policy.clone();
        let setup = Setup { timeout: patient, bounds, policy: policy.clone(), ..Setup::page_rows(page_rows) };
        let control = self.control.control().await;
        let real = Harness {
            router: router(setup, self.storage.reader(), Arc::new(control)),
            memory: like.memory.clone(),
            registry: like.registry.clone(),
            policy,
            tenant: like.tenant,
        };
        for (name, kind, unit) in
            [("tokens", "counter", "token"), ("bytes", "counter", "byte"), ("level", "gauge", "percent")]
        {
            let answer = real
                .post("/v1/usage/types", &format!(r#"{{"name":"{name}","kind":"{kind}","unit":"{unit}"}}"#))
                .await;
            assert_eq!(answer.status.as_u16(), 201, "{}", answer.text);
        }
        real
    }

    /// Writes the records as a worker does: a batch per partition and call, rolled up if asked.
    pub async fn write(&self, batch_seq: i64, records: &[StoredRecord], roll_up: bool) {
        let writer = self.storage.writer();
        let mut partitions: Vec<i32> =
            records.iter().map(|record| partition_of(record.tenant_id, PARTITIONS)).collect();
        partitions.sort_unstable();
        partitions.dedup();
        for partition in &partitions {
            writer.open(*partition).await.unwrap();
            writer.recover(*partition).await.unwrap();
            let mut rows = Rows::default();
            let mine =
                records.iter().filter(|record| partition_of(record.tenant_id, PARTITIONS) == *partition);
            for (offset, record) in mine.enumerate() {
                let borrowed = borrowed(record);
                let offset = batch_seq * 1_000_000 + i64::try_from(offset).unwrap();
                rows.push(&borrowed, content_hash(&borrowed), offset, record.ingested_at);
            }
            writer.write(&[Arc::new(PlannedBatch { partition: *partition, batch_seq, rows })]).await.unwrap();
        }
        if roll_up {
            writer.tick(&partitions).await.unwrap();
        }
        for partition in &partitions {
            writer.close(*partition, false).await.unwrap();
        }
    }
}

fn borrowed(record: &StoredRecord) -> RecordRef<'_> {
    RecordRef {
        record_id: record.record_id,
        tenant_id: record.tenant_id,
        source: &record.source,
        metric: &record.metric,
        kind: record.kind,
        value: record.value,
        timestamp: Timestamp::from_micros(record.timestamp),
        idempotency_key: record.idempotency_key.as_deref(),
        resource_id: record.resource_id,
        resource_type: record.resource_type.as_deref(),
        subject_id: record.subject_id,
        subject_type: record.subject_type.as_deref(),
        metadata: record.metadata.as_deref(),
    }
}

fn samples(random: &mut StdRng, tenant: Uuid, count: usize) -> Vec<StoredRecord> {
    let text = |random: &mut StdRng, words: &[&str]| words[random.random_range(0..words.len())].to_owned();
    (0..count)
        .map(|_| {
            let metric = text(random, &["tokens", "bytes", "level"]);
            let mut sample = record(tenant, &metric, "0", "2025-01-01T00:00:00Z");
            let magnitude = Quantity::MAX_UNSCALED >> random.random_range(0..120);
            sample.value = Quantity::from_unscaled(random.random_range(0..=magnitude)).unwrap();
            if metric == "level" {
                sample.kind = Kind::Gauge;
                sample.value = Quantity::from_unscaled(-sample.value.unscaled()).unwrap();
            }
            // Half of them on whole minutes, so that times repeat and lie on the edges of windows.
            sample.timestamp = START + random.random_range(0..SPAN);
            if random.random_bool(0.5) {
                sample.timestamp -= sample.timestamp % 60_000_000;
            }
            sample.ingested_at = sample.timestamp + 1_500_000;
            sample.source = text(random, &["gateway", "batch", "edge"]);
            if random.random_bool(0.7) {
                sample.subject_id = Some(Uuid::from_u128(random.random_range(1..5) << 120 | 7));
                sample.subject_type = random.random_bool(0.8).then(|| text(random, &["user", "service"]));
            }
            if random.random_bool(0.6) {
                sample.resource_id = Some(Uuid::from_u128(random.random_range(1..4)));
                sample.resource_type = random.random_bool(0.8).then(|| text(random, &["vm", "disk"]));
            }
            if random.random_bool(0.5) {
                sample.metadata =
                    Some(format!("{{ \"a\": \"x\\ty'\\\\\", \"n\":{} }}", random.random_range(0..9)));
                sample.idempotency_key = Some(format!("ключ-{}", sample.record_id));
            }
            sample
        })
        .collect()
}

fn questions() -> Vec<(String, &'static str)> {
    let mut questions = Vec::new();
    let ranges = [
        ("2025-03-25T00:00:00Z", "2025-05-04T00:00:00Z"),
        ("2025-03-29T23:00:00Z", "2025-03-30T22:00:00Z"),
        ("2025-03-30T11:07:09.5Z", "2025-04-26T21:59:59.999999Z"),
    ];
    for (index, (from, to)) in ranges.into_iter().enumerate() {
        let range = format!("from={from}&to={to}");
        // Each aggregation over two of the ranges.
        let aggregations = [["sum", "count"], ["min", "max"], ["avg", "latest"]];
        for aggregation in [aggregations[index], aggregations[(index + 1) % 3]].concat() {
            for windows in [
                "",
                "&window_size=DAY&window_time_zone=Europe/Budapest",
                "&window_size=WEEK&window_time_zone=Africa/Cairo",
            ] {
                questions.push((
                    format!("aggregated?{range}&aggregation={aggregation}&group_by=metric{windows}"),
                    "application/json",
                ));
                questions.push((
                    format!("aggregated?{range}&aggregation={aggregation}&metric=tokens&fill=zero{windows}"),
                    "application/json",
                ));
            }
        }
        for rest in [
            "metric=tokens&window_size=PT1H&window_time_zone=Australia/Lord_Howe&group_by=source",
            "metric=bytes&window_size=PT15M&window_time_zone=Asia/Kathmandu",
            "metric=bytes&window_size=MINUTE&fill=zero&window_time_zone=America/St_Johns",
            "metric=level&window_size=MONTH&group_by=subject,resource&aggregation=latest",
            "group_by=metric,source,subject,resource",
            "group_by=metric,source,subject,resource&window_size=P1W&fill=zero",
            "metric=tokens&group_by=subject&subject_type=user&subject_type=service&window_size=P1D",
            "metric=tokens&source=gateway&source=batch&resource_type=vm&window_size=P1D&fill=zero",
            "metric=tokens&subject_id=01000000-0000-0000-0000-000000000007&group_by=resource",
            "metric=tokens&metric=bytes&aggregation=count&window_size=HOUR",
            "metric=tokens&source=nobody&window_size=DAY&fill=zero",
        ] {
            questions.push((format!("aggregated?{range}&{rest}"), "application/json"));
            questions.push((format!("aggregated?{range}&{rest}"), "text/csv"));
        }
        for rest in [
            "",
            "&limit=1000",
            "&limit=7&status=all",
            "&status=inactive",
            "&metric=level&source=edge",
            "&subject_type=user&resource_type=disk&limit=50",
            "&resource_id=00000000-0000-0000-0000-000000000002",
        ] {
            questions.push((format!("raw?{range}{rest}"), "application/json"));
        }
        questions.push((format!("raw?{range}&metric=tokens"), "text/csv"));
        questions.push((format!("raw?{range}&metric=bytes&status=all"), "application/x-ndjson"));
    }
    questions.push(("metadata/watermarks".to_owned(), "application/json"));
    questions
}

/// Asks both everything; they must say the same, and, unless something named may be refused, that it went well. The number of
/// bytes that were compared.
async fn compare(memory: &Harness, real: &Harness, may_refuse: bool) -> usize {
    let mut compared = 0;
    for (question, accept) in questions() {
        let mut path = format!("/v1/usage/{question}");
        // Some pages of each, so that cursors meet both implementations.
        for _ in 0..2 {
            let (expected, found) = (memory.get_as(&path, accept).await, real.get_as(&path, accept).await);
            assert_eq!(found.status, expected.status, "{path}: {}", found.text);
            if may_refuse && found.status.as_u16() == 403 {
                break;
            }
            assert_eq!(found.status.as_u16(), 200, "{path}: {}", found.text);
            assert_eq!(found.text, expected.text, "{path} ({accept})");
            compared += expected.text.len();
            let next = (accept == "application/json")
                .then(|| expected.json()["next_cursor"].as_str().map(str::to_owned))
                .flatten();
            let Some(cursor) = next else { break };
            path = format!("/v1/usage/{question}&cursor={cursor}");
        }
    }
    compared
}

#[tokio::test]
async fn real_storage_answers_as_memory_does() {
    let databases = Databases::create().await;
    let memory = Harness::with(Setup::page_rows(200));
    let mut random = StdRng::seed_from_u64(20_250_325);
    let mut written = Vec::new();
    // Twice rolled up, once beyond every horizon; a neighbour's records in the same and in other partitions.
    for (batch_seq, roll_up) in [(1, true), (2, true), (3, false)] {
        let mut batch = samples(&mut random, memory.tenant, 1_200);
        for _ in 0..12 {
            batch.extend(samples(&mut random, Uuid::new_v4(), 5));
        }
        databases.write(batch_seq, &batch, roll_up).await;
        written.extend(batch);
    }
    for sample in &written {
        memory.memory.add(sample.clone());
    }
    let real = databases.api(&memory, 200).await;

    let compared = compare(&memory, &real, false).await;
    assert!(compared > 1_000_000, "only {compared} bytes were compared");
    // Bounds are filters of both; the second ones are as many names, and as long ones, as a question may have, beside as many of
    // every other filter.
    memory.policy.says(Says::limited(&["level", "tokens"], &["edge", "gateway"]));
    let compared = compare(&memory, &real, true).await;
    assert!(compared > 200_000, "only {compared} bytes were compared");
    let long = |first: &'static str, rest: [&'static str; 2]| -> Vec<String> {
        let filler = (0..98).map(|at| format!("{first}{at:0>127}"));
        filler.chain(rest.map(str::to_owned)).collect()
    };
    let (metrics, sources) = (long("m", ["bytes", "tokens"]), long("s", ["batch", "gateway"]));
    let texts = |names: &[String]| Some(names.iter().cloned().collect());
    let wide = Constraints { metrics: texts(&metrics), sources: texts(&sources), ..Constraints::default() };
    memory.policy.says(Says::Permit(wide));
    let range = "from=2025-03-25T00:00:00Z&to=2025-05-04T00:00:00Z";
    let types =
        long("t", ["user", "service"]).iter().map(|name| format!("&subject_type={name}")).collect::<String>();
    let kinds =
        long("k", ["vm", "disk"]).iter().map(|name| format!("&resource_type={name}")).collect::<String>();
    for path in [
        format!("aggregated?{range}&group_by=metric,source&window_size=P1D"),
        format!("aggregated?{range}&group_by=metric,subject{types}{kinds}"),
        format!("raw?{range}"),
        format!("raw?{range}{types}{kinds}"),
        "metadata/watermarks".to_owned(),
    ] {
        let path = format!("/v1/usage/{path}");
        let (expected, found) = (memory.get(&path).await, real.get(&path).await);
        assert_eq!((found.status.as_u16(), &found.text), (200, &expected.text), "{path}");
    }
    memory.policy.says(Says::Shipped);

    for sample in written.iter().step_by(97) {
        let path = format!("/v1/usage/records/{}", sample.record_id);
        let (expected, found) = (memory.get(&path).await, real.get(&path).await);
        assert_eq!(found.status, expected.status, "{path}");
        if found.status.as_u16() == 200 {
            assert_eq!(found.text, expected.text);
        }
        let wanted = if sample.tenant_id == memory.tenant { 200 } else { 404 };
        assert_eq!(found.status.as_u16(), wanted);
    }
    databases.drop().await;
}
