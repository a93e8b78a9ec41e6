//! Whatever the records: an error writes nothing, a success writes each of them once, and the transaction is of use afterwards.

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sqlx::Connection as _;
use usage_producer::{EmitAuthorization, EmitError, NewRecord, ScopedCollector};
use usage_schemas::{Kind, Quantity, Timestamp};
use usage_service::clock;
use uuid::Uuid;

use crate::support::{Source, caller, trusting};

const TENANT: Uuid = Uuid::from_u128(1);

fn one_of(texts: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(texts).prop_map(str::to_owned)
}

fn keys() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        30 => "[a-zé\u{1f600}]{1,40}".prop_map(Some),
        1 => Just(None),
        1 => one_of(&["", "a\0b", " "]).prop_map(Some),
        1 => (254..258_usize).prop_map(|length| Some("x".repeat(length))),
    ]
}

fn metadata() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        15 => Just(None),
        15 => one_of(&["{}", "{\"a\": 1}", "{\"nul\":\"\\u0000\"}"]).prop_map(Some),
        1 => one_of(&["", "[]", "{", "null", "{\"a\":1}x"]).prop_map(Some),
        1 => (8_180..8_200_usize).prop_map(|length| Some(format!("{{\"a\":\"{}\"}}", "x".repeat(length - 8)))),
    ]
}

fn records() -> impl Strategy<Value = NewRecord> {
    let tenant = prop_oneof![40 => Just(TENANT), 1 => Just(Uuid::nil()), 1 => Just(Uuid::from_u128(2))];
    let metric =
        prop_oneof![30 => Just("llm.tokens".to_owned()), 1 => one_of(&["", "LLM", "llm.requests", "a b"])];
    let kind = prop_oneof![3 => Just(Kind::Counter), 1 => Just(Kind::Gauge)];
    let value = prop_oneof![
        30 => 0..10_i128.pow(30),
        1 => -1_000..0_i128,
        1 => Just(10_i128.pow(38) - 1),
    ];
    let times = prop_oneof![20 => Just(None), 10 => (-90_i64..1).prop_map(Some), 1 => (-4_000_i64..4_000).prop_map(Some)];
    let resource_type = prop_oneof![30 => Just(None), 20 => one_of(&["vm", "model.large"]).prop_map(Some), 1 => one_of(&["VM", ""]).prop_map(Some)];
    let traceparent = prop_oneof![
        30 => Just(None),
        1 => one_of(&["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-abc"]).prop_map(Some),
    ];
    (tenant, metric, kind, value, times, keys(), resource_type, (metadata(), traceparent)).prop_map(
        |(tenant_id, metric, kind, value, days, idempotency_key, resource_type, (metadata, traceparent))| {
            NewRecord {
                tenant_id,
                metric,
                kind,
                value: Quantity::from_unscaled(value).unwrap(),
                timestamp: days
                    .map(|days| Timestamp::from_micros(clock::now_micros() + days * 86_400_000_000)),
                idempotency_key,
                resource_id: None,
                resource_type,
                metadata,
                traceparent,
            }
        },
    )
}

/// Emits in a transaction, counts what it sees there and goes back.
async fn emit(
    source: &Source,
    collector: &ScopedCollector,
    auth: &EmitAuthorization,
    records: Vec<NewRecord>,
) -> (Result<usize, EmitError>, i64) {
    let ctx = caller(TENANT);
    let mut connection = source.pool.acquire().await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    let result = match <[NewRecord; 1]>::try_from(records) {
        Ok([record]) => collector.emit(&mut tx, &ctx, record, auth).await.map(|_| 1),
        Err(records) => collector.emit_batch(&mut tx, &ctx, records, auth).await.map(|ids| ids.len()),
    };
    let written = sqlx::query_scalar("SELECT count(*) FROM usage_outbox").fetch_one(&mut *tx).await.unwrap();
    tx.rollback().await.unwrap();
    (result, written)
}

#[test]
fn an_error_writes_nothing_and_a_success_writes_each_record_once() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let source = runtime.block_on(Source::new());
    let usage = trusting().authorization_max_age(Duration::from_secs(3_600)).build().unwrap();
    let (collector, other) = (usage.for_module("llm-gateway"), usage.for_module("billing"));
    let auth = runtime.block_on(collector.authorize_emit(&caller(TENANT), "llm.tokens")).unwrap();
    let foreign = runtime.block_on(other.authorize_emit(&caller(TENANT), "llm.tokens")).unwrap();
    let (kept, refused) = (Cell::new(0), Cell::new(0));
    let cases = (prop::collection::vec(records(), 1..4), prop::bool::weighted(0.95));
    TestRunner::new(Config { cases: 400, failure_persistence: None, ..Config::default() })
        .run(&cases, |(records, own)| {
            let (count, shown) = (records.len(), format!("{records:?}"));
            let auth = if own { &auth } else { &foreign };
            let (result, written) = runtime.block_on(emit(&source, &collector, auth, records));
            match result {
                Ok(ids) => {
                    kept.set(kept.get() + 1);
                    prop_assert!(own && ids == count && written == i64::try_from(count).unwrap(), "{shown}");
                }
                Err(error) => {
                    refused.set(refused.get() + 1);
                    prop_assert_eq!(written, 0, "{} after {}", shown, error);
                    prop_assert!(error.field().is_some(), "{} names no field", error);
                }
            }
            Ok(())
        })
        .unwrap();
    let (kept, refused) = (kept.get(), refused.get());
    assert!(kept > 40 && refused > 40, "{kept} kept and {refused} refused: both must be common");
}
