//! Writers with other schemas: fewer, more, moved and turned fields.

use std::collections::BTreeSet;
use std::ops::Range;

use apache_avro::Schema;
use apache_avro::types::Value;
use apache_avro::writer::datum::GenericDatumWriter;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use usage_schemas::{Kind, UsageRecord};

use crate::reference::{kind_value, shortest};

/// The record's fields in the current order, the first seven of which are required or the kind.
const FIELDS: [&str; 13] = [
    "record_id",
    "tenant_id",
    "source",
    "metric",
    "kind",
    "value",
    "timestamp",
    "idempotency_key",
    "resource_id",
    "resource_type",
    "subject_id",
    "subject_type",
    "metadata",
];

/// A field of a writer's schema.
#[derive(Debug, Clone)]
enum Field {
    /// One of [`FIELDS`] that is never null here.
    Required(usize),
    /// One of [`FIELDS`] that may be null.
    Optional(usize, Nullable),
    /// One that the reader does not know.
    Extra(Extra),
}

#[derive(Debug, Clone, Copy)]
enum Nullable {
    NullFirst,
    NullLast,
}

/// A type that only the writer knows.
#[derive(Debug, Clone)]
pub enum Extra {
    Primitive(&'static str),
    Fixed(usize),
    Enum(usize),
    Array(Box<Extra>),
    Map(Box<Extra>),
    Union(Vec<Extra>),
    Record(Vec<Extra>),
}

#[derive(Debug, Clone)]
pub struct Writer {
    fields: Vec<Field>,
}

impl Writer {
    /// The current schema without its last `absent` fields.
    pub fn older(absent: usize) -> Self {
        Self { fields: (0..FIELDS.len() - absent).map(current_field).collect() }
    }

    /// The current schema with fields appended.
    pub fn newer(extras: Vec<Extra>) -> Self {
        Self {
            fields: (0..FIELDS.len())
                .map(current_field)
                .chain(extras.into_iter().map(Field::Extra))
                .collect(),
        }
    }

    /// The schema's text, logical types included.
    pub fn schema(&self) -> String {
        let mut names = Names::default();
        let fields = self.fields.iter().enumerate().map(|(position, field)| match field {
            Field::Required(index) => json!({"name": FIELDS[*index], "type": names.known_type(*index)}),
            Field::Optional(index, nullable) => {
                let some = names.known_type(*index);
                let union = match nullable {
                    Nullable::NullFirst => json!(["null", some]),
                    Nullable::NullLast => json!([some, "null"]),
                };
                json!({"name": FIELDS[*index], "type": union})
            }
            Field::Extra(extra) => {
                json!({"name": format!("extra_{position}"), "type": names.extra_type(extra)})
            }
        });
        let fields: Vec<_> = fields.collect();
        json!({"type": "record", "namespace": "usage.v1", "name": "UsageRecord", "fields": fields})
            .to_string()
    }

    /// The bytes of a record, with arbitrary values for what only the writer knows.
    pub fn encode(&self, canonical: &str, record: &UsageRecord, seed: u64) -> Vec<u8> {
        let mut random = StdRng::seed_from_u64(seed);
        let fields = self.fields.iter().enumerate().map(|(position, field)| match field {
            Field::Required(index) => {
                (FIELDS[*index].to_string(), value_of(record, *index).expect("required"))
            }
            Field::Optional(index, nullable) => {
                let value = match (value_of(record, *index), nullable) {
                    (Some(value), Nullable::NullFirst) => Value::Union(1, Box::new(value)),
                    (Some(value), Nullable::NullLast) => Value::Union(0, Box::new(value)),
                    (None, Nullable::NullFirst) => Value::Union(0, Box::new(Value::Null)),
                    (None, Nullable::NullLast) => Value::Union(1, Box::new(Value::Null)),
                };
                (FIELDS[*index].to_string(), value)
            }
            Field::Extra(extra) => (format!("extra_{position}"), extra.sample(&mut random)),
        });
        let fields = fields.collect();
        let schema = Schema::parse_str(canonical).unwrap();
        let writer = GenericDatumWriter::builder(&schema).build().unwrap();
        writer.write_value_to_vec(Value::Record(fields)).unwrap()
    }

    /// What a reader must get: defaults for what the writer does not have.
    pub fn as_read(&self, record: &UsageRecord) -> UsageRecord {
        let mut record = record.clone();
        let written: BTreeSet<usize> = self.fields.iter().filter_map(Field::known).collect();
        for (index, name) in FIELDS.iter().enumerate().filter(|(index, _)| !written.contains(index)) {
            match index {
                4 => record.kind = Kind::Counter,
                7 => record.idempotency_key = None,
                8 => record.resource_id = None,
                9 => record.resource_type = None,
                10 => record.subject_id = None,
                11 => record.subject_type = None,
                12 => record.metadata = None,
                _ => panic!("{name} is required"),
            }
        }
        record
    }
}

impl Field {
    fn known(&self) -> Option<usize> {
        match self {
            Field::Required(index) | Field::Optional(index, _) => Some(*index),
            Field::Extra(_) => None,
        }
    }
}

fn current_field(index: usize) -> Field {
    if index < 7 { Field::Required(index) } else { Field::Optional(index, Nullable::NullFirst) }
}

/// Without logical types; none if the record has none.
fn value_of(record: &UsageRecord, index: usize) -> Option<Value> {
    let id = |id: uuid::Uuid| Value::Fixed(16, id.as_bytes().to_vec());
    let text = |text: &String| Value::String(text.clone());
    match index {
        0 => Some(id(record.record_id)),
        1 => Some(id(record.tenant_id)),
        2 => Some(text(&record.source)),
        3 => Some(text(&record.metric)),
        4 => Some(kind_value(record.kind)),
        5 => Some(Value::Bytes(shortest(record.value))),
        6 => Some(Value::Long(record.timestamp.micros())),
        7 => record.idempotency_key.as_ref().map(text),
        8 => record.resource_id.map(id),
        9 => record.resource_type.as_ref().map(text),
        10 => record.subject_id.map(id),
        11 => record.subject_type.as_ref().map(text),
        _ => record.metadata.as_ref().map(text),
    }
}

/// Named types are defined where they first appear.
#[derive(Default)]
struct Names {
    uuid_defined: bool,
    count: usize,
}

impl Names {
    fn known_type(&mut self, index: usize) -> serde_json::Value {
        match index {
            0 | 1 | 8 | 10 if self.uuid_defined => json!("Uuid"),
            0 | 1 | 8 | 10 => {
                self.uuid_defined = true;
                json!({"type": "fixed", "name": "Uuid", "size": 16, "logicalType": "uuid"})
            }
            4 => json!({"type": "enum", "name": "Kind", "symbols": ["counter", "gauge"]}),
            5 => json!({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18}),
            6 => json!({"type": "long", "logicalType": "timestamp-micros"}),
            _ => json!("string"),
        }
    }

    fn name(&mut self) -> String {
        self.count += 1;
        format!("Extra{}", self.count)
    }

    fn extra_type(&mut self, extra: &Extra) -> serde_json::Value {
        match extra {
            Extra::Primitive(name) => json!(name),
            Extra::Fixed(size) => json!({"type": "fixed", "name": self.name(), "size": size}),
            Extra::Enum(count) => {
                let symbols: Vec<String> = (0..*count).map(|symbol| format!("S{symbol}")).collect();
                json!({"type": "enum", "name": self.name(), "symbols": symbols})
            }
            Extra::Array(items) => json!({"type": "array", "items": self.extra_type(items)}),
            Extra::Map(values) => json!({"type": "map", "values": self.extra_type(values)}),
            Extra::Union(variants) => variants.iter().map(|variant| self.extra_type(variant)).collect(),
            Extra::Record(fields) => {
                let name = self.name();
                let fields = fields.iter().enumerate();
                let fields: Vec<_> = fields
                    .map(|(position, field)| json!({"name": format!("f{position}"), "type": self.extra_type(field)}))
                    .collect();
                json!({"type": "record", "name": name, "fields": fields})
            }
        }
    }
}

impl Extra {
    /// A value of this type.
    fn sample(&self, random: &mut StdRng) -> Value {
        match self {
            Extra::Primitive("null") => Value::Null,
            Extra::Primitive("boolean") => Value::Boolean(random.random()),
            Extra::Primitive("int") => Value::Int(random.random()),
            Extra::Primitive("long") => Value::Long(random.random()),
            Extra::Primitive("float") => Value::Float(f32::from_bits(random.random())),
            Extra::Primitive("double") => Value::Double(f64::from_bits(random.random())),
            Extra::Primitive("bytes") => Value::Bytes(bytes(random, 80)),
            Extra::Primitive(_) => Value::String("ü".repeat(random.random_range(0..80))),
            Extra::Fixed(size) => {
                let mut bytes = vec![0; *size];
                random.fill(&mut bytes[..]);
                Value::Fixed(*size, bytes)
            }
            Extra::Enum(count) => {
                let index = random.random_range(0..*count);
                Value::Enum(index as u32, format!("S{index}"))
            }
            Extra::Array(items) => {
                Value::Array((0..random.random_range(0..4)).map(|_| items.sample(random)).collect())
            }
            Extra::Map(values) => {
                let entries = 0..random.random_range(0..4);
                Value::Map(entries.map(|entry| (format!("k{entry}"), values.sample(random))).collect())
            }
            Extra::Union(variants) => {
                let index = random.random_range(0..variants.len());
                Value::Union(index as u32, Box::new(variants[index].sample(random)))
            }
            Extra::Record(fields) => {
                let fields = fields.iter().enumerate();
                Value::Record(
                    fields.map(|(position, field)| (format!("f{position}"), field.sample(random))).collect(),
                )
            }
        }
    }

    /// What tells the variants of a union apart; named types differ by their names.
    fn union_key(&self) -> Option<&str> {
        match self {
            Extra::Primitive(name) => Some(name),
            Extra::Array(_) => Some("array"),
            Extra::Map(_) => Some("map"),
            Extra::Fixed(_) | Extra::Enum(_) | Extra::Record(_) | Extra::Union(_) => None,
        }
    }
}

fn bytes(random: &mut StdRng, below: usize) -> Vec<u8> {
    (0..random.random_range(0..below)).map(|_| random.random()).collect()
}

fn any_extra() -> impl Strategy<Value = Extra> {
    let primitives = vec!["null", "boolean", "int", "long", "float", "double", "bytes", "string"];
    let leaf = prop_oneof![
        4 => prop::sample::select(primitives).prop_map(Extra::Primitive),
        1 => (1usize..20).prop_map(Extra::Fixed),
        1 => (1usize..5).prop_map(Extra::Enum),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let many = prop::collection::vec(inner.clone(), 1..4);
        prop_oneof![
            inner.clone().prop_map(|items| Extra::Array(Box::new(items))),
            inner.prop_map(|values| Extra::Map(Box::new(values))),
            many.clone().prop_map(union),
            many.prop_map(Extra::Record),
        ]
    })
}

/// A union may not hold a union directly, nor two variants of one unnamed type.
fn union(variants: Vec<Extra>) -> Extra {
    let mut seen = BTreeSet::new();
    let mut kept = vec![Extra::Fixed(3)];
    for variant in variants {
        let repeated = variant.union_key().is_some_and(|key| !seen.insert(key.to_string()));
        if !repeated && !matches!(variant, Extra::Union(_)) {
            kept.push(variant);
        }
    }
    Extra::Union(kept)
}

pub fn any_extras(count: Range<usize>) -> impl Strategy<Value = Vec<Extra>> {
    prop::collection::vec(any_extra(), count)
}

pub fn any_writer() -> impl Strategy<Value = Writer> {
    let nullable = prop_oneof![Just(Nullable::NullFirst), Just(Nullable::NullLast)];
    let optional = prop::collection::vec(prop::option::of(nullable), 6);
    (any::<bool>(), optional, any_extras(0..4)).prop_flat_map(|(with_kind, optional, extras)| {
        let required = (0..7).filter(|index| with_kind || *index != 4).map(Field::Required);
        let optional = optional.into_iter().enumerate();
        let optional = optional.filter_map(|(index, nullable)| Some(Field::Optional(index + 7, nullable?)));
        let fields: Vec<Field> =
            required.chain(optional).chain(extras.into_iter().map(Field::Extra)).collect();
        Just(fields).prop_shuffle().prop_map(|fields| Writer { fields })
    })
}
