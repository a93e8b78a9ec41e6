use uuid::Uuid;

use super::*;
use crate::{Kind, Quantity, Reason, Timestamp};

fn record() -> RecordRef<'static> {
    RecordRef {
        record_id: Uuid::from_u128(1),
        tenant_id: Uuid::from_u128(2),
        source: "src",
        metric: "mtr",
        kind: Kind::Gauge,
        value: Quantity::from_unscaled(-1).unwrap(),
        timestamp: Timestamp::from_micros(-1),
        idempotency_key: Some("key"),
        resource_id: Some(Uuid::from_u128(3)),
        resource_type: Some("rt"),
        subject_id: Some(Uuid::from_u128(4)),
        subject_type: Some("st"),
        metadata: Some("{}"),
    }
}

/// A value from its parts, so that a test can break one.
fn value_of(parts: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut value = Vec::new();
    frame::start_single_object(schema::current_fingerprint(), &mut value);
    value.extend(parts.iter().flat_map(|(_, bytes)| bytes));
    value
}

/// The encoding of [`record`], written down by hand.
fn parts() -> Vec<(&'static str, Vec<u8>)> {
    let uuid = |number: u128| Uuid::from_u128(number).as_bytes().to_vec();
    let some = |bytes: Vec<u8>| [vec![2], bytes].concat();
    vec![
        ("record_id", uuid(1)),
        ("tenant_id", uuid(2)),
        ("source", b"\x06src".to_vec()),
        ("metric", b"\x06mtr".to_vec()),
        ("kind", vec![2]),
        ("value", vec![2, 0xff]),
        ("timestamp", vec![1]),
        ("idempotency_key", b"\x02\x06key".to_vec()),
        ("resource_id", some(uuid(3))),
        ("resource_type", b"\x02\x04rt".to_vec()),
        ("subject_id", some(uuid(4))),
        ("subject_type", b"\x02\x04st".to_vec()),
        ("metadata", b"\x02\x04{}".to_vec()),
    ]
}

fn decode_with(field: &str, bytes: &[u8]) -> Result<UsageRecordOwned, DecodeError> {
    let mut parts = parts();
    parts.iter_mut().find(|(name, _)| *name == field).expect("a field").1 = bytes.to_vec();
    Decoder::new().decode(&value_of(&parts)).map(|record| record.to_owned())
}

type UsageRecordOwned = crate::UsageRecord;

#[track_caller]
fn assert_fault(field: &'static str, bytes: &[u8], detail: &'static str) {
    assert_eq!(decode_with(field, bytes), Err(DecodeError::Field { field, detail }), "{field} {bytes:x?}");
}

#[test]
fn both_ways() {
    let value = value_of(&parts());
    assert_eq!(Encoder::new().encode_ref(&record()), value);
    assert_eq!(Encoder::default().encode(&record().to_owned()), value);
    assert_eq!(Decoder::default().decode(&value), Ok(record()));
}

/// Strings are slices of the message.
#[test]
fn texts_borrow_from_the_value() {
    let value = value_of(&parts());
    let record = Decoder::new().decode(&value).unwrap();
    let within = value.as_ptr_range();
    for text in [record.source, record.metric, record.idempotency_key.unwrap(), record.metadata.unwrap()] {
        assert!(within.contains(&text.as_ptr()), "{text}");
    }
}

#[test]
fn every_prefix_is_truncated() {
    let value = value_of(&parts());
    for length in 0..value.len() {
        let expected = if length < 10 { DecodeError::Frame } else { DecodeError::Truncated };
        assert_eq!(Decoder::new().decode(&value[..length]), Err(expected), "{length} bytes");
    }
}

#[test]
fn nothing_may_follow() {
    let mut value = value_of(&parts());
    value.extend([0; 3]);
    assert_eq!(Decoder::new().decode(&value), Err(DecodeError::Trailing(3)));
}

#[test]
fn other_frames_and_schemas_are_told_apart() {
    let mut value = value_of(&parts());
    value[2] ^= 1;
    let unknown = Decoder::new().decode(&value).unwrap_err();
    assert_eq!(unknown, DecodeError::UnknownSchema(schema::current_fingerprint() ^ 1));
    assert_eq!(unknown.to_string(), "unknown schema fingerprint 8c0bd3472ec58874");
    assert_eq!(unknown.reason(), Reason::UnknownSchema);
    value[0] = 0;
    assert_eq!(Decoder::new().decode(&value), Err(DecodeError::Frame));
    assert_eq!(DecodeError::Frame.reason(), Reason::Undecodable);
}

#[test]
fn lengths_that_lie() {
    // -1, i64::MIN, 2^40, i64::MAX, one more than there is.
    let negative: [&[u8]; 2] = [&[1], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]];
    let huge: [&[u8]; 2] =
        [&[0x80, 0x80, 0x80, 0x80, 0x80, 0x40], &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]];
    for field in ["source", "metric", "value"] {
        for length in negative {
            assert_fault(field, length, "negative length");
        }
        for length in huge {
            assert_eq!(decode_with(field, length), Err(DecodeError::Truncated), "{field} {length:x?}");
        }
    }
    for field in ["idempotency_key", "resource_type", "subject_type", "metadata"] {
        assert_fault(field, &[&[2], negative[0]].concat(), "negative length");
        assert_eq!(decode_with(field, &[&[2], huge[0]].concat()), Err(DecodeError::Truncated));
    }
}

#[test]
fn integers_have_64_bits() {
    let eleven_bytes = [&[0xff; 10][..], &[1]].concat();
    let bit_64 = [&[0xff; 9][..], &[2]].concat();
    for varint in [eleven_bytes, bit_64] {
        assert_fault("timestamp", &varint, "integer of more than 64 bits");
        assert_fault("source", &varint, "integer of more than 64 bits");
    }
    // More bytes than needed are allowed, as in any Avro reader.
    assert_eq!(decode_with("timestamp", &[0x81, 0x80, 0]).map(|record| record.timestamp.micros()), Ok(-1));
    let least = [&[0xff; 9][..], &[1]].concat();
    assert_eq!(decode_with("timestamp", &least).map(|record| record.timestamp.micros()), Ok(i64::MIN));
}

#[test]
fn texts_are_utf_8() {
    let bad: [&[u8]; 4] = [b"\x02\xff", b"\x04\xc3\x28", b"\x06\xed\xa0\x80", b"\x04\xc0\x80"];
    for bytes in bad {
        assert_fault("source", bytes, "not UTF-8");
        assert_fault("metric", bytes, "not UTF-8");
        for field in ["idempotency_key", "resource_type", "subject_type", "metadata"] {
            assert_fault(field, &[b"\x02", bytes].concat(), "not UTF-8");
        }
    }
}

#[test]
fn union_branches_and_kinds_are_bounded() {
    for field in ["idempotency_key", "resource_id", "resource_type", "subject_id", "subject_type", "metadata"]
    {
        for branch in [4, 1] {
            assert_fault(field, &[branch], "no such union branch");
        }
    }
    assert_fault("kind", &[4], "no such kind");
    assert_fault("kind", &[1], "no such kind");
    assert_fault("kind", &[0x80, 0x80, 0x80, 0x80, 0x20], "integer of more than 32 bits");
}

#[test]
fn decimals_have_1_to_16_bytes_and_38_digits() {
    let with_length = |bytes: &[u8]| [&[(bytes.len() * 2) as u8], bytes].concat();
    for length in [0, 17, 40] {
        assert_fault("value", &with_length(&vec![0; length]), "a decimal has 1 to 16 bytes");
        assert_fault("value", &with_length(&vec![0xff; length]), "a decimal has 1 to 16 bytes");
    }
    for length in 1..=16 {
        for (fill, last, unscaled) in [(0, 1, 1), (0xff, 0xff, -1), (0xff, 0x80, -128)] {
            let mut bytes = vec![fill; length];
            bytes[length - 1] = last;
            let decoded = decode_with("value", &with_length(&bytes)).unwrap();
            assert_eq!(decoded.value.unscaled(), unscaled, "{bytes:x?}");
        }
    }
    for sign in [1, -1] {
        let last = sign * Quantity::MAX_UNSCALED;
        let decoded = decode_with("value", &with_length(&last.to_be_bytes())).unwrap();
        assert_eq!(decoded.value.unscaled(), last);
        for beyond in [last + sign, if sign > 0 { i128::MAX } else { i128::MIN }] {
            assert_fault("value", &with_length(&beyond.to_be_bytes()), "a decimal of more than 38 digits");
        }
    }
}

#[test]
fn absent_fields_and_empty_texts_differ() {
    let absent = decode_with("metadata", &[0]).unwrap();
    assert_eq!(absent.metadata, None);
    let empty = decode_with("metadata", &[2, 0]).unwrap();
    assert_eq!(empty.metadata.as_deref(), Some(""));
}
