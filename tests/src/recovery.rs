//! Storage is away for a while under a steady load: how soon the backlog is gone, and what the emitters feel of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use usage_access::{Scopes, SecurityContext};
use usage_devstack::ClickHouse;
use usage_producer::NewRecord;
use usage_schemas::Quantity;
use usage_service::CancellationToken;
use uuid::Uuid;

use crate::backlog;
use crate::pipeline::{Options, Pipeline};
use crate::report::percentile;
use crate::source::{self, Work};
use crate::workload::{self, tenants};

/// How the outage goes.
#[derive(Debug, Clone, Copy)]
pub struct Outage {
    /// Records a second, all the time.
    pub rate: u64,
    /// Records of one transaction.
    pub per_transaction: u64,
    /// Load before the outage.
    pub before: Duration,
    pub down: Duration,
    /// After the return of storage: give up after so long.
    pub patience: Duration,
}

/// The phases, in their order.
pub const PHASES: [&str; 3] = ["before", "down", "after"];

/// What came of it.
#[derive(Debug)]
pub struct Recovered {
    pub records: u64,
    /// Records that waited when storage came back.
    pub backlog: u64,
    /// From the return of storage until it had every record that was emitted a second before.
    pub caught_up: Duration,
    /// Times of the emit calls in each phase.
    pub emits: [Vec<Duration>; 3],
}

const WORKERS: u64 = 8;
/// The backlog is gone when storage is behind by no more than this share of a second's records.
const BEHIND: u64 = 1;

/// Runs the outage on a ClickHouse of its own and judges the totals over HTTP at the end.
///
/// # Errors
/// When storage does not catch up in time, or a total differs from the source's own truth.
pub async fn run(outage: Outage) -> anyhow::Result<Recovered> {
    let dir = tempfile::tempdir()?;
    let mut clickhouse = ClickHouse::start(dir.path())?;
    let options = Options { clickhouse_url: Some(clickhouse.url()), ..Options::default() };
    let pipeline = Pipeline::prepare(options).await?;
    let running = pipeline.run()?;
    let load = Load::start(&pipeline.source, outage);
    tokio::time::sleep(outage.before).await;

    load.phase.store(1, Ordering::Relaxed);
    clickhouse.kill9();
    tokio::time::sleep(outage.down).await;
    clickhouse.restart()?;
    load.phase.store(2, Ordering::Relaxed);
    let back = Instant::now();
    let stored = backlog::stored(&pipeline).await?.records;
    let waiting = load.emitted.load(Ordering::Relaxed).saturating_sub(stored);
    let mut every = tokio::time::interval(Duration::from_millis(500));
    let caught_up = loop {
        every.tick().await;
        let emitted = load.emitted.load(Ordering::Relaxed);
        let stored = backlog::stored(&pipeline).await?.records;
        if emitted.saturating_sub(stored) <= outage.rate * BEHIND {
            break back.elapsed();
        }
        if back.elapsed() > outage.patience {
            bail!("{} records still wait after {:?}", emitted.saturating_sub(stored), outage.patience);
        }
    };
    let (records, emits) = load.end().await?;
    pipeline.judge(&running.api, Duration::from_secs(120)).await?;
    drop(running);
    clickhouse.stop()?;
    Ok(Recovered { records, backlog: waiting, caught_up, emits })
}

/// Median and 95th percentile per phase, as lines.
pub fn table(recovered: &mut Recovered) -> String {
    let line = |(name, emits): (&&str, &mut Vec<Duration>)| {
        let calls = emits.len();
        format!(
            "emit {name:>6}: {calls} calls, p50 {:.2?}, p95 {:.2?}",
            percentile(emits, 50),
            percentile(emits, 95)
        )
    };
    let lines: Vec<String> = PHASES.iter().zip(&mut recovered.emits).map(line).collect();
    lines.join("\n")
}

/// Emitters that keep a rate.
struct Load {
    phase: Arc<AtomicU8>,
    emitted: Arc<AtomicU64>,
    stop: CancellationToken,
    tasks: JoinSet<anyhow::Result<[Vec<Duration>; 3]>>,
}

impl Load {
    fn start(pool: &PgPool, outage: Outage) -> Self {
        let (phase, emitted) = (Arc::<AtomicU8>::default(), Arc::<AtomicU64>::default());
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for worker in 0..WORKERS {
            let (pool, phase, emitted, stop) = (pool.clone(), phase.clone(), emitted.clone(), stop.clone());
            tasks.spawn(async move { emitter(worker, outage, &pool, &phase, &emitted, &stop).await });
        }
        Self { phase, emitted, stop, tasks }
    }

    async fn end(mut self) -> anyhow::Result<(u64, [Vec<Duration>; 3])> {
        self.stop.cancel();
        let mut all: [Vec<Duration>; 3] = Default::default();
        while let Some(emits) = self.tasks.join_next().await {
            for (all, emits) in all.iter_mut().zip(emits??) {
                all.extend(emits);
            }
        }
        Ok((self.emitted.load(Ordering::Relaxed), all))
    }
}

async fn emitter(
    worker: u64,
    outage: Outage,
    pool: &PgPool,
    phase: &AtomicU8,
    emitted: &AtomicU64,
    stop: &CancellationToken,
) -> anyhow::Result<[Vec<Duration>; 3]> {
    let module = workload::unchecked_collector();
    let tenants = tenants(8, 50);
    let nanos = 1_000_000_000 * outage.per_transaction * WORKERS / outage.rate.max(1);
    let mut pace = tokio::time::interval(Duration::from_nanos(nanos.max(1)));
    // Whoever was late makes up for it: the rate is kept.
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut emits: [Vec<Duration>; 3] = Default::default();
    for transaction in 0_u64.. {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = pace.tick() => {}
        }
        let tenant = tenants[usize::try_from(transaction)? % tenants.len()];
        let ctx = SecurityContext::for_tenant(tenant, Scopes::all());
        let authorization = module.authorize_emit(&ctx, "llm.requests").await?;
        let mut tx = pool.begin().await?;
        for number in 0..outage.per_transaction {
            let work = work(tenant, &format!("{worker}-{transaction}-{number}"));
            source::remember(&mut tx, &work).await?;
            let key = work.key.context("a counter has a key")?;
            let record = NewRecord::counter(tenant, work.metric, Quantity::from_unscaled(ONE)?, key);
            let started = Instant::now();
            module.emit(&mut *tx, &ctx, record, &authorization).await?;
            emits[usize::from(phase.load(Ordering::Relaxed))].push(started.elapsed());
        }
        tx.commit().await?;
        emitted.fetch_add(outage.per_transaction, Ordering::Relaxed);
    }
    Ok(emits)
}

const ONE: i128 = 10_i128.pow(18);

fn work(tenant_id: Uuid, key: &str) -> Work {
    Work { tenant_id, metric: "llm.requests".into(), value: "1".into(), key: Some(key.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_has_a_line_of_its_own_calls() {
        let millis = |range: std::ops::RangeInclusive<u64>| range.map(Duration::from_millis).collect();
        let emits = [millis(1..=100), millis(1..=10), Vec::new()];
        let mut recovered = Recovered { records: 110, backlog: 10, caught_up: Duration::from_secs(1), emits };
        let table = table(&mut recovered);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "emit before: 100 calls, p50 50.00ms, p95 95.00ms");
        assert_eq!(lines[1], "emit   down: 10 calls, p50 5.00ms, p95 10.00ms");
        assert_eq!(lines[2], "emit  after: 0 calls, p50 0.00ns, p95 0.00ns");
    }
}
