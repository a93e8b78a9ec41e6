//! A pipeline of its own for each test: topics, group, control database and storage database on the run's shared servers.

#![allow(dead_code, unused_imports, reason = "each test binary uses its own part")]

mod dead_letters;
mod group;
mod growing;
pub mod lanes;
mod markers;
pub mod points;
mod process;
pub mod quotas;
pub mod sources;
mod totals;
pub mod workload;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use secrecy::{SecretSlice, SecretString};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use usage_access::policy::PolicyDecisionPoint;
use usage_consumer::config::{Config, SETTINGS};
use usage_consumer::service::{self, RunError};
use usage_control::testing::{MASTER_KEY_FILE, TestDatabase};
use usage_control::{Attribution, Control, NewUsageType, SourceKey};
use usage_devstack::testing;
use usage_schemas::codec::Encoder;
use usage_schemas::partition::partition_of;
use usage_schemas::signature::SigningKey;
use usage_schemas::{Kind, Quantity, Timestamp, UsageRecord, ids, names};
use usage_service::clock;
use usage_service::config::{Cli, load};
use usage_service::health::Health;
use usage_service::telemetry::Telemetry;
use usage_storage::Storage;
use usage_storage::clickhouse::{ClickHouseConfig, ClickHouseStorage};
use uuid::Uuid;

pub use dead_letters::DeadLetter;
pub use markers::outbox;
pub use process::Process;
pub use totals::Totals;

pub const SOURCE: &str = "llm-gateway";
pub const KEY_ID: &str = "k1";
const KEY: &[u8] = b"the key of the test's only source";
/// How long anything that should happen may take.
pub const WITHIN: Duration = Duration::from_secs(300);

/// Where the parts run.
#[derive(Debug, Clone)]
pub struct Servers {
    pub brokers: String,
    pub clickhouse: String,
    /// Any database on the Postgres server.
    pub control_database: String,
}

impl Servers {
    /// Those that all tests of a run share.
    pub fn shared() -> Self {
        Self {
            brokers: testing::kafka_brokers(),
            clickhouse: testing::clickhouse_url(),
            control_database: testing::control_database_url(),
        }
    }
}

pub struct Pipeline {
    pub topic: String,
    pub dead_letters: String,
    pub group: String,
    pub partitions: i32,
    pub brokers: String,
    pub clickhouse: ClickHouseConfig,
    pub control: Control,
    pub storage: Arc<ClickHouseStorage>,
    pub database: TestDatabase,
    producer: FutureProducer,
    signing: SigningKey,
    encoder: Encoder,
    /// When it was made: the time of its records, so that a record that is made again is the same.
    born: Timestamp,
}

/// A worker inside the test's process.
pub struct Worker {
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
    pub health: Health,
}

impl Worker {
    pub async fn stop(self) {
        self.shutdown.cancel();
        let ended = tokio::time::timeout(WITHIN, self.task).await;
        ended.expect("a worker stops").expect("no panic").expect("a clean end");
    }

    pub async fn ready(&self) {
        eventually("the worker is ready", || async { self.health.ready().await.is_empty() }).await;
    }
}

impl Pipeline {
    pub async fn start(partitions: i32) -> Self {
        Self::on(&Servers::shared(), partitions).await
    }

    pub async fn on(servers: &Servers, partitions: i32) -> Self {
        let id = Uuid::new_v4().simple().to_string();
        let (brokers, url) = (servers.brokers.clone(), servers.clickhouse.clone());
        let topic = format!("test.records.{id}");
        let dead_letters = format!("test.dead-letters.{id}");
        let bounds =
            [(&topic, names::RECORDS_MESSAGE_BYTES), (&dead_letters, names::DEAD_LETTER_MESSAGE_BYTES)];
        create_topics(&brokers, &bounds.map(|(topic, bytes)| (topic.as_str(), bytes)), partitions).await;

        let database = TestDatabase::create(&servers.control_database).await;
        let control = database.control().await;
        control.migrate().await.expect("the control database is migrated");
        control.init_partitions(partitions).await.expect("the count is recorded");
        for (name, kind) in [("llm.tokens", Kind::Counter), ("vm.memory", Kind::Gauge)] {
            control.register_type(&NewUsageType::new(name, kind, "1")).await.expect("the type is registered");
        }
        let key = SourceKey {
            source: SOURCE.into(),
            key_id: KEY_ID.into(),
            key: SecretSlice::from(KEY.to_vec()),
            valid_from: 0,
            valid_until: None,
        };
        control.put_source_key(&key).await.expect("the key is put");
        control.set_source(SOURCE, Attribution::AnyTenant).await.expect("the source is registered");

        let mut clickhouse = ClickHouseConfig::new(url, format!("test_{id}")).with_dev_passwords();
        // A busy machine is no reason to fail.
        clickhouse.read_timeout = WITHIN;
        let storage = Arc::new(ClickHouseStorage::connect(clickhouse.clone()));
        storage.migrate().await.expect("storage is migrated");
        let producer = ClientConfig::new()
            .set("bootstrap.servers", &brokers)
            .set("linger.ms", "5")
            .set("queue.buffering.max.messages", "1000000")
            .create()
            .expect("a producer");
        Self {
            topic,
            dead_letters,
            group: format!("test-{id}"),
            partitions,
            brokers,
            clickhouse,
            control,
            storage,
            database,
            producer,
            signing: SigningKey::new(KEY_ID, KEY),
            encoder: Encoder::new(),
            born: Timestamp::from_micros(clock::now_micros() / 1_000_000 * 1_000_000),
        }
    }

    /// Settings as `--set` takes them.
    pub fn settings(&self) -> Vec<String> {
        vec![
            format!("kafka.brokers={}", self.brokers),
            format!("kafka.records_topic={}", self.topic),
            format!("kafka.dead_letters_topic={}", self.dead_letters),
            format!("control_database.url={}", self.database.url()),
            format!("control_database.master_key_file={MASTER_KEY_FILE}"),
            format!("clickhouse.url={}", self.clickhouse.url),
            format!("clickhouse.database={}", self.clickhouse.database),
            "clickhouse.writer_password=usage".into(),
            "clickhouse.reader_password=usage".into(),
            "clickhouse.maintenance_password=usage".into(),
            format!("consumer.group={}", self.group),
            "consumer.session_timeout=6s".into(),
            "telemetry.listen=127.0.0.1:0".into(),
        ]
    }

    pub fn config(&self, more: &[&str]) -> Config {
        let set = self.settings().into_iter().chain(more.iter().map(|setting| setting.to_string())).collect();
        load(SETTINGS, &Cli { set, ..Cli::default() }).expect("a configuration")
    }

    /// Starts a worker in this process.
    pub fn worker(&self, more: &[&str]) -> Worker {
        let config = self.config(more).clickhouse;
        self.worker_on(Arc::new(ClickHouseStorage::connect(config)), more)
    }

    /// On a storage of the test's own.
    pub fn worker_on(&self, storage: Arc<dyn Storage>, more: &[&str]) -> Worker {
        let policy = self.config(more).policy_point().expect("the shipped policies");
        self.worker_with(storage, policy, more)
    }

    /// With a policy point of the test's own.
    pub fn worker_under(&self, policy: Arc<dyn PolicyDecisionPoint>, more: &[&str]) -> Worker {
        let config = self.config(more).clickhouse;
        self.worker_with(Arc::new(ClickHouseStorage::connect(config)), policy, more)
    }

    fn worker_with(
        &self,
        storage: Arc<dyn Storage>,
        policy: Arc<dyn PolicyDecisionPoint>,
        more: &[&str],
    ) -> Worker {
        let shutdown = CancellationToken::new();
        let health = Health::new(Telemetry::detached());
        let work = service::run(self.config(more), storage, policy, health.clone(), shutdown.clone());
        let task = tokio::spawn(work);
        Worker { shutdown, task, health }
    }

    /// A tenant whose records belong to the partition.
    pub fn tenant_of(&self, partition: i32) -> Uuid {
        let of = |tenant: &Uuid| partition_of(*tenant, self.partitions) == partition;
        std::iter::repeat_with(Uuid::new_v4).find(of).expect("there is no end")
    }

    /// A record of the test's source. What is asked for twice is the same record.
    pub fn record(&self, tenant: Uuid, key: &str, units: i64) -> UsageRecord {
        UsageRecord {
            record_id: ids::record_id(tenant, key),
            tenant_id: tenant,
            source: SOURCE.into(),
            metric: "llm.tokens".into(),
            kind: Kind::Counter,
            value: Quantity::from_unscaled(i128::from(units) * 1_000_000_000_000_000_000).expect("in range"),
            timestamp: self.born,
            idempotency_key: Some(key.into()),
            resource_id: None,
            resource_type: None,
            subject_id: None,
            subject_type: None,
            metadata: Some(r#"{"model":"m"}"#.into()),
        }
    }

    pub fn message(&self, record: &UsageRecord) -> Message {
        self.message_by(record, self.partitions)
    }

    /// As a producer sends it that knows so many partitions.
    pub fn message_by(&self, record: &UsageRecord, partitions: i32) -> Message {
        let message = self.signed(record.tenant_id, self.encoder.encode(record));
        Message { partition: partition_of(record.tenant_id, partitions), ..message }
    }

    /// Any value, as the test's source signs it for a tenant.
    pub fn signed(&self, tenant: Uuid, value: Vec<u8>) -> Message {
        let key = tenant.to_string().into_bytes();
        let signature = self.signing.sign(&key, &value);
        let headers = [
            (names::HEADER_PAYLOAD_TYPE, names::PAYLOAD_RECORD.to_string()),
            (names::HEADER_SOURCE, SOURCE.into()),
            (names::HEADER_KEY_ID, KEY_ID.into()),
            (names::HEADER_SIGNATURE, signature),
        ];
        Message {
            partition: partition_of(tenant, self.partitions),
            key: Some(key),
            value: Some(value),
            headers: headers.map(|(name, value)| (name.to_string(), value.into_bytes())).into(),
        }
    }

    /// Produces in order; returns the offsets.
    pub async fn send(&self, messages: &[Message]) -> Vec<i64> {
        let sent = messages.iter().map(|message| {
            let headers = message.headers.iter().fold(OwnedHeaders::new(), |all, (key, value)| {
                all.insert(Header { key, value: Some(value) })
            });
            let record = FutureRecord {
                topic: &self.topic,
                partition: Some(message.partition),
                payload: message.value.as_ref(),
                key: message.key.as_ref(),
                timestamp: None,
                headers: Some(headers),
            };
            let result = self.producer.send_result(record);
            result.map_err(|(error, _)| error).expect("the queue has room")
        });
        let sent: Vec<_> = sent.collect();
        let mut offsets = Vec::with_capacity(sent.len());
        for delivery in sent {
            let delivered = delivery.await.expect("the producer lives").map_err(|(error, _)| error);
            offsets.push(delivered.expect("the broker takes it").offset);
        }
        offsets
    }

    pub async fn send_records(&self, records: &[UsageRecord]) -> Vec<i64> {
        self.send(&records.iter().map(|record| self.message(record)).collect::<Vec<_>>()).await
    }

    /// Everything in the topic of dead letters.
    pub async fn dead_letters(&self) -> Vec<DeadLetter> {
        let (brokers, topic, partitions) = (self.brokers.clone(), self.dead_letters.clone(), self.partitions);
        tokio::task::spawn_blocking(move || dead_letters::read_all(&brokers, &topic, partitions))
            .await
            .expect("no panic")
    }

    pub fn control_url(&self) -> SecretString {
        SecretString::from(self.database.url().to_string())
    }

    /// Deletes the log's beginning, as retention does.
    pub async fn delete_before(&self, partition: i32, offset: i64) {
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", &self.brokers).create().expect("an admin client");
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, partition, Offset::Offset(offset)).expect("an offset");
        let deleted = admin.delete_records(&list, &AdminOptions::new()).await.expect("kafka answers");
        assert!(deleted.elements().iter().all(|element| element.error().is_ok()));
    }

    /// Drops the databases; topics end with the stack.
    pub async fn end(self) {
        self.control.close().await;
        self.database.drop().await;
    }
}

/// A message as it is produced.
#[derive(Debug, Clone)]
pub struct Message {
    pub partition: i32,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
}

/// Topics with the greatest messages that they take, in bytes.
pub async fn create_topics(brokers: &str, topics: &[(&str, i64)], partitions: i32) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", brokers).create().expect("an admin client");
    let bounds: Vec<String> = topics.iter().map(|(_, bytes)| bytes.to_string()).collect();
    let topics: Vec<NewTopic<'_>> = topics
        .iter()
        .zip(&bounds)
        .map(|((topic, _), bytes)| {
            NewTopic::new(topic, partitions, TopicReplication::Fixed(1))
                .set("cleanup.policy", "delete")
                .set("message.timestamp.type", "LogAppendTime")
                .set("max.message.bytes", bytes)
        })
        .collect();
    let results = admin.create_topics(&topics, &AdminOptions::new()).await.expect("kafka answers");
    for result in results {
        result.expect("the topic is created");
    }
}

/// Waits until `holds`; looks every 50 ms, since what is waited for lies in other processes.
pub async fn eventually<F, A>(what: &str, holds: F)
where
    F: Fn() -> A,
    A: Future<Output = bool>,
{
    let deadline = Instant::now() + WITHIN;
    while !holds().await {
        assert!(Instant::now() < deadline, "not within {WITHIN:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Logs of the code under test, with `RUST_LOG`-like directives from `USAGE_TEST_LOG`.
pub fn logs() {
    if let Ok(filter) = std::env::var("USAGE_TEST_LOG") {
        let config = usage_service::telemetry::TelemetryConfig { filter, ..Default::default() };
        // Tests of one binary share the process.
        let _ = usage_service::telemetry::init(&config, "test");
    }
}
