use super::super::{Decoder, Encoder};
use super::*;

/// The current schema with a part of its text replaced.
fn schema_with(from: &str, to: &str) -> String {
    assert!(schema::USAGE_RECORD.contains(from), "{from}");
    schema::USAGE_RECORD.replacen(from, to, 1)
}

#[track_caller]
fn assert_refused(text: &str, expected: &str) {
    let error = Decoder::with_schemas(&[text]).expect_err("must be refused");
    assert_eq!(error.to_string(), expected);
}

/// The fields that a minimal writer has, with room for more.
fn minimal(more: &str) -> String {
    format!(
        r#"{{"type":"record","name":"usage.v1.UsageRecord","fields":[
            {{"name":"record_id","type":{{"type":"fixed","name":"Uuid","size":16}}}},
            {{"name":"tenant_id","type":"Uuid"}},
            {{"name":"source","type":"string"}},
            {{"name":"metric","type":"string"}},
            {{"name":"value","type":{{"type":"bytes","logicalType":"decimal","precision":38,"scale":18}}}},
            {{"name":"timestamp","type":{{"type":"long","logicalType":"timestamp-micros"}}}}
            {more}]}}"#
    )
}

fn minimal_value(text: &str, more: &[u8]) -> Vec<u8> {
    let fingerprint = schema::fingerprint(&schema::canonical_form(&Schema::parse_str(text).unwrap()));
    let mut value = Vec::new();
    crate::frame::start_single_object(fingerprint, &mut value);
    value.extend([[1; 16], [2; 16]].concat());
    value.extend(b"\x02s\x02m\x02\x07\x0a");
    value.extend(more);
    value
}

/// Decodes a minimal record with one more field `x`.
fn decode_extra(field_type: &str, bytes: &[u8]) -> Result<(), DecodeError> {
    let text = minimal(&format!(r#",{{"name":"x","type":{field_type}}}"#));
    let decoder = Decoder::with_schemas(&[&text]).unwrap();
    decoder.decode(&minimal_value(&text, bytes)).map(|record| assert_eq!(record, minimal_record()))
}

fn minimal_record() -> RecordRef<'static> {
    RecordRef {
        record_id: Uuid::from_bytes([1; 16]),
        tenant_id: Uuid::from_bytes([2; 16]),
        source: "s",
        metric: "m",
        kind: Kind::Counter,
        value: Quantity::from_unscaled(7).unwrap(),
        timestamp: Timestamp::from_micros(5),
        idempotency_key: None,
        resource_id: None,
        resource_type: None,
        subject_id: None,
        subject_type: None,
        metadata: None,
    }
}

#[track_caller]
fn assert_fault(field_type: &str, bytes: &[u8], detail: &'static str) {
    let field = super::super::skip::FIELD;
    assert_eq!(decode_extra(field_type, bytes), Err(DecodeError::Field { field, detail }));
}

#[test]
fn fields_that_the_writer_did_not_have_take_their_defaults() {
    let text = minimal("");
    let decoder = Decoder::with_schemas(&[&text]).unwrap();
    assert_eq!(decoder.decode(&minimal_value(&text, &[])), Ok(minimal_record()));
    // The current schema is still known.
    let value = Encoder::new().encode_ref(&minimal_record());
    assert_eq!(decoder.decode(&value), Ok(minimal_record()));
}

#[test]
fn the_same_schema_twice_is_one() {
    let text = minimal("");
    let decoder = Decoder::with_schemas(&[&text, schema::USAGE_RECORD, &text]).unwrap();
    assert_eq!(decoder.others.len(), 1);
}

#[test]
fn what_could_be_misread_is_refused() {
    assert_refused("{", "not an Avro schema");
    assert_refused(r#""string""#, "not the record usage.v1.UsageRecord");
    assert_refused(&schema_with("usage.v1", "usage.v2"), "not the record usage.v1.UsageRecord");
    assert_refused(&schema_with("\"scale\": 18", "\"scale\": 6"), "value: has another scale than 18");
    assert_refused(&schema_with("\"logicalType\": \"decimal\"", "\"x\": 1"), "value: has another type");
    assert_refused(&schema_with("timestamp-micros", "timestamp-millis"), "timestamp: has another type");
    assert_refused(
        &schema_with("\"size\": 16, \"logicalType\": \"uuid\"", "\"size\": 12"),
        "record_id: has another type",
    );
    assert_refused(
        &schema_with("\"source\", \"type\": \"string\"", "\"source\", \"type\": \"long\""),
        "source: has another type",
    );
    assert_refused(&schema_with("\"metric\"", "\"meter\""), "metric: is missing and has no default");
    assert_refused(
        &schema_with(
            "\"metadata\", \"type\": [\"null\", \"string\"], \"default\": null",
            "\"metadata\", \"type\": [\"int\", \"long\"], \"default\": 0",
        ),
        "metadata: has no type that can be read",
    );
}

/// A newer writer may say something that only its own version understands: that record is refused, the others pass.
#[test]
fn branches_that_cannot_be_read_are_refused_record_by_record() {
    let text = minimal(r#",{"name":"metadata","type":["null","string",{"type":"map","values":"string"}]}"#);
    let decoder = Decoder::with_schemas(&[&text]).unwrap();
    let decode = |bytes: &[u8]| {
        decoder.decode(&minimal_value(&text, bytes)).map(|record| record.metadata.map(String::from))
    };
    assert_eq!(decode(&[0]), Ok(None));
    assert_eq!(decode(b"\x02\x04{}"), Ok(Some("{}".into())));
    let fault = |detail| Err(DecodeError::Field { field: "metadata", detail });
    assert_eq!(decode(&[4, 0]), fault("a value that this version cannot read"));
    assert_eq!(decode(&[6]), fault("no such union branch"));
    assert_eq!(decode(&[1]), fault("no such union branch"));
}

#[test]
fn unions_and_plain_types_resolve_into_each_other() {
    let text = minimal(
        r#",{"name":"metadata","type":["string","null"]},{"name":"subject_id","type":"Uuid"},{"name":"resource_type","type":"null"}"#,
    );
    let decoder = Decoder::with_schemas(&[&text]).unwrap();
    let value = minimal_value(&text, &[&b"\x00\x04{}"[..], &[9; 16]].concat());
    let expected =
        RecordRef { metadata: Some("{}"), subject_id: Some(Uuid::from_bytes([9; 16])), ..minimal_record() };
    assert_eq!(decoder.decode(&value), Ok(expected));
}

#[test]
fn bytes_promote_to_text_if_they_are_utf_8() {
    let text = minimal(r#",{"name":"metadata","type":"bytes"}"#);
    let decoder = Decoder::with_schemas(&[&text]).unwrap();
    let value = minimal_value(&text, b"\x04{}");
    assert_eq!(decoder.decode(&value).unwrap().metadata, Some("{}"));
    let broken = minimal_value(&text, b"\x02\xff");
    let fault = DecodeError::Field { field: "metadata", detail: "not UTF-8" };
    assert_eq!(decoder.decode(&broken), Err(fault));
}

#[test]
fn types_that_are_skipped_are_checked() {
    assert_fault(r#""boolean""#, &[2], "a boolean is 0 or 1");
    assert_fault(r#""int""#, &[0x80, 0x80, 0x80, 0x80, 0x10], "integer of more than 32 bits");
    assert_fault(r#""string""#, b"\x02\xff", "not UTF-8");
    assert_fault(r#"{"type":"enum","name":"E","symbols":["A"]}"#, &[2], "no such enum symbol");
    assert_fault(r#"{"type":"enum","name":"E","symbols":["A"]}"#, &[1], "no such enum symbol");
    assert_fault(r#"["null","int"]"#, &[4], "no such union branch");
    assert_fault(r#"["null","int"]"#, &[1], "no such union branch");
    assert_fault(r#"{"type":"map","values":"int"}"#, b"\x02\x02\xff\x00\x00", "not UTF-8");
    assert_eq!(decode_extra(r#""double""#, &[0; 7]), Err(DecodeError::Truncated));
    assert_eq!(decode_extra(r#""double""#, &[0; 9]), Err(DecodeError::Trailing(1)));
}

#[test]
fn blocks_may_say_their_size_which_must_be_true() {
    let longs = r#"{"type":"array","items":"long"}"#;
    assert_eq!(decode_extra(longs, &[4, 2, 4, 1, 2, 8, 0]), decode_extra(longs, &[0]));
    assert_fault(longs, &[3, 2, 2, 4, 0], "a block of another size than it says");
    assert_fault(longs, &[1, 3, 2, 0], "a block of another size than it says");
    assert_eq!(decode_extra(longs, &[3, 4, 2, 4, 0]), Ok(()));
}

/// 2^62 and more items: of nothing they take no time, of something they are not there.
#[test]
fn huge_counts_take_no_time() {
    let most = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    let least = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    for items in [
        r#""null""#,
        r#"{"type":"fixed","name":"F","size":0}"#,
        r#"{"type":"record","name":"N","fields":[{"name":"a","type":"null"}]}"#,
    ] {
        let array = format!(r#"{{"type":"array","items":{items}}}"#);
        assert_eq!(decode_extra(&array, &[&most[..], &[0]].concat()), Ok(()), "{items}");
        assert_eq!(decode_extra(&array, &[&least[..], &[0, 0]].concat()), Ok(()), "{items}");
    }
    for container in [
        r#"{"type":"array","items":"long"}"#,
        r#"{"type":"array","items":{"type":"array","items":"null"}}"#,
        r#"{"type":"map","values":"null"}"#,
    ] {
        assert_eq!(
            decode_extra(container, &[&most[..], &[0; 64]].concat()),
            Err(DecodeError::Truncated),
            "{container}"
        );
    }
}

#[test]
fn types_that_contain_themselves_are_bounded() {
    let list = r#"{"type":"record","name":"List","fields":[{"name":"next","type":["null","List"]}]}"#;
    assert_eq!(decode_extra(list, &[2, 2, 2, 0]), Ok(()));
    assert_fault(list, &[2; 10_000], "nested too deep");
    let tree = r#"{"type":"record","name":"Tree","fields":[{"name":"twigs","type":{"type":"array","items":"Tree"}}]}"#;
    assert_eq!(decode_extra(tree, &[4, 0, 2, 0, 0, 0]), Ok(()));
    assert_fault(tree, &[2; 10_000], "nested too deep");
    let endless = r#"{"type":"record","name":"Endless","fields":[{"name":"a","type":"Endless"},{"name":"b","type":"Endless"}]}"#;
    assert_fault(endless, &[], "nested too deep");
}

/// Each record holds the one before twice: 2^40 nulls, which are not gone through.
#[test]
fn types_without_bytes_take_no_time_however_many_they_are() {
    let mut record = r#"{"type":"record","name":"R0","fields":[{"name":"a","type":"null"}]}"#.to_string();
    for level in 1..40 {
        record = format!(
            r#"{{"type":"record","name":"R{level}","fields":[{{"name":"a","type":{record}}},{{"name":"b","type":"R{}"}}]}}"#,
            level - 1
        );
    }
    assert_eq!(decode_extra(&record, &[]), Ok(()));
}
