//! Rolls aggregates up behind horizons, and rebuilds them (protocol 6.2; rules 7 to 9).

use std::collections::BTreeSet;

use tokio::time::Instant;
use usage_service::metric_names::{STORAGE_INSERT_ROWS, STORAGE_INSERT_SECONDS};

use super::ClickHouseConfig;
use super::aggregate::Aggregate;
use super::client::{CallError, Client};
use super::fence::{Held, query_id};
use super::months::Month;
use super::partition::{Guard, Partition};
use super::rollup::{self, Share};
use super::writer::{ClickHouseWriter, PARTITIONS_PER_INSERT};
use super::{codes, insert, recover, settle};
use crate::StorageError;

/// True if a partition's aggregate has come to 1/`share` of the age or size at which it is rolled up, or a flush is in doubt.
pub(crate) fn is_due(partition: &Partition, config: &ClickHouseConfig, share: u32) -> bool {
    partition.recovered
        && (!partition.aggregate.in_doubt().is_empty()
            || partition.aggregate.len() >= (config.flush_rows / share as usize).max(1)
            || partition.oldest().is_some_and(|oldest| oldest.elapsed() >= config.flush_age / share))
}

/// Rolls up the aggregates of the partitions, each to its last wholly stored batch: one insert per month for all of them.
pub(crate) async fn flush(writer: &ClickHouseWriter, guards: &mut [Guard]) -> Result<(), StorageError> {
    prove(writer, guards).await?;
    let months: BTreeSet<Month> = guards.iter().flat_map(|guard| guard.aggregate.months()).collect();
    for month in months {
        for guards in guards.chunks_mut(PARTITIONS_PER_INSERT) {
            flush_month(writer, guards, month).await?;
        }
    }
    Ok(())
}

async fn flush_month(
    writer: &ClickHouseWriter,
    guards: &mut [Guard],
    month: Month,
) -> Result<(), StorageError> {
    let timeout = writer.write_timeout(guards);
    let mut concerned: Vec<&mut Guard> = Vec::new();
    for guard in guards {
        let through = guard.through;
        if guard.aggregate.freeze(month, through) {
            concerned.push(guard);
        }
    }
    if concerned.is_empty() {
        return Ok(());
    }
    let held: Vec<Held> = concerned.iter().map(|guard| guard.held).collect();
    let shares: Vec<Share<'_>> = concerned.iter().filter_map(|guard| share(guard, month)).collect();
    let rows: usize = shares.iter().map(|share| share.frozen.groups.len() + 1).sum();
    let body = rollup::encode(month, &shares)?;
    let started = Instant::now();
    let result =
        insert::send(&writer.client, &rollup::insert_statement(&held), &query_id(&held), body, timeout).await;
    metrics::histogram!(STORAGE_INSERT_SECONDS, "table" => "rollups").record(started.elapsed());
    metrics::histogram!(STORAGE_INSERT_ROWS, "table" => "rollups").record(rows as f64);
    match result {
        Ok(()) => {
            concerned.into_iter().for_each(|guard| guard.rolled_up(month));
            Ok(())
        }
        Err(CallError::NotSent(source)) => {
            concerned.into_iter().for_each(|guard| guard.aggregate.thaw(month));
            Err(StorageError::Unavailable(source))
        }
        Err(CallError::Exception { code: codes::FENCED, .. }) => Err(writer.fenced(&held).await),
        // It stays frozen: the next flush proves it or does it again.
        Err(error) => {
            concerned.into_iter().for_each(|guard| guard.repeats += 1);
            Err(StorageError::Unavailable(Box::new(error)))
        }
    }
}

fn share(partition: &Partition, month: Month) -> Option<Share<'_>> {
    Some(Share {
        partition: partition.partition(),
        names: &partition.aggregate.names,
        frozen: partition.aggregate.frozen(month)?,
        generations: &partition.generations,
    })
}

/// After a flush of unknown outcome: a new epoch, then a horizon that has come so far proves it (rule 8).
async fn prove(writer: &ClickHouseWriter, guards: &mut [Guard]) -> Result<(), StorageError> {
    let mut doubtful: Vec<&mut Guard> =
        guards.iter_mut().filter(|guard| !guard.aggregate.in_doubt().is_empty()).collect();
    if doubtful.is_empty() {
        return Ok(());
    }
    settle::raise(writer, &mut doubtful).await?;
    for guard in doubtful {
        let (horizons, _) = recover::horizons(&writer.client, guard.partition()).await?;
        for (month, through) in guard.aggregate.in_doubt() {
            let proved = horizons.get(&month).is_some_and(|&horizon| horizon >= through);
            tracing::info!(
                partition = guard.partition(),
                month = month.0,
                through,
                proved,
                "flush was in doubt"
            );
            if proved {
                guard.rolled_up(month);
            } else {
                guard.aggregate.thaw(month);
            }
        }
    }
    Ok(())
}

/// Rebuilds the aggregate from the records beyond the horizons. Months with more than `rebuild_rows` of them (the rollups were
/// emptied, or nobody rolled up for long) are rolled up by the server, so that memory stays bounded.
pub(crate) async fn recover(writer: &ClickHouseWriter, guard: &mut Guard) -> Result<(), StorageError> {
    let client = writer.client.clone().with_timeout(recover::RECOVERY_TIMEOUT);
    if guard.recovery_in_doubt || !guard.aggregate.in_doubt().is_empty() {
        // What was sent may still be stored: only under a new epoch the horizons below are final.
        settle::raise(writer, &mut [&mut *guard]).await?;
        guard.recovery_in_doubt = false;
    }
    let partition = guard.partition();
    let (horizons, generations) = recover::horizons(&client, partition).await?;
    let mut aggregate = Aggregate::default();
    for month in recover::months(&client).await? {
        let horizon = horizons.get(&month).copied().unwrap_or(0);
        let rows = recover::count_beyond(&client, partition, month, horizon).await?;
        if rows > writer.config.rebuild_rows && generations.is_empty() {
            roll_up_on_server(writer, &client, guard, month, horizon).await?;
        } else if rows > 0 {
            recover::add_beyond(&client, partition, month, horizon, &mut aggregate).await?;
        }
    }
    tracing::info!(partition, groups = aggregate.len(), months = horizons.len(), "aggregate is rebuilt");
    guard.recovered(aggregate, generations);
    Ok(())
}

async fn roll_up_on_server(
    writer: &ClickHouseWriter,
    client: &Client,
    guard: &mut Guard,
    month: Month,
    horizon: i64,
) -> Result<(), StorageError> {
    let (held, through) = (guard.held, guard.through);
    tracing::info!(
        partition = held.partition,
        month = month.0,
        horizon,
        through,
        "the server rolls a month up"
    );
    let mut client = client.clone().with_setting("query_id", query_id(&[held]));
    for (name, value) in insert::SETTINGS.iter().chain(&ONE_PART) {
        client = client.with_setting(name, *value);
    }
    guard.recovery_in_doubt = true;
    match client.execute(&recover::roll_up_statement(held, month, horizon, through)).await {
        Ok(()) => {
            guard.recovery_in_doubt = false;
            Ok(())
        }
        Err(CallError::Exception { code: codes::FENCED, .. }) => Err(writer.fenced(&[held]).await),
        Err(error) => Err(StorageError::Unavailable(Box::new(error))),
    }
}

/// However many groups a month has, they become one part with their horizon.
const ONE_PART: [(&str, &str); 2] =
    [("min_insert_block_size_rows", "1000000000000"), ("min_insert_block_size_bytes", "1000000000000000")];
