//! The case files, made by other implementations: every row.

mod common;

use serde::Deserialize;
use usage_schemas::codec::{Decoder, Encoder};
use usage_schemas::signature::SigningKey;
use usage_schemas::{
    Bounds, Kind, Quantity, QuantityError, Timestamp, UsageRecord, frame, ids, partition, schema,
};
use usage_schemas::{RecordRef, validate};
use uuid::Uuid;

use common::{case_file, case_rows, unhex};

#[test]
fn values_tsv() {
    for [kind, json, expected] in case_rows("values.tsv", ["kind", "json", "result"]) {
        let kind: Kind = kind.parse().unwrap();
        let parsed = Quantity::from_json(&json);
        let checked = parsed.map_err(|error| error.to_string()).and_then(|value| {
            validate::value(kind, value).map_err(|invalid| invalid.detail)?;
            Ok(value)
        });
        let result = match &checked {
            Ok(value) => value.to_string(),
            Err(error) => format!("error: {error}"),
        };
        assert_eq!(result, expected, "{kind:?} {json}");
        let Ok(value) = checked else { continue };
        assert_eq!(Quantity::parse(&result), Ok(value), "{json}: the canonical text is the value");
    }
}

/// The same rows as serde_json hands them over from inside a document.
#[test]
fn values_tsv_inside_a_document() {
    #[derive(Deserialize)]
    struct Document<'a> {
        #[serde(borrow)]
        value: &'a serde_json::value::RawValue,
    }
    let mut documents = 0;
    for [_, json, _] in case_rows("values.tsv", ["kind", "json", "result"]) {
        let text = format!(r#"{{ "value" : {json} }}"#);
        match serde_json::from_str::<Document<'_>>(&text) {
            Ok(document) => {
                documents += 1;
                assert_eq!(Quantity::from_raw_json(document.value), Quantity::from_json(&json), "{json}");
            }
            // The document itself is no JSON; the cell alone says the same.
            Err(_) => assert_eq!(Quantity::from_json(&json), Err(QuantityError::NotANumber), "{json}"),
        }
    }
    assert!(documents > 40, "{documents} documents");
}

#[test]
fn timestamps_tsv() {
    let now = Timestamp::parse("2026-11-30T00:00:00Z").unwrap();
    for [text, expected] in case_rows("timestamps.tsv", ["text", "result"]) {
        let judged = Timestamp::parse(&text).map_err(|error| error.to_string()).and_then(|time| {
            validate::timestamp(time, &Bounds::default(), now).map_err(|invalid| invalid.detail)?;
            Ok(time)
        });
        let result = match judged {
            Ok(time) => time.to_string(),
            Err(error) => format!("error: {error}"),
        };
        assert_eq!(result, expected, "{text:?}");
    }
}

#[test]
fn tenant_partitions() {
    for [tenant, expected] in case_rows("tenant_partitions.tsv", ["tenant_id", "partition_of_12"]) {
        let tenant_id: Uuid = tenant.parse().unwrap();
        assert_eq!(partition::partition_of(tenant_id, 12).to_string(), expected, "{tenant}");
    }
}

#[derive(Deserialize)]
struct Wire {
    schema_canonical_form: String,
    fingerprint_little_endian: String,
    cases: Vec<WireCase>,
}

#[derive(Deserialize)]
struct WireCase {
    name: String,
    record_id: Uuid,
    tenant_id: Uuid,
    source: String,
    metric: String,
    kind: Kind,
    value: String,
    timestamp: String,
    idempotency_key: Option<String>,
    resource_id: Option<Uuid>,
    resource_type: Option<String>,
    subject_id: Option<Uuid>,
    subject_type: Option<String>,
    metadata: Option<String>,
    avro_body: String,
    message_value: String,
    message_key: String,
    usage_signature: String,
}

impl WireCase {
    fn record(&self) -> UsageRecord {
        UsageRecord {
            record_id: self.record_id,
            tenant_id: self.tenant_id,
            source: self.source.clone(),
            metric: self.metric.clone(),
            kind: self.kind,
            value: Quantity::parse(&self.value).unwrap(),
            timestamp: Timestamp::parse(&self.timestamp).unwrap(),
            idempotency_key: self.idempotency_key.clone(),
            resource_id: self.resource_id,
            resource_type: self.resource_type.clone(),
            subject_id: self.subject_id,
            subject_type: self.subject_type.clone(),
            metadata: self.metadata.clone(),
        }
    }
}

#[test]
fn wire_json() {
    let wire: Wire = serde_json::from_str(&case_file("wire.json")).unwrap();
    assert_eq!(schema::canonical_form(schema::current()), wire.schema_canonical_form);
    let fingerprint = schema::current_fingerprint();
    assert_eq!(fingerprint.to_le_bytes().to_vec(), unhex(&wire.fingerprint_little_endian));
    assert!(!wire.cases.is_empty());

    let signing_key = SigningKey::new("demo-1", &(0..32).collect::<Vec<u8>>());
    let (encoder, decoder) = (Encoder::new(), Decoder::new());
    for case in &wire.cases {
        let name = &case.name;
        let record = case.record();
        let value = unhex(&case.message_value);
        assert_eq!(encoder.encode(&record), value, "{name}: encoded");
        assert_eq!(decoder.decode(&value), Ok(record.borrowed()), "{name}: decoded");
        let body = unhex(&case.avro_body);
        assert_eq!(
            frame::split(&value),
            Ok(frame::Frame::SingleObject { fingerprint, body: &body }),
            "{name}"
        );

        if let Some(key) = &record.idempotency_key {
            assert_eq!(ids::record_id(record.tenant_id, key), case.record_id, "{name}: id");
        }
        assert_eq!(record.tenant_id.to_string(), case.message_key, "{name}: key");
        let message_key = case.message_key.as_bytes();
        assert_eq!(signing_key.sign(message_key, &value), case.usage_signature, "{name}: signature");
        assert!(signing_key.verify(message_key, &value, case.usage_signature.as_bytes()), "{name}");
        validate_at_its_own_time(&record.borrowed(), name);
    }
}

fn validate_at_its_own_time(record: &RecordRef<'_>, name: &str) {
    assert_eq!(validate::validate(record, &Bounds::default(), record.timestamp), Ok(()), "{name}: valid");
}
