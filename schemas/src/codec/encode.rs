//! Encoding, by apache-avro.

use std::sync::LazyLock;

use apache_avro::writer::datum::GenericDatumWriter;
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::{Kind, Quantity, RecordRef, UsageRecord, frame, schema};

static WRITER: LazyLock<GenericDatumWriter<'static>> = LazyLock::new(|| {
    // Binary throughout: UUIDs and the decimal are given as bytes.
    GenericDatumWriter::builder(schema::current())
        .human_readable(false)
        .build()
        .expect("the schema refers to nothing outside")
});

/// Frames and encodes a record with the current schema: the message value. Cheap to clone; one per producer.
#[derive(Clone)]
pub struct Encoder {
    writer: &'static GenericDatumWriter<'static>,
    fingerprint: u64,
}

impl Encoder {
    /// An encoder for the current schema, parsed once per process.
    pub fn new() -> Self {
        Self { writer: &WRITER, fingerprint: schema::current_fingerprint() }
    }

    /// The message value of a record.
    pub fn encode(&self, record: &UsageRecord) -> Vec<u8> {
        self.encode_ref(&record.borrowed())
    }

    /// The message value of a borrowed record.
    pub fn encode_ref(&self, record: &RecordRef<'_>) -> Vec<u8> {
        let mut value = Vec::with_capacity(capacity(record));
        frame::start_single_object(self.fingerprint, &mut value);
        self.writer
            .write_ser(&mut value, &Wire(record))
            .expect("a record has the schema's types and a Vec takes it");
        value
    }
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// Everything of fixed size at its largest, and the texts.
fn capacity(record: &RecordRef<'_>) -> usize {
    let texts = [Some(record.source), Some(record.metric), record.idempotency_key, record.resource_type];
    let more = [record.subject_type, record.metadata];
    160 + texts.iter().chain(&more).flatten().map(|text| text.len()).sum::<usize>()
}

/// A record as the schema wants it.
struct Wire<'a>(&'a RecordRef<'a>);

impl Serialize for Wire<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let record = self.0;
        let mut fields = serializer.serialize_struct("UsageRecord", 13)?;
        fields.serialize_field("record_id", &Bytes(record.record_id.as_bytes()))?;
        fields.serialize_field("tenant_id", &Bytes(record.tenant_id.as_bytes()))?;
        fields.serialize_field("source", record.source)?;
        fields.serialize_field("metric", record.metric)?;
        fields.serialize_field("kind", &Symbol(record.kind))?;
        fields.serialize_field("value", &Decimal(record.value))?;
        fields.serialize_field("timestamp", &record.timestamp.micros())?;
        fields.serialize_field("idempotency_key", &record.idempotency_key)?;
        fields.serialize_field("resource_id", &record.resource_id.as_ref().map(|id| Bytes(id.as_bytes())))?;
        fields.serialize_field("resource_type", &record.resource_type)?;
        fields.serialize_field("subject_id", &record.subject_id.as_ref().map(|id| Bytes(id.as_bytes())))?;
        fields.serialize_field("subject_type", &record.subject_type)?;
        fields.serialize_field("metadata", &record.metadata)?;
        fields.end()
    }
}

struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

struct Symbol(Kind);

impl Serialize for Symbol {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let index = match self.0 {
            Kind::Counter => 0,
            Kind::Gauge => 1,
        };
        serializer.serialize_unit_variant("Kind", index, self.0.as_str())
    }
}

struct Decimal(Quantity);

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.0.unscaled().to_be_bytes();
        serializer.serialize_bytes(minimal(&bytes))
    }
}

/// Two's complement without the leading bytes that sign extension gives back.
fn minimal(bytes: &[u8; 16]) -> &[u8] {
    let mut start = 0;
    while start < 15 {
        let sign_goes_on = match bytes[start] {
            0x00 => bytes[start + 1] < 0x80,
            0xff => bytes[start + 1] >= 0x80,
            _ => false,
        };
        if !sign_goes_on {
            break;
        }
        start += 1;
    }
    &bytes[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_have_as_few_bytes_as_possible() {
        let cases: [(i128, &[u8]); 9] = [
            (0, &[0]),
            (127, &[127]),
            (128, &[0, 128]),
            (-1, &[0xff]),
            (-128, &[0x80]),
            (-129, &[0xff, 0x7f]),
            (300, &[1, 44]),
            (3_900, &[15, 60]),
            (i128::MIN, &[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ];
        for (unscaled, bytes) in cases {
            assert_eq!(minimal(&unscaled.to_be_bytes()), bytes, "{unscaled}");
        }
    }
}
