//! The bounds of a record (design section 4).

mod metadata;

use crate::{Kind, Quantity, Reason, RecordRef, Timestamp};

/// Greatest length of metric, source and types in bytes.
pub const NAME_BYTES: usize = 128;
/// Greatest length of an idempotency key in bytes.
pub const KEY_BYTES: usize = 255;
/// Greatest depth of objects and arrays in metadata, the outer object included.
pub const METADATA_DEPTH: u32 = metadata::MAX_DEPTH;

/// Configurable bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Greatest length of `metadata` in bytes.
    pub metadata_bytes: usize,
    /// How far a timestamp may lie after the judge's clock, in microseconds.
    pub future_micros: i64,
    /// How far a timestamp may lie before the judge's clock, in microseconds.
    pub past_micros: i64,
}

const MINUTE_MICROS: i64 = 60 * 1_000_000;
const DAY_MICROS: i64 = 24 * 60 * MINUTE_MICROS;

impl Default for Bounds {
    /// 8 KiB of metadata, 5 minutes ahead, 7 years back (2,557 days: with two leap days, as many as 7 years can have).
    fn default() -> Self {
        Self { metadata_bytes: 8 << 10, future_micros: 5 * MINUTE_MICROS, past_micros: 2_557 * DAY_MICROS }
    }
}

/// A field that breaks its bound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct Invalid {
    pub reason: crate::Reason,
    pub field: &'static str,
    pub detail: String,
}

impl Invalid {
    /// A field that breaks its bound with [`Reason::InvalidRecord`].
    pub fn record(field: &'static str, detail: impl Into<String>) -> Self {
        Self { reason: Reason::InvalidRecord, field, detail: detail.into() }
    }
}

/// Checks every field but the record id. `now` is the broker's time of the message (the database's at emit).
pub fn validate(record: &RecordRef<'_>, bounds: &Bounds, now: Timestamp) -> Result<(), Invalid> {
    if record.tenant_id.is_nil() {
        return Err(Invalid::record("tenant_id", "the nil UUID is no tenant"));
    }
    name("source", record.source)?;
    name("metric", record.metric)?;
    value(record.kind, record.value)?;
    match record.idempotency_key {
        Some(text) => key(text)?,
        None if record.kind == Kind::Counter => {
            return Err(Invalid::record("idempotency_key", "a counter has an idempotency key"));
        }
        None => {}
    }
    if let Some(text) = record.resource_type {
        name("resource_type", text)?;
    }
    if let Some(text) = record.subject_type {
        name("subject_type", text)?;
    }
    if let Some(text) = record.metadata {
        metadata(text, bounds)?;
    }
    timestamp(record.timestamp, bounds, now)
}

/// Checks a name: metric, source, resource type, subject type. `field` goes into the error.
pub fn name(field: &'static str, text: &str) -> Result<(), Invalid> {
    if is_name(text) { Ok(()) } else { Err(invalid_name(field, text)) }
}

/// Whether a text is 1 to 128 of `a-z 0-9 _ . -`, first a letter.
pub fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= NAME_BYTES
        && bytes.first().is_some_and(u8::is_ascii_lowercase)
        && bytes.iter().all(|byte| NAME_BYTE[usize::from(*byte)])
}

/// Which bytes a name may have: a table, since four names a record are on the hot path.
static NAME_BYTE: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = matches!(byte as u8, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-');
        byte += 1;
    }
    table
};

#[cold]
fn invalid_name(field: &'static str, text: &str) -> Invalid {
    let detail = match text.as_bytes() {
        [] => "is empty",
        bytes if bytes.len() > NAME_BYTES => "is longer than 128 bytes",
        [first, ..] if !first.is_ascii_lowercase() => "does not begin with a letter a-z",
        _ => "has other characters than a-z 0-9 _ . -",
    };
    Invalid::record(field, detail)
}

/// Checks an idempotency key: 1 to 255 bytes, no U+0000.
pub fn key(text: &str) -> Result<(), Invalid> {
    let detail = match text.len() {
        0 => "is empty",
        1..=KEY_BYTES if !text.as_bytes().contains(&0) => return Ok(()),
        1..=KEY_BYTES => "has U+0000",
        _ => "is longer than 255 bytes",
    };
    Err(Invalid::record("idempotency_key", detail))
}

/// Checks the sign of a value: a counter is not negative.
pub fn value(kind: Kind, value: Quantity) -> Result<(), Invalid> {
    if kind == Kind::Counter && value.is_negative() {
        return Err(Invalid::record("value", "a counter is not negative"));
    }
    Ok(())
}

/// Checks metadata: not larger than allowed, one JSON object (RFC 8259 text, at most [`METADATA_DEPTH`] deep).
///
/// It is kept byte for byte and never interpreted, so valid text is enough: members may repeat, `\u0000` and lone surrogates
/// may be written as escapes, numbers may have any size.
pub fn metadata(text: &str, bounds: &Bounds) -> Result<(), Invalid> {
    if text.len() > bounds.metadata_bytes {
        return Err(Invalid {
            reason: Reason::MetadataTooLarge,
            field: "metadata",
            detail: format!("has {} bytes, {} are allowed", text.len(), bounds.metadata_bytes),
        });
    }
    metadata::check_object(text).map_err(|fault| Invalid::record("metadata", fault.to_string()))
}

/// Checks a time against the judge's clock.
pub fn timestamp(timestamp: Timestamp, bounds: &Bounds, now: Timestamp) -> Result<(), Invalid> {
    // The difference of two i64 may not fit one.
    let ahead = i128::from(timestamp.micros()) - i128::from(now.micros());
    if ahead > i128::from(bounds.future_micros) {
        let detail = format!("more than {} in the future", span(bounds.future_micros));
        return Err(Invalid { reason: Reason::InFuture, field: "timestamp", detail });
    }
    if -ahead > i128::from(bounds.past_micros) {
        let detail = "older than the longest retention".into();
        return Err(Invalid { reason: Reason::TooOld, field: "timestamp", detail });
    }
    Ok(())
}

fn span(micros: i64) -> String {
    match (micros / MINUTE_MICROS, micros % MINUTE_MICROS) {
        (1, 0) => "1 minute".into(),
        (minutes, 0) if minutes > 0 => format!("{minutes} minutes"),
        _ => format!("{} ms", micros / 1_000),
    }
}

#[cfg(test)]
mod tests;
