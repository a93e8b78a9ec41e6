//! Avro bytes of a record: apache-avro encodes, an own decoder borrows from the buffer.

use crate::{RecordRef, UsageRecord};

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

/// Frames and encodes a record with the current schema: the message value. Cheap to clone; one per producer.
#[derive(Clone)]
pub struct Encoder;

impl Encoder {
    pub fn new() -> Self {
        unimplemented!()
    }

    pub fn encode(&self, _record: &UsageRecord) -> Vec<u8> {
        unimplemented!()
    }
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

/// Decodes message values of every known writer schema.
pub struct Decoder;

impl Decoder {
    pub fn new() -> Self {
        unimplemented!()
    }

    pub fn decode<'a>(&self, _value: &'a [u8]) -> Result<RecordRef<'a>, DecodeError> {
        unimplemented!()
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}
