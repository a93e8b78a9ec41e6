//! Random records that sit on every edge: buckets, months, microseconds, equal times, missing dimensions.

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom as _};
use usage_schemas::{Kind, Quantity, partition::partition_of};
use uuid::Uuid;

use crate::query::{PartitionCounts, StoredRecord};

pub const MINUTE: i64 = 60_000_000;
pub const BUCKET: i64 = 15 * MINUTE;
pub const HOUR: i64 = 4 * BUCKET;
pub const DAY: i64 = 24 * HOUR;
/// 2026-01-20T00:00:00Z
pub const START: i64 = 1_768_867_200_000_000;
/// The samples' days: into the fourth month.
pub const DAYS: i64 = 75;

/// A record with its place in the log.
#[derive(Debug, Clone)]
pub struct Sample {
    pub record: StoredRecord,
    pub partition: i32,
    pub offset: i64,
    pub batch_seq: i64,
}

pub fn generator(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// The topic had 4 partitions once and has 12 now.
pub fn partition_counts() -> PartitionCounts {
    PartitionCounts { current: 12, known: vec![4, 12] }
}

/// A record with nothing special about it.
pub fn record(tenant_id: Uuid, timestamp: i64, value: i128) -> StoredRecord {
    StoredRecord {
        record_id: Uuid::new_v4(),
        tenant_id,
        source: "gateway".into(),
        metric: "tokens".into(),
        kind: Kind::Counter,
        value: Quantity::from_unscaled(value).unwrap(),
        timestamp,
        idempotency_key: Some("key".into()),
        resource_id: None,
        resource_type: None,
        subject_id: None,
        subject_type: None,
        metadata: None,
        active: true,
        ingested_at: timestamp + 1,
        inactive_at: None,
        version: 1,
    }
}

/// A record at the tenant's partition, in a batch.
pub fn sample(record: StoredRecord, offset: i64, batch_seq: i64) -> Sample {
    let partition = partition_of(record.tenant_id, partition_counts().current);
    Sample { record, partition, offset, batch_seq }
}

/// Pools of dimension values whose orders by bytes, by UUID halves and by length differ.
pub struct Pools {
    pub metrics: Vec<String>,
    pub sources: Vec<String>,
    pub ids: Vec<Uuid>,
    pub types: Vec<String>,
}

impl Pools {
    pub fn new() -> Self {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.into()).collect();
        Self {
            metrics: texts(&["tokens", "tokens.out", "tokens_out", "vm-hours"]),
            sources: texts(&["a", "a-b", "a.b", "gateway", "zz"]),
            ids: [
                0x0000_0000_0000_0001_ffff_ffff_ffff_ffff,
                0x0000_0000_0000_0002_0000_0000_0000_0001,
                0x7fff_ffff_ffff_ffff_8000_0000_0000_0000,
                0x8000_0000_0000_0000_7fff_ffff_ffff_ffff,
                0xff00_0000_0000_0000_0000_0000_0000_0000,
            ]
            .map(Uuid::from_u128)
            .to_vec(),
            types: texts(&["user", "team", "user_group", "é", "Z"]),
        }
    }
}

/// Records of two tenants, batch by batch.
pub fn random_samples(random: &mut StdRng, tenants: [Uuid; 2], count: usize) -> Vec<Sample> {
    let pools = Pools::new();
    (0..count)
        .map(|index| {
            let tenant_id = *tenants.choose(random).unwrap();
            let active = random.random_bool(0.9);
            let record = StoredRecord {
                record_id: random_id(random),
                source: pools.sources.choose(random).unwrap().clone(),
                metric: pools.metrics.choose(random).unwrap().clone(),
                kind: if random.random() { Kind::Counter } else { Kind::Gauge },
                value: random_value(random),
                timestamp: random_time(random),
                idempotency_key: random.random_bool(0.8).then(|| format!("key \"{index}\" \\ ü")),
                resource_id: maybe(random, &pools.ids),
                resource_type: maybe(random, &pools.types),
                subject_id: maybe(random, &pools.ids),
                subject_type: maybe(random, &pools.types),
                metadata: random.random_bool(0.5).then(|| r#"{"a": "b\n", "n": 1.0}"#.into()),
                active,
                ingested_at: START + DAYS * DAY + random.random_range(0..HOUR),
                inactive_at: (!active).then_some(START + (DAYS + 1) * DAY),
                version: if active { 1 } else { 2 },
                ..record(tenant_id, 0, 0)
            };
            let count = if index < count / 2 { 4 } else { 12 };
            Sample {
                partition: partition_of(tenant_id, count),
                offset: index as i64,
                batch_seq: index as i64 / 20 + 1,
                record,
            }
        })
        .collect()
}

/// Ids that differ in one half only are as likely as others: ties are broken by their order.
fn random_id(random: &mut StdRng) -> Uuid {
    if random.random() {
        Uuid::from_u64_pair(random.random_range(1..4), random.random())
    } else {
        Uuid::from_u128(random.random())
    }
}

/// Small and huge ones, with and without a fraction; some negative.
fn random_value(random: &mut StdRng) -> Quantity {
    let unscaled = match random.random_range(0..4) {
        0 => random.random_range(0..1000) * 1_000_000_000_000_000_000,
        1 => random.random_range(-1000..1000),
        2 => random.random_range(-Quantity::MAX_UNSCALED..=Quantity::MAX_UNSCALED),
        _ => Quantity::MAX_UNSCALED,
    };
    Quantity::from_unscaled(unscaled).unwrap()
}

/// Often on or next to the edge of a bucket, a day or a month; often shared by several records.
pub fn random_time(random: &mut StdRng) -> i64 {
    let width = *[MINUTE, BUCKET, HOUR, DAY, 31 * DAY].choose(random).unwrap();
    let near = random.random_range(0..DAYS * DAY / width + 1) * width;
    let shift = match random.random_range(0..5) {
        0 => 0,
        1 => -1,
        2 => 1,
        3 => random.random_range(0..MINUTE),
        _ => random.random_range(0..width),
    };
    START + (near + shift).clamp(0, DAYS * DAY)
}

fn maybe<T: Clone>(random: &mut StdRng, pool: &[T]) -> Option<T> {
    random.random_bool(0.7).then(|| pool.choose(random).unwrap().clone())
}
