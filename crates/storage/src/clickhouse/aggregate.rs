//! A partition's rows that lie beyond its horizons, added up in memory (protocol 6.2).

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use ethnum::I256;
use usage_schemas::Kind;
use uuid::Uuid;

use super::months::{Month, bucket_of_micros};
use crate::Rows;

/// What a row of `usage_rollups` is for, but for partition and generation. Names are numbers of [`Names`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    pub(crate) tenant: Uuid,
    pub(crate) metric: u32,
    pub(crate) source: u32,
    /// Start of the quarter of an hour, in seconds.
    pub(crate) bucket: u32,
    pub(crate) kind: Kind,
}

/// Sums of a group. `latest` orders by time, then by the bytes of the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) count: u64,
    /// In units of 10^-18.
    pub(crate) sum: I256,
    pub(crate) min: i128,
    pub(crate) max: i128,
    pub(crate) latest: (i64, Uuid, i128),
}

impl Totals {
    fn one(timestamp: i64, id: Uuid, value: i128) -> Self {
        Self { count: 1, sum: I256::from(value), min: value, max: value, latest: (timestamp, id, value) }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.count += other.count;
        // 2^63 values of 38 digits fit into 76 digits.
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.latest = self.latest.max(other.latest);
    }
}

/// Texts as numbers, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Names {
    numbers: HashMap<Arc<str>, u32, Fast>,
    texts: Vec<Arc<str>>,
}

impl Names {
    pub(crate) fn number(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = u32::try_from(self.texts.len()).expect("fewer names than rows");
        let text: Arc<str> = text.into();
        self.numbers.insert(Arc::clone(&text), number);
        self.texts.push(text);
        number
    }

    /// The texts by their numbers.
    pub(crate) fn texts(&self) -> Vec<Arc<str>> {
        self.texts.clone()
    }
}

pub(crate) type Groups = HashMap<Group, Totals, Fast>;

/// A month's groups on their way into the rollups, up to batch `through`.
#[derive(Debug)]
pub(crate) struct Frozen {
    pub(crate) through: i64,
    pub(crate) groups: Groups,
}

/// All rows of one partition beyond its horizons, by month.
#[derive(Debug, Default)]
pub(crate) struct Aggregate {
    pub(crate) names: Names,
    months: BTreeMap<Month, Groups>,
    /// What a flush has sent and not proved yet. Rows that come meanwhile must not be mixed into it.
    frozen: BTreeMap<Month, Arc<Frozen>>,
}

impl Aggregate {
    pub(crate) fn add_rows(&mut self, rows: &Rows) {
        let mut finder = super::months::MonthFinder::default();
        for i in 0..rows.len() {
            let timestamp = rows.timestamp[i];
            let group = Group {
                tenant: rows.tenant_id[i],
                metric: self.names.number(rows.metric.get(i).unwrap_or_default()),
                source: self.names.number(rows.source.get(i).unwrap_or_default()),
                bucket: bucket_of_micros(timestamp),
                kind: rows.kind[i],
            };
            let totals = Totals::one(timestamp, rows.record_id[i], rows.value[i]);
            add(self.months.entry(finder.of_micros(timestamp)).or_default(), group, &totals);
        }
    }

    pub(crate) fn add(&mut self, group: Group, totals: &Totals) {
        let month = Month::of_seconds(i64::from(group.bucket));
        add(self.months.entry(month).or_default(), group, totals);
    }

    /// Number of groups in all months.
    pub(crate) fn len(&self) -> usize {
        self.months.values().map(Groups::len).sum::<usize>()
            + self.frozen.values().map(|frozen| frozen.groups.len()).sum::<usize>()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.months.is_empty() && self.frozen.is_empty()
    }

    /// Months that hold rows which no flush has taken.
    pub(crate) fn months(&self) -> impl Iterator<Item = Month> + '_ {
        self.months.keys().copied()
    }

    /// Sets a month apart for a flush; false if it has no rows.
    pub(crate) fn freeze(&mut self, month: Month, through: i64) -> bool {
        let Some(groups) = self.months.remove(&month) else { return false };
        let before = self.frozen.insert(month, Arc::new(Frozen { through, groups }));
        assert!(before.is_none(), "a flush in doubt is proved before the next one");
        true
    }

    pub(crate) fn frozen(&self, month: Month) -> Option<Arc<Frozen>> {
        self.frozen.get(&month).cloned()
    }

    /// Months whose flush is not proved, with the horizons that would prove them.
    pub(crate) fn in_doubt(&self) -> Vec<(Month, i64)> {
        self.frozen.iter().map(|(&month, frozen)| (month, frozen.through)).collect()
    }

    /// The flush did not happen: its rows count again.
    pub(crate) fn thaw(&mut self, month: Month) {
        let Some(frozen) = self.frozen.remove(&month) else { return };
        let groups = self.months.entry(month).or_default();
        frozen.groups.iter().for_each(|(group, totals)| add(groups, *group, totals));
    }

    /// The flush is proved: its rows are behind the horizon.
    pub(crate) fn rolled_up(&mut self, month: Month) {
        self.frozen.remove(&month);
        if self.is_empty() {
            self.names = Names::default();
        }
    }
}

fn add(groups: &mut Groups, group: Group, totals: &Totals) {
    groups.entry(group).and_modify(|known| known.add(totals)).or_insert(*totals);
}

pub(crate) type Fast = BuildHasherDefault<FoldHasher>;

/// Multiplies and folds the 128-bit product, eight bytes at a time. Keys are registered names and ids, not an attacker's choice
/// of collisions: ids are hashes and every name is registered.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct FoldHasher(u64);

impl FoldHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for FoldHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.mix(u64::from_le_bytes(chunk.try_into().expect("8 bytes")));
        }
        let mut last = [0; 8];
        let rest = chunks.remainder();
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    fn write_u32(&mut self, n: u32) {
        self.mix(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.mix(n);
    }

    fn write_isize(&mut self, n: isize) {
        self.mix(n as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests;
