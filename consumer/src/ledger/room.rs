//! Whether there is room for one more record under its quota, in the order of the log.
//!
//! What the database has counted is asked for once for each key; from then on the ledger adds its own batches, since nobody else counts
//! what lies in its partition. A record that is not decided yet might take the last place before one behind it: then that one
//! waits, too.

use std::collections::HashMap;

use usage_control::{QuotaCounts, QuotaKey};
use usage_schemas::RecordRef;

use super::{Closed, Ledger};
use crate::batch::Open;
use crate::judge::{Judge, Refusal};
use crate::message::Envelope;
use crate::quota;

/// Counters that a partition holds; beyond, all are asked for anew, since most are of windows that are over.
const MOST: usize = 100_000;

/// The answer for one record.
pub(super) enum Room {
    /// No quota holds for it.
    Unbound,
    /// It is counted under this.
    Granted(QuotaKey),
    UsedUp(Refusal),
    /// Its key has not been asked for, or those before it are not decided.
    Unknown,
}

/// What is counted, as of the last batch that is done.
pub(super) struct Counters {
    done: HashMap<QuotaKey, i64>,
    pub(super) most: usize,
    /// Offsets below were counted before a restore: neither held to quotas nor counted again.
    pub(super) from: i64,
}

impl Default for Counters {
    fn default() -> Self {
        Self { done: HashMap::new(), most: MOST, from: 0 }
    }
}

impl Ledger {
    /// What a record at `offset` is counted under, if it is.
    pub(super) fn quota_key(
        &self,
        judge: &Judge,
        record: &RecordRef<'_>,
        message: &Envelope<'_>,
    ) -> Option<QuotaKey> {
        if message.offset < self.counters.from {
            return None;
        }
        quota::bound(&judge.quotas, record, message.timestamp).map(|(key, _)| key)
    }

    /// Whether a record of the open batch has room, behind everything that is in hand.
    pub(super) fn room(&self, judge: &Judge, record: &RecordRef<'_>, message: &Envelope<'_>) -> Room {
        let waiting = match &self.closed {
            Some(Closed::Waiting(open, _)) => Some(&**open),
            Some(Closed::Ready(_)) | None => None,
        };
        let hands = [waiting, Some(&self.open)];
        self.room_behind(judge, record, message, &hands)
    }

    /// Whether a record of a closed batch has room, now that all before it are decided; `hands` is what the batch keeps.
    ///
    /// What was kept behind it counts, too: that had room beside everything before it that was not decided, so beside this one.
    pub(super) fn room_behind(
        &self,
        judge: &Judge,
        record: &RecordRef<'_>,
        message: &Envelope<'_>,
        hands: &[Option<&Open>],
    ) -> Room {
        if message.offset < self.counters.from {
            return Room::Unbound;
        }
        let Some((key, quota)) = quota::bound(&judge.quotas, record, message.timestamp) else {
            return Room::Unbound;
        };
        let Some(done) = self.counters.done.get(&key) else { return Room::Unknown };
        let ready = match &self.closed {
            Some(Closed::Ready(decided)) => decided.spent.of(&key),
            Some(Closed::Waiting(..)) | None => 0,
        };
        let in_flight = self.in_flight.as_ref().map_or(0, |batch| batch.spent.of(&key));
        let (mut used, mut undecided) = (done + in_flight + ready, 0);
        for open in hands.iter().flatten() {
            used += open.spent.of(&key);
            undecided += open.undecided.get(&key).copied().unwrap_or(0);
        }
        if used >= quota.max_records {
            Room::UsedUp(quota::refusal(&key, quota))
        } else if used + undecided < quota.max_records {
            Room::Granted(key)
        } else {
            Room::Unknown
        }
    }

    pub(super) fn is_counted(&self, key: &QuotaKey) -> bool {
        self.counters.done.contains_key(key)
    }

    /// Takes the database's counters. They have what was done up to their batch number: of the batches since the question was asked
    /// each is in there or not.
    pub(super) fn learn(&mut self, keys: &[QuotaKey], counts: &QuotaCounts) {
        for (key, records) in keys.iter().zip(&counts.records) {
            let mut done = *records;
            for batch in self.lingering.iter().filter(|batch| batch.batch.batch_seq > counts.batch_seq) {
                done += batch.spent.of(key);
            }
            if let Some(batch) = &self.in_flight
                && batch.batch.batch_seq <= counts.batch_seq
            {
                done -= batch.spent.of(key);
            }
            // What is known has all of that already.
            self.counters.done.entry(key.clone()).or_insert(done);
        }
    }

    /// The batch in flight is done, but for the rows that storage refused.
    pub(super) fn count_done(&mut self, refused: &[i64]) {
        let Some(batch) = &self.in_flight else { return };
        for (key, records) in batch.spent.counts(&[]) {
            // Whether the database was asked before or after these rows were taken out is not known: it is asked again.
            if !refused.is_empty() {
                self.counters.done.remove(&key);
            } else if let Some(done) = self.counters.done.get_mut(&key) {
                *done += records;
            }
        }
        if self.counters.done.len() > self.counters.most {
            self.counters.done.clear();
        }
    }
}
