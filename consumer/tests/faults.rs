//! Storage that fails at every turn, with outcomes that nobody knows, and owners that are fenced while they write: the totals stay
//! exact.

mod support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::{Message, Pipeline, Totals, eventually, logs};
use usage_storage::clickhouse::ClickHouseStorage;
use usage_storage::{
    IdProbe, Maintenance, Opened, PlannedBatch, Reader, RefusedRow, Storage, StorageError, StoredId, Writer,
};
use uuid::Uuid;

/// Does what the real one does, or fails before it, or after it.
struct Faulty {
    inner: ClickHouseStorage,
    writer: Arc<FaultyWriter>,
}

struct FaultyWriter {
    inner: Arc<dyn Writer>,
    random: Mutex<StdRng>,
    /// Faults in a hundred calls.
    rate: u32,
    faults: AtomicU32,
    /// Takeovers that were begun.
    opened: AtomicU32,
}

enum Fault {
    None,
    Before,
    After,
}

impl Faulty {
    fn new(inner: ClickHouseStorage, rate: u32, seed: u64) -> Arc<Self> {
        let random = Mutex::new(StdRng::seed_from_u64(seed));
        let writer = FaultyWriter {
            inner: inner.writer(),
            random,
            rate,
            faults: AtomicU32::new(0),
            opened: AtomicU32::new(0),
        };
        Arc::new(Self { inner, writer: Arc::new(writer) })
    }
}

impl FaultyWriter {
    fn draw(&self) -> Fault {
        let mut random = self.random.lock().unwrap();
        if random.random_range(0..100) >= self.rate {
            return Fault::None;
        }
        self.faults.fetch_add(1, Ordering::Relaxed);
        if random.random() { Fault::Before } else { Fault::After }
    }

    /// A call that changes something: its failure may come before or after the deed, the caller can't know.
    async fn change<T>(
        &self,
        call: impl Future<Output = Result<T, StorageError>>,
    ) -> Result<T, StorageError> {
        match self.draw() {
            Fault::None => call.await,
            Fault::Before => Err(StorageError::Unknown("before".into())),
            Fault::After => {
                call.await?;
                Err(StorageError::Unknown("after".into()))
            }
        }
    }

    async fn ask<T>(&self, call: impl Future<Output = Result<T, StorageError>>) -> Result<T, StorageError> {
        match self.draw() {
            Fault::None => call.await,
            Fault::Before => Err(StorageError::Unavailable("away".into())),
            Fault::After => Err(StorageError::Timeout),
        }
    }
}

#[async_trait]
impl Storage for Faulty {
    async fn migrate(&self) -> Result<(), StorageError> {
        self.inner.migrate().await
    }

    async fn check(&self) -> Result<(), StorageError> {
        self.inner.check().await
    }

    fn writer(&self) -> Arc<dyn Writer> {
        self.writer.clone()
    }

    fn reader(&self) -> Arc<dyn Reader> {
        self.inner.reader()
    }

    fn maintenance(&self) -> Arc<dyn Maintenance> {
        self.inner.maintenance()
    }
}

#[async_trait]
impl Writer for FaultyWriter {
    async fn open(&self, partition: i32) -> Result<Opened, StorageError> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.ask(self.inner.open(partition)).await
    }

    async fn fence(&self, partitions: &[i32]) -> Result<(), StorageError> {
        self.inner.fence(partitions).await
    }

    async fn write(&self, batches: &[Arc<PlannedBatch>]) -> Result<(), StorageError> {
        self.change(self.inner.write(batches)).await
    }

    async fn settle(&self, batches: &[Arc<PlannedBatch>]) -> Result<(), StorageError> {
        self.change(self.inner.settle(batches)).await
    }

    async fn bisect(&self, batch: &PlannedBatch) -> Result<Vec<RefusedRow>, StorageError> {
        self.ask(self.inner.bisect(batch)).await
    }

    async fn recover(&self, partition: i32) -> Result<(), StorageError> {
        self.ask(self.inner.recover(partition)).await
    }

    async fn ids(
        &self,
        partition: i32,
        partition_count: i32,
        sink: &mut (dyn for<'a> FnMut(&'a [Uuid]) + Send),
    ) -> Result<(), StorageError> {
        self.ask(self.inner.ids(partition, partition_count, sink)).await
    }

    async fn find(&self, probes: &[IdProbe]) -> Result<Vec<StoredId>, StorageError> {
        self.ask(self.inner.find(probes)).await
    }

    async fn tick(&self, partitions: &[i32]) -> Result<(), StorageError> {
        self.inner.tick(partitions).await
    }

    async fn close(&self, partition: i32, flush: bool) -> Result<(), StorageError> {
        self.inner.close(partition, flush).await
    }

    fn horizon_age_seconds(&self) -> Vec<(i32, u64)> {
        self.inner.horizon_age_seconds()
    }
}

const SETTINGS: [&str; 4] = [
    "consumer.batch_rows=50",
    "consumer.batch_age=20ms",
    "clickhouse.flush_age=500ms",
    "consumer.retry_max=300ms",
];

/// `each` records of every tenant, every third one sent again at the end.
fn load(pipeline: &Pipeline, tenants: &[Uuid], each: usize) -> Vec<Message> {
    let one = |i: usize| {
        let records =
            tenants.iter().map(move |tenant| pipeline.record(*tenant, &format!("key-{i}"), 1 + i as i64));
        records.map(|record| pipeline.message(&record))
    };
    let mut messages: Vec<Message> = (0..each).flat_map(one).collect();
    messages.extend(messages.clone().into_iter().step_by(3));
    messages
}

async fn assert_exact(
    pipeline: &Pipeline,
    tenants: &[Uuid],
    messages: &[Message],
    offsets: &[i64],
    each: usize,
) {
    pipeline.all_done(messages, offsets).await;
    let expected = Totals::exactly(each as u64, (1..=each as i64).sum());
    for tenant in tenants {
        assert_eq!(pipeline.totals(*tenant).await, expected, "tenant {tenant}");
    }
    assert_eq!(pipeline.dead_letters().await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_3_every_third_call_to_storage_fails() {
    logs();
    let pipeline = Pipeline::start(3).await;
    let tenants: Vec<Uuid> = (0..6).map(|_| Uuid::new_v4()).collect();
    let messages = load(&pipeline, &tenants, 60);
    for seed in 0..3 {
        let faulty = Faulty::new(ClickHouseStorage::connect(pipeline.clickhouse.clone()), 33, seed);
        let faults = faulty.writer.clone();
        let worker = pipeline.worker_on(faulty, &SETTINGS);
        // The second and third time everything is a copy: found out by storage that fails as well.
        let mut offsets = Vec::new();
        for part in messages.chunks(100) {
            offsets.extend(pipeline.send(part).await);
            pipeline
                .all_done(&messages[offsets.len() - part.len()..], &offsets[offsets.len() - part.len()..])
                .await;
        }
        assert_exact(&pipeline, &tenants, &messages, &offsets, 60).await;
        assert!(faults.faults.load(Ordering::Relaxed) > 0);
        worker.stop().await;
    }
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_fenced_takes_over_again() {
    logs();
    let pipeline = Pipeline::start(3).await;
    let tenants: Vec<Uuid> = (0..6).map(|_| Uuid::new_v4()).collect();
    let messages = load(&pipeline, &tenants, 200);
    let worker = pipeline.worker(&SETTINGS);
    // Somebody raises the fence of one partition after the other, as `topics grow` and `storage restored` do.
    let foreign = ClickHouseStorage::connect(pipeline.clickhouse.clone()).writer();
    let mut offsets = Vec::new();
    for (round, part) in messages.chunks(messages.len() / 6 + 1).enumerate() {
        offsets.extend(pipeline.send(part).await);
        foreign.open(i32::try_from(round % 3).unwrap()).await.unwrap();
        // The copies come last.
        let sent = offsets.len().min(200 * tenants.len()) as u64;
        eventually("it goes on", || async { pipeline.rows(&tenants).await == sent }).await;
    }
    assert_exact(&pipeline, &tenants, &messages, &offsets, 200).await;
    worker.stop().await;
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_that_only_rolling_up_meets_is_taken_over_again() {
    logs();
    // On a slow machine the records may be rolled up before the fence is there.
    while !fenced_before_rolling_up().await {}
}

/// False if the records were rolled up too soon.
async fn fenced_before_rolling_up() -> bool {
    let pipeline = Pipeline::start(1).await;
    let tenants = [Uuid::new_v4()];
    let messages = load(&pipeline, &tenants, 30);
    let faulty = Faulty::new(ClickHouseStorage::connect(pipeline.clickhouse.clone()), 0, 0);
    let writer = faulty.writer.clone();
    let settings = ["consumer.batch_age=20ms", "clickhouse.flush_age=5s", "consumer.session_timeout=60s"];
    let worker = pipeline.worker_on(faulty, &settings);
    let offsets = pipeline.send(&messages).await;
    pipeline.all_done(&messages, &offsets).await;
    assert_eq!(writer.opened.load(Ordering::Relaxed), 1);
    // Nothing comes any more: what is met next is that records are to be rolled up.
    ClickHouseStorage::connect(pipeline.clickhouse.clone()).writer().open(0).await.unwrap();
    let rolled_up = "SELECT count() FROM usage_rollups WHERE record_count > 0";
    let rolled_up: u64 = pipeline.maintenance().query(rolled_up).fetch_one().await.unwrap();
    let in_time = rolled_up == 0;
    if in_time {
        eventually("it takes over again", || async { writer.opened.load(Ordering::Relaxed) > 1 }).await;
        assert_exact(&pipeline, &tenants, &messages, &offsets, 30).await;
    }
    worker.stop().await;
    pipeline.end().await;
    in_time
}
