//! From an outbox row to a signed Kafka message.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};
use rdkafka::message::{Header, OwnedHeaders};
use usage_schemas::codec::Encoder;
use usage_schemas::signature::SigningKey;
use usage_schemas::{Marker, Timestamp, json, names};
use usage_service::metric_names;
use uuid::Uuid;

use super::rows::Row;
use crate::pg_time::PgTime;

/// A configured source with its key and its metrics.
pub(crate) struct Source {
    pub name: String,
    key: SigningKey,
    pub delivered: Counter,
    pub failed: Counter,
    pub dead_letters: Counter,
    pub latency_ms: Histogram,
    pub batch_rows: Histogram,
    lag_seconds: Gauge,
}

impl Source {
    /// Shows how far what is said of its completeness is behind the database's clock.
    pub(crate) fn completeness_lag(&self, clock: PgTime, until: Timestamp) {
        let micros = clock.timestamp().map_or(0, |clock| clock.micros().saturating_sub(until.micros()));
        let lag = Duration::from_micros(u64::try_from(micros).unwrap_or_default());
        self.lag_seconds.set(lag.as_secs_f64());
    }

    /// Another relay knows.
    pub(crate) fn no_completeness_lag(&self) {
        self.lag_seconds.set(0);
    }
}

/// The configured sources.
pub(crate) struct Sources {
    by_name: HashMap<String, Arc<Source>>,
    default: Option<String>,
}

impl Sources {
    pub(crate) fn new(keys: Vec<(String, String, Vec<u8>)>, default: Option<String>) -> Self {
        let by_name = keys.into_iter().map(|(name, key_id, key)| {
            let label = || name.clone();
            let attempts = |status: &'static str| {
                metrics::counter!(metric_names::OUTBOX_DELIVERY_ATTEMPTS_TOTAL, "source_module" => label(), "status" => status)
            };
            let source = Source {
                key: SigningKey::new(&key_id, &key),
                delivered: attempts("success"),
                failed: attempts("failure"),
                dead_letters: metrics::counter!(metric_names::OUTBOX_DEAD_LETTERS_TOTAL, "source_module" => label()),
                latency_ms: metrics::histogram!(metric_names::OUTBOX_DELIVERY_LATENCY_MS, "source_module" => label()),
                batch_rows: metrics::histogram!(metric_names::USAGE_INGESTION_BATCH_SIZE, "source_module" => label()),
                lag_seconds: metrics::gauge!(metric_names::OUTBOX_COMPLETENESS_LAG_SECONDS, "source_module" => label()),
                name: name.clone(),
            };
            (name, Arc::new(source))
        });
        Self { by_name: by_name.collect(), default }
    }

    /// The source of a row: its own, else the default one. `None`: there is no key for it.
    pub(crate) fn of(&self, row_source: Option<&str>) -> Option<&Arc<Source>> {
        self.by_name.get(row_source.or(self.default.as_deref())?)
    }

    /// The names, as the label `source_module` has them.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Source>> {
        self.by_name.values()
    }

    /// Whether rows without a source are this one's.
    pub(crate) fn is_default(&self, name: &str) -> bool {
        self.default.as_deref() == Some(name)
    }

    /// Whether rows without a source can be sent.
    pub(crate) fn has_default(&self) -> bool {
        self.default.is_some()
    }
}

/// A message, ready to be produced.
pub(crate) struct Message<'a> {
    pub key: String,
    pub value: Cow<'a, [u8]>,
    pub headers: OwnedHeaders,
}

/// Why a row can never be a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Impossible {
    /// A fixed word.
    pub reason: &'static str,
    error: String,
}

impl Impossible {
    /// The error may quote the payload, which anybody wrote: what is kept of it is short and printable ASCII, so that every database
    /// takes it. Postgres refuses U+0000, and characters that its encoding does not have.
    pub(crate) fn new(reason: &'static str, error: &str) -> Self {
        let mut kept = String::new();
        for character in error.chars() {
            let before = kept.len();
            match character {
                ' '..='~' => kept.push(character),
                _ => kept.extend(character.escape_default()),
            }
            if kept.len() > ERROR_BYTES {
                kept.truncate(before);
                kept.push_str("...");
                break;
            }
        }
        Self { reason, error: kept }
    }

    /// Printable ASCII, bounded.
    pub(crate) fn error(&self) -> &str {
        &self.error
    }
}

/// Greatest length of a dead letter's error, but for the dots that say that it went on.
const ERROR_BYTES: usize = 500;

/// The payload types that this relay can send. A row of another one waits for a relay that knows it.
pub(crate) const PAYLOAD_TYPES: [&str; 2] = [names::PAYLOAD_RECORD, names::PAYLOAD_RECORD_JSON];

/// Makes the message of a row of one of the [`PAYLOAD_TYPES`]: Avro as it is, JSON encoded as Avro, all of it signed.
pub(crate) fn message<'a>(
    encoder: &Encoder,
    source: &Source,
    row: &'a Row,
) -> Result<Message<'a>, Impossible> {
    let Some(payload) = row.payload.as_deref() else {
        return Err(Impossible::new(TOO_LARGE, &format!("the payload has {} bytes", row.payload_bytes)));
    };
    let value = if row.payload_type == names::PAYLOAD_RECORD_JSON {
        Cow::Owned(avro(encoder, &source.name, row.tenant_id, payload)?)
    } else {
        Cow::Borrowed(payload)
    };
    let key = row.tenant_id.to_string();
    let signature = source.key.sign(key.as_bytes(), &value);
    let header = |key, value| Header { key, value: Some(value) };
    let mut headers = OwnedHeaders::new_with_capacity(5)
        .insert(header(names::HEADER_PAYLOAD_TYPE, names::PAYLOAD_RECORD))
        .insert(header(names::HEADER_SOURCE, &source.name))
        .insert(header(names::HEADER_KEY_ID, source.key.key_id()))
        .insert(header(names::HEADER_SIGNATURE, &signature));
    if let Some(traceparent) = &row.traceparent {
        headers = headers.insert(header(names::HEADER_TRACEPARENT, traceparent));
    }
    Ok(Message { key, value, headers })
}

/// Makes a completeness marker, signed as a record is. Its key is the source.
pub(crate) fn marker(source: &Source, outbox: Uuid, complete_until: Timestamp) -> Message<'static> {
    let value = Marker { source: source.name.clone(), outbox, complete_until }.encode();
    let signature = source.key.sign(source.name.as_bytes(), &value);
    let header = |key, value| Header { key, value: Some(value) };
    let headers = OwnedHeaders::new_with_capacity(4)
        .insert(header(names::HEADER_PAYLOAD_TYPE, names::PAYLOAD_MARKER))
        .insert(header(names::HEADER_SOURCE, &source.name))
        .insert(header(names::HEADER_KEY_ID, source.key.key_id()))
        .insert(header(names::HEADER_SIGNATURE, &signature));
    Message { key: source.name.clone(), value: Cow::Owned(value), headers }
}

/// Reason of a dead letter: larger than a message may be.
pub(crate) const TOO_LARGE: &str = "too_large";
/// Reason of a dead letter: the broker takes the record for invalid.
pub(crate) const REFUSED: &str = "refused_by_broker";
const NOT_ENCODABLE: &str = "not_encodable";
/// Every reason that a relay gives.
pub(crate) const REASONS: [&str; 3] = [TOO_LARGE, REFUSED, NOT_ENCODABLE];

fn avro(encoder: &Encoder, source: &str, tenant_id: Uuid, payload: &[u8]) -> Result<Vec<u8>, Impossible> {
    let impossible = |error: &str| Impossible::new(NOT_ENCODABLE, error);
    let record = json::decode(payload, source).map_err(|invalid| impossible(&invalid.to_string()))?;
    if record.tenant_id != tenant_id {
        return Err(impossible("tenant_id: is not the row's"));
    }
    Ok(encoder.encode(&record))
}

#[cfg(test)]
mod tests;
