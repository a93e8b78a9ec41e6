//! The topic of dead letters, read beside whoever else reads it, and the group's offsets.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientConfig, ClientContext, Message as _, Offset, TopicPartitionList};
use usage_schemas::names;
use usage_service::config::KafkaConfig;

use super::message::Message;
use super::position::Committed;

const KAFKA_WITHIN: Duration = Duration::from_secs(30);
/// Reading that brings nothing for this long has failed.
const SILENCE: Duration = Duration::from_secs(60);

/// Offsets `from..to` of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub partition: i32,
    pub from: i64,
    pub to: i64,
}

pub(super) struct Topic {
    consumer: BaseConsumer<Quiet>,
    pub name: String,
    pub partitions: Vec<i32>,
}

/// rdkafka's own context logs the end of a partition as an error.
struct Quiet;

impl ClientContext for Quiet {
    fn error(&self, error: KafkaError, reason: &str) {
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::PartitionEOF) {
            tracing::warn!(error = %error, reason, "kafka");
        }
    }
}

impl ConsumerContext for Quiet {}

/// A client's settings with those that every client of this command has.
pub(super) fn client(kafka: &KafkaConfig) -> ClientConfig {
    let mut client = ClientConfig::new();
    for (name, value) in kafka.client_properties() {
        client.set(name, value);
    }
    client.set("client.id", "usagectl");
    client
}

impl Topic {
    pub fn open(kafka: &KafkaConfig) -> anyhow::Result<Self> {
        let consumer: BaseConsumer<Quiet> = client(kafka)
            .set("group.id", names::DEAD_LETTERS_GROUP)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", "true")
            .set("queued.max.messages.kbytes", "16384")
            .set("fetch.max.bytes", (8 << 20).to_string())
            .set("fetch.wait.max.ms", "50")
            // By default a full queue rests for a second, in which it runs empty.
            .set("fetch.queue.backoff.ms", "10")
            .create_with_context(Quiet)
            .context("the settings of section kafka are not valid")?;
        let name = kafka.dead_letters_topic.clone();
        let metadata =
            consumer.fetch_metadata(Some(&name), KAFKA_WITHIN).context("no Kafka broker answers")?;
        let topic = metadata.topics().iter().find(|topic| topic.name() == name);
        if let Some(error) = topic.and_then(|topic| topic.error()) {
            let code = RDKafkaErrorCode::from(error);
            bail!("Kafka does not give topic {name}: {code}; `usagectl topics create` makes it");
        }
        let mut partitions: Vec<i32> =
            topic.iter().flat_map(|topic| topic.partitions()).map(|partition| partition.id()).collect();
        partitions.sort_unstable();
        Ok(Self { consumer, name, partitions })
    }

    /// The log's first offset and the one behind its last.
    pub fn bounds(&self, partition: i32) -> anyhow::Result<(i64, i64)> {
        let bounds = self.consumer.fetch_watermarks(&self.name, partition, KAFKA_WITHIN);
        bounds
            .with_context(|| format!("Kafka does not tell the bounds of {} partition {partition}", self.name))
    }

    pub fn committed(&self) -> anyhow::Result<BTreeMap<i32, Committed>> {
        let mut list = TopicPartitionList::new();
        for partition in &self.partitions {
            list.add_partition(&self.name, *partition);
        }
        let list = self.consumer.committed_offsets(list, KAFKA_WITHIN).with_context(|| {
            format!("Kafka does not tell the offsets of group {}", names::DEAD_LETTERS_GROUP)
        })?;
        let mut committed = BTreeMap::new();
        for element in list.elements() {
            element.error().context("Kafka does not tell a partition's committed offset")?;
            let offset = match element.offset() {
                Offset::Offset(offset) => Some(offset),
                _ => None,
            };
            committed.insert(element.partition(), Committed { offset, metadata: element.metadata().into() });
        }
        Ok(committed)
    }

    pub fn commit(&self, positions: &BTreeMap<i32, Committed>) -> anyhow::Result<()> {
        let mut list = TopicPartitionList::new();
        for (partition, committed) in positions {
            let mut element = list.add_partition(&self.name, *partition);
            element.set_offset(committed.offset.map_or(Offset::Invalid, Offset::Offset))?;
            element.set_metadata(&committed.metadata);
        }
        self.consumer.commit(&list, CommitMode::Sync).with_context(|| {
            format!("Kafka does not take the offsets of group {}", names::DEAD_LETTERS_GROUP)
        })
    }

    /// Hands every message of the spans to `visit`, in order within a partition.
    pub fn read(
        &self,
        spans: &[Span],
        mut visit: impl FnMut(Message) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut open: BTreeMap<i32, i64> = BTreeMap::new();
        let mut list = TopicPartitionList::new();
        for span in spans.iter().filter(|span| span.from < span.to) {
            open.insert(span.partition, span.to);
            list.add_partition_offset(&self.name, span.partition, Offset::Offset(span.from))?;
        }
        if open.is_empty() {
            return Ok(());
        }
        self.consumer.assign(&list)?;
        let mut heard = Instant::now();
        while !open.is_empty() {
            match self.consumer.poll(Duration::from_millis(100)) {
                Some(Ok(message)) => {
                    let (partition, offset) = (message.partition(), message.offset());
                    let Some(to) = open.get(&partition).copied() else { continue };
                    if offset < to {
                        visit(Message::of(&message))?;
                    }
                    if offset + 1 >= to {
                        open.remove(&partition);
                    }
                    heard = Instant::now();
                }
                // What lies between here and the end has no rows: control records.
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    open.remove(&partition);
                }
                Some(Err(KafkaError::MessageConsumption(code @ RDKafkaErrorCode::AutoOffsetReset))) => {
                    bail!("{} lost messages while it was read: {code}", self.name);
                }
                // librdkafka reports what it will try again itself, too; the silence decides.
                Some(Err(error)) => tracing::warn!(error = %error, "reading dead letters"),
                None => {}
            }
            if heard.elapsed() > SILENCE {
                bail!("Kafka brings nothing of {} for {SILENCE:?}", self.name);
            }
        }
        self.consumer.unassign()?;
        Ok(())
    }
}
