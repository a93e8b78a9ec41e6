//! Reads from Kafka beside the group's own fetching: committed offsets with their metadata, log bounds, and rows again.

mod topic_id;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use uuid::Uuid;

use crate::context::PlainContext;
use crate::message::OwnedMessage;

const CALL_WITHIN: Duration = Duration::from_secs(10);
/// A rebuild that sees no row for this long is begun anew.
const SILENCE: Duration = Duration::from_secs(30);

/// What was committed for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedOffset {
    pub offset: i64,
    /// Empty if there is none.
    pub metadata: String,
}

#[derive(Debug, thiserror::Error)]
pub enum SideReadError {
    #[error("kafka does not answer")]
    Kafka(#[from] KafkaError),
    #[error("no row came for {0:?}")]
    Silence(Duration),
    #[error("the reading thread ended")]
    Thread,
}

/// Makes its blocking calls on threads for blocking work.
#[derive(Clone)]
pub struct SideReader {
    config: ClientConfig,
    topic: Arc<str>,
    asking: Arc<BaseConsumer<PlainContext>>,
}

impl SideReader {
    /// `config` names the group but never joins it.
    pub fn new(config: ClientConfig, topic: &str) -> KafkaResult<Self> {
        let asking = Arc::new(config.create_with_context(PlainContext)?);
        Ok(Self { config, topic: topic.into(), asking })
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(Self) -> Result<T, SideReadError> + Send + 'static,
    ) -> Result<T, SideReadError> {
        let reader = self.clone();
        tokio::task::spawn_blocking(move || work(reader)).await.map_err(|_| SideReadError::Thread)?
    }

    /// The group's committed offset of a partition; `None` if nothing was ever committed.
    pub async fn committed(&self, partition: i32) -> Result<Option<CommittedOffset>, SideReadError> {
        self.blocking(move |reader| {
            let mut list = TopicPartitionList::with_capacity(1);
            list.add_partition(&reader.topic, partition);
            let list = reader.asking.committed_offsets(list, CALL_WITHIN)?;
            let elements = list.elements();
            let element =
                elements.first().ok_or(KafkaError::OffsetFetch(RDKafkaErrorCode::UnknownPartition))?;
            element.error()?;
            Ok(match element.offset() {
                Offset::Offset(offset) => {
                    Some(CommittedOffset { offset, metadata: element.metadata().into() })
                }
                _ => None,
            })
        })
        .await
    }

    /// The first offset of the log and the one behind its last.
    pub async fn log_bounds(&self, partition: i32) -> Result<(i64, i64), SideReadError> {
        self.blocking(move |reader| {
            Ok(reader.asking.fetch_watermarks(&reader.topic, partition, CALL_WITHIN)?)
        })
        .await
    }

    /// The topic's id, which tells it from one of the same name before it; `None` if the brokers have none.
    pub async fn topic_id(&self) -> Result<Option<Uuid>, SideReadError> {
        self.blocking(|reader| Ok(topic_id::topic_id(reader.asking.client(), &reader.topic, CALL_WITHIN)?))
            .await
    }

    /// How many partitions Kafka says the topic has.
    pub async fn partition_count(&self) -> Result<i32, SideReadError> {
        self.blocking(|reader| {
            let metadata = reader.asking.fetch_metadata(Some(&reader.topic), CALL_WITHIN)?;
            let topic = metadata.topics().iter().find(|topic| topic.name() == &*reader.topic);
            let count = topic.filter(|topic| topic.error().is_none()).map(|topic| topic.partitions().len());
            let count = count.and_then(|count| i32::try_from(count).ok());
            count.filter(|count| *count > 0).ok_or_else(|| {
                SideReadError::Kafka(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicOrPartition))
            })
        })
        .await
    }

    /// The rows `first..=last` that a reader of committed data gets, copied. Offsets without a row are not counted: it ends
    /// when a row or the position passes `last`.
    pub async fn rows(
        &self,
        partition: i32,
        first: i64,
        last: i64,
    ) -> Result<Vec<OwnedMessage>, SideReadError> {
        self.blocking(move |reader| {
            let consumer: BaseConsumer<PlainContext> = reader.config.create_with_context(PlainContext)?;
            let mut list = TopicPartitionList::with_capacity(1);
            list.add_partition_offset(&reader.topic, partition, Offset::Offset(first))?;
            consumer.assign(&list)?;
            let mut rows = Vec::new();
            let mut heard = Instant::now();
            loop {
                match consumer.poll(Duration::from_millis(100)) {
                    Some(Ok(message)) => {
                        heard = Instant::now();
                        if message.offset() <= last {
                            rows.push(OwnedMessage::of(&message));
                        }
                        if message.offset() >= last {
                            return Ok(rows);
                        }
                    }
                    Some(Err(KafkaError::PartitionEOF(_))) if reached(&consumer, last)? => return Ok(rows),
                    Some(Err(KafkaError::PartitionEOF(_))) | None => {}
                    Some(Err(error)) => {
                        // librdkafka reports what it will retry itself, too; the silence decides.
                        tracing::warn!(partition, error = %error, "reading rows again");
                        if let KafkaError::MessageConsumption(RDKafkaErrorCode::AutoOffsetReset) = error {
                            return Err(error.into());
                        }
                    }
                }
                if heard.elapsed() > SILENCE {
                    return Err(SideReadError::Silence(SILENCE));
                }
            }
        })
        .await
    }
}

/// True once everything up to `last` was read: control records behind the last row are never delivered.
fn reached(consumer: &BaseConsumer<PlainContext>, last: i64) -> KafkaResult<bool> {
    let position = consumer.position()?;
    let offsets: Vec<Offset> = position.elements().iter().map(|element| element.offset()).collect();
    Ok(offsets.iter().any(|offset| matches!(offset, Offset::Offset(offset) if *offset > last)))
}
