//! What leaves the consumer for Kafka: dead letters, byte for byte as they were, and records forwarded to their partition.
//! Both are acknowledged before the offset passes.

use std::time::Duration;

use futures::future::join_all;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::future_producer::Delivery;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use rdkafka::util::Timeout;
use sha2::{Digest, Sha256};
use usage_control::Forward;
use usage_schemas::{Reason, names};
use usage_service::error_chain::error_chain;
use usage_service::{fail_point, metric_names};

use crate::message::OwnedMessage;

/// Longest `dlq-error` in bytes.
const ERROR_BYTES: usize = 500;
/// Longest key or source, in bytes, that a letter without its value keeps.
const KEPT_BYTES: usize = 1_024;
/// How many messages wait for their acknowledgement at once.
const WINDOW: usize = 1_000;

/// How long reading the topic's partitions may take.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

/// A message that goes back to Kafka.
#[derive(Debug)]
pub struct Outgoing {
    pub message: OwnedMessage,
    pub action: Action,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    DeadLetter { reason: Reason, error: String },
    Forward { partition: i32, hops: u32 },
}

/// Writes dead letters and forwards.
#[derive(Clone)]
pub struct Sender {
    producer: FutureProducer,
    pub records_topic: String,
    pub dead_letters_topic: String,
    /// Partitions of the topic of dead letters.
    pub dead_letter_partitions: i32,
}

impl Sender {
    pub fn new(
        producer: FutureProducer,
        records_topic: &str,
        dead_letters_topic: &str,
        dead_letter_partitions: i32,
    ) -> Self {
        Self {
            producer,
            records_topic: records_topic.into(),
            dead_letters_topic: dead_letters_topic.into(),
            dead_letter_partitions,
        }
    }

    /// Sends everything and waits for all acknowledgements; gives where the forwarded records lie now. After an error some may have been written; sending all again is
    /// right, since a dead letter's identity is where it came from and a record's is its own.
    pub async fn send_all(&self, partition: i32, outgoing: &[Outgoing]) -> Result<Vec<Forward>, KafkaError> {
        let mut forwards = Vec::new();
        for window in outgoing.chunks(WINDOW) {
            fail_point!("consumer.send");
            let sends =
                window.iter().map(|outgoing| self.send(partition, &outgoing.message, &outgoing.action));
            let results = join_all(sends).await;
            if results.iter().any(|result| result.as_ref().is_err_and(is_unknown_partition)) {
                self.look_again().await;
            }
            for (outgoing, result) in window.iter().zip(results) {
                forwards.extend(match result {
                    Err(error) if is_too_large(&error) => self.send_alone(partition, outgoing).await?,
                    result => result?,
                });
            }
        }
        Ok(forwards)
    }

    /// The client asks for the topic's partitions every 10 s only: what a grown topic has just got would be waited for.
    async fn look_again(&self) {
        let (producer, topic) = (self.producer.clone(), self.records_topic.clone());
        let look = move || producer.client().fetch_metadata(Some(&topic), LOOK_WITHIN).map(drop);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(look).await {
            tracing::warn!(error = %error, "the topic's partitions can't be read");
        }
    }

    /// Sends what was refused as too large. A broker refuses a batch as a whole: alone, most of its messages pass. What does not pass would stop
    /// its partition for ever: a record that can't be forwarded becomes a dead letter, and of a letter its place is kept.
    async fn send_alone(&self, partition: i32, outgoing: &Outgoing) -> Result<Option<Forward>, KafkaError> {
        let Outgoing { message, action } = outgoing;
        let refused = match self.send(partition, message, action).await {
            Err(error) if is_too_large(&error) => error,
            result => return result,
        };
        let (reason, error, refused) = match action {
            Action::DeadLetter { reason, error } => (*reason, error.clone(), refused),
            Action::Forward { partition: target, .. } => {
                let error = format!("partition {target}, where it belongs, does not take it: {refused}");
                let letter = Action::DeadLetter { reason: Reason::WrongPartition, error: error.clone() };
                match self.send(partition, message, &letter).await {
                    Err(refused) if is_too_large(&refused) => (Reason::WrongPartition, error, refused),
                    result => return result,
                }
            }
        };
        tracing::error!(
            partition,
            offset = message.offset,
            reason = reason.as_str(),
            bytes = message.value.as_ref().map_or(0, Vec::len),
            error = %error_chain(&refused),
            "a message is too large for the topic of dead letters: only its place is kept there"
        );
        let headers = truncated_headers(message, reason, &error, &self.records_topic, partition);
        let key = message.key.as_ref().filter(|key| key.len() <= KEPT_BYTES);
        self.produce(&self.dead_letters_topic, self.letters_of(partition), key, None, headers).await?;
        metrics::counter!(metric_names::CONSUMER_DEAD_LETTERS_TRUNCATED_TOTAL).increment(1);
        Ok(None)
    }

    /// The partition of the topic of dead letters.
    fn letters_of(&self, partition: i32) -> i32 {
        partition.rem_euclid(self.dead_letter_partitions.max(1))
    }

    async fn produce(
        &self,
        topic: &str,
        target: i32,
        key: Option<&Vec<u8>>,
        value: Option<&Vec<u8>>,
        headers: OwnedHeaders,
    ) -> Result<Delivery, KafkaError> {
        let record = FutureRecord {
            topic,
            partition: Some(target),
            payload: value,
            key,
            timestamp: None,
            headers: Some(headers),
        };
        let queued_within = Timeout::After(Duration::from_secs(30));
        self.producer.send(record, queued_within).await.map_err(|(error, _)| error)
    }

    async fn send(
        &self,
        partition: i32,
        message: &OwnedMessage,
        action: &Action,
    ) -> Result<Option<Forward>, KafkaError> {
        let (topic, target, headers) = match action {
            Action::DeadLetter { reason, error } => {
                let headers = dead_letter_headers(message, *reason, error, &self.records_topic, partition);
                (&self.dead_letters_topic, self.letters_of(partition), headers)
            }
            Action::Forward { partition, hops } => {
                (&self.records_topic, *partition, forward_headers(message, *hops))
            }
        };
        let delivery =
            self.produce(topic, target, message.key.as_ref(), message.value.as_ref(), headers).await?;
        fail_point!("consumer.acked");
        let Action::Forward { hops, .. } = action else { return Ok(None) };
        // The record's own source too: that was checked before it was decided to forward it.
        let source = message.envelope().headers.and_then(|headers| headers.source).unwrap_or_default();
        Ok(Some(Forward {
            source: String::from_utf8_lossy(source).into_owned(),
            from_offset: message.offset,
            to_partition: delivery.partition,
            to_offset: delivery.offset,
            again: *hops > 1,
        }))
    }
}

fn is_unknown_partition(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownPartition)
}

/// Refused for its size, by this client or by a broker: no repetition changes it.
fn is_too_large(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::MessageBatchTooLarge)
    )
}

/// The message's own headers without those that `replaced` names. A message whose header names are not text keeps all it has.
fn own_headers(message: &OwnedMessage, replaced: impl Fn(&str) -> bool) -> OwnedHeaders {
    let Some(list) = message.header_list() else {
        return message.headers.clone().unwrap_or_default();
    };
    list.iter().filter(|(key, _)| !replaced(key)).fold(OwnedHeaders::new(), |headers, (key, value)| {
        headers.insert(Header { key, value: value.as_ref() })
    })
}

fn dead_letter_headers(
    message: &OwnedMessage,
    reason: Reason,
    error: &str,
    topic: &str,
    partition: i32,
) -> OwnedHeaders {
    let own = own_headers(message, |key| key.starts_with(names::DLQ_PREFIX));
    with_dlq_headers(own, message, reason, error, topic, partition)
}

/// Those of a letter without its value. The message's own may be what was too large, so only its source is kept of them.
fn truncated_headers(
    message: &OwnedMessage,
    reason: Reason,
    error: &str,
    topic: &str,
    partition: i32,
) -> OwnedHeaders {
    let known = message.envelope().headers.unwrap_or_default();
    let source = known.source.filter(|source| source.len() <= KEPT_BYTES);
    let own = source.iter().fold(OwnedHeaders::new(), |headers, source| {
        headers.insert(Header { key: names::HEADER_SOURCE, value: Some(*source) })
    });
    let value = message.value.as_deref().unwrap_or_default();
    let hash: String = Sha256::digest(value).iter().map(|byte| format!("{byte:02x}")).collect();
    with_dlq_headers(own, message, reason, error, topic, partition)
        .insert(Header { key: names::HEADER_DLQ_TRUNCATED, value: Some(&value.len().to_string()) })
        .insert(Header { key: names::HEADER_DLQ_SHA256, value: Some(&hash) })
}

fn with_dlq_headers(
    own: OwnedHeaders,
    message: &OwnedMessage,
    reason: Reason,
    error: &str,
    topic: &str,
    partition: i32,
) -> OwnedHeaders {
    let attempt = message.envelope().headers.and_then(|headers| headers.dlq_attempt.map(<[u8]>::to_vec));
    let attempt = attempt
        .and_then(|text| String::from_utf8(text).ok())
        .and_then(|text| text.parse::<u32>().ok())
        .unwrap_or(1);
    let error = &error[..error.floor_char_boundary(ERROR_BYTES)];
    let added = [
        (names::HEADER_DLQ_REASON, reason.as_str().to_string()),
        (names::HEADER_DLQ_ERROR, error.to_string()),
        (names::HEADER_DLQ_TOPIC, topic.to_string()),
        (names::HEADER_DLQ_PARTITION, partition.to_string()),
        (names::HEADER_DLQ_OFFSET, message.offset.to_string()),
        (names::HEADER_DLQ_TIMESTAMP, message.timestamp.to_string()),
        (names::HEADER_DLQ_ATTEMPT, attempt.to_string()),
    ];
    added.iter().fold(own, |headers, (key, value)| headers.insert(Header { key, value: Some(value) }))
}

fn forward_headers(message: &OwnedMessage, hops: u32) -> OwnedHeaders {
    let hops = hops.to_string();
    own_headers(message, |key| key == names::HEADER_FORWARDED)
        .insert(Header { key: names::HEADER_FORWARDED, value: Some(&hops) })
}

#[cfg(test)]
mod tests {
    use rdkafka::message::Headers as _;

    use super::*;

    fn message(headers: &[(&str, Option<&[u8]>)]) -> OwnedMessage {
        let headers = headers.iter().fold(OwnedHeaders::new(), |all, (key, value)| {
            all.insert(Header { key, value: value.as_ref().copied() })
        });
        OwnedMessage {
            offset: 42,
            timestamp: 1_700_000_000_123,
            key: None,
            value: Some(vec![1]),
            headers: Some(headers),
        }
    }

    fn list(headers: &OwnedHeaders) -> Vec<(String, Option<String>)> {
        let owned = |header: Header<'_, &[u8]>| {
            (header.key.to_string(), header.value.map(|value| String::from_utf8_lossy(value).into_owned()))
        };
        headers.as_borrowed().iter().map(owned).collect()
    }

    #[test]
    fn a_dead_letter_keeps_its_headers_and_replaces_its_own() {
        let message = message(&[
            ("payload-type", Some(b"x")),
            ("dlq-reason", Some(b"conflict")),
            ("empty", Some(b"")),
            ("null", None),
            ("payload-type", Some(b"y")),
            ("dlq-attempt", Some(b"3")),
        ]);
        let headers =
            dead_letter_headers(&message, Reason::TooOld, "timestamp: too old", "usage.records.v1", 7);
        let expected = [
            ("payload-type", Some("x")),
            ("empty", Some("")),
            ("null", None),
            ("payload-type", Some("y")),
            ("dlq-reason", Some("too_old")),
            ("dlq-error", Some("timestamp: too old")),
            ("dlq-topic", Some("usage.records.v1")),
            ("dlq-partition", Some("7")),
            ("dlq-offset", Some("42")),
            ("dlq-timestamp", Some("1700000000123")),
            ("dlq-attempt", Some("3")),
        ];
        let expected: Vec<_> =
            expected.map(|(key, value)| (key.to_string(), value.map(str::to_string))).into();
        assert_eq!(list(&headers), expected);
    }

    #[test]
    fn the_first_refusal_is_attempt_one_and_a_long_error_is_cut_between_letters() {
        let headers = dead_letter_headers(&message(&[]), Reason::Undecodable, &"ä".repeat(400), "t", 0);
        let list = list(&headers);
        assert_eq!(list[6], ("dlq-attempt".into(), Some("1".into())));
        assert_eq!(list[1], ("dlq-error".into(), Some("ä".repeat(250))));
    }

    /// The value's hash comes from `printf '\1' | sha256sum`.
    #[test]
    fn a_letter_without_its_value_names_the_place_and_what_it_was() {
        let big = "x".repeat(100_000);
        let message = message(&[("usage-source", Some(b"mail")), ("big", Some(big.as_bytes()))]);
        let headers = truncated_headers(&message, Reason::TooOld, "too old", "t", 7);
        let expected = [
            ("usage-source", "mail"),
            ("dlq-reason", "too_old"),
            ("dlq-error", "too old"),
            ("dlq-topic", "t"),
            ("dlq-partition", "7"),
            ("dlq-offset", "42"),
            ("dlq-timestamp", "1700000000123"),
            ("dlq-attempt", "1"),
            ("dlq-truncated", "1"),
            ("dlq-sha256", "4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a"),
        ];
        let expected: Vec<_> = expected.map(|(key, value)| (key.to_string(), Some(value.to_string()))).into();
        assert_eq!(list(&headers), expected);
    }

    #[test]
    fn a_forwarded_record_says_how_often() {
        let message = message(&[("usage-forwarded", Some(b"1")), ("usage-source", Some(b"s"))]);
        let expected = vec![
            ("usage-source".to_string(), Some("s".to_string())),
            ("usage-forwarded".into(), Some("2".into())),
        ];
        assert_eq!(list(&forward_headers(&message, 2)), expected);
    }
}
