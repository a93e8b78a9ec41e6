//! One fault, from its beginning to its end.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, sleep, timeout_at};

use super::cluster::{Cluster, blocking};
use super::offsets;
use super::schedule::{Actor, After, Bad, Fault, Link};
use super::storage;

/// How long a kill of ClickHouse waits for an insert to hit.
const INSERT_WITHIN: Duration = Duration::from_secs(2);

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    Done(String),
    /// It could not happen; says why.
    Skipped(String),
}

/// Carries the fault out. Whatever else happens to the same process, server or link has its turn before or after, never meanwhile; a
/// fault whose turn does not come before the deadline is skipped.
pub async fn inject(cluster: &Cluster, fault: Fault, deadline: Instant) -> anyhow::Result<Effect> {
    let done = |text: &str| Ok(Effect::Done(text.into()));
    match fault {
        Fault::Kill(actor) => {
            let Some(mut member) = turn(&cluster.members[&actor], deadline).await else { return Ok(late()) };
            member.kill9();
            member.start()?;
            done("started again")
        }
        Fault::Terminate(actor) => {
            let Some(mut member) = turn(&cluster.members[&actor], deadline).await else { return Ok(late()) };
            let began = Instant::now();
            blocking(move || {
                let by_itself = member.terminate()?;
                member.start()?;
                let how = if by_itself { "ended" } else { "had to be killed" };
                Ok(Effect::Done(format!("{how} after {:.1?}, started again", began.elapsed())))
            })
            .await
        }
        Fault::Freeze(actor, lasts) => {
            let Some(member) = turn(&cluster.members[&actor], deadline).await else { return Ok(late()) };
            member.freeze()?;
            sleep(lasts).await;
            member.thaw()?;
            done("goes on")
        }
        Fault::KillKafka { away } => {
            let Some(mut kafka) = turn(&cluster.kafka, deadline).await else { return Ok(late()) };
            let began = Instant::now();
            kafka.kill9();
            sleep(away).await;
            blocking(move || kafka.restart()).await?;
            Ok(Effect::Done(format!("back after {:.1?}", began.elapsed())))
        }
        Fault::KillClickHouse { away } => {
            let Some(mut server) = turn(&cluster.clickhouse, deadline).await else { return Ok(late()) };
            let hit = storage::insert_runs(&cluster.clickhouse_url, INSERT_WITHIN).await;
            let began = Instant::now();
            server.kill9();
            sleep(away).await;
            blocking(move || server.restart()).await?;
            let what = if hit { "in the middle of an insert" } else { "between inserts" };
            Ok(Effect::Done(format!("{what}, back after {:.1?}", began.elapsed())))
        }
        Fault::FreezeClickHouse(lasts) => {
            let Some(server) = turn(&cluster.clickhouse, deadline).await else { return Ok(late()) };
            server.pause();
            sleep(lasts).await;
            server.resume();
            done("goes on")
        }
        Fault::RestartPostgres(which) => {
            let Some(mut server) = turn(cluster.postgres(which), deadline).await else { return Ok(late()) };
            let began = Instant::now();
            blocking(move || server.restart_immediate()).await?;
            Ok(Effect::Done(format!("back after {:.1?}", began.elapsed())))
        }
        Fault::Network { link, bad, lasts, after } => {
            network(cluster, link, bad, lasts, after, deadline).await
        }
        Fault::FillDisk(lasts) => fill_disk(cluster, lasts).await,
        Fault::ResetOffsets(back) => {
            let Some(_topic) = turn(&cluster.topic, deadline).await else { return Ok(late()) };
            Ok(Effect::Done(offsets::reset(cluster, back).await?))
        }
        Fault::GrowTopic => {
            let Some(_topic) = turn(&cluster.topic, deadline).await else { return Ok(late()) };
            grow(cluster).await
        }
        Fault::Clock { hours, lasts } => {
            std::fs::write(&cluster.clock, hours.to_string())?;
            sleep(lasts).await;
            std::fs::write(&cluster.clock, "0")?;
            done("right again")
        }
    }
}

async fn turn<T>(shared: &Arc<Mutex<T>>, deadline: Instant) -> Option<OwnedMutexGuard<T>> {
    timeout_at(deadline, shared.clone().lock_owned()).await.ok()
}

fn late() -> Effect {
    Effect::Skipped("its turn did not come before the end".into())
}

async fn network(
    cluster: &Cluster,
    link: Link,
    bad: Bad,
    lasts: Duration,
    after: After,
    deadline: Instant,
) -> anyhow::Result<Effect> {
    let Some(proxy) = turn(&cluster.links[&link], deadline).await else { return Ok(late()) };
    proxy.set(bad);
    sleep(lasts).await;
    proxy.heal(after);
    Ok(Effect::Done("good again".into()))
}

async fn fill_disk(cluster: &Cluster, lasts: Duration) -> anyhow::Result<Effect> {
    let disk = match &cluster.disk {
        Ok(disk) => disk,
        Err(reason) => return Ok(Effect::Skipped(reason.clone())),
    };
    disk.fill()?;
    sleep(lasts).await;
    disk.free()?;
    Ok(Effect::Done("room again".into()))
}

async fn grow(_cluster: &Cluster) -> anyhow::Result<Effect> {
    Ok(Effect::Skipped("there is no command for it yet".into()))
}

/// Whoever ended without being told to is started again, as a service manager would do.
pub async fn look_after(cluster: &Cluster, say: impl Fn(&str)) -> anyhow::Result<()> {
    for (actor, member) in &cluster.members {
        // Locked: a fault has it in hand.
        let Ok(mut member) = member.try_lock() else { continue };
        if let Some(status) = member.ended()? {
            say(&format!("{actor} ended by itself ({status}), started again"));
            member.start()?;
        }
    }
    if let Ok(mut server) = cluster.clickhouse.clone().try_lock_owned()
        && !server.id().is_running()
    {
        say("clickhouse ended by itself, started again");
        blocking(move || server.restart()).await.context("clickhouse does not come back")?;
    }
    Ok(())
}

/// All consumers, in the order in which their locks are taken.
pub fn consumers(cluster: &Cluster) -> Vec<Actor> {
    cluster.members.keys().copied().filter(|actor| matches!(actor, Actor::Consumer(_))).collect()
}
