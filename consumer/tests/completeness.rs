//! Markers on real servers: what they move, what holds them, and that they never run ahead of what is stored.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use support::{Pipeline, Process, SOURCE, Totals, eventually, logs, outbox};
use usage_control::Gaps;
use usage_schemas::UsageRecord;
use usage_schemas::partition::partition_of;
use usage_service::clock;
use uuid::Uuid;

const MINUTE: i64 = 60_000_000;

async fn until(pipeline: &Pipeline, expected: Option<i64>) {
    eventually(&format!("complete_until is {expected:?}"), || async {
        pipeline.complete_until().await == expected
    })
    .await;
}

fn tenant_of(partition: i32, count: i32) -> Uuid {
    let of = |tenant: &Uuid| partition_of(*tenant, count) == partition;
    std::iter::repeat_with(Uuid::new_v4).find(of).expect("there is no end")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_source_advances_and_costs_storage_nothing() {
    logs();
    let pipeline = Pipeline::start(3).await;
    let worker = pipeline.worker(&[]);
    for round in 1..=3 {
        pipeline.send(&pipeline.markers_of(outbox(1), round * MINUTE)).await;
        until(&pipeline, Some(round * MINUTE)).await;
    }
    pipeline.settled().await;
    assert_eq!(pipeline.parts().await, 0);
    worker.stop().await;
    assert_eq!(pipeline.parts().await, 0);
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_ahead_of_the_brokers_clock_moves_nothing() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let worker = Process::start(&pipeline, &[]);
    let now = clock::now_micros();
    pipeline.send(&[pipeline.marker_of(outbox(1), now + 10 * MINUTE, 0)]).await;
    eventually("it is an alarm", || async { worker.log_contains("ahead of the broker's clock") }).await;
    pipeline.send(&[pipeline.marker_of(outbox(1), now, 0)]).await;
    until(&pipeline, Some(now)).await;
    assert_eq!(pipeline.dead_letters().await, []);
    worker.stop().await;
    pipeline.end().await;
}

/// Two relays of two outboxes, records and markers out of order, workers that are killed and added: whenever `complete_until` is
/// read, everything emitted before it is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_never_runs_ahead_of_what_is_stored() {
    logs();
    const ROUNDS: i64 = 16;
    const EACH: i64 = 60;
    let pipeline = Arc::new(Pipeline::start(4).await);
    let mut random = StdRng::seed_from_u64(8);
    let tenants: Vec<Uuid> = (0..12).map(|_| Uuid::new_v4()).collect();
    // Emitted at microsecond 1, 2, 3 … in this order.
    let emitted: Arc<Vec<UsageRecord>> = (1..=ROUNDS * EACH)
        .map(|at| pipeline.record(tenants[random.random_range(0..tenants.len())], &format!("{at}"), 1))
        .collect::<Vec<_>>()
        .into();
    let checker = Checker::start(pipeline.clone(), emitted.clone());

    let settings = ["consumer.batch_rows=40", "consumer.batch_age=20ms", "clickhouse.flush_age=500ms"];
    let mut workers = vec![Process::start(&pipeline, &settings)];
    for round in 1..=ROUNDS {
        let slice = ((round - 1) * EACH) as usize..(round * EACH) as usize;
        let mut messages: Vec<_> = emitted[slice].iter().map(|record| pipeline.message(record)).collect();
        // One record in six came to a partition of an older count.
        for message in messages.iter_mut().filter(|_| random.random_ratio(1, 6)) {
            message.partition = (message.partition + 1) % pipeline.partitions;
        }
        messages.shuffle(&mut random);
        let split = random.random_range(0..messages.len());
        pipeline.send(&messages[..split]).await;
        // A relay that fell behind says what was true before.
        let stale = pipeline.markers_of(outbox(u128::from(round % 2 == 0)), (round - 1) * EACH + 1);
        pipeline.send(&stale).await;
        pipeline.send(&messages[split..]).await;
        for of in [0, 1] {
            let mut markers = pipeline.markers_of(outbox(of), round * EACH + 1);
            markers.shuffle(&mut random);
            pipeline.send(&markers).await;
        }
        match round {
            4 | 10 => workers.push(Process::start(&pipeline, &settings)),
            7 | 13 => {
                workers.remove(0).kill9();
                workers.push(Process::start(&pipeline, &settings));
            }
            _ => {}
        }
    }
    // A forward that was noted after its target had passed it goes with the target's next batch.
    pipeline.settled().await;
    for of in [0, 1] {
        pipeline.send(&pipeline.markers_of(outbox(of), ROUNDS * EACH + 1)).await;
    }
    until(&pipeline, Some(ROUNDS * EACH + 1)).await;
    assert!(checker.end().await > 1, "it was seen on its way");
    assert_eq!(pipeline.stored_ids().await.len(), emitted.len());
    assert_eq!(pipeline.dead_letters().await, []);
    for worker in workers {
        worker.stop().await;
    }
    Arc::into_inner(pipeline).expect("nobody else uses it").end().await;
}

/// Reads progress, then storage, again and again.
struct Checker {
    ended: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<usize>,
}

impl Checker {
    fn start(pipeline: Arc<Pipeline>, emitted: Arc<Vec<UsageRecord>>) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let end = ended.clone();
        let task = tokio::spawn(async move {
            let mut seen = std::collections::BTreeSet::new();
            while !end.load(Ordering::SeqCst) {
                let Some(until) = pipeline.complete_until().await else { continue };
                let stored = pipeline.stored_ids().await;
                let before = usize::try_from(until - 1).expect("a time of the test");
                let missing =
                    emitted[..before].iter().filter(|record| !stored.contains(&record.record_id)).count();
                assert_eq!(missing, 0, "emitted before {until} and not stored");
                seen.insert(until);
            }
            seen.len()
        });
        Self { ended, task }
    }

    /// How many different times were seen.
    async fn end(self) -> usize {
        self.ended.store(true, Ordering::SeqCst);
        self.task.await.expect("it never ran ahead")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_between_write_and_control_transaction_leaves_its_markers_to_the_plan() {
    logs();
    let points = ["consumer.written=kill", "consumer.planned=kill", "consumer.advanced=kill"];
    let killed = points.map(async |point| {
        let pipeline = Pipeline::start(1).await;
        let tenant = Uuid::new_v4();
        let records: Vec<_> = (0..10).map(|i| pipeline.record(tenant, &format!("{i}"), 1)).collect();
        let mut messages: Vec<_> = records.iter().map(|record| pipeline.message(record)).collect();
        messages.insert(4, pipeline.marker_of(outbox(1), 400, 0));
        messages.push(pipeline.marker_of(outbox(1), 1_000, 0));
        pipeline.send(&messages).await;
        Process::armed(&pipeline, point, &["consumer.batch_age=1s"]).died().await;
        let noted = point.starts_with("consumer.advanced");
        assert_eq!(pipeline.complete_until().await, noted.then_some(1_000), "{point}");

        let worker = pipeline.worker(&[]);
        until(&pipeline, Some(1_000)).await;
        pipeline.settled().await;
        worker.stop().await;
        // Not decided anew: it was the same batch.
        assert_eq!(pipeline.control.progress().await.unwrap()[0].batch_seq, 1, "{point}");
        assert_eq!(pipeline.totals(tenant).await, Totals::exactly(10, 10), "{point}");
        pipeline.end().await;
    });
    join_all(killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_markers_around_forwarded_records() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let worker = pipeline.worker(&[]);
    pipeline.send(&pipeline.markers_of(outbox(1), 100)).await;
    // Partition 1, where the record belongs, has heard the second marker long before the record comes to it.
    pipeline.send(&[pipeline.marker_of(outbox(1), 200, 1)]).await;
    until(&pipeline, Some(100)).await;
    pipeline.settled().await;
    worker.stop().await;
    let tenant = tenant_of(1, 2);
    let mut message = pipeline.message(&pipeline.record(tenant, "misplaced", 1));
    message.partition = 0;
    pipeline.send(&[message, pipeline.marker_of(outbox(1), 200, 0)]).await;

    // It freezes when partition 0 is done and the record lies in partition 1, undecided.
    let worker = Process::armed(&pipeline, "consumer.advanced=stop@1", &["consumer.batch_age=1s"]);
    worker.froze().await;
    assert_eq!(pipeline.outbox_until(outbox(1)).await, Some(200), "both partitions have heard it");
    assert_eq!(pipeline.stored_rows().await, 0);
    assert_eq!(pipeline.complete_until().await, Some(100), "the record on its way holds its source");
    worker.resume();
    until(&pipeline, Some(200)).await;
    assert_eq!(pipeline.stored_rows().await, 1);
    worker.stop().await;
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_two_outboxes_under_one_source_name() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let worker = pipeline.worker(&[]);
    pipeline.send(&pipeline.markers_of(outbox(1), 100)).await;
    until(&pipeline, Some(100)).await;
    // The second one is heard in one partition only: of the other nothing is known.
    pipeline.send(&[pipeline.marker_of(outbox(2), 50, 0)]).await;
    until(&pipeline, None).await;
    pipeline.send(&[pipeline.marker_of(outbox(2), 60, 1)]).await;
    until(&pipeline, Some(50)).await;
    pipeline.send(&pipeline.markers_of(outbox(1), 300)).await;
    eventually("the first one is further", || async { pipeline.outbox_until(outbox(1)).await == Some(300) })
        .await;
    assert_eq!(pipeline.complete_until().await, Some(50), "the slower one counts");
    assert!(pipeline.control.retire(SOURCE, Some(outbox(2))).await.unwrap());
    assert_eq!(pipeline.complete_until().await, Some(300));
    worker.stop().await;
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_offsets_moved_forward_are_a_gap_until_it_is_accepted() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = Uuid::new_v4();
    let records: Vec<_> = (0..6).map(|i| pipeline.record(tenant, &format!("{i}"), 1)).collect();
    let worker = pipeline.worker(&[]);
    pipeline.send_records(&records[..2]).await;
    pipeline.send(&[pipeline.marker_of(outbox(1), 100, 0)]).await;
    until(&pipeline, Some(100)).await;
    pipeline.settled().await;
    worker.stop().await;
    pipeline.send_records(&records[2..]).await;
    pipeline.send(&[pipeline.marker_of(outbox(1), 200, 0)]).await;
    // An operator passes over offsets 3 and 4, and Kafka's tool clears the plan.
    pipeline.commit(0, 5, "").await;

    let worker = pipeline.worker(&[]);
    eventually("the rest is stored", || async { pipeline.stored_rows().await == 4 }).await;
    pipeline.settled().await;
    assert_eq!(
        pipeline.complete_until().await,
        None,
        "two records are missing and nobody said that it is known"
    );
    let accepted = pipeline.control.accept_gaps(Gaps::All).await.unwrap();
    let places: Vec<_> =
        accepted.iter().map(|gap| (gap.kafka_partition, gap.from_offset, gap.to_offset)).collect();
    assert_eq!(places, [(0, 3, 5)]);
    assert_eq!(pipeline.complete_until().await, Some(200));
    worker.stop().await;
    pipeline.end().await;
}
