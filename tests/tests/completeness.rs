//! `complete_until` from the source's clock to the answer, on real processes.

use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::PgPool;
use usage_schemas::Timestamp;
use usage_service::clock;
use usage_tests::answers::Api;
use usage_tests::pipeline::{Options, Pipeline, RANGE};
use usage_tests::source::Work;
use usage_tests::workload::{self, SOURCE};
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(300);
const METRIC: &str = "llm.requests";

async fn emit(connection: &mut sqlx::PgConnection, tenant: Uuid, value: &str) -> anyhow::Result<()> {
    let key = Some(Uuid::new_v4().to_string());
    let work = Work { tenant_id: tenant, metric: METRIC.into(), value: value.into(), key };
    let at = Timestamp::from_micros(clock::now_micros());
    workload::usage_emit(connection, &work, at, "counter").await?;
    Ok(())
}

/// The clock that `complete_until` is on.
async fn source_clock(source: &PgPool) -> anyhow::Result<i64> {
    let micros = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    Ok(sqlx::query_scalar(micros).fetch_one(source).await?)
}

/// One answer: `complete_until` and the sum.
async fn ask(api: &Api, tenant: Uuid) -> anyhow::Result<(Option<i64>, String)> {
    let query = [("from", RANGE.0), ("to", RANGE.1), ("metric", METRIC), ("source", SOURCE)];
    let answer = api.get(tenant, "/v1/usage/aggregated", &query).await?;
    let until = match &answer["complete_until"] {
        Value::String(text) => Some(Timestamp::parse(text)?.micros()),
        _ => None,
    };
    Ok((until, answer["data"][0]["value"].as_str().unwrap_or("0").to_owned()))
}

/// Asks until the source is complete beyond `time`; gives that answer's sum. `each` judges every answer on the way.
async fn complete_beyond(
    api: &Api,
    tenant: Uuid,
    time: i64,
    each: impl Fn(Option<i64>, &str),
) -> anyhow::Result<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut every = tokio::time::interval(Duration::from_millis(100));
    loop {
        every.tick().await;
        let (until, sum) = ask(api, tenant).await?;
        each(until, &sum);
        if until.is_some_and(|until| until > time) {
            return Ok(sum);
        }
        anyhow::ensure!(Instant::now() < deadline, "complete until {until:?}, waiting for {time}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_open_holds_its_source_and_an_idle_source_advances() -> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options::default()).await?;
    let running = pipeline.run()?;
    let tenant = Uuid::new_v4();
    complete_beyond(&running.api, tenant, source_clock(&pipeline.source).await?, |_, _| {}).await?;

    let mut late = pipeline.source.begin().await?;
    emit(&mut late, tenant, "20").await?;
    let emitted = source_clock(&pipeline.source).await?;
    let mut early = pipeline.source.begin().await?;
    emit(&mut early, tenant, "3").await?;
    early.commit().await?;
    // The second record is counted, and time goes on; the first one's transaction holds the source all the same.
    let deadline = Instant::now() + PATIENCE;
    let mut counted = 0;
    while counted < 20 {
        let (until, sum) = ask(&running.api, tenant).await?;
        assert!(until.is_some_and(|until| until <= emitted), "{until:?} is beyond {emitted}, which is open");
        counted += usize::from(sum == "3");
        anyhow::ensure!(Instant::now() < deadline, "the early record was not counted");
    }
    late.commit().await?;
    let sum = complete_beyond(&running.api, tenant, emitted, |until, sum| {
        assert!(until.is_none_or(|until| until <= emitted) || sum == "23", "{until:?} with {sum}");
    });
    assert_eq!(sum.await?, "23");

    // Nothing is emitted any more.
    for _ in 0..2 {
        let now = source_clock(&pipeline.source).await?;
        assert_eq!(complete_beyond(&running.api, tenant, now, |_, _| {}).await?, "23");
    }
    let marks = running.api.get(tenant, "/v1/usage/metadata/watermarks", &[]).await?;
    assert!(marks["complete_until"].is_string(), "{marks}");
    assert_eq!(marks["sources"][0]["source"], SOURCE);
    assert!(marks["sources"][0]["complete_until"].is_string(), "{marks}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_when_relays_and_workers_die() -> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options { partitions: Some(3), ..Options::with_kills() }).await?;
    let mut running = pipeline.run()?;
    let second_relay = pipeline.relay()?;
    let tenant = Uuid::new_v4();
    let mut expected = 0;
    for round in 0..3 {
        for _ in 0..50 {
            let mut tx = pipeline.source.begin().await?;
            emit(&mut tx, tenant, "1").await?;
            tx.commit().await?;
        }
        expected += 50;
        match round {
            1 => running.relay.kill9(),
            2 => {
                running.consumer.kill9();
                running.consumer = pipeline.consumer()?;
            }
            _ => {}
        }
        let now = source_clock(&pipeline.source).await?;
        let sum = complete_beyond(&running.api, tenant, now, |_, _| {}).await?;
        assert_eq!(sum, expected.to_string(), "round {round}");
    }
    drop(second_relay);
    Ok(())
}
