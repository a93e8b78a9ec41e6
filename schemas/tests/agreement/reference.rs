//! Reading and writing by apache-avro alone, through its values.

use std::collections::HashMap;

use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::types::Value;
use apache_avro::writer::datum::GenericDatumWriter;
use apache_avro::{Decimal, Schema};
use usage_schemas::{Kind, Quantity, Timestamp, UsageRecord, schema};
use uuid::Uuid;

/// The current schema without logical types, but with its defaults.
///
/// apache-avro 0.22 cannot resolve decimals of fewer bytes than their precision asks for (row 72 of the problems), and the
/// logical types say nothing about the bytes.
fn reader_without_logical_types() -> Schema {
    let mut json: serde_json::Value = serde_json::from_str(schema::USAGE_RECORD).unwrap();
    for field in json["fields"].as_array_mut().unwrap() {
        if let Some(field_type) = field["type"].as_object_mut() {
            field_type.remove("logicalType");
        }
    }
    Schema::parse_str(&json.to_string()).unwrap()
}

pub struct Reference {
    writer: Schema,
    reader: Option<Schema>,
}

impl Reference {
    /// The current schema with its logical types, without resolution.
    pub fn current() -> Self {
        Self { writer: schema::current().clone(), reader: None }
    }

    /// Another writer's schema, resolved into the current one.
    pub fn resolving(canonical: &str) -> Self {
        let writer = Schema::parse_str(canonical).unwrap();
        Self { writer, reader: Some(reader_without_logical_types()) }
    }

    /// The record, if the bytes are one and nothing follows.
    pub fn read(&self, mut bytes: &[u8]) -> Option<UsageRecord> {
        // Lengths that lie must not cost the test its memory. The first call counts.
        apache_avro::util::max_allocation_bytes(1 << 20);
        let reader = GenericDatumReader::builder(&self.writer).maybe_reader_schema(self.reader.as_ref());
        let value = reader.build().unwrap().read_value(&mut bytes).ok()?;
        if !bytes.is_empty() {
            return None;
        }
        let Value::Record(fields) = value else { panic!("not a record: {value:?}") };
        record(fields.into_iter().collect())
    }

    /// The bytes of a record in the current schema.
    pub fn encode(&self, record: &UsageRecord) -> Vec<u8> {
        let optional = |value: Option<Value>| match value {
            None => Value::Union(0, Box::new(Value::Null)),
            Some(value) => Value::Union(1, Box::new(value)),
        };
        let text = |text: &Option<String>| optional(text.clone().map(Value::String));
        let id = |id: Option<Uuid>| optional(id.map(Value::Uuid));
        let fields = [
            ("record_id", Value::Uuid(record.record_id)),
            ("tenant_id", Value::Uuid(record.tenant_id)),
            ("source", Value::String(record.source.clone())),
            ("metric", Value::String(record.metric.clone())),
            ("kind", kind_value(record.kind)),
            ("value", Value::Decimal(Decimal::from(shortest(record.value)))),
            ("timestamp", Value::TimestampMicros(record.timestamp.micros())),
            ("idempotency_key", text(&record.idempotency_key)),
            ("resource_id", id(record.resource_id)),
            ("resource_type", text(&record.resource_type)),
            ("subject_id", id(record.subject_id)),
            ("subject_type", text(&record.subject_type)),
            ("metadata", text(&record.metadata)),
        ];
        let fields = fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        let writer = GenericDatumWriter::builder(&self.writer).build().unwrap();
        writer.write_value_to_vec(Value::Record(fields)).unwrap()
    }
}

pub fn kind_value(kind: Kind) -> Value {
    Value::Enum(u32::from(kind == Kind::Gauge), kind.as_str().into())
}

/// The shortest bytes that sign extension turns back into the value: found by trying.
pub fn shortest(value: Quantity) -> Vec<u8> {
    let bytes = value.unscaled().to_be_bytes();
    let lengths = (1..=16).map(|length| &bytes[16 - length..]);
    let shortest = lengths.into_iter().find(|bytes| extended(bytes) == Some(value.unscaled()));
    shortest.expect("16 bytes are always enough").to_vec()
}

fn extended(bytes: &[u8]) -> Option<i128> {
    if !(1..=16).contains(&bytes.len()) {
        return None;
    }
    let sign = if bytes[0] & 0x80 == 0 { 0 } else { -1i128 };
    Some(bytes.iter().fold(sign, |value, byte| value << 8 | i128::from(*byte)))
}

/// A record from apache-avro's values; none if one of them is not of its field's type or breaks the decimal's bounds.
fn record(mut fields: HashMap<String, Value>) -> Option<UsageRecord> {
    assert_eq!(fields.len(), 13, "{fields:?}");
    let mut take = |name: &str| fields.remove(name).unwrap_or_else(|| panic!("no {name}"));
    Some(UsageRecord {
        record_id: uuid(take("record_id"))?,
        tenant_id: uuid(take("tenant_id"))?,
        source: text(take("source"))?,
        metric: text(take("metric"))?,
        kind: match take("kind") {
            Value::Enum(0, symbol) if symbol == "counter" => Kind::Counter,
            Value::Enum(1, symbol) if symbol == "gauge" => Kind::Gauge,
            other => panic!("{other:?}"),
        },
        value: quantity(take("value"))?,
        timestamp: match take("timestamp") {
            Value::TimestampMicros(micros) | Value::Long(micros) => Timestamp::from_micros(micros),
            other => panic!("{other:?}"),
        },
        idempotency_key: optional(take("idempotency_key"), text)?,
        resource_id: optional(take("resource_id"), uuid)?,
        resource_type: optional(take("resource_type"), text)?,
        subject_id: optional(take("subject_id"), uuid)?,
        subject_type: optional(take("subject_type"), text)?,
        metadata: optional(take("metadata"), text)?,
    })
}

fn uuid(value: Value) -> Option<Uuid> {
    match value {
        Value::Uuid(id) => Some(id),
        Value::Fixed(16, bytes) => Uuid::from_slice(&bytes).ok(),
        other => panic!("{other:?}"),
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        // A string that ends early.
        Value::Null => None,
        other => panic!("{other:?}"),
    }
}

fn quantity(value: Value) -> Option<Quantity> {
    let bytes = match value {
        Value::Decimal(decimal) => Vec::<u8>::try_from(&decimal).ok()?,
        Value::Bytes(bytes) => bytes,
        other => panic!("{other:?}"),
    };
    Quantity::from_unscaled(extended(&bytes)?).ok()
}

/// None if the branch is wrong, some of none if it is null.
fn optional<T>(value: Value, read: impl Fn(Value) -> Option<T>) -> Option<Option<T>> {
    match value {
        Value::Union(0, null) if *null == Value::Null => Some(None),
        Value::Union(1, value) => read(*value).map(Some),
        other => panic!("{other:?}"),
    }
}
