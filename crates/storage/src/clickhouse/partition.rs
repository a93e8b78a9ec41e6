//! What a writer keeps of a partition it holds, and the locks around it.
//!
//! Each partition has two locks that are held for the whole of a call: `writing` by whoever stores batches or raises the epoch
//! (write, settle, recover, close, and the proof of a flush), `rolling` by whoever flushes (tick, recover, close). A flush goes on while a
//! write does. Both are taken in this order: first all `rolling` ones, then all `writing` ones, each kind ascending by partition, so that no two
//! calls wait for each other. The state itself is locked for moments only, never while anything is awaited.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::aggregate::Aggregate;
use super::fence::Held;
use super::months::Month;
use super::rollup::{Generations, Share};
use crate::PlannedBatch;

/// A held partition.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) partition: i32,
    writing: Arc<tokio::sync::Mutex<()>>,
    rolling: Arc<tokio::sync::Mutex<()>>,
    /// Set once `open` has begun to replace this slot: whoever still works on it must not send anything more.
    dead: AtomicBool,
    state: Mutex<State>,
}

impl Slot {
    pub(crate) fn new(held: Held, through: i64) -> Self {
        Self {
            partition: held.partition,
            writing: Arc::default(),
            rolling: Arc::default(),
            dead: AtomicBool::new(false),
            state: Mutex::new(State::new(held, through)),
        }
    }

    /// For a moment: never across an await.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("not poisoned")
    }

    pub(crate) fn held(&self) -> Held {
        self.state().held
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    pub(crate) async fn writing(self: &Arc<Self>) -> OwnedMutexGuard<()> {
        Arc::clone(&self.writing).lock_owned().await
    }

    pub(crate) async fn rolling(self: &Arc<Self>) -> OwnedMutexGuard<()> {
        Arc::clone(&self.rolling).lock_owned().await
    }
}

/// State of a held partition.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) held: Held,
    /// The last batch that is wholly stored.
    pub(crate) through: i64,
    /// True once `recover` has read the records beyond the horizons: only then the aggregate may be rolled up.
    pub(crate) recovered: bool,
    pub(crate) aggregate: Aggregate,
    pub(crate) generations: Arc<Generations>,
    /// A batch whose write was begun and not proved: it must be settled first. Set before anything is sent, so that a
    /// caller who drops a running write leaves it set.
    pub(crate) batch_in_doubt: Option<i64>,
    /// The server was asked to roll a month up and has not said that it did.
    pub(crate) recovery_in_doubt: bool,
    /// Unproved attempts in a row: each doubles the deadline of the next.
    pub(crate) repeats: u32,
    /// When the oldest row of the aggregate came.
    pub(crate) oldest: Option<Instant>,
}

impl State {
    fn new(held: Held, through: i64) -> Self {
        Self {
            held,
            through,
            recovered: false,
            aggregate: Aggregate::default(),
            generations: Arc::default(),
            batch_in_doubt: None,
            recovery_in_doubt: false,
            repeats: 0,
            oldest: None,
        }
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
            self.oldest.get_or_insert_with(Instant::now);
        }
    }

    /// The rows beyond the horizons are in the aggregate now.
    pub(crate) fn recovered(&mut self, aggregate: Aggregate, generations: Generations) {
        self.oldest = (!aggregate.is_empty()).then(Instant::now);
        self.aggregate = aggregate;
        self.generations = Arc::new(generations);
        self.repeats = 0;
        self.recovered = true;
    }

    /// Sets a month apart for a flush; `None` if it has no rows.
    pub(crate) fn freeze(&mut self, month: Month) -> Option<Share> {
        if !self.aggregate.freeze(month, self.through) {
            return None;
        }
        Some(Share {
            partition: self.held.partition,
            names: self.aggregate.names.texts(),
            frozen: self.aggregate.frozen(month)?,
            generations: Arc::clone(&self.generations),
        })
    }

    /// The flush of a month is proved.
    pub(crate) fn rolled_up(&mut self, month: Month) {
        self.aggregate.rolled_up(month);
        self.repeats = 0;
        if self.aggregate.is_empty() {
            self.oldest = None;
        }
    }

    /// All that there was at `started` is rolled up.
    pub(crate) fn flushed(&mut self, started: Instant) {
        self.oldest = self.oldest.map(|oldest| oldest.max(started));
    }
}

/// Locks that are held until this is dropped.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(crate) slots: Vec<Arc<Slot>>,
    _guards: Vec<OwnedMutexGuard<()>>,
}

/// The partitions that a writer holds.
#[derive(Debug, Default)]
pub(crate) struct Partitions {
    slots: Mutex<HashMap<i32, Arc<Slot>>>,
}

impl Partitions {
    fn slots(&self) -> MutexGuard<'_, HashMap<i32, Arc<Slot>>> {
        self.slots.lock().expect("not poisoned")
    }

    pub(crate) fn insert(&self, slot: Slot) {
        self.slots().insert(slot.partition, Arc::new(slot));
    }

    /// Before a partition is opened anew, and so before the new epoch is chosen: an epoch that a call on the old slot takes
    /// after that is higher, but the call sees that the slot is dead before it sends anything under it.
    pub(crate) fn retire(&self, partition: i32) {
        if let Some(slot) = self.slots().remove(&partition) {
            slot.dead.store(true, Ordering::SeqCst);
        }
    }

    /// Forgets the slot, unless the partition was opened anew meanwhile.
    pub(crate) fn forget(&self, slot: &Arc<Slot>) {
        let mut slots = self.slots();
        if slots.get(&slot.partition).is_some_and(|known| Arc::ptr_eq(known, slot)) {
            slots.remove(&slot.partition);
        }
    }

    /// The given partitions, ascending; those that are not held are left out.
    pub(crate) fn get(&self, partitions: impl IntoIterator<Item = i32>) -> Vec<Arc<Slot>> {
        let ascending: BTreeSet<i32> = partitions.into_iter().collect();
        let slots = self.slots();
        ascending.iter().filter_map(|partition| slots.get(partition)).map(Arc::clone).collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Slot>> {
        self.slots().values().map(Arc::clone).collect()
    }
}

/// Takes the `writing` locks of slots that ascend.
pub(crate) async fn lock_writing(slots: Vec<Arc<Slot>>) -> Locked {
    let mut guards = Vec::with_capacity(slots.len());
    for slot in &slots {
        guards.push(slot.writing().await);
    }
    Locked { slots, _guards: guards }
}

/// Takes the `rolling` locks of slots that ascend.
pub(crate) async fn lock_rolling(slots: Vec<Arc<Slot>>) -> Locked {
    let mut guards = Vec::with_capacity(slots.len());
    for slot in &slots {
        guards.push(slot.rolling().await);
    }
    Locked { slots, _guards: guards }
}
