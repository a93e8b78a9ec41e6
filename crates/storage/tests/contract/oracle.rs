//! What an answer may be: everything acknowledged before the question, plus some subset of what was under way, each (batch,
//! month) as a whole. Values are random, so that sum, count, extremes and latest together name the subset.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ethnum::I256;
use tokio::task::JoinHandle;
use usage_schemas::Quantity;
use usage_storage::{
    AggregateQuery, AggregateRow, GroupBy, Measure, PartitionCounts, PlannedBatch, Reader, Storage, Windows,
};
use uuid::Uuid;

use super::PARTITIONS;
use super::batches::START;

/// An answer in short; `latest` orders by time, then by the bytes of the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    pub count: u64,
    pub sum: I256,
    pub min: Option<i128>,
    pub max: Option<i128>,
    pub latest: Option<(i64, Uuid, i128)>,
}

impl Default for Totals {
    fn default() -> Self {
        Self { count: 0, sum: I256::ZERO, min: None, max: None, latest: None }
    }
}

impl Totals {
    fn plus(self, other: Self) -> Self {
        let less = |a: Option<i128>, b: Option<i128>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self {
            count: self.count + other.count,
            sum: self.sum + other.sum,
            min: less(self.min, other.min),
            max: self.max.max(other.max),
            latest: self.latest.max(other.latest),
        }
    }

    fn of_row(timestamp: i64, id: Uuid, value: i128) -> Self {
        let latest = Some((timestamp, id, value));
        Self { count: 1, sum: I256::from(value), min: Some(value), max: Some(value), latest }
    }
}

/// Numbers of an `AggregateRow` in short.
pub fn totals_of(row: &AggregateRow) -> Totals {
    Totals {
        count: row.count,
        sum: row.sum,
        min: row.min.map(Quantity::unscaled),
        max: row.max.map(Quantity::unscaled),
        latest: row.latest.map(|(time, id, value)| (time, id, value.unscaled())),
    }
}

/// Month of a row of the suite's batches, which lie in two.
fn in_second_month(timestamp: i64) -> bool {
    timestamp >= START + 3_600_000_000
}

/// (partition, batch_seq, second month?)
type Unit = (i32, i64, bool);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    UnderWay,
    Acknowledged,
}

#[derive(Default)]
struct Inner {
    units: BTreeMap<Unit, (State, BTreeMap<Uuid, Totals>)>,
}

/// Everything that was sent, and how far it has come.
#[derive(Clone, Default)]
pub struct Oracle(Arc<Mutex<Inner>>);

/// What was known when a question was asked.
#[derive(Clone)]
pub struct Before {
    acknowledged: Vec<Unit>,
}

impl Oracle {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// To be called before a batch is sent for the first time.
    pub fn begin(&self, batch: &PlannedBatch) {
        let mut inner = self.inner();
        for i in 0..batch.rows.len() {
            let unit = (batch.partition, batch.batch_seq, in_second_month(batch.rows.timestamp[i]));
            let row = Totals::of_row(batch.rows.timestamp[i], batch.rows.record_id[i], batch.rows.value[i]);
            let (_, tenants) = inner.units.entry(unit).or_insert_with(|| (State::UnderWay, BTreeMap::new()));
            let totals = tenants.entry(batch.rows.tenant_id[i]).or_default();
            *totals = totals.plus(row);
        }
    }

    /// To be called once a write or settle has returned `Ok`.
    pub fn acknowledge(&self, batch: &PlannedBatch) {
        let mut inner = self.inner();
        for second in [false, true] {
            if let Some((state, _)) = inner.units.get_mut(&(batch.partition, batch.batch_seq, second)) {
                *state = State::Acknowledged;
            }
        }
    }

    pub fn before(&self) -> Before {
        let inner = self.inner();
        let acknowledged = inner.units.iter().filter(|(_, (state, _))| *state == State::Acknowledged);
        Before { acknowledged: acknowledged.map(|(unit, _)| *unit).collect() }
    }

    /// Exactly what is acknowledged.
    pub fn expected(&self, tenant: Uuid) -> Totals {
        let inner = self.inner();
        let parts = inner.units.values().filter(|(state, _)| *state == State::Acknowledged);
        parts
            .filter_map(|(_, tenants)| tenants.get(&tenant))
            .fold(Totals::default(), |sum, part| sum.plus(*part))
    }

    /// Panics unless the answer is everything of `before` plus a subset of what was begun until now.
    pub fn check(&self, before: &Before, tenant: Uuid, answer: Totals) {
        let inner = self.inner();
        let (mut base, mut open) = (Totals::default(), Vec::new());
        for (unit, (_, tenants)) in &inner.units {
            let Some(part) = tenants.get(&tenant) else { continue };
            if before.acknowledged.contains(unit) {
                base = base.plus(*part);
            } else {
                open.push(*part);
            }
        }
        assert!(open.len() <= 20, "too many batches under way to enumerate: {}", open.len());
        let fits = (0..1u32 << open.len()).any(|subset| {
            let chosen = open.iter().enumerate().filter(|(i, _)| subset >> i & 1 == 1);
            chosen.fold(base, |sum, (_, part)| sum.plus(*part)) == answer
        });
        assert!(fits, "answer {answer:?} for {tenant} is not {base:?} plus a subset of {} parts", open.len());
    }
}

/// Asks for the one total of a tenant.
pub fn question(tenant_id: Uuid) -> AggregateQuery {
    AggregateQuery {
        tenant_id,
        metrics: Vec::new(),
        from: START - 900_000_000,
        to: START + 3 * 3_600_000_000,
        windows: Windows::Total,
        group_by: GroupBy::default(),
        measure: Measure { min_max: true, latest: true },
        sources: Vec::new(),
        subject_ids: Vec::new(),
        subject_types: Vec::new(),
        resource_ids: Vec::new(),
        resource_types: Vec::new(),
        partition_counts: PartitionCounts { current: PARTITIONS, known: vec![PARTITIONS] },
        after: None,
        limit: 10,
    }
}

/// The one total of a tenant.
pub async fn ask(reader: &dyn Reader, tenant: Uuid) -> Result<Totals, usage_storage::StorageError> {
    let rows = reader.aggregate(&question(tenant)).await?;
    assert!(rows.len() <= 1, "one total was asked for");
    Ok(rows.first().map(totals_of).unwrap_or_default())
}

/// Readers that ask and check until they are stopped.
pub struct Checking {
    tasks: Vec<JoinHandle<u64>>,
    stop: tokio::sync::watch::Sender<bool>,
}

impl Checking {
    /// One reader per tenant.
    pub fn start(oracle: &Oracle, storage: &Arc<dyn Storage>, tenants: &[Uuid]) -> Self {
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let tasks = tenants.iter().map(|&tenant| {
            let (oracle, reader, stopped) = (oracle.clone(), storage.reader(), stopped.clone());
            tokio::spawn(async move {
                let mut answers = 0;
                while !*stopped.borrow() {
                    let before = oracle.before();
                    match ask(&*reader, tenant).await {
                        Ok(answer) => {
                            oracle.check(&before, tenant, answer);
                            answers += 1;
                            // Writers and server share the machine's cores with the readers.
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                        // A killed server refuses: anything else would be an answer that hides something.
                        Err(error) => {
                            assert!(error.may_pass(), "{error:?}");
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                    }
                }
                answers
            })
        });
        let tasks = tasks.collect();
        Self { tasks, stop }
    }

    /// Stops the readers; the number of answers that were checked. Panics if one was wrong.
    pub async fn finish(self) -> u64 {
        self.stop.send(true).unwrap();
        let mut answers = 0;
        for task in self.tasks {
            answers += task.await.expect("every answer is right");
        }
        answers
    }
}
