//! Finishes batches of unknown outcome: new epoch, kill, look, send what is missing (rules 1, 2 and 5).

use std::collections::HashMap;
use std::sync::Arc;

use usage_service::fail_point;

use super::client::Client;
use super::fence::{Held, numbers};
use super::insert;
use super::months::Month;
use super::partition::Slot;
use super::rowbinary::RowReader;
use super::writer::{ClickHouseWriter, group};
use crate::{PlannedBatch, StorageError};

/// Rows that are stored per partition and month.
type Found = HashMap<(i32, Month), u64>;

pub(crate) async fn settle(
    writer: &ClickHouseWriter,
    batches: &[Arc<PlannedBatch>],
) -> Result<(), StorageError> {
    let (locked, batches) = writer.lock(batches).await?;
    let slots = &locked.slots[..];
    for batch in &batches {
        insert::check(batch)?;
    }
    for (slot, batch) in slots.iter().zip(&batches) {
        let mut state = slot.state();
        state.batch_in_doubt = Some(batch.batch_seq);
        state.repeats = state.repeats.saturating_add(1);
    }
    // A request that timed out may still lie in a socket buffer, seen by nobody: only a higher epoch shuts it out, and
    // only a look after that is final.
    let held = raise(writer, slots).await?;
    fail_point!("storage.raised");
    let found = look(&writer.client.clone().with_timeout(super::recover::RECOVERY_TIMEOUT), &batches).await?;
    fail_point!("storage.looked");
    let mut months = group(&batches);
    let mut accounted = 0;
    for month in &mut months {
        let mut missing = Vec::new();
        for piece in std::mem::take(&mut month.pieces) {
            let (partition, expected) = (piece.batch.partition, piece.selection.len() as u64);
            match found.get(&(partition, month.month)) {
                None => missing.push(piece),
                Some(&stored) if stored == expected => accounted += 1,
                Some(&stored) => {
                    return Err(StorageError::Inconsistent(format!(
                        "batch {} of partition {partition} has {stored} of {expected} rows in month {}",
                        piece.batch.batch_seq, month.month.0
                    )));
                }
            }
        }
        month.pieces = missing;
    }
    if accounted != found.len() {
        return Err(StorageError::Inconsistent(format!(
            "rows of a planned batch are stored in months it does not have: {found:?}"
        )));
    }
    months.retain(|month| !month.pieces.is_empty());
    tracing::info!(stored = accounted, missing = months.len(), ?held, "settling batches");
    // The batches stay in doubt whatever happens now: what was found stored is not folded yet.
    writer.send(slots, months, &mut true).await?;
    slots.iter().zip(&batches).for_each(|(slot, batch)| slot.state().stored(batch));
    Ok(())
}

/// Raises one's own epoch for the held partitions and ends what older ones still run. Fails if another owner came between, or
/// the partition was opened anew. The caller has the `writing` locks.
pub(crate) async fn raise(writer: &ClickHouseWriter, slots: &[Arc<Slot>]) -> Result<Vec<Held>, StorageError> {
    let before: Vec<Held> = slots.iter().map(|slot| slot.held()).collect();
    // Who has lost a partition must not fence its new owner by trying, again and again.
    refuse_lost(writer, &before).await?;
    let partitions: Vec<i32> = before.iter().map(|held| held.partition).collect();
    let after = writer.fences.raise(&partitions).await?;
    refuse_lost(writer, &before).await?;
    let dead: Vec<i32> = slots.iter().filter(|slot| slot.is_dead()).map(|slot| slot.partition).collect();
    if !dead.is_empty() {
        return Err(StorageError::Fenced { partitions: dead });
    }
    for (slot, held) in slots.iter().zip(&after) {
        slot.state().held = *held;
    }
    writer.fences.end_older(&after).await?;
    Ok(after)
}

async fn refuse_lost(writer: &ClickHouseWriter, held: &[Held]) -> Result<(), StorageError> {
    let lost = writer.fences.lost(held).await?;
    if lost.is_empty() { Ok(()) } else { Err(StorageError::Fenced { partitions: lost }) }
}

async fn look(client: &Client, batches: &[Arc<PlannedBatch>]) -> Result<Found, StorageError> {
    let partitions: Vec<i32> = batches.iter().map(|batch| batch.partition).collect();
    let numbers_of_batches: Vec<i64> = batches.iter().map(|batch| batch.batch_seq).collect();
    let pairs = batches.iter().map(|batch| format!("({}, {})", batch.partition, batch.batch_seq));
    let sql = format!(
        "SELECT kafka_partition, toYYYYMM(timestamp) AS month, count() FROM usage_records \
         WHERE batch_seq IN ({}) AND kafka_partition IN ({}) AND (kafka_partition, batch_seq) IN ({}) \
         GROUP BY kafka_partition, month",
        numbers(&numbers_of_batches),
        numbers(&partitions),
        pairs.collect::<Vec<_>>().join(", ")
    );
    let bytes = client.fetch(&sql).await?;
    let mut rows = RowReader::new(&bytes);
    let mut found = Found::new();
    while !rows.is_empty() {
        let (partition, month) = (rows.i32()?, Month(rows.u32()?));
        found.insert((partition, month), rows.u64()?);
    }
    Ok(found)
}
