//! The whole pipeline under faults drawn from a seed, judged by what the source itself committed.

pub mod cluster;
mod disk;
pub mod emitter;
mod inject;
mod member;
mod offsets;
pub mod oracle;
pub mod proxy;
mod readers;
pub mod schedule;
pub mod storage;
mod timeline;
mod truth;
mod verdict;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep_until};
use usage_devstack::interrupt;

use cluster::{Cluster, Load};
pub use disk::prepare as prepare_disk;
use inject::Effect;
use oracle::Bounded;
use schedule::{Kind, Step};
use timeline::Timeline;
pub use verdict::Verdict;

use crate::workload::tenants;

const READERS: usize = 2;
const LOOK_AFTER: Duration = Duration::from_millis(300);
const TELL: Duration = Duration::from_secs(10);

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Run {
    pub load: Load,
    pub lasts: Duration,
    pub kinds: Vec<Kind>,
}

/// Runs it with data and logs in `dir`. An error is a failure of the run itself; what is wrong with the system is in the verdict.
pub async fn run(run: &Run, dir: &Path, disk: Result<(), String>) -> anyhow::Result<Verdict> {
    let steps = schedule::plan(run.load.seed, run.lasts, &run.kinds);
    let cluster = Arc::new(Cluster::start(dir, &run.load, disk).await?);
    cluster.launch().await?;
    let timeline = Arc::new(Timeline::start(&dir.join("timeline.txt"))?);
    timeline.say(&format!("the load begins; {} faults are to come", steps.len()));
    let work = async {
        let stop = Arc::new(AtomicBool::new(false));
        let mut readers = JoinSet::new();
        for reader in 0..READERS {
            let tenants = tenants(run.load.seed, emitter::TENANTS);
            readers.spawn(readers::read(cluster.clone(), reader, tenants, stop.clone()));
        }
        break_things(&cluster, &timeline, steps, run.lasts).await?;
        stop.store(true, Ordering::Relaxed);
        let seen = readers.join_all().await;
        timeline.say("no more faults; everything comes to rest");
        let bounded = Bounded {
            tenant: cluster::bounded(run.load.seed),
            records: cluster::BOUNDED_RECORDS,
            exact: ![Kind::Grow, Kind::Reset].into_iter().any(|kind| timeline.had(kind)),
        };
        verdict::reach(&cluster, seen, run.lasts, bounded).await
    };
    let verdict = tokio::select! {
        verdict = work => verdict?,
        error = look_after(&cluster, &timeline) => return Err(error),
    };
    timeline.say(&format!("faults: {}", timeline.faults()));
    Ok(verdict)
}

/// Each fault at its time, as many at once as there are; returns when the time is over and all of them have ended.
async fn break_things(
    cluster: &Arc<Cluster>,
    timeline: &Arc<Timeline>,
    steps: Vec<Step>,
    lasts: Duration,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    let deadline = begin + lasts;
    let mut running = JoinSet::new();
    for Step { at, fault } in steps {
        sleep_until(begin + at).await;
        timeline.say(&fault.to_string());
        let (cluster, timeline) = (cluster.clone(), timeline.clone());
        running.spawn(async move {
            match inject::inject(&cluster, fault, deadline).await {
                Ok(Effect::Done(effect)) => {
                    timeline.count(fault.kind());
                    timeline.say(&format!("  {fault}: {effect}"));
                    Ok(())
                }
                Ok(Effect::Skipped(why)) => {
                    timeline.say(&format!("  {fault}: skipped, {why}"));
                    Ok(())
                }
                Err(error) => Err(error.context(fault.to_string())),
            }
        });
    }
    sleep_until(deadline).await;
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

/// Never returns but with an error.
async fn look_after(cluster: &Cluster, timeline: &Timeline) -> anyhow::Error {
    let mut every = interval(LOOK_AFTER);
    let mut told = Instant::now();
    loop {
        every.tick().await;
        if let Err(error) = interrupt::check() {
            return error;
        }
        if let Err(error) = inject::look_after(cluster, |text| timeline.say(text)).await {
            return error;
        }
        if told.elapsed() >= TELL {
            told = Instant::now();
            let counts = storage::counts(&cluster.clickhouse_url, cluster.pipeline.clickhouse_database());
            if let Ok(Ok((records, rolled_up))) = tokio::time::timeout(LOOK_AFTER, counts).await {
                timeline.say(&format!("{records} records stored, {rolled_up} rolled up"));
            }
        }
    }
}
