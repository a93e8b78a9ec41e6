//! The topic grows while sources emit, relays send, workers store and readers ask: no answer is ever wrong.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use sqlx::PgPool;
use tokio::task::JoinHandle;
use usage_devstack::testing::{kafka_brokers, kafka_tool};
use usage_schemas::{Quantity, Timestamp, names};
use usage_service::clock;
use usage_tests::answers::Api;
use usage_tests::pipeline::{Options, Pipeline, RANGE};
use usage_tests::source::{self, Work};
use usage_tests::{topic, workload};
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(300);
const METRIC: &str = "llm.requests";

/// Readers that remember counts shortly, and the wait that growing owes them.
const CACHE: (&str, &str) = ("USAGE_LIMITS_CACHE", "500ms");
const READERS_WITHIN: &str = "1s";

async fn prepare(partitions: u32) -> anyhow::Result<Pipeline> {
    let env = BTreeMap::from([(CACHE.0, CACHE.1.to_string())]);
    Pipeline::prepare(Options { partitions: Some(partitions), env, ..Options::default() }).await
}

fn grow(pipeline: &Pipeline, partitions: &str) -> anyhow::Result<String> {
    pipeline.usagectl(&["topics", "grow", "--partitions", partitions, "--readers-within", READERS_WITHIN])
}

/// Emits until it is stopped: new work, and every fourth time work of any age again.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl Load {
    /// `round` tells the work of one load from that of another.
    fn start(pool: &PgPool, tenants: &[Uuid], round: usize) -> Self {
        let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let start = |number| {
            let emitting = emit(pool.clone(), tenants.to_vec(), number, stop.clone(), done.clone());
            tokio::spawn(emitting)
        };
        let tasks = [2 * round, 2 * round + 1].map(start).into();
        Self { stop, done, tasks }
    }

    /// Waits for so many transactions from now on.
    async fn more(&self, transactions: usize) -> anyhow::Result<()> {
        let enough = self.done.load(Ordering::SeqCst) + transactions;
        let mut every = tokio::time::interval(Duration::from_millis(5));
        while self.done.load(Ordering::SeqCst) < enough {
            ensure!(!self.tasks.iter().any(JoinHandle::is_finished), "the source has ended by itself");
            every.tick().await;
        }
        Ok(())
    }

    async fn end(self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await??;
        }
        Ok(())
    }
}

async fn emit(
    pool: PgPool,
    tenants: Vec<Uuid>,
    number: usize,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
) -> anyhow::Result<()> {
    let mut random = StdRng::seed_from_u64(number as u64);
    let mut sent: Vec<(Work, Timestamp)> = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let (work, at) = if sent.len() > 20 && random.random_ratio(1, 4) {
            sent[random.random_range(0..sent.len())].clone()
        } else {
            let value = format!("{}.{:06}", random.random_range(0..100), random.random_range(1..1_000_000));
            let work = Work {
                tenant_id: tenants[random.random_range(0..tenants.len())],
                metric: METRIC.into(),
                value,
                key: Some(format!("{number}-{}", sent.len())),
            };
            sent.push((work, Timestamp::from_micros(clock::now_micros())));
            sent[sent.len() - 1].clone()
        };
        let mut tx = pool.begin().await?;
        source::remember(&mut tx, &work).await?;
        workload::usage_emit(&mut tx, &work, at, "counter").await?;
        tx.commit().await?;
        done.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

/// Asks for every tenant's total again and again: none may ever go down or above the truth.
struct Watch {
    stop: Arc<AtomicBool>,
    task: JoinHandle<anyhow::Result<Watched>>,
}

#[derive(Debug, Default)]
struct Watched {
    answers: usize,
    /// By readers that would not answer by counts which they could not be sure of.
    refused: usize,
}

impl Watch {
    fn start(api: Api, source: &PgPool, tenants: &[Uuid]) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let task = tokio::spawn(watch(api, source.clone(), tenants.to_vec(), stop.clone()));
        Self { stop, task }
    }

    async fn end(self) -> anyhow::Result<Watched> {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await?
    }
}

async fn watch(
    api: Api,
    source: PgPool,
    tenants: Vec<Uuid>,
    stop: Arc<AtomicBool>,
) -> anyhow::Result<Watched> {
    let mut last: BTreeMap<Uuid, i128> = BTreeMap::new();
    let mut watched = Watched::default();
    while !stop.load(Ordering::SeqCst) {
        for tenant in &tenants {
            let query = [("from", RANGE.0), ("to", RANGE.1), ("metric", METRIC)];
            let (status, body) = api.try_get(*tenant, "/v1/usage/aggregated", &query).await?;
            if status == 503 {
                watched.refused += 1;
                continue;
            }
            ensure!(status == 200, "{status}: {body}");
            let answer: serde_json::Value = serde_json::from_str(&body)?;
            let sum = match answer["data"].as_array().context("data")?.first() {
                Some(row) => Quantity::parse(row["value"].as_str().context("a sum")?)?.unscaled(),
                None => 0,
            };
            // Read after the answer: it holds whatever the answer may know.
            let truth = source::truth(&source).await?;
            let truth = truth.get(&(*tenant, METRIC.to_string())).map_or("0", |total| &total.sum);
            let before = last.insert(*tenant, sum).unwrap_or(0);
            if sum < before || sum > Quantity::parse(truth)?.unscaled() {
                bail!("tenant {tenant}: {sum} after {before}, the truth is {truth}");
            }
            watched.answers += 1;
        }
    }
    Ok(watched)
}

/// Messages of the topic that a worker forwarded.
fn forwarded(pipeline: &Pipeline) -> anyhow::Result<usize> {
    let letters = topic::read_all(pipeline.records_topic())?;
    Ok(letters.iter().filter(|letter| !letter.header(names::HEADER_FORWARDED).is_empty()).count())
}

#[tokio::test(flavor = "multi_thread")]
async fn growing_from_2_to_4_to_6_under_load_keeps_every_answer_exact() -> anyhow::Result<()> {
    let pipeline = prepare(2).await?;
    let running = pipeline.run()?;
    let second = pipeline.consumer()?;
    let (sleeper, late_api) = pipeline.query_api()?;
    let tenants: Vec<Uuid> = (0..12).map(|_| Uuid::new_v4()).collect();
    let load = Load::start(&pipeline.source, &tenants, 0);
    let watch = Watch::start(running.api, &pipeline.source, &tenants);
    load.more(300).await?;

    let text = grow(&pipeline, "4")?;
    assert!(text.contains("4 is the current count"), "{text}");
    load.more(300).await?;
    // A reader that sleeps through a growth, with the old counts in hand.
    late_api.totals(tenants[0], RANGE.0, RANGE.1).await?;
    sleeper.pause()?;
    grow(&pipeline, "6")?;
    // The relay reads the count anew every 10 s: until then it sends by the old one.
    load.more(600).await?;
    load.end().await?;
    sleeper.resume()?;
    pipeline.judge(&late_api, PATIENCE).await?;
    let watched = watch.end().await?;
    assert!(watched.answers > tenants.len(), "{watched:?}");

    assert!(forwarded(&pipeline)? > 0, "some were sent by an old count");
    assert_eq!(topic::read_all(pipeline.dead_letters_topic())?, []);
    let again = grow(&pipeline, "6")?;
    assert_eq!(again.trim(), "the topics have 6 partitions already");
    drop(second);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grow_that_is_killed_after_any_step_and_called_again_ends_the_same() -> anyhow::Result<()> {
    let pipeline = prepare(2).await?;
    let running = pipeline.run()?;
    let tenants: Vec<Uuid> = (0..12).map(|_| Uuid::new_v4()).collect();
    let (_process, api) = pipeline.query_api()?;
    let watch = Watch::start(running.api, &pipeline.source, &tenants);
    let steps = ["grow.listed", "grow.waited", "grow.added", "grow.marked", "grow.fenced", "grow.recorded"];
    for (number, step) in steps.iter().enumerate() {
        let load = Load::start(&pipeline.source, &tenants, number);
        load.more(60).await?;
        let partitions = (3 + number).to_string();
        let arguments = ["topics", "grow", "--partitions", &partitions, "--readers-within", READERS_WITHIN];
        let point = format!("{step}=kill");
        let killed = pipeline.usagectl_command(&arguments).env("USAGE_FAIL_POINT", point).output()?;
        assert_eq!(killed.status.signal(), Some(9), "{step}: {}", String::from_utf8_lossy(&killed.stderr));
        load.more(60).await?;
        grow(&pipeline, &partitions).with_context(|| format!("again after {step}"))?;
        let again = grow(&pipeline, &partitions)?;
        assert_eq!(again.trim(), format!("the topics have {partitions} partitions already"), "{step}");
        load.end().await?;
        // A record may be forwarded three times: none may wait through more growths than that on a slow machine.
        pipeline.judge(&api, PATIENCE).await.with_context(|| format!("after {step}"))?;
    }
    let watched = watch.end().await?;
    assert!(watched.answers > tenants.len(), "{watched:?}");
    assert_eq!(topic::read_all(pipeline.dead_letters_topic())?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cant_be_grown_is_refused_and_a_dry_run_changes_nothing() -> anyhow::Result<()> {
    let pipeline = prepare(4).await?;
    let run = |arguments: &[&str]| {
        let line = [&["topics", "grow"], arguments].concat();
        let output = pipeline.usagectl_command(&line).output()?;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::Ok((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned() + &error))
    };
    for _ in 0..2 {
        let (code, text) = run(&["--partitions", "6", "--dry-run"])?;
        assert_eq!((code, text.lines().count()), (Some(0), 7), "{text}");
        assert!(
            text.starts_with("1. would list 6 as a known count beside 4\n"),
            "as if never called: {text}"
        );
        assert!(text.contains("from 4 to 6 partitions in Kafka"), "{text}");
    }
    let (code, text) = run(&["--partitions", "3"])?;
    assert!(code == Some(2) && text.contains("--partitions: the topic has 4 partitions"), "{text}");

    let mut tool = kafka_tool("org.apache.kafka.tools.TopicCommand")?;
    tool.args(["--bootstrap-server", &kafka_brokers(), "--alter", "--topic", pipeline.records_topic()]);
    ensure!(tool.args(["--partitions", "6"]).output()?.status.success(), "kafka-topics fails");
    let (code, text) = run(&["--partitions", "5"])?;
    assert!(code == Some(1) && text.contains("run `usagectl topics grow --partitions 6`"), "{text}");
    let text = grow(&pipeline, "6")?;
    assert!(text.contains("6 is the current count"), "{text}");
    Ok(())
}
