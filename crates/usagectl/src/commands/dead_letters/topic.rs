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
        let mut open = Open::of(spans);
        let mut list = TopicPartitionList::new();
        for span in spans.iter().filter(|span| span.from < span.to) {
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
                    if open.wants(partition, offset) {
                        visit(Message::of(&message))?;
                        heard = Instant::now();
                    }
                    open.passed(partition, offset + 1);
                }
                // Control records are no messages, but they move the position.
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    if let Some(position) = self.position(partition)? {
                        open.passed(partition, position);
                    }
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

    /// The offset behind everything that was read of an assigned partition; `None` if nothing was.
    fn position(&self, partition: i32) -> anyhow::Result<Option<i64>> {
        let positions = self.consumer.position()?;
        Ok(match positions.find_partition(&self.name, partition).map(|element| element.offset()) {
            Some(Offset::Offset(offset)) => Some(offset),
            _ => None,
        })
    }
}

/// Spans that are not read to their ends.
struct Open(BTreeMap<i32, i64>);

impl Open {
    fn of(spans: &[Span]) -> Self {
        let open = spans.iter().filter(|span| span.from < span.to);
        Self(open.map(|span| (span.partition, span.to)).collect())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn wants(&self, partition: i32, offset: i64) -> bool {
        self.0.get(&partition).is_some_and(|to| offset < *to)
    }

    /// Everything below `position` was read. The log's end is no reason to stop below the span's: a new leader's may be lower
    /// for a while, and what it does not show yet would be passed by the group's offset without having been seen.
    fn passed(&mut self, partition: i32, position: i64) {
        if self.0.get(&partition).is_some_and(|to| position >= *to) {
            self.0.remove(&partition);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_open_until_its_own_end_whatever_the_logs_is() {
        let spans =
            [(0, 5, 10), (1, 0, 4), (2, 7, 7)].map(|(partition, from, to)| Span { partition, from, to });
        let mut open = Open::of(&spans);
        assert!(open.wants(0, 9) && !open.wants(0, 10) && !open.wants(2, 7));
        // The end of the log as a leader shows it that is behind.
        open.passed(0, 8);
        assert!(open.wants(0, 8) && open.wants(1, 3));
        open.passed(0, 10);
        open.passed(1, 6);
        open.passed(3, 1);
        assert!(open.is_empty() && !open.wants(0, 9));
    }
}
