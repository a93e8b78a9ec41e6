//! A tenant that floods its partition far over its quota, and what a quiet tenant beside it feels: from the commit of its transaction until
//! its record is there to be asked for, alone and beside the flood in turns.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rdkafka::ClientConfig;
use rdkafka::producer::{DefaultProducerContext, Producer as _, ThreadedProducer};
use sqlx::PgPool;
use tokio::time::MissedTickBehavior;
use usage_devstack::testing;
use usage_schemas::codec::Encoder;
use usage_schemas::signature::SigningKey;
use usage_schemas::{Kind, Quantity, Timestamp, UsageRecord, ids};
use usage_service::{CancellationToken, clock};
use uuid::Uuid;

use crate::backlog;
use crate::pipeline::{Options, Pipeline, SOURCE_KEY};
use crate::workload::SOURCE;

/// How it goes.
#[derive(Debug, Clone, Copy)]
pub struct Flood {
    /// Records a second of the quiet tenant.
    pub quiet: u64,
    /// Records a second of the flooding one.
    pub flood: u64,
    /// Records that it may have kept.
    pub quota: u64,
    /// Of each turn.
    pub turn: Duration,
    /// Turns alone, and as many beside the flood.
    pub turns: u32,
}

/// What came of it.
#[derive(Debug)]
pub struct Felt {
    pub alone: Vec<Duration>,
    pub beside: Vec<Duration>,
    pub flooded: u64,
}

const METRIC: &str = "llm.requests";
/// How often it is asked what is there.
const LOOK: Duration = Duration::from_millis(4);
const PATIENCE: Duration = Duration::from_secs(120);

/// Records that committed and were not seen: when, and whether beside the flood.
type Waiting = Mutex<HashMap<Uuid, (Instant, bool)>>;

/// Runs the turns and holds counts and letters against what was sent.
///
/// # Errors
/// When a record of the quiet tenant is lost or refused, or the flood is not held to its quota.
pub async fn run(flood: Flood) -> anyhow::Result<Felt> {
    let pipeline = Pipeline::prepare(Options { partitions: Some(1), ..Options::default() }).await?;
    let (flooding, quiet) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let (tenant, records) = (flooding.to_string(), flood.quota.to_string());
    // A window that does not end meanwhile, whenever this runs.
    let now = clock::now_millis() / 1_000;
    let window = [2_000_000_i64, 2_300_000].into_iter().find(|window| window - now % window > 7_200);
    let window = format!("{}s", window.context("two windows end at once")?);
    let set = ["quota", "set", SOURCE, "--tenant", &tenant, "--records", &records, "--window", &window];
    pipeline.usagectl(&set)?;
    let (_relay, _consumer) = (pipeline.relay()?, pipeline.consumer()?);

    let (stop, floods) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
    let waiting = Arc::new(Waiting::default());
    let emitter = tokio::spawn(emit(
        pipeline.source.clone(),
        quiet,
        flood.quiet,
        waiting.clone(),
        floods.clone(),
        stop.clone(),
    ));
    let topic = pipeline.records_topic().to_owned();
    let flooder = {
        let (floods, stop) = (floods.clone(), stop.clone());
        tokio::task::spawn_blocking(move || produce(&topic, flooding, flood.flood, &floods, &stop))
    };
    let mut felt = Felt { alone: Vec::new(), beside: Vec::new(), flooded: 0 };
    let mut seen = Seen::default();
    // The first turn warms up.
    for turn in 0..=2 * flood.turns {
        floods.store(turn > 0 && turn % 2 == 0, Ordering::SeqCst);
        let end = Instant::now() + flood.turn;
        while Instant::now() < end {
            look(&pipeline, quiet, &waiting, &mut seen, (turn > 0).then_some(&mut felt)).await?;
        }
    }
    floods.store(false, Ordering::SeqCst);
    stop.cancel();
    let emitted = emitter.await??;
    felt.flooded = flooder.await??;
    let end = Instant::now() + PATIENCE;
    while seen.ids.len() < emitted {
        ensure!(Instant::now() < end, "of {emitted} quiet records only {} are there", seen.ids.len());
        look(&pipeline, quiet, &waiting, &mut seen, Some(&mut felt)).await?;
    }
    judge(&pipeline, flooding, flood.quota, felt.flooded).await?;
    Ok(felt)
}

/// Kept is the quota, the rest of the flood are letters, and nobody else's is.
async fn judge(pipeline: &Pipeline, flooding: Uuid, quota: u64, flooded: u64) -> anyhow::Result<()> {
    let kept = format!("SELECT count() FROM usage_records WHERE tenant_id = '{flooding}'");
    let expected = quota.min(flooded);
    let end = Instant::now() + PATIENCE;
    loop {
        let kept: u64 = pipeline.clickhouse(&kept).await?.parse()?;
        let letters = pipeline.usagectl(&["dead-letters", "count", "--by", "tenant", "--json"])?;
        let letters: serde_json::Value = serde_json::from_str(&letters).context(letters)?;
        let total = letters["letters"].as_u64().unwrap_or_default();
        let groups = letters["groups"].as_array().context("groups")?;
        let foreign = groups.iter().find(|group| group["tenant_id"] != flooding.to_string());
        ensure!(foreign.is_none(), "somebody else is refused: {foreign:?}");
        ensure!(kept <= expected, "{kept} records of the flood are kept, {expected} may be");
        if kept == expected && total == flooded - expected {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{kept} kept and {total} letters of {flooded} records: {letters}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// One record a transaction; gives how many.
async fn emit(
    pool: PgPool,
    tenant: Uuid,
    rate: u64,
    waiting: Arc<Waiting>,
    floods: Arc<AtomicBool>,
    stop: CancellationToken,
) -> anyhow::Result<usize> {
    let mut pace = tokio::time::interval(Duration::from_nanos(1_000_000_000 / rate.max(1)));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0.. {
        tokio::select! {
            () = stop.cancelled() => return Ok(number),
            _ = pace.tick() => {}
        }
        let mut transaction = pool.begin().await?;
        let emit = sqlx::query_scalar("SELECT usage_emit($1, $2, 1, $3)");
        let id: Uuid = emit
            .bind(tenant)
            .bind(METRIC)
            .bind(format!("quiet-{number}"))
            .fetch_one(&mut *transaction)
            .await?;
        // Before the commit's answer it may be there already.
        let mut waits = (Instant::now(), floods.load(Ordering::SeqCst));
        waiting.lock().expect("not poisoned").insert(id, waits);
        transaction.commit().await?;
        waits.0 = Instant::now();
        if let Some(waiting) = waiting.lock().expect("not poisoned").get_mut(&id) {
            *waiting = waits;
        }
    }
    unreachable!("the numbers have no end")
}

/// The flood, while there is one; gives how many records.
fn produce(
    topic: &str,
    tenant: Uuid,
    rate: u64,
    floods: &AtomicBool,
    stop: &CancellationToken,
) -> anyhow::Result<u64> {
    let producer: ThreadedProducer<DefaultProducerContext> = ClientConfig::new()
        .set("bootstrap.servers", testing::kafka_brokers())
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("max.in.flight", "1")
        .set("linger.ms", "5")
        .create()?;
    let (encoder, key) = (Encoder::new(), SigningKey::new(SOURCE_KEY.0, &backlog::unhex(SOURCE_KEY.1)?));
    let (mut sent, mut since) = (0, None);
    while !stop.is_cancelled() {
        if !floods.load(Ordering::SeqCst) {
            since = None;
            std::thread::park_timeout(LOOK);
            continue;
        }
        let (began, before) = *since.get_or_insert((Instant::now(), sent));
        let due = u64::try_from(began.elapsed().as_millis())? * rate / 1_000;
        while sent - before < due {
            backlog::send(&producer, topic, 1, &encoder, &key, &record(tenant, sent)?)?;
            sent += 1;
        }
        std::thread::park_timeout(LOOK);
    }
    producer.flush(Duration::from_secs(60)).context("the flood was not acknowledged")?;
    Ok(sent)
}

fn record(tenant_id: Uuid, number: u64) -> anyhow::Result<UsageRecord> {
    let idempotency_key = format!("flood-{number}");
    Ok(UsageRecord {
        record_id: ids::record_id(tenant_id, &idempotency_key),
        tenant_id,
        source: SOURCE.into(),
        metric: METRIC.into(),
        kind: Kind::Counter,
        value: Quantity::from_unscaled(10_i128.pow(18))?,
        timestamp: Timestamp::from_micros(clock::now_micros()),
        idempotency_key: Some(idempotency_key),
        resource_id: None,
        resource_type: None,
        subject_id: None,
        subject_type: None,
        metadata: None,
    })
}

/// The quiet records that are there.
#[derive(Default)]
struct Seen {
    ids: HashSet<Uuid>,
    offset: i64,
}

async fn look(
    pipeline: &Pipeline,
    tenant: Uuid,
    waiting: &Waiting,
    seen: &mut Seen,
    felt: Option<&mut Felt>,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let query = format!(
        "SELECT record_id, kafka_offset FROM usage_records WHERE tenant_id = '{tenant}' AND kafka_offset >= {} \
         ORDER BY kafka_offset",
        seen.offset
    );
    let answer = pipeline.clickhouse(&query).await?;
    let now = Instant::now();
    let mut felt = felt;
    for line in answer.lines() {
        let (id, offset) = line.split_once('\t').context("two columns")?;
        let id: Uuid = id.parse()?;
        seen.offset = offset.parse::<i64>()? + 1;
        ensure!(seen.ids.insert(id), "{id} is there twice");
        let waited = waiting.lock().expect("not poisoned").remove(&id);
        if let Some(((since, beside), felt)) = waited.zip(felt.as_mut()) {
            let list = if beside { &mut felt.beside } else { &mut felt.alone };
            list.push(now.saturating_duration_since(since));
        }
    }
    tokio::time::sleep(LOOK.saturating_sub(began.elapsed())).await;
    Ok(())
}
