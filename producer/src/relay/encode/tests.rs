use std::time::Duration;

use rdkafka::message::Headers;
use usage_schemas::codec::Decoder;
use usage_schemas::{Kind, Quantity, Timestamp, UsageRecord};

use super::*;
use crate::pg_time::PgTime;
use crate::relay::rows::RowKey;

const TENANT: Uuid = Uuid::from_u128(0x0190_f3c2_6f1e_7a44_9d3b_5a1f_0c2e_7b10);

fn sources() -> Sources {
    let key = || (0..32).collect::<Vec<u8>>();
    let keys = vec![("demo".into(), "demo-1".into(), key()), ("llm-gateway".into(), "demo-1".into(), key())];
    Sources::new(keys, Some("demo".into()))
}

fn row(payload_type: &str, payload: &[u8]) -> Row {
    Row {
        key: RowKey { segment: 0, id: 1, emitted_at: PgTime(0) },
        tenant_id: TENANT,
        payload_type: payload_type.into(),
        source: None,
        traceparent: None,
        payload: Some(payload.into()),
        payload_bytes: i32::try_from(payload.len()).unwrap(),
        age: Duration::ZERO,
    }
}

fn record() -> UsageRecord {
    UsageRecord {
        record_id: usage_schemas::ids::record_id(TENANT, "k1"),
        tenant_id: TENANT,
        source: "llm-gateway".into(),
        metric: "llm.requests".into(),
        kind: Kind::Counter,
        value: Quantity::parse("1").unwrap(),
        timestamp: Timestamp::parse("2026-01-02T03:04:05.000006Z").unwrap(),
        idempotency_key: Some("k1".into()),
        resource_id: None,
        resource_type: None,
        subject_id: None,
        subject_type: None,
        metadata: None,
    }
}

fn json(record: &UsageRecord) -> serde_json::Value {
    serde_json::json!({
        "record_id": record.record_id, "tenant_id": record.tenant_id, "metric": record.metric, "kind": "counter",
        "value": record.value, "timestamp": record.timestamp, "idempotency_key": record.idempotency_key,
    })
}

fn headers(message: &Message<'_>) -> Vec<(String, String)> {
    let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().into()).unwrap();
    message.headers.iter().map(|header| (header.key.into(), text(header.value))).collect()
}

/// `cases/wire.json`, "smallest counter": made with another implementation.
#[test]
fn avro_and_json_rows_become_the_message_of_the_case_file() {
    let sources = sources();
    let encoder = Encoder::new();
    let avro = row(names::PAYLOAD_RECORD, &encoder.encode(&record()));
    let as_json = row(names::PAYLOAD_RECORD_JSON, json(&record()).to_string().as_bytes());
    let source = sources.of(Some("llm-gateway")).unwrap();
    for row in [avro, as_json] {
        let message = message(&encoder, source, &row).unwrap();
        assert_eq!(message.key, "0190f3c2-6f1e-7a44-9d3b-5a1f0c2e7b10");
        assert_eq!(Decoder::new().decode(&message.value).unwrap().to_owned(), record());
        let expected = [
            ("payload-type", "usage-collector.record.v1"),
            ("usage-source", "llm-gateway"),
            ("usage-key-id", "demo-1"),
            ("usage-signature", "5ce3394f054e46c65f676356a8885a3dfa4bb34685da57ce7bfd675aa3ed3492"),
        ];
        let found = headers(&message);
        assert_eq!(found, expected.map(|(key, value)| (key.to_string(), value.to_string())));
    }
}

#[test]
fn the_trace_goes_along() {
    let (sources, encoder) = (sources(), Encoder::new());
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let row = Row { traceparent: Some(traceparent.into()), ..row(names::PAYLOAD_RECORD, b"x") };
    let message = message(&encoder, sources.of(None).unwrap(), &row).unwrap();
    assert_eq!(headers(&message).last().unwrap(), &("traceparent".to_string(), traceparent.to_string()));
}

#[test]
fn rows_that_can_never_be_messages_say_why() {
    let (sources, encoder) = (sources(), Encoder::new());
    let source = sources.of(None).unwrap();
    let foreign = UsageRecord { tenant_id: Uuid::from_u128(1), ..record() };
    let mut without_value = json(&record());
    without_value.as_object_mut().unwrap().remove("value");
    let json_row = |text: &str| row(names::PAYLOAD_RECORD_JSON, text.as_bytes());
    for (row, reason, part) in [
        (Row { payload: None, ..row(names::PAYLOAD_RECORD, b"x") }, "too_large", "1 bytes"),
        (json_row("{"), "not_encodable", "payload"),
        (json_row(&without_value.to_string()), "not_encodable", "value: missing"),
        (json_row(&json(&foreign).to_string()), "not_encodable", "tenant_id"),
    ] {
        let Err(impossible) = message(&encoder, source, &row) else { panic!("{reason}") };
        assert_eq!(impossible.reason, reason);
        assert!(impossible.error().contains(part), "{}", impossible.error());
    }
}

/// What an error quotes of a payload is not always what a text column takes.
#[test]
fn errors_are_short_printable_ascii() {
    let (sources, encoder) = (sources(), Encoder::new());
    let long = format!("{{\"{}\":1}}", "\u{e9}".repeat(5_000));
    for (payload, part) in
        [("{\"x\\u0000\\n\":1}", "x\\u{0}\\n"), ("{\"\u{1f6a8}\":1}", "\\u{1f6a8}"), (&long, "...")]
    {
        let row = row(names::PAYLOAD_RECORD_JSON, payload.as_bytes());
        let Err(impossible) = message(&encoder, sources.of(None).unwrap(), &row) else { panic!("{payload}") };
        let error = impossible.error();
        assert!(error.contains(part) && error.len() <= 503, "{error}");
        assert!(error.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{error}");
    }
}

#[test]
fn a_row_without_a_source_has_the_default_one() {
    let mut sources = sources();
    assert_eq!(sources.of(None).unwrap().name, "demo");
    assert_eq!(sources.of(Some("llm-gateway")).unwrap().name, "llm-gateway");
    assert!(sources.of(Some("other")).is_none());
    sources.default = None;
    assert!(sources.of(None).is_none() && !sources.has_default());
}
