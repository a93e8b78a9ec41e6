//! Topics as Kafka's own tools see them: read to the end, write plain messages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedHeaders, Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use usage_devstack::testing;

/// A busy machine is no reason to fail.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A message, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: BTreeMap<String, String>,
}

impl Letter {
    /// The text of a header, empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// Partition and offset of the refused message; `None` of what is no dead letter.
    pub fn origin(&self) -> Option<(&str, &str)> {
        let text = |name| self.headers.get(name).map(String::as_str);
        text("dlq-reason")?;
        text("dlq-partition").zip(text("dlq-offset"))
    }
}

/// Everything that is in the topic now, partition by partition. Of two partitions nothing says which message came first.
pub fn read_all(topic: &str) -> anyhow::Result<Vec<Letter>> {
    read_all_of(&testing::kafka_brokers(), topic)
}

/// One that sees what is committed, and the end of that as the topic's.
fn reader(brokers: &str) -> anyhow::Result<BaseConsumer> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("group.id", "usage-tests-reader");
    config.set("enable.auto.commit", "false").set("isolation.level", "read_committed");
    Ok(config.create()?)
}

/// Everything that is in a topic of these brokers now, in the order of partitions and offsets.
pub fn read_all_of(brokers: &str, topic: &str) -> anyhow::Result<Vec<Letter>> {
    let consumer = reader(brokers)?;
    let metadata = consumer.fetch_metadata(Some(topic), TIMEOUT).context("metadata")?;
    let partitions: Vec<i32> = metadata
        .topics()
        .iter()
        .flat_map(|topic| topic.partitions())
        .map(|partition| partition.id())
        .collect();
    let mut ends = BTreeMap::new();
    let mut assignment = TopicPartitionList::new();
    for partition in partitions {
        let (low, high) = consumer.fetch_watermarks(topic, partition, TIMEOUT).context("watermarks")?;
        if low < high {
            ends.insert(partition, high);
            assignment.add_partition_offset(topic, partition, Offset::Offset(low))?;
        }
    }
    consumer.assign(&assignment)?;
    let mut letters = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    while !ends.is_empty() {
        if Instant::now() > deadline {
            bail!("{topic} was not read to its end in {TIMEOUT:?}: {ends:?} are open");
        }
        // What librdkafka reports beside messages it tries again by itself; the deadline decides.
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(200)) else { continue };
        if ends.get(&message.partition()).is_some_and(|end| message.offset() + 1 >= *end) {
            ends.remove(&message.partition());
        }
        letters.push(Letter {
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().map(Into::into),
            value: message.payload().map(Into::into),
            headers: message.headers().into_iter().flat_map(|headers| headers.iter()).map(text).collect(),
        });
    }
    letters.sort_by_key(|letter| (letter.partition, letter.offset));
    Ok(letters)
}

fn text(header: Header<'_, &[u8]>) -> (String, String) {
    (
        header.key.into(),
        header.value.map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default(),
    )
}

/// Reads the topic again and again until it holds `count` dead letters, of so many refused messages: marks are none, and a letter that a
/// recovery wrote twice is one. Gives everything that it holds then.
pub async fn await_letters(topic: &str, count: usize, within: Duration) -> anyhow::Result<Vec<Letter>> {
    let deadline = Instant::now() + within;
    let mut every = tokio::time::interval(Duration::from_millis(300));
    loop {
        every.tick().await;
        let messages = read_all(topic)?;
        let refused: BTreeSet<_> = messages.iter().filter_map(Letter::origin).collect();
        if refused.len() >= count {
            return Ok(messages);
        }
        if Instant::now() > deadline {
            bail!(
                "{topic} holds letters of {} messages after {within:?}, not of {count}: {messages:?}",
                refused.len()
            );
        }
    }
}

/// One that writes nothing twice when an acknowledgement comes late.
fn producer() -> anyhow::Result<FutureProducer> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", testing::kafka_brokers());
    Ok(config.set("acks", "all").set("enable.idempotence", "true").create()?)
}

/// Writes one message as any producer could.
pub async fn write(
    topic: &str,
    partition: Option<i32>,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: &[(&str, &str)],
) -> anyhow::Result<()> {
    let producer = producer()?;
    let mut all = OwnedHeaders::new();
    for (key, value) in headers {
        all = all.insert(Header { key, value: Some(*value) });
    }
    let mut record = FutureRecord::<[u8], [u8]>::to(topic).headers(all);
    record.partition = partition;
    record.key = key;
    record.payload = value;
    producer.send(record, TIMEOUT).await.map_err(|(error, _)| error)?;
    Ok(())
}

/// Writes a message in a transaction of its own, and waits until readers see it: behind it the log has a control record, which the broker
/// writes after it has answered the commit.
pub async fn write_in_transaction(topic: &str, partition: i32, value: &[u8]) -> anyhow::Result<()> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", testing::kafka_brokers());
    let producer: FutureProducer =
        config.set("transactional.id", format!("usage-tests-{}", uuid::Uuid::new_v4())).create()?;
    let record = FutureRecord::<[u8], [u8]>::to(topic).partition(partition).payload(value);
    tokio::task::block_in_place(|| producer.init_transactions(TIMEOUT))?;
    producer.begin_transaction()?;
    let delivery = producer.send(record, TIMEOUT).await.map_err(|(error, _)| error)?;
    tokio::task::block_in_place(|| producer.commit_transaction(TIMEOUT))?;
    let reader = reader(&testing::kafka_brokers())?;
    let deadline = Instant::now() + TIMEOUT;
    let mut every = tokio::time::interval(Duration::from_millis(50));
    loop {
        every.tick().await;
        let (_, end) = tokio::task::block_in_place(|| reader.fetch_watermarks(topic, partition, TIMEOUT))?;
        if end > delivery.offset + 1 {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{topic} ends at {end} for readers after {TIMEOUT:?}, not behind {}", delivery.offset);
        }
    }
}

/// Writes a message onto another topic, byte for byte with all its headers, as any producer could.
pub async fn copy(from: (&str, i32, i64), to: (&str, i32)) -> anyhow::Result<()> {
    let (topic, partition, offset) = from;
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", testing::kafka_brokers())
        .set("group.id", "usage-tests-reader")
        .set("enable.auto.commit", "false")
        .create()?;
    let mut assignment = TopicPartitionList::new();
    assignment.add_partition_offset(topic, partition, Offset::Offset(offset))?;
    consumer.assign(&assignment)?;
    let deadline = Instant::now() + TIMEOUT;
    let message = loop {
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(message)) => break message,
            _ if Instant::now() > deadline => bail!("{topic} {partition}:{offset} is not there"),
            _ => {}
        }
    };
    if message.offset() != offset {
        bail!("{topic} {partition}:{offset} is not there");
    }
    let producer = producer()?;
    let mut record = FutureRecord::<[u8], [u8]>::to(to.0).partition(to.1);
    record.key = message.key();
    record.payload = message.payload();
    record.headers = message.headers().map(BorrowedHeaders::detach);
    producer.send(record, TIMEOUT).await.map_err(|(error, _)| error)?;
    Ok(())
}

/// Changes one setting of a topic; the others take the broker's defaults.
pub async fn set(topic: &str, name: &str, value: &str) -> anyhow::Result<()> {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", testing::kafka_brokers()).create()?;
    let change = AlterConfig::new(ResourceSpecifier::Topic(topic)).set(name, value);
    for result in admin.alter_configs([&change], &AdminOptions::new()).await? {
        result.map_err(|(_, code)| anyhow::anyhow!("{topic} does not take {name}={value}: {code}"))?;
    }
    // The controller has it; the broker that judges messages by it hears of it a moment later.
    let deadline = Instant::now() + TIMEOUT;
    let mut every = tokio::time::interval(Duration::from_millis(50));
    loop {
        every.tick().await;
        let shown = admin.describe_configs(&[ResourceSpecifier::Topic(topic)], &AdminOptions::new()).await?;
        let shown = shown.into_iter().flatten().find_map(|config| config.get(name)?.value.clone());
        if shown.as_deref() == Some(value) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{topic} shows {name}={shown:?} after {TIMEOUT:?}, not {value}");
        }
    }
}
