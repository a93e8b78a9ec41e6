//! What a writer keeps of a partition it holds, and the locks around it.
//!
//! Each partition has one lock, held for the whole of a call that touches it. A call that touches several takes their locks
//! in ascending order of the partition, so that no two calls wait for each other.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::aggregate::Aggregate;
use super::fence::Held;
use super::months::Month;
use super::rollup::Generations;
use crate::PlannedBatch;

/// State of a held partition.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) held: Held,
    /// The last batch that is wholly stored.
    pub(crate) through: i64,
    /// True once `recover` has read the records beyond the horizons: only then the aggregate may be rolled up.
    pub(crate) recovered: bool,
    pub(crate) aggregate: Aggregate,
    pub(crate) generations: Generations,
    /// A batch whose write was begun and not proved: it must be settled first. Set before anything is sent, so that a
    /// caller who drops a running write leaves it set.
    pub(crate) batch_in_doubt: Option<i64>,
    /// The server was asked to roll a month up and has not said that it did.
    pub(crate) recovery_in_doubt: bool,
    /// Unproved attempts in a row: each doubles the deadline of the next.
    pub(crate) repeats: u32,
    oldest: Oldest,
}

/// When the oldest row of the aggregate came; shared with the slot, which is read without the partition's lock.
#[derive(Debug, Clone, Default)]
struct Oldest(Arc<Mutex<Option<Instant>>>);

impl Oldest {
    fn get(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().expect("not poisoned")
    }
}

impl Partition {
    pub(crate) fn new(held: Held, through: i64) -> Self {
        Self {
            held,
            through,
            recovered: false,
            aggregate: Aggregate::default(),
            generations: Generations::new(),
            batch_in_doubt: None,
            recovery_in_doubt: false,
            repeats: 0,
            oldest: Oldest::default(),
        }
    }

    pub(crate) fn partition(&self) -> i32 {
        self.held.partition
    }

    /// Takes a wholly stored batch in (rule 7). Before `recover` its rows are left to it.
    pub(crate) fn stored(&mut self, batch: &PlannedBatch) {
        self.batch_in_doubt = None;
        self.repeats = 0;
        if batch.batch_seq <= self.through {
            return;
        }
        self.through = batch.batch_seq;
        if self.recovered && !batch.rows.is_empty() {
            self.aggregate.add_rows(&batch.rows);
            self.oldest.get().get_or_insert_with(Instant::now);
        }
    }

    /// The rows beyond the horizons are in the aggregate now.
    pub(crate) fn recovered(&mut self, aggregate: Aggregate, generations: Generations) {
        *self.oldest.get() = (!aggregate.is_empty()).then(Instant::now);
        self.aggregate = aggregate;
        self.generations = generations;
        self.recovered = true;
    }

    /// The flush of a month is proved.
    pub(crate) fn rolled_up(&mut self, month: Month) {
        self.aggregate.rolled_up(month);
        if self.aggregate.is_empty() {
            *self.oldest.get() = None;
            self.repeats = 0;
        }
    }

    pub(crate) fn oldest(&self) -> Option<Instant> {
        *self.oldest.get()
    }
}

#[derive(Debug)]
struct Slot {
    partition: Arc<tokio::sync::Mutex<Partition>>,
    oldest: Oldest,
}

pub(crate) type Guard = OwnedMutexGuard<Partition>;

/// The partitions that a writer holds.
#[derive(Debug, Default)]
pub(crate) struct Partitions {
    slots: Mutex<HashMap<i32, Slot>>,
}

impl Partitions {
    fn slots(&self) -> MutexGuard<'_, HashMap<i32, Slot>> {
        self.slots.lock().expect("not poisoned")
    }

    pub(crate) fn insert(&self, partition: Partition) {
        let (number, oldest) = (partition.partition(), partition.oldest.clone());
        let slot = Slot { partition: Arc::new(tokio::sync::Mutex::new(partition)), oldest };
        self.slots().insert(number, slot);
    }

    pub(crate) fn remove(&self, partition: i32) {
        self.slots().remove(&partition);
    }

    /// Locks the given partitions; those that are not held are left out.
    pub(crate) async fn lock(&self, partitions: impl IntoIterator<Item = i32>) -> Vec<Guard> {
        let ascending: BTreeSet<i32> = partitions.into_iter().collect();
        let mutexes: Vec<_> = {
            let slots = self.slots();
            ascending
                .iter()
                .filter_map(|number| slots.get(number))
                .map(|slot| Arc::clone(&slot.partition))
                .collect()
        };
        let mut guards = Vec::with_capacity(mutexes.len());
        for mutex in mutexes {
            guards.push(mutex.lock_owned().await);
        }
        guards
    }

    /// When the oldest row of each partition's aggregate came.
    pub(crate) fn oldest(&self) -> Vec<(i32, Option<Instant>)> {
        self.slots().iter().map(|(&number, slot)| (number, *slot.oldest.get())).collect()
    }
}
