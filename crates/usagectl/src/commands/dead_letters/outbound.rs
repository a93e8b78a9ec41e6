//! What the commands write: letters onto the topic of records, marks beside the letters.

use anyhow::Context as _;
use futures::future::join_all;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use tokio::runtime::Handle;
use usage_schemas::names;
use usage_schemas::partition::partition_of_key;
use usage_service::config::KafkaConfig;

use super::letter::Letter;
use super::mark::{Mark, Settled};
use super::topic::client;

/// Writes and waits for the acknowledgements.
pub(super) struct Outbound {
    producer: FutureProducer,
    runtime: Handle,
    dead_letters_topic: String,
}

impl Outbound {
    /// `runtime`: where the waiting is done; its owner calls from a thread for blocking work.
    pub fn new(kafka: &KafkaConfig, runtime: Handle) -> anyhow::Result<Self> {
        let producer = client(kafka)
            .set("acks", "all")
            .set("enable.idempotence", "true")
            // More than one, and librdkafka may report a refused message as delivered: docs/adr/0002.
            .set("max.in.flight", "1")
            // The topics judge what is too large: of the same bytes as the source's, so compressed as well.
            .set("message.max.bytes", names::DEAD_LETTER_MESSAGE_BYTES.to_string())
            .set("compression.type", "zstd")
            .set("delivery.timeout.ms", "60000")
            .create()
            .context("the settings of section kafka are not valid")?;
        Ok(Self { producer, runtime, dead_letters_topic: kafka.dead_letters_topic.clone() })
    }

    /// Puts letters onto the topic of records, which has `partitions` by the control database. One result each: an error says why
    /// Kafka will never take it.
    pub fn replay(
        &self,
        topic: &str,
        partitions: i32,
        letters: &[Letter],
    ) -> anyhow::Result<Vec<Result<(), RDKafkaErrorCode>>> {
        let sends = letters.iter().map(|letter| self.send(record(topic, partitions, letter)));
        let results = self.runtime.block_on(join_all(sends));
        let mut verdicts = Vec::with_capacity(letters.len());
        for (letter, result) in letters.iter().zip(results) {
            let verdict = match verdict(result) {
                // A broker refuses a request as a whole: alone, most of its messages pass.
                Ok(Err(_)) => verdict(self.runtime.block_on(self.send(record(topic, partitions, letter)))),
                other => other,
            };
            verdicts.push(verdict.with_context(|| format!("Kafka does not take messages for {topic}"))?);
        }
        Ok(verdicts)
    }

    /// Marks letters of one partition; gives the mark's offset.
    pub fn mark(&self, settled: Settled, partition: i32, letters: &[&Letter]) -> anyhow::Result<i64> {
        let origins = letters.iter().map(|letter| letter.origin.clone()).collect();
        let value = Mark::encode(settled, origins);
        let payload_type =
            Header { key: names::HEADER_PAYLOAD_TYPE, value: Some(names::PAYLOAD_DEAD_LETTER_MARK) };
        let record = FutureRecord::<[u8], [u8]> {
            topic: &self.dead_letters_topic,
            partition: Some(partition),
            payload: Some(&value),
            key: None,
            timestamp: None,
            headers: Some(OwnedHeaders::new().insert(payload_type)),
        };
        let sent = self.runtime.block_on(self.send(record));
        sent.with_context(|| format!("Kafka does not take marks for {}", self.dead_letters_topic))
    }

    /// Gives the offset.
    async fn send(&self, record: FutureRecord<'_, [u8], [u8]>) -> Result<i64, KafkaError> {
        let within = std::time::Duration::from_secs(60);
        self.producer.send(record, within).await.map(|delivery| delivery.offset).map_err(|(error, _)| error)
    }
}

/// A letter as it goes back.
fn record<'a>(topic: &'a str, partitions: i32, letter: &'a Letter) -> FutureRecord<'a, [u8], [u8]> {
    let message = &letter.message;
    FutureRecord {
        topic,
        partition: Some(partition_of_key(message.key.as_deref().unwrap_or_default(), partitions)),
        payload: message.value.as_deref(),
        key: message.key.as_deref(),
        timestamp: None,
        headers: Some(letter.replay_headers()),
    }
}

/// Splits what can't be sent at all from what fails for now.
fn verdict(result: Result<i64, KafkaError>) -> Result<Result<(), RDKafkaErrorCode>, KafkaError> {
    match result {
        Ok(_) => Ok(Ok(())),
        Err(error) => match error.rdkafka_error_code() {
            Some(code) if is_final(code) => Ok(Err(code)),
            _ => Err(error),
        },
    }
}

/// The message itself is refused; the next one may pass.
fn is_final(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::MessageSizeTooLarge
            | RDKafkaErrorCode::InvalidRecord
            | RDKafkaErrorCode::InvalidMessage
            | RDKafkaErrorCode::InvalidMessageSize
    )
}
