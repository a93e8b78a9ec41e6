//! A record as JSON and as CSV.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;
use usage_schemas::Timestamp;
use usage_storage::StoredRecord;
use uuid::Uuid;

use crate::csv::{Cell, Writer};

/// Names of the fields, in the order of the answer and of the CSV columns.
const FIELDS: [&str; 17] = [
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
    "status",
    "ingested_at",
    "inactive_at",
    "version",
];

/// A record in JSON. `metadata` is embedded byte for byte.
#[derive(Serialize)]
pub struct JsonRecord<'a> {
    record_id: Uuid,
    tenant_id: Uuid,
    source: &'a str,
    metric: &'a str,
    kind: &'static str,
    value: String,
    timestamp: String,
    idempotency_key: Option<&'a str>,
    resource_id: Option<Uuid>,
    resource_type: Option<&'a str>,
    subject_id: Option<Uuid>,
    subject_type: Option<&'a str>,
    metadata: Option<Metadata<'a>>,
    status: &'static str,
    ingested_at: String,
    inactive_at: Option<String>,
    version: u32,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Metadata<'a> {
    Json(Box<RawValue>),
    /// Not JSON: shown as the text it is, so that the other records can be read.
    Text(&'a str),
}

impl<'a> Metadata<'a> {
    fn new(text: &'a str, one_line: bool) -> Self {
        // Line ends in valid JSON only stand between its tokens: blanks mean the same and keep NDJSON one line a record.
        let json = if one_line && text.contains(['\n', '\r']) {
            Cow::Owned(text.replace(['\n', '\r'], " "))
        } else {
            Cow::Borrowed(text)
        };
        RawValue::from_string(json.into_owned()).map_or(Self::Text(text), Self::Json)
    }
}

impl<'a> JsonRecord<'a> {
    pub fn new(record: &'a StoredRecord) -> Self {
        Self::build(record, false)
    }

    /// For NDJSON: without a line end.
    pub fn one_line(record: &'a StoredRecord) -> Self {
        Self::build(record, true)
    }

    fn build(record: &'a StoredRecord, one_line: bool) -> Self {
        Self {
            record_id: record.record_id,
            tenant_id: record.tenant_id,
            source: &record.source,
            metric: &record.metric,
            kind: record.kind.as_str(),
            value: record.value.to_string(),
            timestamp: time(record.timestamp),
            idempotency_key: record.idempotency_key.as_deref(),
            resource_id: record.resource_id,
            resource_type: record.resource_type.as_deref(),
            subject_id: record.subject_id,
            subject_type: record.subject_type.as_deref(),
            metadata: record.metadata.as_deref().map(|text| Metadata::new(text, one_line)),
            status: status(record),
            ingested_at: time(record.ingested_at),
            inactive_at: record.inactive_at.map(time),
            version: record.version,
        }
    }
}

/// Appends the header of the CSV form.
///
/// # Errors
/// None: the text goes into memory.
pub fn csv_header(writer: &mut Writer) -> std::io::Result<()> {
    writer.record(FIELDS.map(Cell::Plain))
}

/// Appends a record in the CSV form.
///
/// # Errors
/// None: the text goes into memory.
pub fn csv_record(writer: &mut Writer, record: &StoredRecord) -> std::io::Result<()> {
    let id = |id: Option<Uuid>| id.map(|id| id.to_string());
    let (record_id, tenant_id) = (record.record_id.to_string(), record.tenant_id.to_string());
    let (resource_id, subject_id) = (id(record.resource_id), id(record.subject_id));
    let (value, timestamp) = (record.value.to_string(), time(record.timestamp));
    let (ingested_at, inactive_at) = (time(record.ingested_at), record.inactive_at.map(time));
    let version = record.version.to_string();
    let cells: [Cell<'_>; FIELDS.len()] = [
        Cell::Plain(&record_id),
        Cell::Plain(&tenant_id),
        Cell::Text(&record.source),
        Cell::Text(&record.metric),
        Cell::Plain(record.kind.as_str()),
        Cell::Plain(&value),
        Cell::Plain(&timestamp),
        Cell::text(record.idempotency_key.as_deref()),
        Cell::plain(resource_id.as_deref()),
        Cell::text(record.resource_type.as_deref()),
        Cell::plain(subject_id.as_deref()),
        Cell::text(record.subject_type.as_deref()),
        Cell::text(record.metadata.as_deref()),
        Cell::Plain(status(record)),
        Cell::Plain(&ingested_at),
        Cell::plain(inactive_at.as_deref()),
        Cell::Plain(&version),
    ];
    writer.record(cells)
}

fn status(record: &StoredRecord) -> &'static str {
    if record.active { "active" } else { "inactive" }
}

/// Canonical UTC text with microseconds.
fn time(micros: i64) -> String {
    Timestamp::from_micros(micros).to_string()
}

#[cfg(test)]
mod tests {
    use usage_schemas::{Kind, Quantity};

    use super::*;

    fn record() -> StoredRecord {
        StoredRecord {
            record_id: Uuid::from_u128(1),
            tenant_id: Uuid::from_u128(2),
            source: "gateway".to_owned(),
            metric: "tokens".to_owned(),
            kind: Kind::Gauge,
            value: Quantity::parse("-1.50").unwrap(),
            timestamp: 1_767_225_600_123_001,
            idempotency_key: Some("=key".to_owned()),
            resource_id: None,
            resource_type: None,
            subject_id: Some(Uuid::from_u128(3)),
            subject_type: Some("user".to_owned()),
            metadata: Some("{ \"b\":1.0,\n\"a\" : \"x\\ny\" }".to_owned()),
            active: false,
            ingested_at: 1_767_225_601_000_000,
            inactive_at: Some(1_767_225_602_000_000),
            version: 3,
        }
    }

    #[test]
    fn json_has_every_field_in_order_and_metadata_byte_for_byte() {
        let text = serde_json::to_string(&JsonRecord::new(&record())).unwrap();
        assert!(text.contains("\"metadata\":{ \"b\":1.0,\n\"a\" : \"x\\ny\" },"), "{text}");
        assert!(text.contains("\"value\":\"-1.5\",\"timestamp\":\"2026-01-01T00:00:00.123001Z\""), "{text}");
        assert!(text.contains("\"resource_id\":null"), "{text}");
        let mut at = 0;
        for field in FIELDS {
            let name = format!("\"{field}\":");
            let found = text[at..].find(&name);
            assert!(found.is_some(), "{field} in {text}");
            at += found.unwrap();
        }
        let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed.as_object().unwrap().len(), FIELDS.len());
        assert_eq!(parsed["status"], "inactive");
        assert_eq!(parsed["inactive_at"], "2026-01-01T00:00:02.000000Z");
    }

    #[test]
    fn ndjson_is_one_line_and_means_the_same() {
        let line = serde_json::to_string(&JsonRecord::one_line(&record())).unwrap();
        assert!(!line.contains('\n'));
        let (one, many): (serde_json::Value, serde_json::Value) = (
            serde_json::from_str(&line).unwrap(),
            serde_json::from_str(&serde_json::to_string(&JsonRecord::new(&record())).unwrap()).unwrap(),
        );
        assert_eq!(one, many);
    }

    #[test]
    fn metadata_that_is_not_json_is_shown_as_text() {
        let broken = StoredRecord { metadata: Some("{oops".to_owned()), ..record() };
        let parsed = serde_json::to_value(JsonRecord::new(&broken)).unwrap();
        assert_eq!(parsed["metadata"], "{oops");
    }

    #[test]
    fn csv_has_the_same_fields_with_text_defused() {
        let mut writer = Writer::new();
        csv_header(&mut writer).unwrap();
        csv_record(&mut writer, &record()).unwrap();
        let text = writer.take().unwrap();
        let mut reader = csv::Reader::from_reader(&text[..]);
        assert_eq!(reader.headers().unwrap().iter().collect::<Vec<_>>(), FIELDS);
        let row = reader.records().next().unwrap().unwrap();
        let cell = |name: &str| row.get(FIELDS.iter().position(|field| *field == name).unwrap()).unwrap();
        assert_eq!(cell("value"), "-1.5");
        assert_eq!(cell("idempotency_key"), "'=key");
        assert_eq!(cell("metadata"), record().metadata.unwrap());
        assert_eq!(cell("resource_id"), "");
        assert_eq!(cell("version"), "3");
    }
}
