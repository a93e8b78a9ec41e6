//! Batches with random values, so that a sum tells which rows it holds.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use usage_schemas::ids::content_hash;
use usage_schemas::partition::partition_of;
use usage_schemas::{Kind, Quantity, RecordRef, Timestamp};
use usage_storage::{PlannedBatch, Rows};
use uuid::Uuid;

use super::PARTITIONS;

/// 2026-10-31T23:00:00Z: an hour before a month ends.
pub const START: i64 = 1_793_487_600_000_000;
const HOUR: i64 = 3_600_000_000;

/// Makes batches of one partition, numbered from 1.
pub struct Maker {
    rng: StdRng,
    pub partition: i32,
    pub tenants: Vec<Uuid>,
    pub metrics: Vec<String>,
    next_seq: i64,
    next_offset: i64,
}

impl Maker {
    /// `tenants` tenants that lie in the partition.
    pub fn new(seed: u64, partition: i32, tenants: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let tenants = std::iter::repeat_with(|| Uuid::from_u128(rng.random()))
            .filter(|tenant| partition_of(*tenant, PARTITIONS) == partition)
            .take(tenants)
            .collect();
        let metrics = ["tokens.in", "tokens.out", "vm.hours"].map(str::to_owned).to_vec();
        Self { rng, partition, tenants, metrics, next_seq: 1, next_offset: 0 }
    }

    /// `rows` rows spread over two hours around the end of a month: nearly always two months.
    pub fn batch(&mut self, rows: usize) -> Arc<PlannedBatch> {
        self.spread(rows, 2 * HOUR)
    }

    /// `rows` rows of one month.
    pub fn batch_of_a_month(&mut self, rows: usize) -> Arc<PlannedBatch> {
        self.spread(rows, HOUR)
    }

    fn spread(&mut self, count: usize, width: i64) -> Arc<PlannedBatch> {
        let mut rows = Rows::default();
        for _ in 0..count {
            self.push(&mut rows, width);
        }
        let batch = PlannedBatch { partition: self.partition, batch_seq: self.next_seq, rows };
        self.next_seq += 1;
        Arc::new(batch)
    }

    fn push(&mut self, rows: &mut Rows, width: i64) {
        let offset = self.next_offset;
        self.next_offset += 1;
        let tenant_id = self.tenants[self.rng.random_range(0..self.tenants.len())];
        let metric = self.metrics[self.rng.random_range(0..self.metrics.len())].clone();
        let key = format!("key-{}-{offset}", self.partition);
        let keyed = self.rng.random_bool(0.9);
        let with = self.rng.random_bool(0.5);
        let record = RecordRef {
            record_id: Uuid::from_u128(self.rng.random()),
            tenant_id,
            source: if self.rng.random_bool(0.5) { "gateway" } else { "batch" },
            metric: &metric,
            kind: if metric == "vm.hours" { Kind::Gauge } else { Kind::Counter },
            value: Quantity::from_unscaled(self.rng.random_range(0..1 << 100)).unwrap(),
            // Few distinct times, so that `latest` must be told apart by ids too.
            timestamp: Timestamp::from_micros(
                START + self.rng.random_range(0..width / 60_000_000) * 60_000_000,
            ),
            idempotency_key: keyed.then_some(&key),
            resource_id: with.then(|| Uuid::from_u128(self.rng.random())),
            resource_type: with.then_some("vm"),
            subject_id: (!with).then(|| Uuid::from_u128(self.rng.random())),
            subject_type: (!with).then_some("user"),
            metadata: with.then_some(r#"{"model":"ü-1","n":[1,2]}"#),
        };
        rows.push(&record, content_hash(&record), offset, START + 2 * HOUR + offset);
    }
}
