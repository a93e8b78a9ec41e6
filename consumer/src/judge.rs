//! The decision about one message, without its duplicates: decode and headers, signature, key and partition, id, bounds, type.
//!
//! Pure: everything it needs comes with the call, so that a record that could not be decided at once is judged again the same
//! way with fresher knowledge.

use std::collections::HashMap;
use std::sync::Arc;

use usage_schemas::codec::{DecodeError, Decoder};
use usage_schemas::partition::partition_of;
use usage_schemas::{Bounds, Kind, Reason, RecordRef, Timestamp, ids, names, validate};
use uuid::Uuid;

use crate::authenticate::{Signed, SourceKeys};
use crate::message::{Envelope, KnownHeaders};

/// How often a record may be forwarded.
pub const FORWARD_LIMIT: u32 = 3;

/// What the control database says, as last read.
#[derive(Default)]
pub struct Registry {
    pub keys: SourceKeys,
    pub types: HashMap<String, Kind>,
}

/// What judging needs besides the message.
pub struct Judge {
    pub decoder: Decoder,
    pub bounds: Bounds,
    pub registry: Arc<Registry>,
}

/// Where a message was read: its partition, and how many the topic has by the control database.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub partition: i32,
    pub count: i32,
}

/// A verdict about one message.
#[derive(Debug)]
pub enum Verdict<'a> {
    /// Valid; kept unless it is a duplicate or a conflict.
    Record {
        record: RecordRef<'a>,
        content_hash: [u8; 16],
    },
    /// A completeness marker of a known source.
    Marker,
    /// Valid as far as the signature goes, but on the wrong partition.
    Forward {
        partition: i32,
        hops: u32,
    },
    Refused(Refusal),
}

/// Why a message becomes a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    /// For people; bounded, and without the record's values.
    pub error: String,
    /// True if a fresher registry could judge otherwise.
    pub by_registry: bool,
}

impl Refusal {
    fn new(reason: Reason, error: impl Into<String>) -> Self {
        Self { reason, error: error.into(), by_registry: false }
    }

    fn by_registry(reason: Reason, error: impl Into<String>) -> Self {
        Self { reason, error: error.into(), by_registry: true }
    }
}

impl Judge {
    pub fn judge<'a>(&self, message: &Envelope<'a>, place: Place) -> Verdict<'a> {
        self.try_judge(message, place).unwrap_or_else(Verdict::Refused)
    }

    fn try_judge<'a>(&self, message: &Envelope<'a>, place: Place) -> Result<Verdict<'a>, Refusal> {
        let undecodable = |what: &str| Refusal::new(Reason::Undecodable, what);
        let headers = message.headers.as_ref().ok_or_else(|| undecodable("a header's name is not text"))?;
        let value = message.value.ok_or_else(|| undecodable("the message has no value"))?;
        let key = message.key.ok_or_else(|| undecodable("the message has no key"))?;
        let signature =
            headers.signature.ok_or_else(|| undecodable("the header usage-signature is missing"))?;
        let source = text(headers.source, names::HEADER_SOURCE)?;
        let key_id = text(headers.key_id, names::HEADER_KEY_ID)?;
        let at = message.timestamp.saturating_mul(1_000);
        let signed = Signed { source, key_id, signature, message_key: key, value, at };
        match text(headers.payload_type, names::HEADER_PAYLOAD_TYPE)? {
            names::PAYLOAD_RECORD => {}
            names::PAYLOAD_MARKER => {
                self.authenticate(&signed)?;
                return Ok(Verdict::Marker);
            }
            _ => return Err(undecodable("the header payload-type names an unknown type")),
        }

        let record = self.decoder.decode(value).map_err(|error| match error {
            DecodeError::UnknownSchema(_) => Refusal::new(Reason::UnknownSchema, error.to_string()),
            _ => Refusal::new(Reason::Undecodable, error.to_string()),
        })?;
        self.authenticate(&signed)?;
        if record.source != source {
            return Err(Refusal::new(
                Reason::UnknownSource,
                "the record names another source than the one that signed it",
            ));
        }
        if !is_text_of(key, record.tenant_id) {
            return Err(Refusal::new(Reason::WrongPartition, "the key is not the tenant's id as text"));
        }
        let right = partition_of(record.tenant_id, place.count);
        if right != place.partition {
            return forward(headers, right);
        }
        check_id(&record)?;
        validate::validate(&record, &self.bounds, Timestamp::from_micros(at))
            .map_err(|invalid| Refusal::new(invalid.reason, invalid.to_string()))?;
        match self.registry.types.get(record.metric) {
            Some(kind) if *kind == record.kind => {}
            Some(kind) => {
                let error = format!("kind: the usage type is a {}", kind.as_str());
                return Err(Refusal::by_registry(Reason::SchemaViolation, error));
            }
            None => return Err(Refusal::by_registry(Reason::UnknownUsageType, "metric: not registered")),
        }
        let content_hash = ids::content_hash(&record);
        Ok(Verdict::Record { record, content_hash })
    }

    fn authenticate(&self, signed: &Signed<'_>) -> Result<(), Refusal> {
        self.registry.keys.verify(signed).map_err(|(reason, error)| Refusal::by_registry(reason, error))
    }

    /// The id that a message claims, whether it is valid or not.
    pub fn claimed_id(&self, message: &Envelope<'_>) -> Option<Uuid> {
        let record = self.decoder.decode(message.value?).ok()?;
        Some(record.record_id)
    }
}

fn text<'a>(header: Option<&'a [u8]>, name: &str) -> Result<&'a str, Refusal> {
    let value =
        header.ok_or_else(|| Refusal::new(Reason::Undecodable, format!("the header {name} is missing")))?;
    std::str::from_utf8(value)
        .map_err(|_| Refusal::new(Reason::Undecodable, format!("the header {name} is not text")))
}

fn is_text_of(key: &[u8], id: Uuid) -> bool {
    let mut buffer = Uuid::encode_buffer();
    id.hyphenated().encode_lower(&mut buffer).as_bytes() == key
}

/// A misplaced record goes to its partition, so that all copies of an identity have one decider.
fn forward<'a>(headers: &KnownHeaders<'_>, partition: i32) -> Result<Verdict<'a>, Refusal> {
    let hops = match headers.forwarded {
        None => 0,
        // What is not a number counts as too often: nobody but a consumer writes this header.
        Some(hops) => {
            std::str::from_utf8(hops).ok().and_then(|hops| hops.parse().ok()).unwrap_or(FORWARD_LIMIT)
        }
    };
    if hops >= FORWARD_LIMIT {
        return Err(Refusal::new(Reason::WrongPartition, "forwarded too often"));
    }
    Ok(Verdict::Forward { partition, hops: hops + 1 })
}

/// A keyed record has the id of its identity; one without a key has a UUIDv7, which no identity can give.
fn check_id(record: &RecordRef<'_>) -> Result<(), Refusal> {
    let fits = match record.idempotency_key {
        Some(key) => ids::record_id(record.tenant_id, key) == record.record_id,
        None => record.record_id.get_version_num() == 7,
    };
    fits.then_some(())
        .ok_or_else(|| Refusal::new(Reason::IdMismatch, "record_id: not the id of the identity"))
}
