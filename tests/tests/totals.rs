//! From `emit` to the answer on real processes: what committed is counted exactly once, what did not is not.

use std::time::Duration;

use usage_producer::{Freshness, NewRecord};
use usage_schemas::{Kind, Quantity, Timestamp};
use usage_service::clock;
use usage_tests::pipeline::{Options, Pipeline, RANGE};
use usage_tests::source::{self, Work};
use usage_tests::topic;
use usage_tests::workload::{self, SOURCE, Workload};
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(300);

fn work(tenant: Uuid, value: &str, key: &str) -> Work {
    Work { tenant_id: tenant, metric: "llm.requests".into(), value: value.into(), key: Some(key.into()) }
}

fn now() -> Timestamp {
    Timestamp::from_micros(clock::now_micros())
}

/// Emits one record and the truth about it in one transaction.
async fn bill(pipeline: &Pipeline, work: &Work, at: Timestamp) -> anyhow::Result<()> {
    let mut tx = pipeline.source.begin().await?;
    source::remember(&mut tx, work).await?;
    workload::usage_emit(&mut tx, work, at, "counter").await?;
    tx.commit().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_with_rollbacks_and_repeats_adds_up() -> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options::default()).await?;
    let running = pipeline.run()?;
    let workload = Workload { transactions: 400, ..Workload::default() };
    let module = workload::collector(running.api.types(Freshness::default())?);
    let played = workload::play(&pipeline.source, &module, &workload, || {}).await?;
    assert!(played.rolled_back > 0 && played.repeated > 0, "{played:?}");
    pipeline.judge(&running.api, PATIENCE).await?;
    assert_eq!(topic::read_all(pipeline.dead_letters_topic())?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_leaves_nothing_and_a_late_commit_is_delivered() -> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options::default()).await?;
    let running = pipeline.run()?;
    let tenant = Uuid::new_v4();

    let mut rolled_back = pipeline.source.begin().await?;
    workload::usage_emit(&mut rolled_back, &work(tenant, "1000", "gone"), now(), "counter").await?;
    // Takes its id before the others and commits after they were delivered.
    let mut late = pipeline.source.begin().await?;
    let late_work = work(tenant, "20", "late");
    source::remember(&mut late, &late_work).await?;
    workload::usage_emit(&mut late, &late_work, now(), "counter").await?;
    bill(&pipeline, &work(tenant, "3", "early"), now()).await?;
    rolled_back.rollback().await?;

    let truth = pipeline.judge(&running.api, PATIENCE).await?;
    assert_eq!(truth.values().next().map(|total| total.sum.as_str()), Some("3"));
    late.commit().await?;
    let truth = pipeline.judge(&running.api, PATIENCE).await?;
    assert_eq!(truth.values().next().map(|total| total.sum.as_str()), Some("23"));
    let outbox: i64 =
        sqlx::query_scalar("SELECT count(*) FROM usage_outbox").fetch_one(&pipeline.source).await?;
    assert_eq!(outbox, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_counts_once_within_and_across_batches_and_restarts() -> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options::default()).await?;
    let mut running = pipeline.run()?;
    let (tenant, at) = (Uuid::new_v4(), now());
    let same = work(tenant, "1.5", "same");
    // One batch, most likely; then another; then a worker that knows the id from storage only.
    bill(&pipeline, &same, at).await?;
    bill(&pipeline, &same, at).await?;
    bill(&pipeline, &work(tenant, "2", "first"), at).await?;
    pipeline.judge(&running.api, PATIENCE).await?;
    bill(&pipeline, &same, at).await?;
    bill(&pipeline, &work(tenant, "4", "second"), at).await?;
    pipeline.judge(&running.api, PATIENCE).await?;
    running.consumer.terminate()?;
    running.consumer = pipeline.consumer()?;
    bill(&pipeline, &same, at).await?;
    bill(&pipeline, &work(tenant, "8", "third"), at).await?;
    let truth = pipeline.judge(&running.api, PATIENCE).await?;
    let total = &truth[&(tenant, "llm.requests".to_string())];
    assert_eq!((total.count.as_str(), total.sum.as_str()), ("4", "15.5"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_with_other_content_is_a_conflict() -> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options::default()).await?;
    let running = pipeline.run()?;
    let (tenant, at) = (Uuid::new_v4(), now());
    bill(&pipeline, &work(tenant, "1", "twice"), at).await?;
    pipeline.judge(&running.api, PATIENCE).await?;
    // Within one transaction of the source and against what is stored.
    let mut tx = pipeline.source.begin().await?;
    workload::usage_emit(&mut tx, &work(tenant, "2", "twice"), at, "counter").await?;
    tx.commit().await?;
    bill(&pipeline, &work(tenant, "5", "after"), at).await?;

    let letters = topic::await_letters(pipeline.dead_letters_topic(), 1, PATIENCE).await?;
    assert_eq!(letters[0].header("dlq-reason"), "conflict");
    assert_eq!(letters[0].header("dlq-topic"), pipeline.records_topic());
    assert_eq!(letters[0].key.as_deref(), Some(tenant.to_string().as_bytes()));
    let truth = pipeline.judge(&running.api, PATIENCE).await?;
    assert_eq!(truth[&(tenant, "llm.requests".to_string())].sum, "6");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn poison_becomes_dead_letters_byte_for_byte_and_blocks_nobody() -> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options::default()).await?;
    let running = pipeline.run()?;
    let tenant = Uuid::new_v4();
    let (key, partition) = (tenant.to_string(), usage_schemas::partition::partition_of(tenant, 12));
    let poison: [&[u8]; 3] = [b"", &[0xc3, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2], &[0xff; 300]];
    let headers =
        [("payload-type", "usage-collector.record.v1"), ("usage-source", SOURCE), ("x-other", "kept")];
    for value in poison {
        topic::write(pipeline.records_topic(), Some(partition), Some(key.as_bytes()), Some(value), &headers)
            .await?;
    }
    topic::write(pipeline.records_topic(), Some(partition), None, None, &[]).await?;
    bill(&pipeline, &work(tenant, "7", "good"), now()).await?;
    pipeline.judge(&running.api, PATIENCE).await?;

    let letters = topic::await_letters(pipeline.dead_letters_topic(), 4, PATIENCE).await?;
    assert_eq!(letters.len(), 4);
    for value in poison {
        let letter =
            letters.iter().find(|letter| letter.value.as_deref() == Some(value)).expect("bytes untouched");
        assert_eq!(letter.header("x-other"), "kept");
        assert_eq!(letter.header("dlq-attempt"), "1");
        assert!(!letter.header("dlq-error").is_empty());
        assert_eq!(letter.key.as_deref(), Some(key.as_bytes()));
    }
    assert!(letters.iter().any(|letter| letter.value.is_none() && letter.key.is_none()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rust_and_sql_write_the_same_record() -> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options::default()).await?;
    let running = pipeline.run()?;
    let (tenant, at) = (Uuid::new_v4(), now());
    let module = workload::unchecked_collector();
    let ctx = usage_access::SecurityContext::for_tenant(tenant, usage_access::Scopes::all());
    let auth = module.authorize_emit(&ctx, "llm.requests").await?;
    let same = work(tenant, "2.5", "both");
    let mut tx = pipeline.source.begin().await?;
    source::remember(&mut tx, &same).await?;
    let record = NewRecord {
        timestamp: Some(at),
        kind: Kind::Counter,
        ..NewRecord::counter(tenant, "llm.requests", Quantity::parse("2.5")?, "both")
    };
    let from_rust = module.emit(&mut *tx, &ctx, record, &auth).await?;
    let from_sql = workload::usage_emit(&mut tx, &same, at, "counter").await?;
    assert_eq!(from_rust, from_sql);
    tx.commit().await?;
    // A conflict would be a dead letter and the count would still be 1: ask for both.
    pipeline.judge(&running.api, PATIENCE).await?;
    bill(&pipeline, &work(tenant, "1", "after"), at).await?;
    pipeline.judge(&running.api, PATIENCE).await?;
    assert_eq!(topic::read_all(pipeline.dead_letters_topic())?, []);

    let record = running.api.get(tenant, &format!("/v1/usage/records/{from_rust}"), &[]).await?;
    assert_eq!(record["value"], "2.5");
    assert_eq!(record["idempotency_key"], "both");
    let raw = running.api.get(tenant, "/v1/usage/raw", &[("from", RANGE.0), ("to", RANGE.1)]).await?;
    assert_eq!(raw["data"].as_array().map(Vec::len), Some(2), "{raw}");
    let (status, _) =
        running.api.try_get(Uuid::new_v4(), &format!("/v1/usage/records/{from_rust}"), &[]).await?;
    assert_eq!(status, 404, "another tenant's record is not there");
    Ok(())
}
