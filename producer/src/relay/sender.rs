//! The way to Kafka: producers that report each message's fate, and the topic's partition count.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use tokio::sync::{Notify, mpsc, watch};
use usage_service::config::KafkaConfig;

use super::encode::Message;
use super::{RelayError, RelaySettings};

/// How often the topic's partition count is asked for, once it is known and before.
const REFRESH: Duration = Duration::from_secs(10);
const REFRESH_UNKNOWN: Duration = Duration::from_millis(500);
const METADATA_TIMEOUT: Duration = Duration::from_secs(5);

/// Which producer a message goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// With others in one batch.
    Batch,
    /// In a batch of its own: a broker refuses batches, so only a message that was refused alone is to blame itself.
    Alone,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Report {
    pub id: i64,
    pub serial: u64,
    pub outcome: Result<(), RDKafkaErrorCode>,
}

/// Travels with a message through librdkafka.
pub(crate) struct Ticket {
    pub id: i64,
    pub serial: u64,
    pub reports: mpsc::UnboundedSender<Report>,
}

struct Reports {
    /// A place in the producer's queue has become free.
    freed: Arc<Notify>,
}

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let outcome = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown)),
        };
        // Nobody listens any more once the partition was given up; the row stays and is sent again.
        let _ = ticket.reports.send(Report { id: ticket.id, serial: ticket.serial, outcome });
        self.freed.notify_waiters();
    }
}

/// Produces into the topic of records.
pub(crate) struct Sender {
    topic: String,
    config: ClientConfig,
    batch: Arc<ThreadedProducer<Reports>>,
    alone: OnceLock<ThreadedProducer<Reports>>,
    freed: Arc<Notify>,
    partitions: watch::Receiver<Option<i32>>,
    refresh: Arc<Notify>,
}

impl Sender {
    /// Sets up the producer; it connects in the background.
    pub(crate) fn new(kafka: &KafkaConfig, settings: &RelaySettings) -> Result<Self, RelayError> {
        let config = client_config(kafka, settings);
        let freed = Arc::new(Notify::new());
        let batch = Arc::new(producer(&config, &freed)?);
        let (sender, partitions) = watch::channel(None);
        let refresh = Arc::new(Notify::new());
        tokio::spawn(watch_partitions(batch.clone(), kafka.records_topic.clone(), sender, refresh.clone()));
        Ok(Self {
            topic: kafka.records_topic.clone(),
            config,
            batch,
            alone: OnceLock::new(),
            freed,
            partitions,
            refresh,
        })
    }

    /// How many partitions the topic has, once that is known.
    pub(crate) fn partitions(&self) -> Option<i32> {
        *self.partitions.borrow()
    }

    /// Asks for the partition count again, now.
    pub(crate) fn refresh_partitions(&self) {
        self.refresh.notify_one();
    }

    /// The error that ended the producer for good, if there is one: it has to be made anew.
    pub(crate) fn fatal_error(&self) -> Option<String> {
        let producers = [Some(&*self.batch), self.alone.get()];
        producers
            .into_iter()
            .flatten()
            .find_map(|producer| producer.client().fatal_error())
            .map(|(_, text)| text)
    }

    /// Hands a message to librdkafka, waiting while its queue is full. The report comes through the ticket's channel.
    pub(crate) async fn send(
        &self,
        message: Message<'_>,
        partition: i32,
        via: Via,
        ticket: Ticket,
    ) -> Result<(), RDKafkaErrorCode> {
        let Message { key, value, headers } = message;
        let producer = match via {
            Via::Batch => &self.batch,
            Via::Alone => self.alone().map_err(|_| RDKafkaErrorCode::Fail)?,
        };
        let mut record = BaseRecord::with_opaque_to(&self.topic, Box::new(ticket))
            .partition(partition)
            .key(key.as_str())
            .payload(&value[..])
            .headers(headers);
        loop {
            let freed = self.freed.notified();
            match producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    record = back;
                    // The bound covers a report that came between the refusal and the wait.
                    let _ = tokio::time::timeout(Duration::from_millis(50), freed).await;
                }
                Err((error, _)) => {
                    return Err(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown));
                }
            }
        }
    }

    fn alone(&self) -> Result<&ThreadedProducer<Reports>, RelayError> {
        if let Some(producer) = self.alone.get() {
            return Ok(producer);
        }
        let mut config = self.config.clone();
        config.set("batch.num.messages", "1").set("linger.ms", "0");
        let made = producer(&config, &self.freed)?;
        Ok(self.alone.get_or_init(|| made))
    }
}

fn producer(config: &ClientConfig, freed: &Arc<Notify>) -> Result<ThreadedProducer<Reports>, RelayError> {
    config.create_with_context(Reports { freed: freed.clone() }).map_err(RelayError::Kafka)
}

fn client_config(kafka: &KafkaConfig, settings: &RelaySettings) -> ClientConfig {
    let millis = |duration: Duration| duration.as_millis().to_string();
    let mut config = ClientConfig::new();
    for (name, value) in kafka.client_properties() {
        config.set(name, value);
    }
    config
        .set("client.id", "usage-relay")
        .set("acks", "all")
        .set("enable.idempotence", "true")
        // One request at a time to a broker. With more, librdkafka takes a batch that was refused for delivered as soon as a later one is
        // taken, which a broker does that does not know the producer yet (docs/adr/0002). The row would be deleted and be nowhere.
        .set("max.in.flight", "1")
        .set("message.timeout.ms", millis(settings.message_timeout))
        .set("linger.ms", millis(settings.linger))
        .set("compression.type", &settings.compression)
        .set("message.max.bytes", settings.max_message_bytes.to_string())
        .set("queue.buffering.max.kbytes", "131072")
        .set("allow.auto.create.topics", "false")
        .set("topic.metadata.refresh.interval.ms", millis(REFRESH))
        .set("reconnect.backoff.max.ms", "2000");
    config
}

/// Keeps the partition count until nobody looks at it any more.
async fn watch_partitions(
    producer: Arc<ThreadedProducer<Reports>>,
    topic: String,
    count: watch::Sender<Option<i32>>,
    refresh: Arc<Notify>,
) {
    let mut said_failing = false;
    while !count.is_closed() {
        let (asked, name) = (producer.clone(), topic.clone());
        let answer = tokio::task::spawn_blocking(move || partition_count(&asked, &name)).await;
        match answer {
            Ok(Ok(partitions)) => {
                let before = count.send_replace(Some(partitions));
                if before != Some(partitions) {
                    tracing::info!(topic, partitions, before, "the topic's partition count");
                }
                said_failing = false;
            }
            Ok(Err(error)) if !said_failing => {
                tracing::error!(topic, error = %error, "can't read the topic's partition count");
                said_failing = true;
            }
            _ => {}
        }
        let pause = if count.borrow().is_some() { REFRESH } else { REFRESH_UNKNOWN };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = refresh.notified() => {}
            () = count.closed() => {}
        }
    }
    // Dropping a producer joins its threads.
    let _ = tokio::task::spawn_blocking(move || drop(producer)).await;
}

fn partition_count(producer: &ThreadedProducer<Reports>, topic: &str) -> Result<i32, KafkaError> {
    let metadata = producer.client().fetch_metadata(Some(topic), METADATA_TIMEOUT)?;
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let unknown = KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicOrPartition);
    let Some(found) = found else { return Err(unknown) };
    if let Some(error) = found.error() {
        return Err(KafkaError::MetadataFetch(error.into()));
    }
    match i32::try_from(found.partitions().len()) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(unknown),
    }
}

#[cfg(test)]
mod tests;
