//! Letters of real refusals and made ones, and usagectl's words about them.

use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use usage_schemas::Timestamp;
use usage_schemas::partition::partition_of;
use usage_service::clock;
use usage_tests::pipeline::{Options, Pipeline, Running};
use usage_tests::source::{self, Work};
use usage_tests::{topic, workload};
use uuid::Uuid;

pub const PATIENCE: Duration = Duration::from_secs(300);
/// A usage type that nobody has registered at first.
pub const UNREGISTERED: &str = "mail.sent";

/// A pipeline whose topics have one partition, without processes: the test writes the letters.
pub async fn desk() -> anyhow::Result<Pipeline> {
    Pipeline::prepare(Options { partitions: Some(1), ..Options::default() }).await
}

/// Runs `usagectl dead-letters … --json`.
pub fn ask(pipeline: &Pipeline, arguments: &[&str]) -> anyhow::Result<Value> {
    let line: Vec<&str> = ["dead-letters"].iter().chain(arguments).copied().chain(["--json"]).collect();
    let answer = pipeline.usagectl(&line)?;
    serde_json::from_str(&answer).with_context(|| format!("{arguments:?} answered no JSON: {answer}"))
}

/// How many letters are open.
pub fn open(pipeline: &Pipeline, filter: &[&str]) -> anyhow::Result<u64> {
    let line: Vec<&str> = ["count"].iter().chain(filter).copied().collect();
    ask(pipeline, &line)?["letters"].as_u64().context("a count has letters")
}

/// How many letters a replay or a discard has settled.
pub fn settled(tally: &Value) -> u64 {
    let by_reason = tally["settled"].as_object().expect("a tally says what was settled");
    by_reason.values().filter_map(Value::as_u64).sum()
}

/// A letter as the consumer writes it, of a message that never was; written to partition 0.
pub async fn write_letter(
    pipeline: &Pipeline,
    origin_offset: i64,
    reason: &str,
    more: &[(&str, &str)],
) -> anyhow::Result<()> {
    let offset = origin_offset.to_string();
    let mut headers = vec![
        ("payload-type", "usage-collector.record.v1"),
        ("usage-source", "mail"),
        ("usage-forwarded", "2"),
        ("dlq-reason", reason),
        ("dlq-error", "a test made it"),
        ("dlq-topic", pipeline.records_topic()),
        ("dlq-partition", "0"),
        ("dlq-offset", &offset),
        ("dlq-timestamp", "1700000000000"),
        ("dlq-attempt", "1"),
    ];
    headers.retain(|(name, _)| !more.iter().any(|(other, _)| other == name));
    headers.extend(more);
    let value = [&[0xff, 0x00][..], offset.as_bytes()].concat();
    topic::write(pipeline.dead_letters_topic(), Some(0), Some(b"key"), Some(&value), &headers).await
}

/// The origins of what was put onto the topic of records, in its order: made letters have them in their values.
pub fn replayed(pipeline: &Pipeline) -> anyhow::Result<Vec<i64>> {
    let messages = topic::read_all(pipeline.records_topic())?;
    let origins = messages.iter().map(|message| {
        let value = message.value.as_deref().and_then(|value| value.get(2..));
        let text = std::str::from_utf8(value.context("a made letter's value")?)?;
        Ok(text.parse()?)
    });
    origins.collect()
}

/// Emits one record and the truth about it in one transaction.
pub async fn bill(pipeline: &Pipeline, work: &Work) -> anyhow::Result<()> {
    let mut tx = pipeline.source.begin().await?;
    source::remember(&mut tx, work).await?;
    workload::usage_emit(&mut tx, work, Timestamp::from_micros(clock::now_micros()), "counter").await?;
    tx.commit().await?;
    Ok(())
}

pub fn work(tenant: Uuid, metric: &str, value: &str, key: &str) -> Work {
    Work { tenant_id: tenant, metric: metric.into(), value: value.into(), key: Some(key.into()) }
}

/// A pipeline at work that has refused `letters` records of an unregistered type, of a tenant in each partition, and kept as
/// many others.
pub async fn refused(letters: usize) -> anyhow::Result<(Pipeline, Running, Vec<Uuid>)> {
    let pipeline = Pipeline::prepare(Options { partitions: Some(3), ..Options::default() }).await?;
    let running = pipeline.run()?;
    // One in each partition, so that what they emit lies behind everything.
    let of = |partition| move |tenant: &Uuid| partition_of(*tenant, 3) == partition;
    let tenant =
        |partition| std::iter::repeat_with(Uuid::new_v4).find(of(partition)).expect("there is no end");
    let tenants: Vec<Uuid> = (0..3).map(tenant).collect();
    for i in 0..letters {
        let tenant = tenants[i % tenants.len()];
        bill(&pipeline, &work(tenant, UNREGISTERED, &(i + 1).to_string(), &format!("mail-{i}"))).await?;
        bill(&pipeline, &work(tenant, "llm.requests", "1", &format!("request-{i}"))).await?;
    }
    topic::await_letters(pipeline.dead_letters_topic(), letters, PATIENCE).await?;
    Ok((pipeline, running, tenants))
}

pub fn register(pipeline: &Pipeline) -> anyhow::Result<()> {
    pipeline.usagectl(&["types", "add", UNREGISTERED, "--kind", "counter", "--unit", "mail"]).map(drop)
}

/// Waits until everything that lies in the topic of records now is decided, and compares all totals with the truth: the
/// tenants lie in all partitions, what they emit now comes behind it, and a partition is decided in order.
pub async fn judge(pipeline: &Pipeline, running: &Running, tenants: &[Uuid]) -> anyhow::Result<()> {
    for tenant in tenants {
        bill(pipeline, &work(*tenant, "llm.requests", "1", &format!("last-{}", Uuid::new_v4()))).await?;
    }
    pipeline.judge(&running.api, PATIENCE).await.map(drop)
}

/// The states that `list --settled` gives, in the order of the places.
pub fn states(pipeline: &Pipeline) -> anyhow::Result<Vec<String>> {
    let list = ask(pipeline, &["list", "--settled"])?;
    let letters = list.as_array().context("a list is an array")?;
    Ok(letters.iter().map(|letter| letter["state"].as_str().unwrap_or_default().to_owned()).collect())
}

/// Runs usagectl with a fail point at which it dies, and sees to it that it did.
pub fn dies(pipeline: &Pipeline, arguments: &[&str], fail_point: &str) -> anyhow::Result<()> {
    let output = pipeline.usagectl_command(arguments).env("USAGE_FAIL_POINT", fail_point).output()?;
    if output.status.code().is_some() {
        bail!("{arguments:?} lived through {fail_point}: {}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}
