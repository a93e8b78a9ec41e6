//! A database, a topic and relays of one test's own.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message as _};
use rdkafka::{Offset, TopicPartitionList};
use secrecy::SecretString;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, PgPool};
use tokio::task::JoinHandle;
use usage_access::{Scope, Scopes, SecurityContext};
use usage_devstack::testing;
use usage_producer::relay::{Relay, RelayConfig, RelaySettings, SourceConfig};
use usage_producer::{ScopedCollector, UsageCollector, UsageCollectorBuilder, outbox};
use usage_schemas::codec::Decoder;
use usage_schemas::signature::SigningKey;
use usage_schemas::{Marker, Timestamp, UsageRecord, names};
use usage_service::CancellationToken;
use usage_service::config::{DatabaseConfig, KafkaConfig};
use uuid::Uuid;

/// How long anything may take on two busy cores.
pub const WITHIN: Duration = Duration::from_secs(300);
/// How long after its start a relay delivers by the floor alone: well before the look from 0 that is due each minute.
pub const BY_THE_FLOOR: Duration = Duration::from_secs(50);

/// The source of rows that name none.
pub const SOURCE: &str = "demo";
/// Its key: bytes 00..1f.
pub const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
pub const KEY_ID: &str = "demo-1";

/// Looks again and again until `look` has something to say.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + WITHIN;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "not within {WITHIN:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A database with an outbox; dropped with it.
pub struct Source {
    pub pool: PgPool,
    pub url: String,
    server: PgConnectOptions,
    name: String,
}

impl Source {
    pub async fn new() -> Self {
        let source = Self::empty().await;
        outbox::migrate(&source.pool).await.unwrap();
        source
    }

    /// Without an outbox.
    pub async fn empty() -> Self {
        Self::empty_on(&testing::source_database_url()).await
    }

    /// In a server of one's own: `base` leads to any of its databases.
    pub async fn empty_on(base: &str) -> Self {
        // What the relay says is shown when a test fails.
        let _ =
            tracing_subscriber::fmt().with_env_filter("usage_producer=debug").with_test_writer().try_init();
        let server = PgConnectOptions::from_str(base).unwrap();
        let name = format!("test_{}", Uuid::new_v4().simple());
        let mut admin = server.connect().await.unwrap();
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut admin).await.unwrap();
        let url = format!("{}/{name}", base.rsplit_once('/').unwrap().0);
        let pool = PgPoolOptions::new().max_connections(12).connect(&url).await.unwrap();
        Self { pool, url, server, name }
    }

    pub async fn count(&self, table: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&self.pool).await.unwrap()
    }

    /// The outbox's own id.
    pub async fn outbox_id(&self) -> Uuid {
        sqlx::query_scalar("SELECT outbox_id FROM usage_outbox_identity").fetch_one(&self.pool).await.unwrap()
    }

    /// The database's clock.
    pub async fn clock(&self) -> Timestamp {
        let text: String = sqlx::query_scalar(
            "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')",
        )
        .fetch_one(&self.pool)
        .await
        .unwrap();
        Timestamp::parse(&text).unwrap()
    }

    /// Waits until the relay has emptied the outbox.
    pub async fn emptied(&self) {
        until("the outbox is empty", async || (self.count("usage_outbox").await == 0).then_some(())).await;
    }

    /// Emits a counter by SQL, in a transaction of its own.
    pub async fn emit(&self, tenant: Uuid, key: &str) -> Uuid {
        sqlx::query_scalar("SELECT usage_emit($1, 'llm.tokens', 1, $2)")
            .bind(tenant)
            .bind(key)
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut admin = server.connect().await?;
                let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                sqlx::query(AssertSqlSafe(sql)).execute(&mut admin).await
            })
        });
        if let Ok(Err(error)) = dropped.join() {
            eprintln!("a test database stays: {error}");
        }
    }
}

/// A message as it came from Kafka, with its signature checked.
#[derive(Debug, Clone)]
pub enum Arrived {
    Record(Box<Received>),
    Marker(ReceivedMarker),
}

#[derive(Debug, Clone)]
pub struct ReceivedMarker {
    pub partition: i32,
    pub offset: i64,
    pub marker: Marker,
}

#[derive(Debug, Clone)]
pub struct Received {
    pub partition: i32,
    pub offset: i64,
    pub key: String,
    pub value: Vec<u8>,
    pub headers: BTreeMap<String, String>,
    pub record: UsageRecord,
}

/// A topic of one's own.
pub struct Topic {
    pub name: String,
    pub partitions: i32,
    brokers: String,
}

impl Topic {
    pub async fn new(partitions: i32) -> Self {
        Self::with(partitions, &[]).await
    }

    pub async fn with(partitions: i32, settings: &[(&str, &str)]) -> Self {
        let topic = Self::named(partitions);
        topic.create(settings).await;
        topic
    }

    /// A name that no topic has yet.
    pub fn named(partitions: i32) -> Self {
        let name = format!("test.records.{}", Uuid::new_v4().simple());
        Self { name, partitions, brokers: testing::kafka_brokers() }
    }

    /// The same on other brokers.
    pub fn on(self, brokers: &str) -> Self {
        Self { brokers: brokers.into(), ..self }
    }

    pub async fn create(&self, settings: &[(&str, &str)]) {
        let admin: AdminClient<DefaultClientContext> = client(&self.brokers).create().unwrap();
        let mut topic = NewTopic::new(&self.name, self.partitions, TopicReplication::Fixed(1))
            .set("message.timestamp.type", "LogAppendTime");
        for (name, value) in settings {
            topic = topic.set(name, value);
        }
        let made = admin.create_topics([&topic], &AdminOptions::new()).await.unwrap();
        made.into_iter().for_each(|result| {
            result.unwrap();
        });
    }

    /// The records that are in the topic now, partition by partition.
    pub async fn read(&self) -> Vec<Received> {
        let record = |arrived| match arrived {
            Arrived::Record(record) => Some(*record),
            Arrived::Marker(_) => None,
        };
        self.messages().await.into_iter().filter_map(record).collect()
    }

    /// The completeness markers that are in the topic now, partition by partition.
    pub async fn markers(&self) -> Vec<ReceivedMarker> {
        let marker = |arrived| match arrived {
            Arrived::Record(_) => None,
            Arrived::Marker(marker) => Some(marker),
        };
        self.messages().await.into_iter().filter_map(marker).collect()
    }

    /// Up to when a source's outbox is complete, as a reader of the whole topic knows it: the least of its partitions.
    pub async fn complete_until(&self, source: &str, outbox: Uuid) -> Option<Timestamp> {
        let markers = self.markers().await;
        let of = |partition: i32| {
            let mine = markers.iter().filter(|found| {
                found.partition == partition && found.marker.source == source && found.marker.outbox == outbox
            });
            mine.map(|found| found.marker.complete_until).max()
        };
        let least = (0..self.partitions).map(of).min();
        least.flatten()
    }

    /// Everything that is in the topic now, partition by partition.
    pub async fn messages(&self) -> Vec<Arrived> {
        let (brokers, name, partitions) = (self.brokers.clone(), self.name.clone(), self.partitions);
        tokio::task::spawn_blocking(move || read(&brokers, &name, partitions)).await.unwrap()
    }

    /// How many records are in the topic; a repetition, which a slow broker may cause, counts once.
    pub async fn distinct(&self) -> usize {
        let ids: BTreeSet<Uuid> =
            self.read().await.into_iter().map(|received| received.record.record_id).collect();
        ids.len()
    }

    /// The idempotency keys that are in the topic, sorted; a repetition, which a slow broker may cause, counts once.
    pub async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> =
            self.read().await.into_iter().filter_map(|received| received.record.idempotency_key).collect();
        keys.sort();
        keys.dedup();
        keys
    }
}

fn client(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

fn read(brokers: &str, topic: &str, partitions: i32) -> Vec<Arrived> {
    let mut config = client(brokers);
    config.set("group.id", topic).set("enable.auto.commit", "false").set("isolation.level", "read_committed");
    let consumer: BaseConsumer = config.create().unwrap();
    let (decoder, signer) = (Decoder::new(), SigningKey::new(KEY_ID, &(0..32).collect::<Vec<u8>>()));
    let mut list = TopicPartitionList::new();
    // Offsets that are still to come, by partition.
    let mut open = BTreeMap::new();
    for partition in 0..partitions {
        let (_, end) = consumer.fetch_watermarks(topic, partition, WITHIN).unwrap();
        if end > 0 {
            open.insert(partition, end);
            list.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
        }
    }
    consumer.assign(&list).unwrap();
    let mut all = Vec::new();
    let deadline = Instant::now() + WITHIN;
    while !open.is_empty() {
        // What librdkafka reports beside messages it tries again by itself; the deadline decides.
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(200)) else {
            assert!(Instant::now() < deadline, "a message before the ends of the partitions");
            continue;
        };
        if open.get(&message.partition()).is_none_or(|end| message.offset() + 1 >= *end) {
            open.remove(&message.partition());
        }
        all.push(received(&message, &decoder, &signer));
    }
    all
}

fn received(message: &BorrowedMessage<'_>, decoder: &Decoder, signer: &SigningKey) -> Arrived {
    let (key, value) = (message.key().unwrap(), message.payload().unwrap());
    let headers: BTreeMap<String, String> = message
        .headers()
        .unwrap()
        .iter()
        .map(|header| (header.key.into(), String::from_utf8(header.value.unwrap().into()).unwrap()))
        .collect();
    assert_eq!(headers[names::HEADER_KEY_ID], KEY_ID);
    assert!(signer.verify(key, value, headers[names::HEADER_SIGNATURE].as_bytes()), "signature");
    let (partition, offset) = (message.partition(), message.offset());
    let key = String::from_utf8(key.into()).unwrap();
    if headers[names::HEADER_PAYLOAD_TYPE] == names::PAYLOAD_MARKER {
        let marker = Marker::decode(value).unwrap();
        assert_eq!((&headers[names::HEADER_SOURCE], &key), (&marker.source, &marker.source));
        return Arrived::Marker(ReceivedMarker { partition, offset, marker });
    }
    assert_eq!(headers[names::HEADER_PAYLOAD_TYPE], names::PAYLOAD_RECORD);
    let record = decoder.decode(value).unwrap().to_owned();
    assert_eq!(headers[names::HEADER_SOURCE], record.source);
    Arrived::Record(Box::new(Received { partition, offset, key, value: value.into(), headers, record }))
}

/// A relay that runs.
pub struct Running {
    pub waker: usage_producer::Waker,
    pub status: tokio::sync::watch::Receiver<usage_producer::relay::Status>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    pub fn start(config: RelayConfig) -> Self {
        let relay = Relay::new(config).unwrap();
        let (waker, status, stop) = (relay.waker(), relay.status(), CancellationToken::new());
        let task = tokio::spawn(relay.serve(stop.clone()));
        Self { waker, status, stop, task }
    }

    /// Stops it as SIGTERM would.
    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(WITHIN, self.task).await.unwrap().unwrap();
    }
}

/// The configuration of a relay for `source` and `topic`, quick enough for a test.
pub fn config(source: &Source, topic: &Topic) -> RelayConfig {
    let mut kafka = KafkaConfig::plaintext(testing::kafka_brokers());
    kafka.records_topic = topic.name.clone();
    let settings = RelaySettings {
        default_source: Some(SOURCE.into()),
        sources: vec![key_of(SOURCE), key_of("llm-gateway")],
        backoff_base: Duration::from_millis(100),
        backoff_max: Duration::from_secs(1),
        ..RelaySettings::default()
    };
    RelayConfig { source_database: DatabaseConfig::new(source.url.clone()), kafka, relay: settings }
}

pub fn key_of(source: &str) -> SourceConfig {
    SourceConfig { name: source.into(), key_id: KEY_ID.into(), key: SecretString::from(KEY) }
}

/// A collector that goes by the callers' scopes and takes every metric.
pub fn trusting() -> UsageCollectorBuilder {
    UsageCollector::builder().trust_scopes().unchecked_types()
}

/// The client of a module of such a collector.
pub fn collector() -> ScopedCollector {
    trusting().build().unwrap().for_module("llm-gateway")
}

/// A caller of `tenant`.
pub fn caller(tenant: Uuid) -> SecurityContext {
    SecurityContext {
        tenant_id: tenant,
        subject_id: Some(Uuid::from_u128(0x5b1e_c700_0000_4000_8000_0000_0000_0001)),
        subject_type: Some("user".into()),
        scopes: Scopes::NONE.with(Scope::Emit),
        token_id: None,
    }
}
