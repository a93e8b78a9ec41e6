//! Rules of usage types on real servers: refused, replayed, and judged by the version of the record's own time.

mod support;

use std::collections::BTreeMap;

use support::{Message, Pipeline, eventually, logs};
use usage_control::{LEAD, NewUsageType, Registration};
use usage_schemas::{Kind, Quantity, Rules, Timestamp, UsageRecord};
use usage_service::clock;
use uuid::Uuid;

const METRIC: &str = "gpu.seconds";

fn version(version: i32, valid_from: Option<i64>, max: &str) -> NewUsageType {
    NewUsageType {
        version,
        valid_from: valid_from.map(Timestamp::from_micros),
        rules: Rules { max: Some(Quantity::parse(max).unwrap()), ..Rules::default() },
        ..NewUsageType::new(METRIC, Kind::Counter, "second")
    }
}

async fn register(pipeline: &Pipeline, new: &NewUsageType) {
    let registration = pipeline.control.register_type(new).await.unwrap();
    assert!(matches!(registration, Registration::Created(_)), "{registration:?}");
}

fn record(pipeline: &Pipeline, tenant: Uuid, key: &str, units: i64) -> UsageRecord {
    UsageRecord { metric: METRIC.into(), ..pipeline.record(tenant, key, units) }
}

/// Idempotency keys of what is stored, ascending.
async fn stored(pipeline: &Pipeline, tenant: Uuid) -> Vec<String> {
    let stored = pipeline.stored(tenant).await;
    let mut keys: Vec<String> = stored.into_iter().filter_map(|record| record.idempotency_key).collect();
    keys.sort();
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_rule_refused_is_kept_when_it_is_replayed_under_a_version_that_allows_it() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = Uuid::new_v4();
    register(&pipeline, &version(1, None, "5")).await;
    // The regular refresh is far away.
    let worker = pipeline.worker(&["consumer.registry_refresh=1h"]);
    let records = [("a", 5), ("b", 6), ("c", 1)].map(|(key, units)| record(&pipeline, tenant, key, units));
    pipeline.send_records(&records).await;
    eventually("two are kept and one is refused", || async {
        stored(&pipeline, tenant).await == ["a", "c"] && pipeline.dead_letters().await.len() == 1
    })
    .await;
    let letter = pipeline.dead_letters().await.remove(0);
    assert_eq!(letter.reason(), "schema_violation");
    assert_eq!(letter.dlq["dlq-error"], "value: is greater than the maximum (version 1 of the usage type)");

    // It only allows more, so it may begin before the record's time.
    register(&pipeline, &version(2, Some(records[1].timestamp.micros()), "6")).await;
    let replayed = Message { partition: 0, key: letter.key, value: letter.value, headers: letter.headers };
    pipeline.send(&[replayed]).await;
    eventually("it is kept", || async { stored(&pipeline, tenant).await == ["a", "b", "c"] }).await;
    assert_eq!(pipeline.dead_letters().await.len(), 1);
    worker.stop().await;
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_in_flight_keep_the_version_of_their_own_time() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = Uuid::new_v4();
    register(&pipeline, &version(1, None, "5")).await;
    let lead = i64::try_from(LEAD.as_micros()).unwrap();
    register(&pipeline, &version(2, Some(clock::now_micros() + 2 * lead), "1")).await;
    // As if that had been long ago.
    let begun = clock::now_micros() - 60_000_000;
    let from = Timestamp::from_micros(begun);
    let update = format!("UPDATE usage_types SET valid_from = '{from}' WHERE version = 2");
    pipeline.database.execute(&update).await;
    let at = |key: &str, units: i64, micros: i64| UsageRecord {
        timestamp: Timestamp::from_micros(micros),
        ..record(&pipeline, tenant, key, units)
    };
    let records = [
        at("before", 5, begun - 1),
        at("before, too much", 6, begun - 1),
        at("just then", 1, begun),
        at("just then, too much", 2, begun),
        at("after, too much", 5, begun + 1),
    ];
    pipeline.send_records(&records).await;
    let worker = pipeline.worker(&[]);
    eventually("all are decided", || async {
        stored(&pipeline, tenant).await.len() + pipeline.dead_letters().await.len() == records.len()
    })
    .await;
    assert_eq!(stored(&pipeline, tenant).await, ["before", "just then"]);
    let letters = pipeline.dead_letters().await;
    let errors: BTreeMap<&str, &str> = letters
        .iter()
        .map(|letter| (letter.dlq["dlq-offset"].as_str(), letter.dlq["dlq-error"].as_str()))
        .collect();
    for (offset, version) in [("1", "version 1"), ("3", "version 2"), ("4", "version 2")] {
        assert!(errors[offset].contains(version), "{errors:?}");
    }
    assert!(letters.iter().all(|letter| letter.reason() == "schema_violation"));
    worker.stop().await;
    pipeline.end().await;
}
