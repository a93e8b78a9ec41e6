//! Nanoseconds per record of what the hot path does, and of apache-avro beside it in the same run.
//!
//! `cargo bench -p usage-schemas`; each line is the fastest of several rounds, so that a busy machine disturbs less.

use std::hint::black_box;
use std::time::{Duration, Instant};

use apache_avro::reader::datum::GenericDatumReader;
use usage_schemas::codec::{Decoder, Encoder};
use usage_schemas::signature::SigningKey;
use usage_schemas::{Bounds, Kind, Quantity, Timestamp, UsageRecord, ids, partition, schema, validate};
use uuid::Uuid;

const RECORDS: usize = 2_000;
const ROUNDS: usize = 200;

fn record(number: usize) -> UsageRecord {
    let tenant_id = Uuid::from_u128(0x0190_f3c2_6f1e_7a44_9d3b_5a1f_0c2e_7b10 + (number % 200) as u128);
    let idempotency_key = format!("req-{number:016x}");
    UsageRecord {
        record_id: ids::record_id(tenant_id, &idempotency_key),
        tenant_id,
        source: "llm-gateway".into(),
        metric: "llm.input_tokens".into(),
        kind: Kind::Counter,
        value: Quantity::parse(&(number % 5_000).to_string()).expect("a number"),
        timestamp: Timestamp::from_micros(1_767_323_045_000_006 + number as i64),
        idempotency_key: Some(idempotency_key),
        resource_id: Some(Uuid::from_u128(number as u128)),
        resource_type: Some("model".into()),
        subject_id: Some(Uuid::from_u128(number as u128 % 1_000)),
        subject_type: Some("user".into()),
        metadata: Some(r#"{"model":"m1","region":"eu-west-1"}"#.into()),
    }
}

/// Fastest time of a round over all records.
fn time(mut round: impl FnMut()) -> Duration {
    let rounds = (0..ROUNDS).map(|_| {
        let started = Instant::now();
        round();
        started.elapsed()
    });
    rounds.min().expect("rounds")
}

fn report(name: &str, time: Duration) {
    println!("{name:<44} {:>7} ns/record", time.as_nanos() / RECORDS as u128);
}

fn main() {
    let records: Vec<UsageRecord> = (0..RECORDS).map(record).collect();
    let encoder = Encoder::new();
    let values: Vec<Vec<u8>> = records.iter().map(|record| encoder.encode(record)).collect();
    println!("{RECORDS} records of {} bytes", values[0].len());

    let decoder = Decoder::new();
    let own = time(|| {
        for value in &values {
            black_box(decoder.decode(black_box(value)).expect("a record"));
        }
    });
    report("decode, own", own);

    // An added field makes it another schema, with the same values before it.
    let newer_schema = schema::USAGE_RECORD.replace(
        r#"{"name": "metadata""#,
        r#"{"name": "nothing", "type": "null", "default": null}, {"name": "metadata""#,
    );
    let parsed = apache_avro::Schema::parse_str(&newer_schema).expect("a schema");
    let fingerprint = schema::fingerprint(&schema::canonical_form(&parsed)).to_le_bytes();
    let newer: Vec<Vec<u8>> =
        values.iter().map(|value| [&value[..2], &fingerprint, &value[10..]].concat()).collect();
    let planned = Decoder::with_schemas(&[&newer_schema]).expect("a plan");
    let by_plan = time(|| {
        for value in &newer {
            black_box(planned.decode(black_box(value)).expect("a record"));
        }
    });
    report("decode, own, by the plan of another schema", by_plan);

    let reader = GenericDatumReader::builder(schema::current()).build().expect("a reader");
    let reference = time(|| {
        for value in &values {
            black_box(reader.read_value(&mut black_box(&value[10..])).expect("a record"));
        }
    });
    report("decode, apache-avro (values, no resolution)", reference);
    println!("ratio                                        {:>7.1}", reference.div_duration_f64(own));

    report(
        "validate",
        time(|| {
            for record in &records {
                let now = record.timestamp;
                validate::validate(black_box(&record.borrowed()), &Bounds::default(), now).expect("valid");
            }
        }),
    );
    report(
        "record id",
        time(|| {
            for record in &records {
                let key = record.idempotency_key.as_deref().expect("a key");
                black_box(ids::record_id(black_box(record.tenant_id), key));
            }
        }),
    );
    report(
        "content hash",
        time(|| {
            for record in &records {
                black_box(ids::content_hash(black_box(&record.borrowed())));
            }
        }),
    );
    report(
        "partition",
        time(|| {
            for record in &records {
                black_box(partition::partition_of(black_box(record.tenant_id), 12));
            }
        }),
    );
    let signing_key = SigningKey::new("demo-1", &[7; 32]);
    let key = records[0].tenant_id.to_string();
    let signatures: Vec<String> =
        values.iter().map(|value| signing_key.sign(key.as_bytes(), value)).collect();
    report(
        "verify signature",
        time(|| {
            for (value, signature) in values.iter().zip(&signatures) {
                assert!(signing_key.verify(key.as_bytes(), black_box(value), signature.as_bytes()));
            }
        }),
    );
    report(
        "encode (apache-avro)",
        time(|| {
            for record in &records {
                black_box(encoder.encode(black_box(record)));
            }
        }),
    );
}
