//! The write side: fence, write, settle, roll up (protocol 6.1, 6.2).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use usage_service::fail_point;
use uuid::Uuid;

use super::ClickHouseConfig;
use super::client::{CallError, Client, Profile};
use super::fence::{Fences, Held};
use super::insert::{self, MonthOfBatches, Piece};
use super::partition::{Locked, Partitions, Slot, lock_rolling, lock_writing};
use super::patience::{Patience, doubled};
use super::{bisect, codes, flush, ids, recover, settle};
use crate::{IdProbe, Opened, PlannedBatch, RefusedRow, StorageError, StoredId, Writer};

/// Longest deadline of an insert, however often it was repeated.
const LONGEST_WRITE: Duration = Duration::from_secs(600);

/// Most partitions that share an insert: each adds some 100 bytes to a URL of at most 64 KiB.
pub(crate) const PARTITIONS_PER_INSERT: usize = 128;

/// Writes as the writing user. One per worker process.
pub struct ClickHouseWriter {
    pub(crate) client: Client,
    pub(crate) fences: Fences,
    pub(crate) partitions: Partitions,
    pub(crate) lookups: Patience,
    pub(crate) config: ClickHouseConfig,
}

impl ClickHouseWriter {
    pub(crate) fn new(config: &ClickHouseConfig) -> Self {
        let client = Client::new(config, Profile::Writer);
        let fences = Fences::new(client.clone(), Uuid::new_v4());
        Self {
            client,
            fences,
            partitions: Partitions::default(),
            lookups: Patience::new(config.read_timeout),
            config: config.clone(),
        }
    }

    /// The deadline doubles at each repeat: a block that takes the server longer than the first one would never be stored.
    pub(crate) fn write_timeout(&self, slots: &[Arc<Slot>]) -> Duration {
        let repeats = slots.iter().map(|slot| slot.state().repeats).max().unwrap_or(0);
        doubled(self.config.write_timeout, repeats, LONGEST_WRITE)
    }

    /// Locks the partitions of the batches for writing; the batches come back in the order of the slots.
    pub(crate) async fn lock(
        &self,
        batches: &[Arc<PlannedBatch>],
    ) -> Result<(Locked, Vec<Arc<PlannedBatch>>), StorageError> {
        let mut batches = batches.to_vec();
        batches.sort_by_key(|batch| batch.partition);
        if batches.windows(2).any(|pair| pair[0].partition == pair[1].partition) {
            return Err(StorageError::Inconsistent("two batches of one partition in one call".into()));
        }
        let slots = self.partitions.get(batches.iter().map(|batch| batch.partition));
        if slots.len() < batches.len() {
            let held = |partition: i32| slots.iter().any(|slot| slot.partition == partition);
            let partitions =
                batches.iter().map(|batch| batch.partition).filter(|&partition| !held(partition));
            return Err(StorageError::Fenced { partitions: partitions.collect() });
        }
        Ok((lock_writing(slots).await, batches))
    }

    /// Sends months one after another. `stored` becomes true once one of them is: then no error says any more that nothing
    /// happened.
    pub(crate) async fn send(
        &self,
        slots: &[Arc<Slot>],
        months: Vec<MonthOfBatches>,
        stored: &mut bool,
    ) -> Result<(), StorageError> {
        let timeout = self.write_timeout(slots);
        for MonthOfBatches { month, pieces } in months {
            let held: Vec<Held> = slots
                .iter()
                .map(|slot| slot.held())
                .filter(|held| pieces.iter().any(|piece| piece.batch.partition == held.partition))
                .collect();
            let rows: usize = pieces.iter().map(|piece| piece.selection.len()).sum();
            let body = encode(pieces).await?;
            let started = Instant::now();
            fail_point!("storage.insert");
            let result = insert::records(&self.client, &held, body, timeout).await;
            fail_point!("storage.inserted");
            metrics::histogram!(usage_service::metric_names::STORAGE_INSERT_SECONDS, "table" => "records")
                .record(started.elapsed());
            metrics::histogram!(usage_service::metric_names::STORAGE_INSERT_ROWS, "table" => "records")
                .record(rows as f64);
            match result {
                Ok(()) => *stored = true,
                Err(CallError::NotSent(source)) if *stored => return Err(StorageError::Unknown(source)),
                Err(CallError::Exception { code: codes::FENCED, .. }) => {
                    return Err(self.fenced(&held).await);
                }
                Err(error) => {
                    tracing::warn!(month = month.0, rows, ?held, error = %usage_service::error_chain(&error), "insert failed");
                    return Err(error.of_write());
                }
            }
        }
        Ok(())
    }

    /// What it means that the server's fence refused an insert: who was fenced, or that one's own epoch has moved meanwhile.
    pub(crate) async fn fenced(&self, held: &[Held]) -> StorageError {
        match self.fences.lost(held).await {
            Ok(partitions) if !partitions.is_empty() => StorageError::Fenced { partitions },
            Ok(_) => StorageError::Unknown("one's own epoch was raised".into()),
            Err(_) => StorageError::Fenced { partitions: held.iter().map(|held| held.partition).collect() },
        }
    }
}

/// Groups the rows of batches by month, so that partitions share an insert per month.
pub(crate) fn group(batches: &[Arc<PlannedBatch>]) -> Vec<MonthOfBatches> {
    let mut months: Vec<MonthOfBatches> = Vec::new();
    for batch in batches {
        for (month, selection) in insert::by_month(&batch.rows) {
            let piece = Piece { batch: Arc::clone(batch), selection };
            match months.iter_mut().find(|known| known.month == month) {
                Some(known) => known.pieces.push(piece),
                None => months.push(MonthOfBatches { month, pieces: vec![piece] }),
            }
        }
    }
    months.sort_unstable_by_key(|month| month.month);
    months.into_iter().flat_map(split).collect()
}

/// No insert carries more partitions than its statement, which travels in the URL, has room for.
fn split(month: MonthOfBatches) -> Vec<MonthOfBatches> {
    let MonthOfBatches { month, mut pieces } = month;
    let mut inserts = Vec::new();
    while !pieces.is_empty() {
        let rest = pieces.split_off(pieces.len().min(PARTITIONS_PER_INSERT));
        inserts.push(MonthOfBatches { month, pieces: std::mem::replace(&mut pieces, rest) });
    }
    inserts
}

/// Encoding takes a core for a while: not on a thread of the runtime.
async fn encode(pieces: Vec<Piece>) -> Result<super::native::Body, StorageError> {
    tokio::task::spawn_blocking(move || insert::encode(&pieces))
        .await
        .map_err(|error| StorageError::Unavailable(Box::new(error)))?
}

#[async_trait]
impl Writer for ClickHouseWriter {
    async fn open(&self, partition: i32) -> Result<Opened, StorageError> {
        self.partitions.retire(partition);
        let held = self.fences.raise(&[partition]).await?;
        self.fences.end_older(&held).await?;
        let client = self.client.clone().with_timeout(recover::RECOVERY_TIMEOUT);
        let last_batch_seq = recover::last_batch_seq(&client, partition).await?;
        let epoch = held[0].epoch;
        self.partitions.insert(Slot::new(held[0], last_batch_seq));
        tracing::info!(partition, epoch, last_batch_seq, "partition is fenced");
        Ok(Opened { epoch, last_batch_seq })
    }

    async fn fence(&self, partitions: &[i32]) -> Result<(), StorageError> {
        for part in partitions.chunks(PARTITIONS_PER_INSERT) {
            let mut held = self.fences.raise(part).await?;
            // An owner that raised its own epoch at the same moment may have drawn a higher one. It saw no fence of ours then, and
            // nothing that we send later would be refused for it: so until none is higher.
            while !self.fences.lost(&held).await?.is_empty() {
                held = self.fences.raise(part).await?;
            }
            self.fences.end_older(&held).await?;
            tracing::info!(?held, "fenced, for nobody");
        }
        Ok(())
    }

    async fn write(&self, batches: &[Arc<PlannedBatch>]) -> Result<(), StorageError> {
        let (locked, batches) = self.lock(batches).await?;
        let pairs = || locked.slots.iter().zip(&batches);
        for (slot, batch) in pairs() {
            let state = slot.state();
            if let Some(in_doubt) = state.batch_in_doubt {
                return Err(StorageError::Unknown(format!("batch {in_doubt} must be settled first").into()));
            }
            if batch.batch_seq <= state.through {
                return Err(StorageError::Inconsistent(format!(
                    "batch {} of partition {} comes after batch {}",
                    batch.batch_seq, batch.partition, state.through
                )));
            }
            insert::check(batch)?;
        }
        pairs().for_each(|(slot, batch)| slot.state().batch_in_doubt = Some(batch.batch_seq));
        let mut stored = false;
        let result = self.send(&locked.slots, group(&batches), &mut stored).await;
        match &result {
            Ok(()) => pairs().for_each(|(slot, batch)| slot.state().stored(batch)),
            // Nothing is stored and nothing is under way: the same batches may be written again, or split.
            Err(StorageError::Unavailable(_) | StorageError::Final { .. }) if !stored => {
                pairs().for_each(|(slot, _)| slot.state().batch_in_doubt = None);
            }
            Err(_) => {}
        }
        result
    }

    async fn settle(&self, batches: &[Arc<PlannedBatch>]) -> Result<(), StorageError> {
        settle::settle(self, batches).await
    }

    async fn bisect(&self, batch: &PlannedBatch) -> Result<Vec<RefusedRow>, StorageError> {
        let maintenance = Client::new(&self.config, Profile::Maintenance);
        bisect::bisect(&self.client, &maintenance, batch, self.config.write_timeout).await
    }

    async fn recover(&self, partition: i32) -> Result<(), StorageError> {
        let slots = self.partitions.get([partition]);
        let Some(slot) = slots.first().map(Arc::clone) else {
            return Err(StorageError::Fenced { partitions: vec![partition] });
        };
        let _rolling = lock_rolling(slots.clone()).await;
        let _writing = lock_writing(slots).await;
        flush::recover(self, &slot).await
    }

    async fn ids(
        &self,
        partition: i32,
        partition_count: i32,
        sink: &mut (dyn for<'a> FnMut(&'a [Uuid]) + Send),
    ) -> Result<(), StorageError> {
        ids::stream(&self.client, partition, partition_count, sink).await
    }

    async fn find(&self, probes: &[IdProbe]) -> Result<Vec<StoredId>, StorageError> {
        ids::find(&self.client, &self.lookups, probes).await
    }

    async fn tick(&self, partitions: &[i32]) -> Result<(), StorageError> {
        let mut slots = self.partitions.get(partitions.iter().copied());
        if !slots.iter().any(|slot| flush::is_due(&slot.state(), &self.config, 1)) {
            return Ok(());
        }
        // Those that will be due soon come along: one part less.
        slots.retain(|slot| flush::is_due(&slot.state(), &self.config, 2));
        flush::flush(self, &lock_rolling(slots).await).await
    }

    async fn close(&self, partition: i32, flush: bool) -> Result<(), StorageError> {
        let rolling = lock_rolling(self.partitions.get([partition])).await;
        let writing = lock_writing(rolling.slots.clone()).await;
        drop(writing);
        let wanted = flush && rolling.slots.iter().all(|slot| slot.state().recovered);
        let result = if wanted { flush::flush(self, &rolling).await } else { Ok(()) };
        rolling.slots.iter().for_each(|slot| self.partitions.forget(slot));
        result
    }

    fn horizon_age_seconds(&self) -> Vec<(i32, u64)> {
        let age = |slot: &Arc<Slot>| slot.state().oldest.map_or(0, |oldest| oldest.elapsed().as_secs());
        self.partitions.all().iter().map(|slot| (slot.partition, age(slot))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rows;

    #[test]
    fn an_insert_has_room_for_its_partitions() {
        let pieces = (0..300)
            .map(|partition| Piece {
                batch: Arc::new(PlannedBatch { partition, batch_seq: 1, rows: Rows::default() }),
                selection: crate::clickhouse::native::Selection::All(0),
            })
            .collect();
        let month = crate::clickhouse::months::Month(202611);
        let inserts = split(MonthOfBatches { month, pieces });
        let sizes: Vec<usize> = inserts.iter().map(|insert| insert.pieces.len()).collect();
        assert_eq!(sizes, [128, 128, 44]);
        let partitions: Vec<i32> =
            inserts.iter().flat_map(|insert| &insert.pieces).map(|piece| piece.batch.partition).collect();
        assert_eq!(partitions, (0..300).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn deadlines_double_up_to_ten_minutes() {
        let writer = ClickHouseWriter::new(&ClickHouseConfig::new("http://127.0.0.1:1", "x"));
        let mut seconds = Vec::new();
        for repeats in [0, 1, 2, 4, 5, 63, u32::MAX] {
            let slot = Slot::new(Held { partition: 1, epoch: 1 }, 0);
            slot.state().repeats = repeats;
            writer.partitions.insert(slot);
            let slots = writer.partitions.get([1, 2]);
            assert_eq!(slots.len(), 1, "the one that is held");
            seconds.push(writer.write_timeout(&slots).as_secs());
        }
        assert_eq!(seconds, [30, 60, 120, 480, 600, 600, 600]);
    }
}
