//! A batch while it is filled, and what it is once everything in it is decided.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use usage_control::QuotaKey;
use usage_schemas::{Marker, Quantity, RecordRef, Timestamp};
use usage_storage::{PlannedBatch, Rows};
use uuid::Uuid;

use crate::attribution::Pairs;
use crate::budget::Charge;
use crate::dead_letter::Outgoing;
use crate::marker::Heard;
use crate::message::OwnedMessage;
use crate::plan::{IdHash, NotKept, PackedSize, Plan, Runs};
use crate::quota::Spent;

/// Bytes that a record takes in columns and maps, beside its own.
pub const RECORD_OVERHEAD: usize = 256;

/// Record ids are hashes or random already; folding their halves is enough for a map that lives as long as a batch.
#[derive(Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type IdState = BuildHasherDefault<IdHasher>;
/// Tenant and record id: an id that another tenant uses is another identity.
pub type Identity = (Uuid, Uuid);
/// Row of each kept identity.
pub type IdMap = HashMap<Identity, u32, IdState>;
/// Identities of records that are not decided yet.
pub type IdSet = HashSet<Identity, IdState>;

/// When a batch ends. All are marks to end at, not promises: a burst may pass them a little.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub rows: usize,
    pub bytes: usize,
    pub age: Duration,
    /// Characters of the plan's `not_kept`.
    pub not_kept: usize,
    /// Records that wait for storage or the registry.
    pub deferred: usize,
}

/// A record that only storage, a fresh registry or the policy point can decide.
#[derive(Debug)]
pub struct Deferred {
    pub message: OwnedMessage,
    /// True if a fresher registry could decide it, or the policy point about what that says; false if storage and counters can.
    pub by_registry: bool,
}

/// Whose a record is, for metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whose {
    /// `None` of what can't be read.
    pub tenant_id: Option<Uuid>,
    /// `None` of what can't be read or is not registered. Shared with the registry: nothing is copied for a record.
    pub metric: Option<Arc<str>>,
}

/// How many records are not kept, for metrics.
pub type Tally = BTreeMap<(Whose, NotKept), u64>;

/// A batch that takes in rows.
pub struct Open {
    pub rows: Rows,
    pub ids: IdMap,
    /// Ascending by offset.
    pub not_kept: Vec<(i64, NotKept)>,
    pub outgoing: Vec<Outgoing>,
    pub heard: Vec<Heard>,
    pub deferred: Vec<Deferred>,
    pub deferred_ids: IdSet,
    /// What is kept, as far as quotas count it, and how many records that are not decided they might count.
    pub spent: Spent,
    pub undecided: HashMap<QuotaKey, i64>,
    /// What the policy point is to be asked about.
    pub pairs: Pairs,
    pub size: PackedSize,
    /// First and last delivered offset.
    pub bounds: Option<(i64, i64)>,
    pub charge: Charge,
    pub opened: Instant,
    /// The broker's time of the first row, milliseconds since the Unix epoch.
    pub oldest: i64,
    pub tally: Tally,
    /// Records over their quota, by source, for metrics.
    pub over_quota: BTreeMap<String, u64>,
}

impl Open {
    pub fn new(now: Instant) -> Self {
        Self {
            rows: Rows::default(),
            ids: IdMap::default(),
            not_kept: Vec::new(),
            outgoing: Vec::new(),
            heard: Vec::new(),
            deferred: Vec::new(),
            deferred_ids: IdSet::default(),
            spent: Spent::default(),
            undecided: HashMap::new(),
            pairs: Pairs::default(),
            size: PackedSize::default(),
            bounds: None,
            charge: Charge::default(),
            opened: now,
            oldest: 0,
            tally: Tally::new(),
            over_quota: BTreeMap::new(),
        }
    }

    /// The next batch, with room for as many rows as this one: growing by doubling would hold every column twice for a while.
    pub fn next(&self, now: Instant) -> Self {
        let mut next = Self::new(now);
        let room = self.rows.len();
        next.ids.reserve(room);
        let rows = &mut next.rows;
        rows.record_id.reserve_exact(room);
        rows.tenant_id.reserve_exact(room);
        rows.content_hash.reserve_exact(room);
        rows.offset.reserve_exact(room);
        rows.ingested_at.reserve_exact(room);
        rows.kind.reserve_exact(room);
        rows.value.reserve_exact(room);
        rows.timestamp.reserve_exact(room);
        rows.resource_id.reserve_exact(room);
        rows.subject_id.reserve_exact(room);
        next
    }

    pub fn is_empty(&self) -> bool {
        self.bounds.is_none()
    }

    /// True when it should take no more.
    pub fn is_full(&self, limits: &Limits) -> bool {
        self.charge.records >= limits.rows
            || self.charge.bytes >= limits.bytes
            || self.deferred.len() >= limits.deferred
            || self.size.exceeds(limits.not_kept)
    }

    /// Takes a delivered row into account; `why` is `None` if it is kept, or might be.
    pub fn note(&mut self, offset: i64, timestamp: i64, charge: Charge, why: Option<NotKept>, now: Instant) {
        match &mut self.bounds {
            Some((_, last)) => *last = offset,
            None => {
                self.bounds = Some((offset, offset));
                self.opened = now;
                self.oldest = timestamp;
            }
        }
        self.charge.add(charge);
        self.size.push(offset, why);
        if let Some(why) = why {
            self.not_kept.push((offset, why));
        }
    }

    pub fn keep(&mut self, record: &RecordRef<'_>, content_hash: [u8; 16], offset: i64, ingested_at: i64) {
        let row = u32::try_from(self.rows.len()).expect("a batch ends long before 2^32 rows");
        self.ids.insert((record.tenant_id, record.record_id), row);
        self.rows.push(record, content_hash, offset, ingested_at);
    }

    pub fn hash_of(&self, id: &Identity) -> Option<[u8; 16]> {
        self.ids.get(id).map(|row| self.rows.content_hash[*row as usize])
    }

    /// One more record of the source is over its quota.
    pub fn note_over_quota(&mut self, source: &str) {
        match self.over_quota.get_mut(source) {
            Some(count) => *count += 1,
            None => {
                self.over_quota.insert(source.to_owned(), 1);
            }
        }
    }
}

/// A batch in which everything is decided.
pub struct Decided {
    pub batch: Arc<PlannedBatch>,
    pub ids: IdMap,
    /// First and last delivered offset.
    pub first: i64,
    pub last: i64,
    pub not_kept: Runs,
    pub outgoing: Arc<Vec<Outgoing>>,
    /// What the batch's markers move: the greatest of each outbox.
    pub markers: Vec<Marker>,
    /// Markers that move nothing because they are ahead of the broker's clock.
    pub ahead: Vec<Marker>,
    pub charge: Charge,
    pub opened: Instant,
    /// The broker's time of the first row, milliseconds since the Unix epoch.
    pub oldest: i64,
    pub tally: Tally,
    /// What is kept, as far as quotas count it.
    pub spent: Spent,
    /// Records over their quota, by source, for metrics.
    pub over_quota: BTreeMap<String, u64>,
}

impl Decided {
    pub fn hash_of(&self, id: &Identity) -> Option<[u8; 16]> {
        self.ids.get(id).map(|row| self.batch.rows.content_hash[*row as usize])
    }

    pub fn plan(&self, count: i32) -> Plan {
        Plan {
            count,
            batch_seq: self.batch.batch_seq,
            first: self.first,
            last: self.last,
            kept: self.batch.rows.len() as u64,
            hash: IdHash::of(&self.batch.rows.record_id),
            not_kept: self.not_kept.clone(),
        }
    }
}

/// Row `index` as a record.
pub fn record_at(rows: &Rows, index: usize) -> RecordRef<'_> {
    RecordRef {
        record_id: rows.record_id[index],
        tenant_id: rows.tenant_id[index],
        source: rows.source.get(index).unwrap_or_default(),
        metric: rows.metric.get(index).unwrap_or_default(),
        kind: rows.kind[index],
        value: Quantity::from_unscaled(rows.value[index]).expect("it came out of a quantity"),
        timestamp: Timestamp::from_micros(rows.timestamp[index]),
        idempotency_key: rows.idempotency_key.get(index),
        resource_id: rows.resource_id[index],
        resource_type: rows.resource_type.get(index),
        subject_id: rows.subject_id[index],
        subject_type: rows.subject_type.get(index),
        metadata: rows.metadata.get(index),
    }
}

/// Copies row `index` to the end of `to`.
pub fn copy_row(from: &Rows, index: usize, to: &mut Rows) {
    to.push(&record_at(from, index), from.content_hash[index], from.offset[index], from.ingested_at[index]);
}

/// The rows of both, ascending by offset.
pub fn merge(a: &Rows, b: &Rows) -> Rows {
    let mut merged = Rows::default();
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        if j == b.len() || (i < a.len() && a.offset[i] < b.offset[j]) {
            copy_row(a, i, &mut merged);
            i += 1;
        } else {
            copy_row(b, j, &mut merged);
            j += 1;
        }
    }
    merged
}

/// The rows that `keep` says, by offset.
pub fn select(rows: &Rows, keep: impl Fn(i64) -> bool) -> Rows {
    let mut selected = Rows::default();
    for index in (0..rows.len()).filter(|index| keep(rows.offset[*index])) {
        copy_row(rows, index, &mut selected);
    }
    selected
}

/// Row of each identity.
pub fn index(rows: &Rows) -> IdMap {
    let identities = rows.tenant_id.iter().copied().zip(rows.record_id.iter().copied());
    identities.zip(0u32..).collect()
}
