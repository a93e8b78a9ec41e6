use uuid::Uuid;

use super::*;

const NOW: Timestamp = Timestamp::from_micros(1_796_000_000_000_000);

fn record() -> RecordRef<'static> {
    RecordRef {
        record_id: Uuid::nil(),
        tenant_id: Uuid::from_u128(1),
        source: "llm-gateway",
        metric: "llm.input_tokens",
        kind: Kind::Counter,
        value: Quantity::ZERO,
        timestamp: NOW,
        idempotency_key: Some("k1"),
        resource_id: None,
        resource_type: Some("model"),
        subject_id: None,
        subject_type: Some("user"),
        metadata: Some("{}"),
    }
}

fn refusal(record: &RecordRef<'_>) -> Option<(Reason, &'static str, String)> {
    let invalid = validate(record, &Bounds::default(), NOW).err()?;
    Some((invalid.reason, invalid.field, invalid.detail))
}

#[track_caller]
fn assert_refused(record: RecordRef<'_>, reason: Reason, field: &str, detail: &str) {
    let (actual_reason, actual_field, actual_detail) = refusal(&record).expect("must be refused");
    assert_eq!((actual_reason, actual_field), (reason, field));
    assert_eq!(actual_detail, detail);
}

#[test]
fn a_whole_record_and_a_bare_one_are_valid() {
    assert_eq!(refusal(&record()), None);
    let bare = RecordRef {
        kind: Kind::Gauge,
        value: Quantity::parse("-1").unwrap(),
        idempotency_key: None,
        resource_type: None,
        subject_type: None,
        metadata: None,
        ..record()
    };
    assert_eq!(refusal(&bare), None);
}

#[test]
fn the_nil_uuid_is_no_tenant() {
    let nil = RecordRef { tenant_id: Uuid::nil(), ..record() };
    assert_refused(nil, Reason::InvalidRecord, "tenant_id", "the nil UUID is no tenant");
    assert_eq!(refusal(&RecordRef { tenant_id: Uuid::max(), ..record() }), None);
}

#[test]
fn names_have_their_alphabet_and_length() {
    let longest = "a".repeat(128);
    for good in ["a", "z9", "a_.-", "llm.input_tokens-2", &longest] {
        assert!(is_name(good), "{good}");
    }
    let too_long = "a".repeat(129);
    let cases = [
        ("", "is empty"),
        (too_long.as_str(), "is longer than 128 bytes"),
        ("9a", "does not begin with a letter a-z"),
        ("_a", "does not begin with a letter a-z"),
        (".a", "does not begin with a letter a-z"),
        ("A", "does not begin with a letter a-z"),
        (" a", "does not begin with a letter a-z"),
        ("aB", "has other characters than a-z 0-9 _ . -"),
        ("a b", "has other characters than a-z 0-9 _ . -"),
        ("a/b", "has other characters than a-z 0-9 _ . -"),
        ("a\0", "has other characters than a-z 0-9 _ . -"),
        ("a\n", "has other characters than a-z 0-9 _ . -"),
        ("jürgen", "has other characters than a-z 0-9 _ . -"),
    ];
    for (text, detail) in cases {
        assert_refused(RecordRef { source: text, ..record() }, Reason::InvalidRecord, "source", detail);
        assert_refused(RecordRef { metric: text, ..record() }, Reason::InvalidRecord, "metric", detail);
        let types = Some(text);
        assert_refused(
            RecordRef { resource_type: types, ..record() },
            Reason::InvalidRecord,
            "resource_type",
            detail,
        );
        assert_refused(
            RecordRef { subject_type: types, ..record() },
            Reason::InvalidRecord,
            "subject_type",
            detail,
        );
    }
}

#[test]
fn every_byte_is_in_the_alphabet_or_not() {
    for byte in 0..=127u8 {
        let text = format!("a{}", char::from(byte));
        let expected = "abcdefghijklmnopqrstuvwxyz0123456789_.-".contains(char::from(byte));
        assert_eq!(is_name(&text), expected, "{byte:#x}");
    }
}

#[test]
fn keys_are_1_to_255_bytes_without_nul() {
    // 255 bytes in 128 characters: the bound is in bytes.
    let longest = format!("x{}", "ü".repeat(127));
    for good in ["k", " ", "req-ürümqi/42?#%", "a\u{1}b", longest.as_str()] {
        assert_eq!(refusal(&RecordRef { idempotency_key: Some(good), ..record() }), None, "{good}");
    }
    let too_long = "ü".repeat(128);
    for (bad, detail) in
        [("", "is empty"), ("a\0b", "has U+0000"), (too_long.as_str(), "is longer than 255 bytes")]
    {
        for kind in [Kind::Counter, Kind::Gauge] {
            let record = RecordRef { idempotency_key: Some(bad), kind, ..record() };
            assert_refused(record, Reason::InvalidRecord, "idempotency_key", detail);
        }
    }
}

#[test]
fn a_counter_has_a_key_and_is_not_negative() {
    let keyless = RecordRef { idempotency_key: None, ..record() };
    assert_refused(keyless, Reason::InvalidRecord, "idempotency_key", "a counter has an idempotency key");
    assert_eq!(refusal(&RecordRef { kind: Kind::Gauge, ..keyless }), None);

    let negative = RecordRef { value: Quantity::parse("-0.000000000000000001").unwrap(), ..record() };
    assert_refused(negative, Reason::InvalidRecord, "value", "a counter is not negative");
    assert_eq!(refusal(&RecordRef { kind: Kind::Gauge, ..negative }), None);
}

#[test]
fn times_are_judged_by_the_clock_that_is_given() {
    let bounds = Bounds::default();
    let at = |micros: i64| RecordRef { timestamp: Timestamp::from_micros(NOW.micros() + micros), ..record() };
    assert_eq!(refusal(&at(bounds.future_micros)), None);
    assert_eq!(refusal(&at(-bounds.past_micros)), None);
    assert_refused(
        at(bounds.future_micros + 1),
        Reason::InFuture,
        "timestamp",
        "more than 5 minutes in the future",
    );
    assert_refused(
        at(-bounds.past_micros - 1),
        Reason::TooOld,
        "timestamp",
        "older than the longest retention",
    );
}

#[test]
fn the_ends_of_time_do_not_overflow() {
    let (first, last) = (Timestamp::from_micros(i64::MIN), Timestamp::from_micros(i64::MAX));
    let bounds = Bounds { future_micros: i64::MAX, past_micros: i64::MAX, ..Bounds::default() };
    assert_eq!(timestamp(last, &bounds, first).unwrap_err().reason, Reason::InFuture);
    assert_eq!(timestamp(first, &bounds, last).unwrap_err().reason, Reason::TooOld);
    assert!(timestamp(last, &bounds, last).is_ok());
}

#[test]
fn the_default_past_covers_any_seven_years() {
    // Seven years with two leap days, and with one.
    for (then, now) in
        [("2023-03-01", "2030-03-01"), ("2021-12-31", "2028-12-31"), ("2019-11-30", "2026-11-30")]
    {
        let at = |day: &str| Timestamp::parse(&format!("{day}T00:00:00Z")).unwrap();
        assert!(timestamp(at(then), &Bounds::default(), at(now)).is_ok(), "{then}");
    }
}

#[test]
fn metadata_is_bounded_in_bytes_before_it_is_read() {
    let at_bound = format!(r#"{{"a":"{}"}}"#, "x".repeat(8_192 - 8));
    assert_eq!(at_bound.len(), 8_192);
    assert_eq!(refusal(&RecordRef { metadata: Some(&at_bound), ..record() }), None);
    let beyond = format!("{at_bound} ");
    assert_refused(
        RecordRef { metadata: Some(&beyond), ..record() },
        Reason::MetadataTooLarge,
        "metadata",
        "has 8193 bytes, 8192 are allowed",
    );
    let bounds = Bounds { metadata_bytes: 1, ..Bounds::default() };
    let invalid = validate(&record(), &bounds, NOW).unwrap_err();
    assert_eq!(invalid.to_string(), "metadata: has 2 bytes, 1 are allowed");
}

#[test]
fn metadata_is_one_object() {
    for text in ["[]", "1", "null", "\"{}\"", "", " ", "x", "\u{feff}{}"] {
        let record = RecordRef { metadata: Some(text), ..record() };
        assert_refused(record, Reason::InvalidRecord, "metadata", "is not a JSON object");
    }
    let two = RecordRef { metadata: Some("{} {}"), ..record() };
    assert_refused(two, Reason::InvalidRecord, "metadata", "is not valid JSON at byte 3");
}

#[test]
fn spans_are_named_in_their_unit() {
    let cases =
        [(5 * MINUTE_MICROS, "5 minutes"), (MINUTE_MICROS, "1 minute"), (1_500_000, "1500 ms"), (0, "0 ms")];
    for (micros, words) in cases {
        assert_eq!(span(micros), words);
    }
}
