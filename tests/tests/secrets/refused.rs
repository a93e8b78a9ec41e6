//! Records of every reason of refusal, each with marks in all its parts: the consumer says why, and nothing of what they hold.

use std::collections::BTreeSet;
use std::time::Duration;

use usage_schemas::codec::Encoder;
use usage_schemas::signature::SigningKey;
use usage_schemas::{Kind, Quantity, Reason, Timestamp, UsageRecord, ids, names};
use usage_service::clock;
use usage_tests::pipeline::{Pipeline, SOURCE_KEY};
use usage_tests::topic;
use usage_tests::workload::SOURCE;
use uuid::Uuid;

use crate::marked::Marked;
use crate::point::Point;
use crate::run::{Secrets, Written};
use crate::{PATIENCE, prepared};

const METRIC: &str = "llm.requests";
/// A usage type with a bound that every marked value breaks.
const BOUNDED: &str = "marked.bounded";
const YEAR: Duration = Duration::from_secs(366 * 86_400);

/// A message as a source writes it.
struct Message {
    key: String,
    value: Vec<u8>,
    key_id: &'static str,
    signature: String,
}

struct Writer<'a> {
    marked: &'a Marked,
    key: SigningKey,
}

impl Writer<'_> {
    fn record(&self, key: &str) -> UsageRecord {
        let (marked, tenant_id) = (self.marked, self.marked.tenant);
        UsageRecord {
            record_id: ids::record_id(tenant_id, key),
            tenant_id,
            source: SOURCE.into(),
            metric: METRIC.into(),
            kind: Kind::Counter,
            value: Quantity::parse(&marked.value).expect("a value"),
            timestamp: Timestamp::from_micros(clock::now_micros()),
            idempotency_key: Some(key.into()),
            resource_id: Some(marked.resource),
            resource_type: Some("vm".into()),
            subject_id: Some(marked.subject),
            subject_type: Some("user".into()),
            metadata: Some(serde_json::json!({"note": marked.metadata}).to_string()),
        }
    }

    fn of(&self, tenant_id: Uuid, key: &str) -> UsageRecord {
        UsageRecord { tenant_id, record_id: ids::record_id(tenant_id, key), ..self.record(key) }
    }

    fn sign(&self, key: String, value: Vec<u8>) -> Message {
        let signature = self.key.sign(key.as_bytes(), &value);
        Message { key, value, key_id: SOURCE_KEY.0, signature }
    }

    fn message(&self, record: &UsageRecord) -> Message {
        self.sign(record.tenant_id.to_string(), Encoder::new().encode(record))
    }

    /// One message for each reason, after one that is kept.
    fn messages(&self, denied: Uuid, full: Uuid) -> Vec<(Option<Reason>, Message)> {
        let changed = |key: &str, change: &dyn Fn(&mut UsageRecord)| {
            let mut record = self.record(key);
            change(&mut record);
            self.message(&record)
        };
        let at = |record: &UsageRecord, by: i64| Timestamp::from_micros(record.timestamp.micros() + by);
        let micros = |time: Duration| i64::try_from(time.as_micros()).expect("some years");
        let value = Encoder::new().encode(&self.record("other frame"));
        let tenant = self.marked.tenant.to_string();
        let garbage = format!("{} {} {}", self.marked.value, self.marked.subject, self.marked.metadata);
        let mut unknown = value.clone();
        unknown[2..10].fill(0x5a);
        let of = |reason: Reason, message: Message| (Some(reason), message);
        vec![
            (None, self.message(&self.record("kept"))),
            of(Reason::Undecodable, self.sign(tenant.clone(), garbage.into_bytes())),
            of(Reason::UnknownSchema, self.sign(tenant, unknown)),
            of(
                Reason::BadSignature,
                Message { signature: "00".repeat(32), ..self.message(&self.record("unsigned")) },
            ),
            of(Reason::UnknownSource, Message { key_id: "nobodys", ..self.message(&self.record("nobodys")) }),
            of(Reason::WrongPartition, self.sign(self.marked.subject.to_string(), value)),
            of(Reason::IdMismatch, changed("id", &|record| record.record_id = self.marked.resource)),
            of(
                Reason::InvalidRecord,
                changed("negative", &|record| {
                    record.value = Quantity::parse(&format!("-{}", self.marked.value)).expect("a value");
                }),
            ),
            of(
                Reason::MetadataTooLarge,
                changed("large", &|record| {
                    let note = self.marked.metadata.repeat(400);
                    record.metadata = Some(serde_json::json!({"note": note}).to_string());
                }),
            ),
            of(Reason::InFuture, changed("future", &|record| record.timestamp = at(record, micros(YEAR)))),
            of(Reason::TooOld, changed("past", &|record| record.timestamp = at(record, -9 * micros(YEAR)))),
            of(Reason::UnknownUsageType, changed("type", &|record| record.metric = "mail.sent".into())),
            of(Reason::SchemaViolation, changed("bounded", &|record| record.metric = BOUNDED.into())),
            of(
                Reason::Conflict,
                changed("kept", &|record| {
                    record.value = Quantity::parse(&self.marked.other_value).expect("a value");
                }),
            ),
            of(Reason::ForbiddenTenant, self.message(&self.of(denied, "denied"))),
            of(Reason::QuotaExceeded, self.message(&self.of(full, "full"))),
            of(Reason::StorageRefused, self.message(&self.record("refused by storage"))),
        ]
    }
}

async fn write(pipeline: &Pipeline, message: &Message) -> anyhow::Result<()> {
    let headers = [
        (names::HEADER_PAYLOAD_TYPE, names::PAYLOAD_RECORD),
        (names::HEADER_SOURCE, SOURCE),
        (names::HEADER_KEY_ID, message.key_id),
        (names::HEADER_SIGNATURE, &message.signature),
    ];
    let (key, value) = (message.key.as_bytes(), message.value.as_slice());
    topic::write(pipeline.records_topic(), Some(0), Some(key), Some(value), &headers).await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_refused_record_the_reason_is_written_and_nothing_that_it_holds() -> anyhow::Result<()> {
    let (secrets, marked) = (Secrets::new(), Marked::new());
    let (denied, full) = (Uuid::new_v4(), Uuid::new_v4());
    let point = Point::start(&secrets.policy, denied).await?;
    let pipeline = prepared(&secrets, &point, None, &[]).await?;
    pipeline.usagectl(&[
        "quota",
        "set",
        SOURCE,
        "--tenant",
        &full.to_string(),
        "--records",
        "0",
        "--window",
        "1h",
    ])?;
    let rules = ["--rules", r#"{"max": "5"}"#];
    pipeline
        .usagectl(&[&["types", "add", BOUNDED, "--kind", "counter", "--unit", "1"][..], &rules].concat())?;
    // ClickHouse quotes every column that a constraint looked at.
    let picky = "idempotency_key IS NULL OR idempotency_key != 'refused by storage' OR \
                 (value < 0 AND metadata = '' AND subject_id IS NULL AND resource_id IS NULL)";
    pipeline.clickhouse(&format!("ALTER TABLE usage_records ADD CONSTRAINT picky CHECK {picky}")).await?;

    let digits = usage_tests::backlog::unhex(SOURCE_KEY.1)?;
    let writer = Writer { marked: &marked, key: SigningKey::new(SOURCE_KEY.0, &digits) };
    let messages = writer.messages(denied, full);
    let expected: BTreeSet<&str> =
        messages.iter().filter_map(|(reason, _)| *reason).map(Reason::as_str).collect();
    assert_eq!(
        expected,
        Reason::ALL.iter().map(|reason| reason.as_str()).collect(),
        "every reason has a record"
    );
    for (_, message) in &messages {
        write(&pipeline, message).await?;
    }
    let mut consumer = pipeline.consumer()?;
    let letters = topic::await_letters(pipeline.dead_letters_topic(), expected.len(), PATIENCE).await?;
    let reasons: BTreeSet<&str> =
        letters.iter().map(|letter| letter.header(names::HEADER_DLQ_REASON)).collect();
    assert_eq!(reasons, expected);
    assert!(point.answered() > 0 && point.turned_away() == 0);

    let mut written = Written::default();
    written.add("usage-consumer's metrics", consumer.metrics()?);
    // What stands beside a letter is for operators and for tables, like the log.
    let errors: Vec<&str> = letters.iter().map(|letter| letter.header(names::HEADER_DLQ_ERROR)).collect();
    assert!(errors.iter().all(|error| !error.is_empty()), "{errors:?}");
    written.add("the letters' errors", errors.join("\n"));
    for line in
        [&["dead-letters", "list"][..], &["dead-letters", "list", "--json"], &["dead-letters", "count"]]
    {
        written.add(&format!("usagectl {line:?}"), pipeline.usagectl(line)?);
    }
    consumer.terminate()?;
    written.add("usage-consumer", consumer.log()?);
    secrets.assert_absent_all(&written, &pipeline)?;
    marked.assert_absent_all(&written);
    written.assert_no_statement();
    Ok(())
}
