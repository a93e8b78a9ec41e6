//! Rolls aggregates up behind horizons, and rebuilds them (protocol 6.2; rules 7 to 9).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use usage_service::fail_point;
use usage_service::metric_names::{STORAGE_INSERT_ROWS, STORAGE_INSERT_SECONDS};

use super::ClickHouseConfig;
use super::aggregate::Aggregate;
use super::client::{CallError, Client};
use super::fence::{Held, query_id};
use super::months::Month;
use super::partition::{Locked, Slot, State};
use super::patience::doubled;
use super::recover::Beyond;
use super::rollup::{self, Share};
use super::writer::{ClickHouseWriter, PARTITIONS_PER_INSERT};
use super::{codes, insert, recover, settle};
use crate::StorageError;

/// Longest deadline of one statement of a recovery.
const LONGEST_RECOVERY: Duration = Duration::from_secs(1_920);

/// The server rolls up this many times `rebuild_rows` at once.
const SLICE: u64 = 25;

/// How long the proof of a flush waits for a running write of the same partition before it is left to the next tick.
const PROOF_PATIENCE: Duration = Duration::from_secs(5);

/// However many groups a month has, they become one part with their horizon.
const ONE_PART: [(&str, &str); 2] =
    [("min_insert_block_size_rows", "1000000000000"), ("min_insert_block_size_bytes", "1000000000000000")];

/// True if a partition's aggregate has come to 1/`share` of the age or size at which it is rolled up, or a flush is in doubt.
pub(crate) fn is_due(state: &State, config: &ClickHouseConfig, share: u32) -> bool {
    state.recovered
        && (!state.aggregate.in_doubt().is_empty()
            || state.aggregate.len() >= (config.flush_rows / share as usize).max(1)
            || state.oldest.is_some_and(|oldest| oldest.elapsed() >= config.flush_age / share))
}

/// Rolls up the aggregates of the partitions, each to its last wholly stored batch: one insert per month for all of them.
/// Writes of the same partitions may go on meanwhile; what they add belongs to the next flush.
pub(crate) async fn flush(writer: &ClickHouseWriter, rolling: &Locked) -> Result<(), StorageError> {
    let in_doubt = |slot: &&Arc<Slot>| !slot.state().aggregate.in_doubt().is_empty();
    let (doubtful, clear): (Vec<_>, Vec<_>) = rolling.slots.iter().partition(in_doubt);
    let flushed = flush_slots(writer, &clear).await;
    let mut proved = Ok(());
    for slot in doubtful {
        let result = match prove(writer, slot).await {
            Ok(true) => flush_slots(writer, &[slot]).await,
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        proved = worst(proved, result);
    }
    worst(flushed, proved)
}

async fn flush_slots(writer: &ClickHouseWriter, slots: &[&Arc<Slot>]) -> Result<(), StorageError> {
    let started = Instant::now();
    let months: BTreeSet<Month> =
        slots.iter().flat_map(|slot| slot.state().aggregate.months().collect::<Vec<_>>()).collect();
    for month in months {
        for slots in slots.chunks(PARTITIONS_PER_INSERT) {
            flush_month(writer, slots, month).await?;
        }
    }
    slots.iter().for_each(|slot| slot.state().flushed(started));
    Ok(())
}

async fn flush_month(
    writer: &ClickHouseWriter,
    slots: &[&Arc<Slot>],
    month: Month,
) -> Result<(), StorageError> {
    let mut concerned: Vec<Arc<Slot>> = Vec::new();
    let (mut held, mut shares): (Vec<Held>, Vec<Share>) = (Vec::new(), Vec::new());
    for slot in slots {
        let mut state = slot.state();
        if let Some(share) = state.freeze(month) {
            held.push(state.held);
            shares.push(share);
            concerned.push(Arc::clone(slot));
        }
    }
    if concerned.is_empty() {
        return Ok(());
    }
    let timeout = writer.write_timeout(&concerned);
    let rows: usize = shares.iter().map(|share| share.frozen.groups.len() + 1).sum();
    let body = tokio::task::spawn_blocking(move || rollup::encode(month, &shares))
        .await
        .map_err(|error| StorageError::Unavailable(Box::new(error)))??;
    let started = Instant::now();
    let statement = rollup::insert_statement(&held);
    fail_point!("storage.roll_up");
    let result = insert::send(&writer.client, &statement, &query_id(&held), body, timeout).await;
    fail_point!("storage.rolled_up");
    metrics::histogram!(STORAGE_INSERT_SECONDS, "table" => "rollups").record(started.elapsed());
    metrics::histogram!(STORAGE_INSERT_ROWS, "table" => "rollups").record(rows as f64);
    match result {
        Ok(()) => {
            concerned.iter().for_each(|slot| slot.state().rolled_up(month));
            Ok(())
        }
        Err(CallError::NotSent(source)) => {
            concerned.iter().for_each(|slot| slot.state().aggregate.thaw(month));
            Err(StorageError::Unavailable(source))
        }
        Err(CallError::Exception { code: codes::FENCED, .. }) => Err(writer.fenced(&held).await),
        // It stays frozen: the next flush proves it or does it again.
        Err(error) => {
            concerned.iter().for_each(|slot| {
                let mut state = slot.state();
                state.repeats = state.repeats.saturating_add(1);
            });
            Err(StorageError::Unavailable(Box::new(error)))
        }
    }
}

/// After a flush of unknown outcome: a new epoch, then a horizon that has come so far proves it (rule 8). The epoch can't be
/// raised under a running write; false if one did not end in time.
async fn prove(writer: &ClickHouseWriter, slot: &Arc<Slot>) -> Result<bool, StorageError> {
    let Ok(_writing) = tokio::time::timeout(PROOF_PATIENCE, slot.writing()).await else {
        return Ok(false);
    };
    settle::raise(writer, std::slice::from_ref(slot)).await?;
    let (horizons, _) = recover::horizons(&writer.client, slot.partition).await?;
    let mut state = slot.state();
    for (month, through) in state.aggregate.in_doubt() {
        let proved = horizons.get(&month).is_some_and(|&horizon| horizon >= through);
        tracing::info!(partition = slot.partition, month = month.0, through, proved, "flush was in doubt");
        if proved {
            state.rolled_up(month);
        } else {
            state.aggregate.thaw(month);
        }
    }
    Ok(true)
}

/// Rebuilds the aggregate from the records beyond the horizons. Months with more than `rebuild_rows` of them (the rollups were
/// emptied, or nobody rolled up for long) are rolled up by the server, so that memory stays bounded. The caller has both locks.
pub(crate) async fn recover(writer: &ClickHouseWriter, slot: &Arc<Slot>) -> Result<(), StorageError> {
    let repeats = slot.state().repeats;
    let timeout = doubled(recover::RECOVERY_TIMEOUT, repeats, LONGEST_RECOVERY);
    let client = writer.client.clone().with_timeout(timeout);
    let result = rebuild(writer, &client, slot).await;
    if result.is_err() {
        slot.state().repeats = repeats.saturating_add(1);
    }
    result
}

async fn rebuild(writer: &ClickHouseWriter, client: &Client, slot: &Arc<Slot>) -> Result<(), StorageError> {
    let in_doubt = {
        let state = slot.state();
        state.recovery_in_doubt || !state.aggregate.in_doubt().is_empty()
    };
    if in_doubt {
        // What was sent may still be stored: only under a new epoch the horizons below are final.
        settle::raise(writer, std::slice::from_ref(slot)).await?;
        slot.state().recovery_in_doubt = false;
    }
    let (partition, through) = (slot.partition, slot.state().through);
    let (horizons, generations) = recover::horizons(client, partition).await?;
    let mut aggregate = Aggregate::default();
    for month in recover::months(client).await? {
        let horizon = horizons.get(&month).copied().unwrap_or(0);
        let beyond = Beyond { partition, month, horizon, through };
        let rows = recover::count(client, beyond).await?;
        if rows > writer.config.rebuild_rows && generations.is_empty() {
            roll_up_on_server(writer, client, slot, beyond, rows).await?;
        } else if rows > 0 {
            recover::add_beyond(client, beyond, &mut aggregate).await?;
        }
    }
    tracing::info!(partition, groups = aggregate.len(), months = horizons.len(), "aggregate is rebuilt");
    slot.state().recovered(aggregate, generations);
    Ok(())
}

/// In slices of whole batches, each with its horizon: what is done stays done if a later one fails, and none is too large for
/// one part.
async fn roll_up_on_server(
    writer: &ClickHouseWriter,
    client: &Client,
    slot: &Slot,
    mut beyond: Beyond,
    mut rows: u64,
) -> Result<(), StorageError> {
    let (slice, last) = (writer.config.rebuild_rows.max(1) * SLICE, beyond.through);
    while rows > 0 {
        beyond.through =
            if rows <= slice { last } else { recover::end_of_slice(client, beyond, slice).await? };
        roll_up_slice(writer, client, slot, beyond).await?;
        beyond = Beyond { horizon: beyond.through, through: last, ..beyond };
        rows = recover::count(client, beyond).await?;
    }
    Ok(())
}

async fn roll_up_slice(
    writer: &ClickHouseWriter,
    client: &Client,
    slot: &Slot,
    beyond: Beyond,
) -> Result<(), StorageError> {
    let held = {
        let mut state = slot.state();
        state.recovery_in_doubt = true;
        state.held
    };
    tracing::info!(?beyond, "the server rolls records up");
    let mut client = client.clone().with_setting("query_id", query_id(&[held]));
    for (name, value) in insert::SETTINGS.iter().chain(&ONE_PART) {
        client = client.with_setting(name, *value);
    }
    match client.execute(&recover::roll_up_statement(held, beyond)).await {
        Ok(()) => {
            slot.state().recovery_in_doubt = false;
            Ok(())
        }
        Err(CallError::Exception { code: codes::FENCED, .. }) => Err(writer.fenced(&[held]).await),
        Err(error) => Err(StorageError::Unavailable(Box::new(error))),
    }
}

/// Of several partitions' outcomes the one that the caller must act on: whoever is fenced, else the first failure.
fn worst(one: Result<(), StorageError>, other: Result<(), StorageError>) -> Result<(), StorageError> {
    match (one, other) {
        (Err(StorageError::Fenced { partitions: a }), Err(StorageError::Fenced { partitions: b })) => {
            Err(StorageError::Fenced { partitions: [a, b].concat() })
        }
        (Err(fenced @ StorageError::Fenced { .. }), _) | (_, Err(fenced @ StorageError::Fenced { .. })) => {
            Err(fenced)
        }
        (one, other) => one.and(other),
    }
}

#[cfg(test)]
mod tests;
