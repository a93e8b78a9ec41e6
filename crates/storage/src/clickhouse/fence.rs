//! Fences: who may write a partition (protocol 6.1; rules 1 to 3 of the proof).
//!
//! The owner of the highest epoch of a partition may write it. A takeover writes a higher epoch, so that every later insert
//! of an older owner throws, then kills the inserts that had passed their check before.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::Duration;

use rand::Rng;
use usage_service::fail_point;
use uuid::Uuid;

use super::client::{CallError, Client, literal};
use super::rowbinary::RowReader;
use crate::StorageError;

/// A partition and the epoch under which it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) partition: i32,
    pub(crate) epoch: i64,
}

/// Low bits of an epoch are random, so that two owners who read the same maximum don't take the same one.
pub(crate) const RANDOM_BITS: u32 = 20;

/// A killed insert ends at its next block; one whose client froze ends at the server's `http_receive_timeout` (5 s).
const KILL_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Fences {
    client: Client,
    owner: Uuid,
    /// The highest epoch tried per partition: a fence whose insert timed out may still appear, and must not lie above ours.
    tried: Mutex<HashMap<i32, i64>>,
}

impl Fences {
    pub(crate) fn new(client: Client, owner: Uuid) -> Self {
        Self { client, owner, tried: Mutex::default() }
    }

    /// Takes a unique higher epoch for each partition.
    pub(crate) async fn raise(&self, partitions: &[i32]) -> Result<Vec<Held>, StorageError> {
        self.raise_above(partitions, 0).await
    }

    /// The same, above `floor` as well: after a restore the table may have forgotten epochs that were used.
    pub(crate) async fn raise_above(
        &self,
        partitions: &[i32],
        floor: i64,
    ) -> Result<Vec<Held>, StorageError> {
        loop {
            let held = self.next_epochs(partitions, floor).await?;
            let mut insert = String::from(
                "INSERT INTO usage_fences (kafka_partition, epoch, owner, taken_at) SETTINGS async_insert = 0 VALUES ",
            );
            for (i, Held { partition, epoch }) in held.iter().enumerate() {
                let comma = if i == 0 { "" } else { ", " };
                write!(insert, "{comma}({partition}, {epoch}, '{}', now64(6))", self.owner)
                    .expect("to a String");
            }
            fail_point!("storage.fence");
            self.client.execute(&insert).await?;
            fail_point!("storage.fenced");
            // An epoch held twice would fence neither owner.
            if self.foreign(&format!("(kafka_partition, epoch) IN ({})", pairs(&held))).await?.is_empty() {
                return Ok(held);
            }
            tracing::warn!(?partitions, "another owner took the same epoch; taking the next one");
        }
    }

    async fn next_epochs(&self, partitions: &[i32], floor: i64) -> Result<Vec<Held>, StorageError> {
        let sql = format!(
            "SELECT kafka_partition, max(epoch) FROM usage_fences WHERE kafka_partition IN ({}) GROUP BY kafka_partition",
            numbers(partitions)
        );
        let bytes = self.client.fetch(&sql).await?;
        let mut rows = RowReader::new(&bytes);
        let mut highest = HashMap::new();
        while !rows.is_empty() {
            let partition = rows.i32()?;
            highest.insert(partition, rows.i64()?);
        }
        let mut tried = self.tried.lock().expect("not poisoned");
        Ok(partitions
            .iter()
            .map(|&partition| {
                let tried = tried.entry(partition).or_default();
                let epoch = epoch_above(highest.get(&partition).copied().unwrap_or(0).max(*tried).max(floor));
                *tried = epoch;
                Held { partition, epoch }
            })
            .collect())
    }

    /// The partitions for which another owner has an epoch above the given one.
    pub(crate) async fn lost(&self, held: &[Held]) -> Result<Vec<i32>, StorageError> {
        self.foreign(&above(held)).await
    }

    async fn foreign(&self, condition: &str) -> Result<Vec<i32>, StorageError> {
        let sql = format!(
            "SELECT DISTINCT kafka_partition FROM usage_fences WHERE ({condition}) AND owner != '{}'",
            self.owner
        );
        let bytes = self.client.fetch(&sql).await?;
        let mut rows = RowReader::new(&bytes);
        let mut partitions = Vec::new();
        while !rows.is_empty() {
            partitions.push(rows.i32()?);
        }
        Ok(partitions)
    }

    /// Ends every insert that carries one of the partitions under a lower epoch; returns when none is listed any more.
    pub(crate) async fn end_older(&self, held: &[Held]) -> Result<(), StorageError> {
        let killer = self.client.clone().with_timeout(KILL_TIMEOUT);
        loop {
            let older: Vec<String> =
                self.running().await?.into_iter().filter(|id| is_older(id, held)).collect();
            if older.is_empty() {
                return Ok(());
            }
            tracing::info!(inserts = older.len(), ?held, "ending inserts of older epochs");
            let ids = older.iter().map(|id| literal(id)).collect::<Vec<_>>().join(", ");
            match killer.execute(&format!("KILL QUERY WHERE query_id IN ({ids}) SYNC")).await {
                Ok(()) => {}
                // It may have ended on its own; the list says.
                Err(CallError::Exception { code, message }) => {
                    tracing::debug!(code, message, "kill was answered")
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn running(&self) -> Result<Vec<String>, StorageError> {
        let sql = "SELECT query_id FROM system.processes \
                   WHERE startsWith(query_id, 'w.') AND current_database = currentDatabase()";
        let bytes = self.client.fetch(sql).await?;
        let mut rows = RowReader::new(&bytes);
        let mut ids = Vec::new();
        while !rows.is_empty() {
            ids.push(rows.str()?.to_owned());
        }
        Ok(ids)
    }
}

fn epoch_above(highest: i64) -> i64 {
    (((highest >> RANDOM_BITS) + 1) << RANDOM_BITS) | rand::rng().random_range(0..1 << RANDOM_BITS)
}

/// `w.<uuid>.p3e17.p5e9.`: names every partition and epoch that an insert carries.
pub(crate) fn query_id(held: &[Held]) -> String {
    let mut id = format!("w.{}.", Uuid::new_v4());
    for Held { partition, epoch } in held {
        write!(id, "p{partition}e{epoch}.").expect("to a String");
    }
    id
}

fn is_older(query_id: &str, held: &[Held]) -> bool {
    query_id.split('.').skip(2).filter_map(parse_held).any(|carried| {
        held.iter().any(|ours| ours.partition == carried.partition && carried.epoch < ours.epoch)
    })
}

fn parse_held(part: &str) -> Option<Held> {
    let (partition, epoch) = part.strip_prefix('p')?.split_once('e')?;
    Some(Held { partition: partition.parse().ok()?, epoch: epoch.parse().ok()? })
}

/// The condition that every insert carries: it throws (code 395) if a higher epoch exists for a partition it carries.
pub(crate) fn guard(held: &[Held]) -> String {
    format!("throwIf((SELECT count() FROM usage_fences WHERE {}) > 0, 'fenced') = 0", above(held))
}

fn above(held: &[Held]) -> String {
    let conditions =
        held.iter().map(|h| format!("(kafka_partition = {} AND epoch > {})", h.partition, h.epoch));
    conditions.collect::<Vec<_>>().join(" OR ")
}

fn pairs(held: &[Held]) -> String {
    held.iter().map(|h| format!("({}, {})", h.partition, h.epoch)).collect::<Vec<_>>().join(", ")
}

/// Numbers as a list for `IN`.
pub(crate) fn numbers<T: ToString>(values: &[T]) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_hits_every_insert_that_carries_an_older_epoch() {
        let held = [Held { partition: 3, epoch: 20 }];
        let carries = |parts: &[(i32, i64)]| {
            let carried: Vec<Held> =
                parts.iter().map(|&(partition, epoch)| Held { partition, epoch }).collect();
            is_older(&query_id(&carried), &held)
        };
        assert!(carries(&[(3, 19)]));
        assert!(carries(&[(1, 99), (3, 19), (5, 7)]), "joint ones too");
        assert!(!carries(&[(3, 20)]), "not one's own");
        assert!(!carries(&[(3, 21)]), "not a newer owner's");
        assert!(!carries(&[(13, 19), (33, 1)]), "not other partitions");
        assert!(!is_older("w.p3e1.rest", &held), "the second part is a UUID, never a partition");
    }

    #[test]
    fn epochs_rise_and_differ() {
        let (a, b) = (epoch_above(5 << 20 | 77), epoch_above(5 << 20 | 77));
        assert_eq!((a >> 20, b >> 20), (6, 6));
        let distinct: std::collections::HashSet<i64> = (0..50).map(|_| epoch_above(0)).collect();
        assert!(distinct.len() > 40);
        assert_eq!(epoch_above((1 << 20) | 0xf_ffff) >> 20, 2);
    }
}
