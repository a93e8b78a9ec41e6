//! Tests that hold a worker of this process at one of its steps while the group goes on. Fail points are the process's: one test at a
//! time.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use support::workload::Workload;
use support::{Pipeline, Process, Totals, eventually, logs};
use tokio::sync::{Mutex as AsyncMutex, MutexGuard};
use uuid::Uuid;

static ONE_AT_A_TIME: AsyncMutex<()> = AsyncMutex::const_new(());

/// A step at which whoever comes waits.
struct Step {
    point: &'static str,
    visits: Arc<AtomicUsize>,
    open: Arc<(Mutex<bool>, Condvar)>,
    _alone: Option<MutexGuard<'static, ()>>,
}

impl Step {
    /// Holds from now on whoever comes to the point.
    async fn hold(point: &'static str) -> Self {
        let alone = ONE_AT_A_TIME.lock().await;
        let step = Self::at(point, Some(alone));
        let (visits, open) = (step.visits.clone(), step.open.clone());
        let wait = move || {
            visits.fetch_add(1, Ordering::SeqCst);
            let (open, opened) = &*open;
            drop(opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
        };
        fail::cfg_callback(point, wait).unwrap();
        step
    }

    /// Counts visits only; while another step is held.
    fn count(point: &'static str) -> Self {
        let step = Self::at(point, None);
        let visits = step.visits.clone();
        let visit = move || {
            visits.fetch_add(1, Ordering::SeqCst);
        };
        fail::cfg_callback(point, visit).unwrap();
        step
    }

    fn at(point: &'static str, alone: Option<MutexGuard<'static, ()>>) -> Self {
        Self { point, visits: Arc::default(), open: Arc::default(), _alone: alone }
    }

    async fn visited(&self, times: usize) {
        let visited = || async { self.visits.load(Ordering::SeqCst) >= times };
        eventually(&format!("{} is visited", self.point), visited).await;
    }

    fn open(&self) {
        *self.open.0.lock().unwrap() = true;
        self.open.1.notify_all();
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        fail::remove(self.point);
        // After a panic too: nobody may hang.
        self.open();
    }
}

/// Kafka takes a commit of a member for a partition that it does not own any more (see `ownership.rs`), so the worker must not send it: a
/// batch is held before its plan is committed until its partition is another's, which has gone on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_member_that_has_given_a_partition_away_does_not_commit_its_plan() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let tenants = [0, 1].map(|partition| pipeline.tenant_of(partition));
    let step = Step::hold("consumer.plan").await;
    let worker = pipeline.worker(&["consumer.batch_age=20ms"]);
    for tenant in tenants {
        let records: Vec<_> = (0..50).map(|i| pipeline.record(tenant, &format!("key-{i}"), 1)).collect();
        pipeline.send_records(&records).await;
    }
    step.visited(1).await;
    // It gives one of its two partitions back, though not at once: the batch is waited for and abandoned.
    let other = Process::start(&pipeline, &["consumer.batch_age=20ms"]);
    let done = || async { pipeline.offsets().await.into_iter().position(|offset| offset == 50) };
    eventually("the other has done one partition", || async { done().await.is_some() }).await;
    let taken = i32::try_from(done().await.expect("it is done")).unwrap();
    let mark = Some((50, "d1;1".to_string()));
    eventually("it says so", || async { pipeline.committed(taken).await == mark }).await;
    step.open();
    // The same request carries the plan of the partition that is still the worker's own.
    assert_eq!(pipeline.settled().await, [50, 50]);
    assert_eq!(pipeline.committed(taken).await, mark, "only its owner has committed");
    worker.stop().await;
    other.stop().await;
    for tenant in tenants {
        assert_eq!(pipeline.totals(tenant).await, Totals::exactly(50, 50));
    }
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_copy_of_a_record_whose_batch_is_still_in_flight_is_a_duplicate() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = Uuid::new_v4();
    let step = Step::hold("consumer.sent").await;
    let closed = Step::count("consumer.closed");
    let worker = pipeline.worker(&["consumer.batch_rows=10", "consumer.batch_age=20ms"]);
    let records: Vec<_> = (0..10).map(|i| pipeline.record(tenant, &format!("key-{i}"), 1 + i)).collect();
    pipeline.send_records(&records).await;
    // The plan is committed, nothing is stored; the copies fill a batch, which is decided meanwhile.
    step.visited(1).await;
    let mut copies = records.clone();
    copies[9].value = usage_schemas::Quantity::from_unscaled(1).unwrap();
    pipeline.send_records(&copies).await;
    closed.visited(2).await;
    assert_eq!(pipeline.stored_rows().await, 0);
    step.open();
    pipeline.settled().await;
    worker.stop().await;
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(10, 55));
    let letters = pipeline.dead_letters().await;
    assert_eq!(letters.iter().map(|letter| letter.reason()).collect::<Vec<_>>(), ["conflict"]);
    pipeline.end().await;
}

/// `a_running_write_and_a_running_flush`: the partition is given back after 5 s all the same, and what comes late is fenced.
async fn given_back_during(point: &'static str) {
    let pipeline = Pipeline::start(2).await;
    let mut workload = Workload::new(&pipeline, 12);
    let settings = ["consumer.batch_age=20ms", "clickhouse.flush_age=200ms"];
    let step = Step::hold(point).await;
    let worker = pipeline.worker(&settings);
    workload.send(&pipeline, 100).await;
    step.visited(1).await;
    let other = Process::start(&pipeline, &settings);
    eventually("the other has taken a partition over", || async {
        other.log_contains("partition taken over")
    })
    .await;
    step.open();
    workload.send(&pipeline, 100).await;
    pipeline.settled().await;
    worker.stop().await;
    other.stop().await;
    workload.check(&pipeline, point).await;
    assert_eq!(pipeline.rollup_differences().await, 0);
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn problem_50_a_partition_is_revoked_while_a_write_is_in_flight() {
    logs();
    given_back_during("storage.insert").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn problem_50_a_partition_is_revoked_while_a_flush_is_in_flight() {
    logs();
    given_back_during("storage.roll_up").await;
}
