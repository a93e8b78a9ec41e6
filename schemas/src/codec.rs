//! Avro bytes of a record: apache-avro encodes, an own decoder borrows from the buffer.
//!
//! The decoder exists for speed (no allocation, no resolution per record) and for strictness: apache-avro is its reference in the
//! tests, but reads a value that ends within a string or a union as null.

mod cursor;
mod encode;
mod plan;
mod skip;

use crate::frame::{self, Frame};
use crate::{RecordRef, schema};
use cursor::Cursor;
use plan::Plan;

pub use encode::Encoder;
pub use plan::SchemaError;

/// Why a message value is no record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("not a single-object frame")]
    Frame,
    #[error("unknown schema fingerprint {0:016x}")]
    UnknownSchema(u64),
    #[error("{field}: {detail}")]
    Field { field: &'static str, detail: &'static str },
    #[error("the value is truncated")]
    Truncated,
    #[error("{0} bytes follow the record")]
    Trailing(usize),
}

impl DecodeError {
    /// The dead letter's reason.
    pub fn reason(&self) -> crate::Reason {
        match self {
            Self::UnknownSchema(_) => crate::Reason::UnknownSchema,
            Self::Frame | Self::Field { .. } | Self::Truncated | Self::Trailing(_) => {
                crate::Reason::Undecodable
            }
        }
    }
}

/// Decodes message values of every known writer schema.
#[derive(Debug, Clone)]
pub struct Decoder {
    current: u64,
    /// Other writer schemas by fingerprint; few, so a scan is faster than a map.
    others: Vec<(u64, Plan)>,
}

impl Decoder {
    /// Knows the current schema.
    pub fn new() -> Self {
        Self { current: schema::current_fingerprint(), others: Vec::new() }
    }

    /// Knows the current schema and older or newer ones (the texts of .avsc files).
    ///
    /// Each is resolved once into a plan, as the Avro specification says: fields are matched by name, those that this version does
    /// not know are skipped whatever their type, those that the writer did not have take their default. A schema that
    /// could be misread is refused: another scale of `value`, another unit of `timestamp`, a required field that is
    /// missing, a type that does not promote.
    pub fn with_schemas(texts: &[&str]) -> Result<Self, SchemaError> {
        let mut decoder = Self::new();
        for text in texts {
            let (fingerprint, plan) = Plan::parse(text)?;
            // Equal fingerprints mean equal canonical forms, and those that the plan accepts are read alike. The current one
            // has its own straight code.
            let known = fingerprint == decoder.current || decoder.plan(fingerprint).is_some();
            if !known {
                decoder.others.push((fingerprint, plan));
            }
        }
        Ok(decoder)
    }

    /// Reads a value; strings borrow from it. Hostile bytes give an error, never a panic or an allocation.
    ///
    /// The record is well-formed, not valid: [`crate::validate`] checks its bounds.
    pub fn decode<'a>(&self, value: &'a [u8]) -> Result<RecordRef<'a>, DecodeError> {
        let Frame::SingleObject { fingerprint, body } = frame::split(value)?;
        let mut cursor = Cursor::new(body);
        let record = if fingerprint == self.current {
            read_current(&mut cursor)?
        } else {
            let plan = self.plan(fingerprint).ok_or(DecodeError::UnknownSchema(fingerprint))?;
            plan.read(&mut cursor)?
        };
        cursor.finish()?;
        Ok(record)
    }

    fn plan(&self, fingerprint: u64) -> Option<&Plan> {
        self.others.iter().find(|(known, _)| *known == fingerprint).map(|(_, plan)| plan)
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

/// The current schema's fields in order, straight: the hot path.
#[inline]
fn read_current<'a>(cursor: &mut Cursor<'a>) -> Result<RecordRef<'a>, DecodeError> {
    Ok(RecordRef {
        record_id: cursor.uuid()?,
        tenant_id: cursor.uuid()?,
        source: cursor.text("source")?,
        metric: cursor.text("metric")?,
        kind: cursor.kind("kind")?,
        value: cursor.quantity("value")?,
        timestamp: cursor.timestamp("timestamp")?,
        idempotency_key: cursor.optional("idempotency_key", |cursor| cursor.text("idempotency_key"))?,
        resource_id: cursor.optional("resource_id", Cursor::uuid)?,
        resource_type: cursor.optional("resource_type", |cursor| cursor.text("resource_type"))?,
        subject_id: cursor.optional("subject_id", Cursor::uuid)?,
        subject_type: cursor.optional("subject_type", |cursor| cursor.text("subject_type"))?,
        metadata: cursor.optional("metadata", |cursor| cursor.text("metadata"))?,
    })
}

#[cfg(test)]
mod tests;
