//! What an operator scrapes from a worker: each record under its tenant, its registered usage type and what became of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use usage_schemas::Timestamp;
use usage_service::clock;
use usage_tests::pipeline::{Options, Pipeline, Process};
use usage_tests::source::Work;
use usage_tests::workload;
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(120);

/// The series of one metric: the values of `labels`, in their order, and the series' value.
fn series(scraped: &str, metric: &str, labels: &[&str]) -> anyhow::Result<BTreeMap<Vec<String>, String>> {
    let mut found = BTreeMap::new();
    for line in scraped.lines() {
        let Some(rest) = line.strip_prefix(metric).and_then(|rest| rest.strip_prefix('{')) else { continue };
        let (head, value) = rest.rsplit_once("} ").with_context(|| line.to_owned())?;
        // No value of these labels holds a comma or a quotation mark.
        let pairs: BTreeMap<&str, &str> = head
            .split(',')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name, value.trim_matches('"')))
            .collect();
        ensure!(pairs.keys().copied().eq(labels.iter().copied()), "{line} has other labels than {labels:?}");
        found.insert(pairs.values().map(ToString::to_string).collect(), value.to_owned());
    }
    Ok(found)
}

/// Scrapes until the metric has these series and no others.
async fn shows(
    process: &Process,
    metric: &str,
    labels: &[&str],
    expected: &[(Vec<String>, &str)],
) -> anyhow::Result<()> {
    let expected: BTreeMap<_, _> =
        expected.iter().map(|(labels, value)| (labels.clone(), (*value).to_owned())).collect();
    let deadline = Instant::now() + PATIENCE;
    let mut every = tokio::time::interval(Duration::from_millis(100));
    loop {
        every.tick().await;
        let found = series(&process.metrics()?, metric, labels)?;
        if found == expected {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{metric} shows {found:#?}, not {expected:#?}");
    }
}

async fn emit(
    pipeline: &Pipeline,
    at: Timestamp,
    tenant: Uuid,
    metric: &str,
    value: &str,
    key: &str,
) -> anyhow::Result<()> {
    let work = Work { tenant_id: tenant, metric: metric.into(), value: value.into(), key: Some(key.into()) };
    let mut connection = pipeline.source.acquire().await?;
    workload::usage_emit(&mut connection, &work, at, "counter").await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_record_counts_under_its_registered_type_and_an_unregistered_one_makes_no_series()
-> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options { partitions: Some(1), ..Options::default() }).await?;
    let rules = ["--kind", "counter", "--unit", "second", "--rules", r#"{"max": "5"}"#];
    pipeline.usagectl(&[&["types", "add", "gpu.seconds"], &rules[..]].concat())?;
    let (one, flooding) = (Uuid::new_v4(), Uuid::new_v4());
    let over = flooding.to_string();
    pipeline.usagectl(&[
        "quota",
        "set",
        "demo",
        "--tenant",
        &over,
        "--records",
        "1",
        "--window",
        "30days",
    ])?;
    let running = pipeline.run()?;
    // Of one time, so that the same key is the same content.
    let at = Timestamp::from_micros(clock::now_micros());
    emit(&pipeline, at, one, "llm.requests", "1", "a").await?;
    emit(&pipeline, at, one, "llm.requests", "1", "a").await?;
    emit(&pipeline, at, one, "llm.requests", "2", "a").await?;
    for (number, name) in ["mail.sent", "mail.opened", "mail.sent"].iter().enumerate() {
        emit(&pipeline, at, one, name, "1", &format!("mail-{number}")).await?;
    }
    emit(&pipeline, at, one, "gpu.seconds", "6", "too-long").await?;
    for number in 0..3 {
        emit(&pipeline, at, flooding, "llm.input_tokens", "1", &number.to_string()).await?;
    }

    let of = |status: &str, tenant: Uuid, usage_type: &str| {
        vec![status.to_owned(), tenant.to_string(), usage_type.to_owned()]
    };
    let worker = &running.consumer;
    let expected = [
        (of("success", one, "llm.requests"), "1"),
        (of("dedup", one, "llm.requests"), "1"),
        // The conflict, and what broke the rule.
        (of("validation_error", one, "llm.requests"), "1"),
        (of("validation_error", one, "gpu.seconds"), "1"),
        (of("validation_error", one, "unregistered"), "3"),
        (of("success", flooding, "llm.input_tokens"), "1"),
        (of("quota_exceeded", flooding, "llm.input_tokens"), "2"),
    ];
    shows(worker, "usage_ingestion_total", &["status", "tenant_id", "usage_type"], &expected).await?;
    let of = |usage_type: &str| vec![one.to_string(), usage_type.to_owned()];
    let expected = [(of("gpu.seconds"), "1"), (of("unregistered"), "3")];
    shows(worker, "usage_schema_validation_errors_total", &["tenant_id", "usage_type"], &expected).await?;
    shows(worker, "consumer_over_quota_total", &["source"], &[(vec!["demo".to_owned()], "2")]).await?;
    let scraped = worker.metrics()?;
    ensure!(!scraped.contains("mail."), "an unregistered name is in the metrics");
    Ok(())
}
