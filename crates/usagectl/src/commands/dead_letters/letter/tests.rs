use rdkafka::message::Headers as _;
use usage_schemas::codec::Encoder;
use usage_schemas::{Kind, Quantity, Timestamp, UsageRecord, ids};

use super::*;
use crate::commands::dead_letters::mark::Settled;
use crate::commands::dead_letters::testing::message;

const DLQ: [(&str, &[u8]); 7] = [
    ("dlq-reason", b"conflict"),
    ("dlq-error", b"stored with other content"),
    ("dlq-topic", b"usage.records.v1"),
    ("dlq-partition", b"3"),
    ("dlq-offset", b"812"),
    ("dlq-timestamp", b"1700000000123"),
    ("dlq-attempt", b"2"),
];

fn record(tenant: Uuid) -> UsageRecord {
    UsageRecord {
        record_id: ids::record_id(tenant, "k"),
        tenant_id: tenant,
        source: "llm-gateway".into(),
        metric: "llm.tokens".into(),
        kind: Kind::Counter,
        value: Quantity::ZERO,
        timestamp: Timestamp::from_micros(0),
        idempotency_key: Some("k".into()),
        resource_id: None,
        resource_type: None,
        subject_id: None,
        subject_type: None,
        metadata: None,
    }
}

fn letter_of(message: Message) -> Letter {
    match read(message, &Decoder::new()) {
        Content::Letter(letter) => letter,
        other => panic!("{other:?}"),
    }
}

fn foreign(message: Message) -> &'static str {
    match read(message, &Decoder::new()) {
        Content::Foreign(_, why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_letter_says_where_it_came_from_and_what_it_claims() {
    let tenant = Uuid::from_u128(42);
    let mut message = message(1, 7, &DLQ);
    message.value = Some(Encoder::new().encode(&record(tenant)));
    let letter = letter_of(message.clone());
    let expected =
        Origin { topic: "usage.records.v1".into(), partition: 3, offset: 812, timestamp: 1_700_000_000_123 };
    assert_eq!(letter.origin, expected);
    assert_eq!((letter.reason.as_str(), letter.severity(), letter.attempt), ("conflict", "error", 2));
    let claims = Claims {
        tenant: Some(tenant),
        source: Some("llm-gateway".into()),
        metric: Some("llm.tokens".into()),
    };
    assert_eq!(letter.claims, claims);

    // What can't be decoded still has a key and a header.
    message.value = Some(vec![0xff; 9]);
    message.key = Some(tenant.to_string().into_bytes());
    message.headers.push((Some("usage-source".into()), Some(b"mail".to_vec())));
    let claims = Claims { tenant: Some(tenant), source: Some("mail".into()), metric: None };
    assert_eq!(letter_of(message).claims, claims);
}

#[test]
fn problem_22_garbage_is_foreign_and_never_an_error() {
    let without = |name: &str| -> Vec<(&str, &[u8])> {
        DLQ.iter().copied().filter(|(found, _)| *found != name).collect()
    };
    assert_eq!(foreign(message(0, 0, &[])), "no dlq-reason");
    for name in ["dlq-topic", "dlq-partition", "dlq-offset", "dlq-timestamp"] {
        assert!(foreign(message(0, 0, &without(name))).contains(name), "{name}");
        for value in ["", "x", "3600.0", "99999999999999999999"] {
            let mut headers = without(name);
            headers.push((name, value.as_bytes()));
            let read = read(message(0, 0, &headers), &Decoder::new());
            // Any text may be a topic's name.
            assert_eq!(matches!(read, Content::Letter(_)), name == "dlq-topic", "{name} {value:?}");
        }
    }
    let mark = [("payload-type", names::PAYLOAD_DEAD_LETTER_MARK.as_bytes())];
    assert_eq!(foreign(message(0, 0, &mark)), "a mark that can't be read");
    let mut null = message(0, 0, &mark);
    null.value = None;
    assert_eq!(foreign(null), "a mark that can't be read");

    // A letter needs neither key nor value, nor a readable attempt.
    let mut headers = without("dlq-attempt");
    headers.push(("dlq-attempt", b"many"));
    let mut bare = message(0, 0, &headers);
    (bare.key, bare.value) = (None, None);
    let letter = letter_of(bare);
    assert_eq!((letter.attempt, letter.claims), (1, Claims::default()));
}

#[test]
fn a_reason_of_a_later_version_is_a_letter() {
    let mut headers = DLQ.to_vec();
    headers[0].1 = b"cursed";
    let letter = letter_of(message(0, 0, &headers));
    assert_eq!((letter.reason.as_str(), letter.severity()), ("cursed", "error"));
}

#[test]
fn a_replay_has_the_messages_own_headers_and_the_next_attempt() {
    let mut headers: Vec<(&str, &[u8])> =
        vec![("payload-type", b"x"), ("usage-forwarded", b"3"), ("empty", b""), ("payload-type", b"y")];
    headers.extend(DLQ);
    headers.push(("dlq-of-a-later-version", b"z"));
    let mut message = message(0, 0, &headers);
    message.headers.insert(1, (Some("null".into()), None));
    let headers = letter_of(message).replay_headers();
    let list: Vec<(&str, Option<&[u8]>)> =
        headers.as_borrowed().iter().map(|header| (header.key, header.value)).collect();
    let expected: Vec<(&str, Option<&[u8]>)> = vec![
        ("payload-type", Some(b"x")),
        ("null", None),
        ("empty", Some(b"")),
        ("payload-type", Some(b"y")),
        ("dlq-attempt", Some(b"3")),
    ];
    assert_eq!(list, expected);
}

#[test]
fn what_can_never_succeed_is_not_replayed() {
    let letter = letter_of(message(0, 0, &DLQ));
    assert_eq!(letter.unreplayable(), None);
    let mut unreadable = letter.clone();
    unreadable.message.headers.push((None, None));
    assert!(unreadable.unreplayable().is_some());
    let mut truncated = letter.clone();
    truncated.message.headers.push((Some("dlq-truncated".into()), Some(b"20000000".to_vec())));
    assert!(truncated.unreplayable().is_some());
    let mut marker = letter;
    let payload_type = names::PAYLOAD_MARKER.as_bytes().to_vec();
    marker.message.headers.push((Some("payload-type".into()), Some(payload_type)));
    assert!(marker.unreplayable().is_some());
}

#[test]
fn a_mark_that_somebody_copied_to_the_records_and_that_was_refused_there_marks_nothing() {
    let origin = letter_of(message(0, 0, &DLQ)).origin;
    let mut headers: Vec<(&str, &[u8])> = vec![("payload-type", names::PAYLOAD_DEAD_LETTER_MARK.as_bytes())];
    let mut mark = message(0, 9, &headers);
    mark.value = Some(Mark::encode(Settled::Discarded, vec![origin.clone()]));
    match read(mark.clone(), &Decoder::new()) {
        Content::Mark(mark) => assert_eq!((mark.place.offset, mark.letters), (9, vec![origin])),
        other => panic!("{other:?}"),
    }
    headers.extend(DLQ);
    let copied = Message { headers: message(0, 0, &headers).headers, ..mark };
    assert_eq!(letter_of(copied).reason, "conflict");
}
