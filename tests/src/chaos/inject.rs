//! One fault, from its beginning to its end.

use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::Signal;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, sleep, timeout_at};
use usage_devstack::Postgres;
use usage_devstack::process::{self, Life};

use super::cluster::{Cluster, PARTITIONS, blocking};
use super::offsets;
use super::schedule::{Actor, After, Bad, Fault, Link};
use super::storage;

/// How long a kill of ClickHouse waits for an insert to hit.
const INSERT_WITHIN: Duration = Duration::from_secs(2);
/// However often it is called: whatever it needs may be away meanwhile.
const GROWN_WITHIN: Duration = Duration::from_secs(180);
/// Longer than a disk is full.
const RECOVERED_WITHIN: Duration = Duration::from_secs(60);

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
            blocking(move || restart_immediate(&mut server)).await?;
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
        Fault::GrowTopic { killed_after } => {
            let Some(_topic) = turn(&cluster.topic, deadline).await else { return Ok(late()) };
            grow(cluster, killed_after).await
        }
        Fault::Clock { hours, lasts } => {
            std::fs::write(&cluster.clock, hours.to_string())?;
            sleep(lasts).await;
            std::fs::write(&cluster.clock, "0")?;
            done("right again")
        }
    }
}

/// On a full disk the recovery fails, until there is room.
fn restart_immediate(server: &mut Postgres) -> anyhow::Result<()> {
    let deadline = Instant::now() + RECOVERED_WITHIN;
    let mut outcome = server.restart_immediate();
    while outcome.is_err() && Instant::now() < deadline {
        process::nap(Duration::from_millis(500));
        outcome = server.restart();
    }
    outcome
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

/// An operator whose command dies, and who calls it until it has ended well.
async fn grow(cluster: &Cluster, killed_after: Duration) -> anyhow::Result<Effect> {
    let partitions = (PARTITIONS * 3 / 2).to_string();
    // At least twice the API's cache time.
    let arguments = ["topics", "grow", "--partitions", &partitions, "--readers-within", "5s"];
    let began = Instant::now();
    let mut attempts = 0;
    loop {
        attempts += 1;
        let command = cluster.pipeline.usagectl_command(&arguments);
        let patience = if attempts == 1 { killed_after } else { GROWN_WITHIN };
        let (ended, said) = blocking(move || until_killed(command, patience)).await?;
        match ended {
            Some(status) if status.success() => {
                let took = began.elapsed();
                return Ok(Effect::Done(format!("{partitions} partitions, {attempts} attempts, {took:.1?}")));
            }
            _ if began.elapsed() > GROWN_WITHIN => bail!("the topic does not grow: {said}"),
            _ => {}
        }
    }
}

/// Runs the command for this long at most; how it ended, if it did so by itself, and what it said.
fn until_killed(mut command: Command, patience: Duration) -> anyhow::Result<(Option<ExitStatus>, String)> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = process::spawn(command, Life::Attached(Signal::SIGKILL))?;
    let by_itself = process::wait_until(patience, || matches!(child.try_wait(), Ok(Some(_))));
    if !by_itself {
        child.kill()?;
    }
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Ok((by_itself.then_some(output.status), said))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_command_ends_by_itself_or_is_killed() {
        let (status, said) = until_killed(shell("echo out; echo err >&2; exit 3"), GROWN_WITHIN).unwrap();
        assert_eq!((status.and_then(|status| status.code()), said.as_str()), (Some(3), "out\nerr\n"));
        let (status, said) =
            until_killed(shell("echo begun; exec sleep 1000"), Duration::from_millis(500)).unwrap();
        assert!(status.is_none() && (said == "begun\n" || said.is_empty()), "{said}");
    }
}
