use super::*;
use crate::{Kind, Quantity, Timestamp};

const TENANT: Uuid = Uuid::from_u128(0x0190_f3c2_6f1e_7a44_9d3b_5a1f_0c2e_7b10);

fn record() -> RecordRef<'static> {
    RecordRef {
        record_id: record_id(TENANT, "k1"),
        tenant_id: TENANT,
        source: "llm-gateway",
        metric: "llm.input_tokens",
        kind: Kind::Counter,
        value: Quantity::parse("4808").unwrap(),
        timestamp: Timestamp::from_micros(1_795_717_023_979_960),
        idempotency_key: Some("k1"),
        resource_id: Some(Uuid::from_u128(1)),
        resource_type: Some("model"),
        subject_id: Some(Uuid::from_u128(2)),
        subject_type: Some("user"),
        metadata: Some("{\"model\":\"m1\"}"),
    }
}

#[test]
fn record_ids_are_version_8() {
    for key in ["", "k", "k1", "req-ürümqi/42", &"x".repeat(255)] {
        let id = record_id(TENANT, key);
        assert_eq!(id.get_version_num(), 8, "{key}");
        assert_eq!(id.get_variant(), uuid::Variant::RFC4122, "{key}");
    }
}

/// The identity is the pair: another tenant with the same key is another record, and nothing is normalised.
#[test]
fn record_ids_differ_by_tenant_and_by_every_byte_of_the_key() {
    let keys = ["k1", "K1", "k1 ", " k1", "k1\u{200b}", "\u{e9}", "e\u{301}"];
    let mut ids: Vec<Uuid> = keys.iter().map(|key| record_id(TENANT, key)).collect();
    ids.push(record_id(Uuid::from_u128(TENANT.as_u128() + 1), "k1"));
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

/// Stored with every record: it must never change. Computed with Python's hashlib.
#[test]
fn content_hash_is_frozen() {
    let hex = |bytes: [u8; 16]| Uuid::from_bytes(bytes).simple().to_string();
    assert_eq!(hex(content_hash(&record())), "b53ed52a85ffc9b97e0e5efe932b120b");
    let bare = RecordRef {
        kind: Kind::Gauge,
        value: Quantity::parse("-273.15").unwrap(),
        resource_id: None,
        resource_type: None,
        subject_id: None,
        subject_type: None,
        metadata: None,
        ..record()
    };
    assert_eq!(hex(content_hash(&bare)), "42aa364e4a62265a3e4a85de01ab7e83");
}

#[test]
fn every_part_of_the_content_counts() {
    let same = record();
    let others = [
        RecordRef { source: "llm-gatewaz", ..same },
        RecordRef { metric: "llm.output_tokens", ..same },
        RecordRef { kind: Kind::Gauge, ..same },
        RecordRef { value: Quantity::parse("4808.000000000000000001").unwrap(), ..same },
        RecordRef { timestamp: Timestamp::from_micros(same.timestamp.micros() + 1), ..same },
        RecordRef { resource_id: Some(Uuid::from_u128(3)), ..same },
        RecordRef { resource_id: None, ..same },
        RecordRef { resource_type: None, ..same },
        RecordRef { resource_type: Some(""), ..same },
        RecordRef { subject_id: Some(Uuid::from_u128(3)), ..same },
        RecordRef { subject_id: None, ..same },
        RecordRef { subject_type: None, ..same },
        RecordRef { metadata: Some("{\"model\": \"m1\"}"), ..same },
        RecordRef { metadata: None, ..same },
        // Bytes that move over the border of two fields.
        RecordRef { source: "llm-gateway-", metric: "lm.input_tokens", ..same },
        RecordRef { source: "llm-gatewayl", metric: "lm.input_tokens", ..same },
        RecordRef { subject_type: Some("user{"), metadata: Some("\"model\":\"m1\"}"), ..same },
        // The same pair at another place.
        RecordRef {
            resource_id: same.subject_id,
            resource_type: same.subject_type,
            subject_id: same.resource_id,
            subject_type: same.resource_type,
            ..same
        },
    ];
    let mut hashes: Vec<[u8; 16]> = others.iter().map(content_hash).collect();
    hashes.push(content_hash(&same));
    let count = hashes.len();
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), count);
}

#[test]
fn identity_is_no_content() {
    let same = record();
    let other =
        RecordRef { record_id: Uuid::max(), tenant_id: Uuid::max(), idempotency_key: Some("k2"), ..same };
    assert_eq!(content_hash(&other), content_hash(&same));
}
