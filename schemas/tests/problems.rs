//! Faults of other systems (`problems.md`, by row) that must be impossible here.

use serde_json::value::RawValue;
use usage_schemas::codec::{DecodeError, Decoder, Encoder};
use usage_schemas::{Bounds, Kind, Quantity, QuantityError, Reason, RecordRef, Timestamp, TimestampError};
use usage_schemas::{ids, json, schema, validate};
use uuid::Uuid;

const NOW: Timestamp = Timestamp::from_micros(1_796_000_000_000_000);

fn record() -> RecordRef<'static> {
    RecordRef {
        record_id: Uuid::from_u128(1),
        tenant_id: Uuid::from_u128(2),
        source: "src",
        metric: "mtr",
        kind: Kind::Counter,
        value: Quantity::ZERO,
        timestamp: NOW,
        idempotency_key: Some("k"),
        resource_id: None,
        resource_type: None,
        subject_id: None,
        subject_type: None,
        metadata: None,
    }
}

/// A framed record whose decimal is these bytes.
fn value_with_decimal(decimal: &[u8]) -> Vec<u8> {
    let value = Encoder::new().encode_ref(&record());
    // Frame, two UUIDs, two texts of 1 + 3 bytes, kind; then length 1 and a zero.
    let at = 10 + 32 + 8 + 1;
    assert_eq!(value[at..at + 2], [2, 0]);
    let length = u8::try_from(decimal.len() * 2).expect("one byte of varint");
    assert!(length < 0x80);
    [&value[..at], &[length], decimal, &value[at + 2..]].concat()
}

fn decode_decimal(decimal: &[u8]) -> Result<i128, DecodeError> {
    Decoder::new().decode(&value_with_decimal(decimal)).map(|record| record.value.unscaled())
}

/// A decimal of 21 or more digits turned negative on its way.
#[test]
fn problem_70_many_digits_keep_their_sign() {
    let thirty_eight = "9".repeat(20) + "." + &"9".repeat(18);
    for text in ["-1", "1", "12345678901234567890.5", &thirty_eight, &format!("-{thirty_eight}")] {
        let sent = RecordRef { kind: Kind::Gauge, value: Quantity::parse(text).unwrap(), ..record() };
        let value = Encoder::new().encode_ref(&sent);
        let received = Decoder::new().decode(&value).unwrap();
        assert_eq!(received.value.to_string(), text);
        assert_eq!(received.value.is_negative(), text.starts_with('-'));
    }
    // 21 digits before the point are refused, as text and on the wire, at both ends.
    assert_eq!(Quantity::parse(&"9".repeat(21)), Err(QuantityError::OutOfRange));
    assert_eq!(Quantity::parse(&"9".repeat(38)), Err(QuantityError::OutOfRange));
    let beyond = (Quantity::MAX_UNSCALED + 1).to_be_bytes();
    let fault = DecodeError::Field { field: "value", detail: "a decimal of more than 38 digits" };
    assert_eq!(decode_decimal(&beyond), Err(fault.clone()));
    assert_eq!(decode_decimal(&(-Quantity::MAX_UNSCALED - 1).to_be_bytes()), Err(fault));
}

/// Decimals of minimal length were read as if they had another one.
#[test]
fn problem_71_minimal_decimals_from_debezium() {
    // Base64 `Dzw=`, `ASw=`, `AA==`.
    assert_eq!(decode_decimal(&[0x0f, 0x3c]), Ok(3_900));
    assert_eq!(decode_decimal(&[0x01, 0x2c]), Ok(300));
    assert_eq!(decode_decimal(&[0x00]), Ok(0));
}

/// "expected size 16, got 1".
#[test]
fn problem_72_decimals_of_any_length_up_to_16() {
    assert_eq!(decode_decimal(&[0x00]), Ok(0));
    assert_eq!(decode_decimal(&[0x08, 0x34]), Ok(2_100));
    assert_eq!(decode_decimal(&[0xff]), Ok(-1));
    assert_eq!(decode_decimal(&[0; 16]), Ok(0));
    let fault = DecodeError::Field { field: "value", detail: "a decimal has 1 to 16 bytes" };
    assert_eq!(decode_decimal(&[]), Err(fault.clone()));
    assert_eq!(decode_decimal(&[0; 17]), Err(fault.clone()));
    assert_eq!(decode_decimal(&[0xff; 40]), Err(fault));
}

/// A u64 that went through a JSON number became its neighbour.
#[test]
fn problem_73_every_u64_comes_back_as_it_was() {
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let random = std::iter::repeat_with(|| {
        // xorshift: any spread over 64 bits will do.
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    });
    let edges = [9_007_199_254_740_993, u64::MAX, u64::MAX - 1, 1 << 53, (1 << 53) + 1];
    for number in edges.into_iter().chain(random.take(10_000)) {
        let text = number.to_string();
        let raw: &RawValue = serde_json::from_str(&text).unwrap();
        let sent = RecordRef { value: Quantity::from_raw_json(raw).unwrap(), ..record() };
        let value = Encoder::new().encode_ref(&sent);
        assert_eq!(Decoder::new().decode(&value).unwrap().value.to_string(), text);
    }
}

/// jsonb refuses `\u0000` and lone surrogates, within the business transaction; stripping them loses or changes data.
#[test]
fn problem_77_escapes_that_jsonb_refuses_are_kept_byte_for_byte() {
    let metadata = r#"{"x\u0000y":"\u0000","high":"\ud800","low":"\udfff","n":1.0,"n":2}"#;
    let payload = serde_json::json!({
        "record_id": Uuid::from_u128(1), "tenant_id": Uuid::from_u128(2), "metric": "mtr", "kind": "counter", "value": "1",
        "timestamp": NOW, "idempotency_key": "k", "metadata": metadata,
    });
    let decoded = json::decode(payload.to_string().as_bytes(), "src").unwrap();
    assert_eq!(decoded.metadata.as_deref(), Some(metadata));
    assert_eq!(validate::validate(&decoded.borrowed(), &Bounds::default(), NOW), Ok(()));
    let value = Encoder::new().encode(&decoded);
    assert_eq!(Decoder::new().decode(&value).unwrap().metadata, Some(metadata));

    // In a dimension they are no text, and refused with the field's name.
    let nul = RecordRef { idempotency_key: Some("x\u{0}y"), ..record() };
    assert_eq!(validate::validate(&nul, &Bounds::default(), NOW).unwrap_err().field, "idempotency_key");
    let lone = payload.to_string().replace("\"k\"", r#""\ud800""#);
    assert_eq!(json::decode(lone.as_bytes(), "src").unwrap_err().field, "idempotency_key");
}

/// Microseconds were given where milliseconds were meant, and nobody noticed.
#[test]
fn problem_85_a_time_in_another_unit_is_refused() {
    for digits in ["1755933141855875", "1755933141855", "1755933141"] {
        assert_eq!(Timestamp::parse(digits), Err(TimestampError::NotRfc3339));
        let payload = format!(
            r#"{{"record_id":"{0}","tenant_id":"{0}","metric":"m","kind":"gauge","value":"1","timestamp":{digits}}}"#,
            Uuid::from_u128(1)
        );
        let invalid = json::decode(payload.as_bytes(), "src").unwrap_err();
        assert_eq!((invalid.reason, invalid.field), (Reason::InvalidRecord, "timestamp"));
    }
    // On the wire it is a number: seconds, milliseconds and nanoseconds all lie outside the bounds.
    let judge = |micros| validate::timestamp(Timestamp::from_micros(micros), &Bounds::default(), NOW);
    let now = NOW.micros();
    assert_eq!(judge(now), Ok(()));
    for (other_unit, reason) in
        [(now / 1_000_000, Reason::TooOld), (now / 1_000, Reason::TooOld), (now * 1_000, Reason::InFuture)]
    {
        assert_eq!(judge(other_unit).unwrap_err().reason, reason, "{other_unit}");
    }
}

/// A new enum symbol broke running readers, and so did a field that was added with a default.
#[test]
fn problem_95_versions_interleave_and_a_new_symbol_stops_its_own_record_only() {
    let version_2 = schema::USAGE_RECORD
        .replace(r#""symbols": ["counter", "gauge"]"#, r#""symbols": ["counter", "gauge", "histogram"]"#)
        .replace(
            r#"{"name": "metadata""#,
            r#"{"name": "region", "type": "string", "default": "eu"}, {"name": "metadata""#,
        );
    assert_ne!(version_2, schema::USAGE_RECORD);
    let parsed = apache_avro::Schema::parse_str(&version_2).unwrap();
    let fingerprint = schema::fingerprint(&schema::canonical_form(&parsed));
    let decoder = Decoder::with_schemas(&[&version_2]).unwrap();
    let encoder = Encoder::new();

    let sent = RecordRef { value: Quantity::parse("12.5").unwrap(), metadata: Some("{}"), ..record() };
    let of_version_1 = encoder.encode_ref(&sent);
    let of_version_2 = |kind: u8| {
        let mut value = Vec::new();
        usage_schemas::frame::start_single_object(fingerprint, &mut value);
        let metadata_at = of_version_1.len() - 4;
        value.extend_from_slice(&of_version_1[10..metadata_at]);
        value[10 + 32 + 8] = kind * 2;
        value.extend_from_slice(b"\x06us1");
        value.extend_from_slice(&of_version_1[metadata_at..]);
        value
    };
    for _ in 0..3 {
        assert_eq!(decoder.decode(&of_version_1), Ok(sent));
        assert_eq!(decoder.decode(&of_version_2(0)), Ok(sent));
        assert_eq!(decoder.decode(&of_version_2(1)), Ok(RecordRef { kind: Kind::Gauge, ..sent }));
        // Not a counter by default: that would bill it. Its dead letter can be replayed by a later version.
        let fault = DecodeError::Field { field: "kind", detail: "no such kind" };
        assert_eq!(decoder.decode(&of_version_2(2)), Err(fault.clone()));
        assert_eq!(fault.reason(), Reason::Undecodable);
    }
    // A reader that was not told of version 2 says which schema it lacks.
    assert_eq!(Decoder::new().decode(&of_version_2(0)), Err(DecodeError::UnknownSchema(fingerprint)));
}

/// More inputs: pairs that joined text would confuse.
#[test]
fn identities_are_pairs_not_joined_text() {
    let keys = ["a", "a:b", "a-b", "a\u{1f}b", "", "a ", "A", "\u{fc}", "u\u{308}"];
    let tenants = [Uuid::from_u128(1), Uuid::from_u128(2)];
    let mut all: Vec<Uuid> =
        tenants.iter().flat_map(|tenant| keys.map(|key| ids::record_id(*tenant, key))).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), keys.len() * tenants.len());
}
