//! What leaves the consumer for Kafka: dead letters, byte for byte as they were, and records forwarded to their partition.
//! Both are acknowledged before the offset passes.

use std::time::Duration;

use futures::future::join_all;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use rdkafka::util::Timeout;
use usage_control::Forward;
use usage_schemas::{Reason, names};
use usage_service::fail_point;

use crate::message::OwnedMessage;

/// Longest `dlq-error` in bytes.
const ERROR_BYTES: usize = 500;
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
            let results = join_all(window.iter().map(|outgoing| self.send(partition, outgoing))).await;
            if results.iter().any(|result| result.as_ref().is_err_and(is_unknown_partition)) {
                self.look_again().await;
            }
            for result in results {
                forwards.extend(result?);
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

    async fn send(&self, partition: i32, outgoing: &Outgoing) -> Result<Option<Forward>, KafkaError> {
        let Outgoing { message, action } = outgoing;
        let (topic, target, headers) = match action {
            Action::DeadLetter { reason, error } => {
                let headers = dead_letter_headers(message, *reason, error, &self.records_topic, partition);
                (&self.dead_letters_topic, partition.rem_euclid(self.dead_letter_partitions.max(1)), headers)
            }
            Action::Forward { partition, hops } => {
                (&self.records_topic, *partition, forward_headers(message, *hops))
            }
        };
        let record = FutureRecord {
            topic,
            partition: Some(target),
            payload: message.value.as_ref(),
            key: message.key.as_ref(),
            timestamp: None,
            headers: Some(headers),
        };
        let queued_within = Timeout::After(Duration::from_secs(30));
        let delivery = self.producer.send(record, queued_within).await.map_err(|(error, _)| error)?;
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
    let attempt = message.envelope().headers.and_then(|headers| headers.dlq_attempt.map(<[u8]>::to_vec));
    let attempt = attempt
        .and_then(|text| String::from_utf8(text).ok())
        .and_then(|text| text.parse::<u32>().ok())
        .unwrap_or(1);
    let error = &error[..error.floor_char_boundary(ERROR_BYTES)];
    let own = own_headers(message, |key| key.starts_with("dlq-"));
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
