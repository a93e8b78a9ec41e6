use serde_json::{Value, json};

use super::*;
use crate::Reason;

const TENANT: &str = "0190f3c2-6f1e-7a44-9d3b-5a1f0c2e7b10";

fn payload() -> Value {
    json!({
        "record_id": "f97b25d1-07fa-807c-8b10-2dd95b4a6cf3",
        "tenant_id": TENANT,
        "metric": "llm.input_tokens",
        "kind": "counter",
        "value": "4808.50",
        "timestamp": "2026-11-16T18:17:03.979960Z",
        "idempotency_key": "req-ürümqi/42?#%",
        "resource_id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "resource_type": "model",
        "subject_id": "6ba7b811-9dad-11d1-80b4-00c04fd430c8",
        "subject_type": "user",
        "metadata": "{\"model\":\"m1\", \"n\":1.0}",
    })
}

/// The payload with one member changed, or taken away by `None`.
fn with(member: &str, value: Option<Value>) -> Result<UsageRecord, Invalid> {
    let mut payload = payload();
    let members = payload.as_object_mut().unwrap();
    match value {
        Some(value) => members.insert(member.into(), value),
        None => members.remove(member),
    };
    decode(payload.to_string().as_bytes(), "llm-gateway")
}

#[track_caller]
fn assert_refused(result: Result<UsageRecord, Invalid>, field: &str, detail: &str) {
    let invalid = result.expect_err("must be refused");
    assert_eq!(invalid.reason, Reason::InvalidRecord);
    assert_eq!((invalid.field, invalid.detail.as_str()), (field, detail));
}

#[test]
fn a_whole_payload() {
    let record = decode(payload().to_string().as_bytes(), "llm-gateway").unwrap();
    let expected = UsageRecord {
        record_id: "f97b25d1-07fa-807c-8b10-2dd95b4a6cf3".parse().unwrap(),
        tenant_id: TENANT.parse().unwrap(),
        source: "llm-gateway".into(),
        metric: "llm.input_tokens".into(),
        kind: Kind::Counter,
        value: Quantity::parse("4808.5").unwrap(),
        timestamp: Timestamp::parse("2026-11-16T18:17:03.979960Z").unwrap(),
        idempotency_key: Some("req-ürümqi/42?#%".into()),
        resource_id: Some("6ba7b810-9dad-11d1-80b4-00c04fd430c8".parse().unwrap()),
        resource_type: Some("model".into()),
        subject_id: Some("6ba7b811-9dad-11d1-80b4-00c04fd430c8".parse().unwrap()),
        subject_type: Some("user".into()),
        metadata: Some("{\"model\":\"m1\", \"n\":1.0}".into()),
    };
    assert_eq!(record, expected);
}

#[test]
fn what_is_optional_may_be_missing_or_null() {
    let optional =
        ["idempotency_key", "resource_id", "resource_type", "subject_id", "subject_type", "metadata"];
    let mut missing = payload();
    let mut null = payload();
    for member in optional {
        missing.as_object_mut().unwrap().remove(member);
        null[member] = Value::Null;
    }
    let record = decode(missing.to_string().as_bytes(), "s").unwrap();
    assert_eq!(record, decode(null.to_string().as_bytes(), "s").unwrap());
    assert_eq!((record.idempotency_key, record.metadata, record.subject_id), (None, None, None));
}

#[test]
fn what_is_required_is_named_when_it_is_not_there() {
    for field in ["record_id", "tenant_id", "metric", "kind", "value", "timestamp"] {
        assert_refused(with(field, None), field, "missing");
        assert_refused(with(field, Some(Value::Null)), field, "missing");
    }
}

#[test]
fn values_are_exact_as_text_and_as_number() {
    for json in ["9007199254740993", "\"9007199254740993\"", "9007199254740993.000"] {
        let text = payload().to_string().replace("\"4808.50\"", json);
        let record = decode(text.as_bytes(), "s").unwrap();
        assert_eq!(record.value.to_string(), "9007199254740993", "{json}");
    }
    assert_refused(with("value", Some(json!("NaN"))), "value", "not a number");
    assert_refused(with("value", Some(json!("1e20"))), "value", "out of range");
    assert_refused(with("value", Some(json!("1e-19"))), "value", "more than 18 decimal places");
}

#[test]
fn other_types_and_texts_are_refused_with_the_members_name() {
    assert_refused(with("metric", Some(json!(1))), "metric", "is not a string");
    assert_refused(with("metadata", Some(json!({"model": "m1"}))), "metadata", "is not a string");
    assert_refused(with("kind", Some(json!("Counter"))), "kind", "is neither counter nor gauge");
    assert_refused(with("timestamp", Some(json!(1_717_000_000))), "timestamp", "is not a string");
    assert_refused(
        with("timestamp", Some(json!("2026-11-16 18:17:03+00"))),
        "timestamp",
        "not an RFC 3339 time",
    );
    for text in ["", "0190f3c26f1e7a449d3b5a1f0c2e7b10", "{0190f3c2-6f1e-7a44-9d3b-5a1f0c2e7b10}", "null"] {
        assert_refused(with("tenant_id", Some(json!(text))), "tenant_id", "is not a UUID");
        assert_refused(with("resource_id", Some(json!(text))), "resource_id", "is not a UUID");
    }
}

#[test]
fn unknown_and_repeated_members_are_refused() {
    let unknown = with("tennant_id", Some(json!(TENANT))).unwrap_err();
    assert_eq!(unknown.field, "payload");
    assert!(unknown.detail.contains("unknown field `tennant_id`"), "{unknown}");
    let twice = payload().to_string().replacen('{', r#"{"value":"1","#, 1);
    let twice = decode(twice.as_bytes(), "s").unwrap_err();
    assert!(twice.detail.contains("duplicate field `value`"), "{twice}");
}

#[test]
fn what_is_no_object_is_refused() {
    // The members as an array, which serde takes for a struct.
    let array = Value::from_iter(payload().as_object().unwrap().values().cloned()).to_string();
    for payload in [array.as_bytes(), b"", b"null", b"[]", b"{", b"{}{}", b"\xff", b"{\"metric\":\"\xff\"}"] {
        let invalid = decode(payload, "s").unwrap_err();
        assert_eq!((invalid.reason, invalid.field), (Reason::InvalidRecord, "payload"), "{payload:?}");
    }
}
