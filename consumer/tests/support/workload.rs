//! Messages of every fate in slices, and what must come of them.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use usage_schemas::partition::partition_of;
use usage_schemas::{Quantity, Timestamp, UsageRecord, names};
use uuid::Uuid;

use super::{Message, Pipeline, Totals};

const MONTH: i64 = 31 * 86_400 * 1_000_000;
/// Rows with such a key are refused by a storage that [`Pipeline::refuse_rows`] has made picky.
pub const REFUSED: &str = "refused";
const TENANTS_PER_PARTITION: usize = 2;

/// Where a dead letter came from: partition and offset, as its headers say them.
type Origin = (String, String);

pub struct Workload {
    random: StdRng,
    tenants: Vec<Uuid>,
    kept: Vec<UsageRecord>,
    refused: BTreeMap<Origin, &'static str>,
    slices: usize,
    /// Some rows are refused by storage.
    picky: bool,
}

impl Workload {
    /// Tenants in every partition.
    pub fn new(pipeline: &Pipeline, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let mut tenants = Vec::new();
        for partition in 0..pipeline.partitions {
            let there =
                std::iter::repeat_with(|| uuid::Builder::from_random_bytes(random.random()).into_uuid())
                    .filter(|tenant| partition_of(*tenant, pipeline.partitions) == partition);
            tenants.extend(there.take(TENANTS_PER_PARTITION));
        }
        Self { random, tenants, kept: Vec::new(), refused: BTreeMap::new(), slices: 0, picky: false }
    }

    /// From now on some rows are of the kind that a picky storage refuses.
    pub fn be_picky(&mut self) {
        self.picky = true;
    }

    /// Produces a slice: `new` records in two months, and among them copies of them and of earlier ones, other contents under known
    /// identities, messages that are refused, markers, and records on a wrong partition. The slice before must be done: until then a
    /// copy of a misplaced record could be the first of its identity.
    pub async fn send(&mut self, pipeline: &Pipeline, new: usize) {
        self.slices += 1;
        let mut messages = Vec::new();
        let mut reasons: Vec<Option<&'static str>> = Vec::new();
        let mut misplaced = Vec::new();
        for i in 0..new {
            let mut add = |message, reason| {
                messages.push(message);
                reasons.push(reason);
            };
            let record = self.record(pipeline, i);
            if i % 16 == 15 {
                // Its copies could come before it: none are sent.
                let mut message = pipeline.message(&record);
                message.partition = (message.partition + 1) % pipeline.partitions;
                add(message, None);
                misplaced.push(record);
                continue;
            }
            add(pipeline.message(&record), None);
            self.kept.push(record);
            if i % 3 == 0 {
                add(pipeline.message(self.known()), None);
            }
            if i % 12 == 1 {
                let mut other = self.known().clone();
                other.value = Quantity::from_unscaled(other.value.unscaled() + 1).expect("in range");
                add(pipeline.message(&other), Some("conflict"));
            }
            if i % 8 == 2 {
                let (message, reason) = self.poison(pipeline, i);
                add(message, Some(reason));
            }
            if i % 20 == 3 {
                add(pipeline.marker(i32::try_from(i).expect("small") % pipeline.partitions), None);
            }
            if self.picky && i % 10 == 4 {
                let mut record = self.record(pipeline, i);
                record.idempotency_key = Some(format!("{REFUSED}-{}-{i}", self.slices));
                record.record_id = usage_schemas::ids::record_id(
                    record.tenant_id,
                    &format!("{REFUSED}-{}-{i}", self.slices),
                );
                add(pipeline.message(&record), Some("storage_refused"));
            }
        }
        self.kept.extend(misplaced);
        let offsets = pipeline.send(&messages).await;
        for ((message, offset), reason) in messages.iter().zip(offsets).zip(reasons) {
            if let Some(reason) = reason {
                self.refused.insert((message.partition.to_string(), offset.to_string()), reason);
            }
        }
    }

    fn record(&mut self, pipeline: &Pipeline, i: usize) -> UsageRecord {
        let tenant = self.tenants[self.random.random_range(0..self.tenants.len())];
        let units = self.random.random_range(1..1_000);
        let mut record = pipeline.record(tenant, &format!("key-{}-{i}", self.slices), units);
        let months = i64::from(self.random.random_bool(0.5));
        record.timestamp = Timestamp::from_micros(record.timestamp.micros() - months * MONTH);
        record
    }

    fn known(&mut self) -> &UsageRecord {
        let i = self.random.random_range(0..self.kept.len());
        &self.kept[i]
    }

    fn poison(&mut self, pipeline: &Pipeline, i: usize) -> (Message, &'static str) {
        let mut record = self.record(pipeline, i);
        match i / 8 % 3 {
            0 => {
                record.metric = "llm.unheard".into();
                (pipeline.message(&record), "unknown_usage_type")
            }
            1 => {
                let mut message = pipeline.message(&record);
                message.headers.retain(|(name, _)| name != names::HEADER_SIGNATURE);
                message.headers.push((names::HEADER_SIGNATURE.into(), b"00".to_vec()));
                (message, "bad_signature")
            }
            _ => {
                record.timestamp = Timestamp::from_micros(record.timestamp.micros() + 12 * MONTH);
                (pipeline.message(&record), "in_future")
            }
        }
    }

    /// Everything that was sent is done: stored once and counted once, or a dead letter by identity.
    pub async fn check(&self, pipeline: &Pipeline, when: &str) {
        for tenant in &self.tenants {
            let own = || self.kept.iter().filter(|record| record.tenant_id == *tenant);
            let expected: BTreeSet<(Uuid, i128)> =
                own().map(|record| (record.record_id, record.value.unscaled())).collect();
            let stored: Vec<(Uuid, i128)> = pipeline
                .stored(*tenant)
                .await
                .iter()
                .map(|record| (record.record_id, record.value.unscaled()))
                .collect();
            let identities: BTreeSet<(Uuid, i128)> = stored.iter().copied().collect();
            assert_eq!(identities, expected, "{when}: tenant {tenant}");
            assert_eq!(
                stored.len(),
                expected.len(),
                "{when}: an identity of tenant {tenant} is stored twice"
            );
            let sum: i128 = expected.iter().map(|(_, value)| value).sum();
            let units = i64::try_from(sum / 1_000_000_000_000_000_000).expect("small values");
            let totals = Totals::exactly(expected.len() as u64, units);
            assert_eq!(pipeline.totals(*tenant).await, totals, "{when}: tenant {tenant}");
        }
        let letters = pipeline.dead_letters().await;
        let refused: BTreeMap<Origin, &str> =
            letters.iter().map(|letter| (letter.origin(), letter.reason())).collect();
        let expected: BTreeMap<Origin, &str> =
            self.refused.iter().map(|(origin, reason)| (origin.clone(), *reason)).collect();
        assert_eq!(refused, expected, "{when}: dead letters by identity");
    }
}
