//! Names on the wire (design section 4).

/// Topic of records; key = tenant UUID as lower-case text.
pub const RECORDS_TOPIC: &str = "usage.records.v1";
/// Topic of dead letters.
pub const DEAD_LETTERS_TOPIC: &str = "usage.dead-letters.v1";
/// Partitions of both topics unless told otherwise.
pub const DEFAULT_PARTITIONS: i32 = 12;
/// `max.message.bytes` that the topic of records gets, in bytes as they are on the wire: Kafka's own default.
pub const RECORDS_MESSAGE_BYTES: i64 = 1_048_588;
/// The most of it that the consumer works with: what is refused is compressed anew and gets headers.
pub const RECORDS_MESSAGE_BYTES_MOST: i64 = 8 << 20;
/// `max.message.bytes` that the topic of dead letters must have at least, and the bound of those who write letters and replay them,
/// which speaks of bytes before compression.
pub const DEAD_LETTER_MESSAGE_BYTES: i64 = 16 << 20;
/// Consumer group of the workers.
pub const CONSUMER_GROUP: &str = "usage-consumer";
/// Consumer group of `usagectl dead-letters`: how far letters are settled.
pub const DEAD_LETTERS_GROUP: &str = "usage-dead-letters";

/// Header: what the value is.
pub const HEADER_PAYLOAD_TYPE: &str = "payload-type";
/// Header: the source's name, equal to the value's `source`.
pub const HEADER_SOURCE: &str = "usage-source";
/// Header: id of the key that signed the message.
pub const HEADER_KEY_ID: &str = "usage-key-id";
/// Header: lower-case hex HMAC-SHA-256, see [`crate::signature`].
pub const HEADER_SIGNATURE: &str = "usage-signature";
/// Header: W3C trace context.
pub const HEADER_TRACEPARENT: &str = "traceparent";
/// Header: how often the record was forwarded to another partition.
pub const HEADER_FORWARDED: &str = "usage-forwarded";

/// Payload type of a usage record in Avro.
pub const PAYLOAD_RECORD: &str = "usage-collector.record.v1";
/// Payload type of an outbox row written by `usage_emit`: JSON that the relay encodes as Avro.
pub const PAYLOAD_RECORD_JSON: &str = "usage-collector.record.v1+json";
/// Payload type of a completeness marker.
pub const PAYLOAD_MARKER: &str = "usage-collector.marker.v1";

/// Payload type of a mark among the dead letters: letters that were replayed or discarded.
pub const PAYLOAD_DEAD_LETTER_MARK: &str = "usage-collector.dead-letter-mark.v1";

/// What every header of a dead letter's own starts with.
pub const DLQ_PREFIX: &str = "dlq-";
/// Headers of a dead letter, in the order they are written.
pub const HEADER_DLQ_REASON: &str = "dlq-reason";
pub const HEADER_DLQ_ERROR: &str = "dlq-error";
pub const HEADER_DLQ_TOPIC: &str = "dlq-topic";
pub const HEADER_DLQ_PARTITION: &str = "dlq-partition";
pub const HEADER_DLQ_OFFSET: &str = "dlq-offset";
pub const HEADER_DLQ_TIMESTAMP: &str = "dlq-timestamp";
pub const HEADER_DLQ_ATTEMPT: &str = "dlq-attempt";
/// Only of a letter whose message was too large: the value and most headers are left out. Its text is the value's length in bytes.
pub const HEADER_DLQ_TRUNCATED: &str = "dlq-truncated";
/// Beside it: SHA-256 of the value in lower-case hex.
pub const HEADER_DLQ_SHA256: &str = "dlq-sha256";
