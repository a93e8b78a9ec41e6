//! What the corpus is made of.

use apache_avro::Schema;
use apache_avro::types::Value;
use apache_avro::writer::datum::GenericDatumWriter;
use serde::Deserialize;
use usage_schemas::{frame, schema};

use crate::common::{case_file, unhex};
use crate::corpus_dir;

#[derive(Deserialize)]
struct Wire {
    cases: Vec<WireCase>,
}

#[derive(Deserialize)]
struct WireCase {
    name: String,
    message_value: String,
}

/// Name and bytes of the messages in `wire.json`.
pub fn wire_messages() -> Vec<(String, Vec<u8>)> {
    let wire: Wire = serde_json::from_str(&case_file("wire.json")).unwrap();
    wire.cases.into_iter().map(|case| (case.name, unhex(&case.message_value))).collect()
}

/// Seeds of the text parsers.
pub fn texts() -> [&'static str; 8] {
    [
        r#"{"record_id":"f97b25d1-07fa-807c-8b10-2dd95b4a6cf3","tenant_id":"0190f3c2-6f1e-7a44-9d3b-5a1f0c2e7b10","metric":"m","kind":"counter","value":"1.5","timestamp":"2026-11-16T18:17:03.979960Z","idempotency_key":"k","resource_id":null,"resource_type":"model","subject_id":"6ba7b811-9dad-11d1-80b4-00c04fd430c8","subject_type":"user","metadata":"{\"a\":[1,{}]}"}"#,
        r#"{"source":"llm-gateway","outbox":"0190f3c2-6f1e-7a44-9d3b-5a1f0c2e7b10","complete_until":"2026-01-02T03:04:05.000006Z"}"#,
        r#"{"a":[1,-2.5e+10,{"b":[[],{}]},"\u0000\ud800é",null,true,false]}"#,
        "99999999999999999999.999999999999999999",
        "-1.50e-10",
        r#""1e3""#,
        "2024-02-29T12:00:00.123456+05:45",
        "2016-12-31t23:59:60z",
    ]
}

fn framed(writer: &Schema, body: &[u8]) -> Vec<u8> {
    let mut value = Vec::new();
    frame::start_single_object(schema::fingerprint(&schema::canonical_form(writer)), &mut value);
    value.extend_from_slice(body);
    value
}

/// A record of a schema from its fields' values, by apache-avro. The schema is used without logical types.
fn message(schema_text: &str, fields: Vec<(&str, Value)>) -> Vec<u8> {
    let writer = Schema::parse_str(schema_text).unwrap();
    let canonical = Schema::parse_str(&schema::canonical_form(&writer)).unwrap();
    let fields = fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    let body = GenericDatumWriter::builder(&canonical).build().unwrap();
    framed(&writer, &body.write_value_to_vec(Value::Record(fields)).unwrap())
}

fn some(branch: u32, value: Value) -> Value {
    Value::Union(branch, Box::new(value))
}

fn base() -> Vec<(&'static str, Value)> {
    vec![
        ("record_id", Value::Fixed(16, vec![0x81; 16])),
        ("tenant_id", Value::Fixed(16, vec![2; 16])),
        ("source", Value::String("llm-gateway".into())),
        ("metric", Value::String("llm.requests".into())),
        ("value", Value::Bytes(vec![0x0d, 0xe0, 0xb6, 0xb3, 0xa7, 0x64, 0, 0])),
        ("timestamp", Value::Long(1_767_323_045_000_006)),
        ("idempotency_key", some(1, Value::String("k1".into()))),
    ]
}

fn newer() -> Vec<(&'static str, Value)> {
    let id = || Value::Fixed(16, vec![7; 16]);
    let flags = [
        ("estimated", Value::Boolean(true)),
        ("nothing", Value::Null),
        ("weights", Value::Array(vec![Value::Double(0.5), Value::Double(-1.0)])),
        ("share", Value::Float(0.25)),
        ("level", Value::Int(-3)),
        ("empty", Value::Array(vec![Value::Null; 3])),
        ("checksum", Value::Fixed(4, vec![1, 2, 3, 4])),
    ];
    // One entry: a map of more has no order of its own, and the corpus should come out the same each time.
    let tags = [("ids".to_string(), some(4, Value::Array(vec![id(), id()])))];
    let parent = |parent| Value::Record(vec![("id".into(), id()), ("parent".into(), parent)]);
    let mut fields = base();
    fields.extend([
        ("kind", Value::Enum(1, "gauge".into())),
        ("resource_id", some(1, id())),
        ("resource_type", some(1, Value::String("model".into()))),
        ("subject_id", some(0, Value::Null)),
        ("subject_type", some(0, Value::Null)),
        ("metadata", some(1, Value::String("{\"a\":1}".into()))),
        ("region", Value::String("us".into())),
        ("flags", Value::Record(flags.map(|(name, value)| (name.to_string(), value)).to_vec())),
        ("tags", Value::Map(tags.into())),
        ("part_of", some(1, parent(some(1, parent(some(0, Value::Null)))))),
        ("origin", Value::Enum(1, "BACKFILL".into())),
    ]);
    fields
}

/// A field's value replaced.
fn with(mut fields: Vec<(&'static str, Value)>, name: &str, value: Value) -> Vec<(&'static str, Value)> {
    fields.iter_mut().find(|(field, _)| *field == name).expect("a field").1 = value;
    fields
}

/// Bytes replaced at their only place.
fn replaced(value: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut places = (0..value.len()).filter(|at| value[*at..].starts_with(from));
    let at = places.next().expect("once");
    assert_eq!(places.next(), None, "more than once");
    [&value[..at], to, &value[at + from.len()..]].concat()
}

#[test]
#[ignore = "writes tests/corpus anew: only after the seeds have changed"]
fn write_corpus() {
    let text = |name: &str| std::fs::read_to_string(corpus_dir().join(name)).unwrap();
    let (older_schema, newer_schema) = (text("older.avsc"), text("newer.avsc"));
    let older = message(&older_schema, base());
    let newer_value = message(&newer_schema, newer());
    let wire = wire_messages();
    let whole = &wire.last().expect("messages").1;
    let one = b"\x10\x0d\xe0\xb6\xb3\xa7\x64\x00\x00";
    // What is behind the tags: a parent that has a parent, and the origin.
    let ancestors = newer_value.len() - (17 + 17 + 1 + 1);
    let parent_of_a_parent = [&[2][..], &[7; 16]].concat().repeat(100);
    let deep = [&newer_value[..ancestors], &parent_of_a_parent].concat();

    let mut files: Vec<(String, Vec<u8>)> = wire
        .iter()
        .map(|(name, value)| (format!("good-wire-{}", name.replace(' ', "-")), value.clone()))
        .collect();
    let mut add = |name: &str, value: Vec<u8>| files.push((name.into(), value));
    add("good-older", older.clone());
    add("good-newer", newer_value.clone());
    add("good-decimal-of-16-bytes", replaced(&older, one, &[&[32][..], &[0; 8], &one[1..]].concat()));
    add(
        "good-huge-array-of-nothing",
        replaced(&newer_value, &[6, 0, 1, 2, 3, 4], &[0xfe, 0xff, 0xff, 0xff, 0x0f, 0, 1, 2, 3, 4]),
    );
    add("frame-empty", Vec::new());
    add("frame-confluent", [&[0, 0, 0, 0, 7], &whole[10..]].concat());
    add("frame-cut", whole[..9].to_vec());
    add("frame-other-version", [&[0xc3, 2], &whole[2..]].concat());
    add("unknown-schema", [&[0xc3, 1, 1, 2, 3, 4, 5, 6, 7, 8], &whole[10..]].concat());
    add("truncated-body", whole[..whole.len() - 1].to_vec());
    add("truncated-frame-only", whole[..10].to_vec());
    add(
        "truncated-huge-length",
        replaced(whole, b"\x16llm-gateway", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01llm"),
    );
    add(
        "truncated-huge-map",
        [&newer_value[..newer_value.len() - 40][..], &[0xfe, 0xff, 0xff, 0xff, 0x0f]].concat(),
    );
    add("trailing-byte", [&whole[..], &[0]].concat());
    add("field-negative-length", replaced(whole, b"\x16llm-gateway", b"\x15llm-gateway"));
    add("field-not-utf-8", replaced(whole, b"\x16llm-gateway", b"\x16llm-gat\xff\xfey"));
    add("field-decimal-of-0-bytes", replaced(&older, one, &[0]));
    add("field-decimal-of-17-bytes", replaced(&older, one, &[&[34][..], &[0; 17]].concat()));
    add("field-decimal-of-40-bytes", replaced(&older, one, &[&[80][..], &[0xff; 40]].concat()));
    add("field-decimal-of-39-digits", replaced(&older, one, &[&[32, 0x7f][..], &[0xff; 15]].concat()));
    add("field-union-branch", replaced(&older, b"\x02\x04k1", b"\x04\x04k1"));
    add(
        "field-varint-of-65-bits",
        replaced(whole, b"\x16llm-gateway", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"),
    );
    add(
        "field-unknown-kind",
        message(&newer_schema, with(newer(), "kind", Value::Enum(2, "histogram".into()))),
    );
    add(
        "field-unreadable-branch",
        message(&newer_schema, with(newer(), "metadata", some(2, Value::Long(1)))),
    );
    add("field-nested-too-deep", deep);
    for (name, value) in files {
        std::fs::write(corpus_dir().join(format!("{name}.bin")), value).unwrap();
    }
}
