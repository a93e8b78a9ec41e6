//! Quotas that change, and topics that grow, while records flow.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::quotas::{counted, long, send, set};
use support::{Pipeline, Process, Totals, eventually, logs};
use usage_schemas::UsageRecord;
use usage_schemas::partition::partition_of;
use usage_service::clock;
use uuid::Uuid;

/// What is promised of `usagectl quota set`.
const TAKEN_UP_WITHIN: i64 = 10_000;

/// Sends a record of the tenant every 50 ms until told to stop; how many.
async fn flow(pipeline: Arc<Pipeline>, tenant: Uuid, stop: Arc<AtomicBool>) -> i64 {
    let mut every = tokio::time::interval(Duration::from_millis(50));
    let mut sent = 0;
    while !stop.load(Ordering::SeqCst) {
        every.tick().await;
        send(&pipeline, &[pipeline.record(tenant, &format!("key-{sent}"), 1)]).await;
        sent += 1;
    }
    sent
}

/// The offsets of partition 0 that became letters.
async fn refused(pipeline: &Pipeline) -> BTreeSet<usize> {
    let letters = pipeline.dead_letters().await;
    assert!(letters.iter().all(|letter| letter.reason() == "quota_exceeded"), "{letters:?}");
    letters.iter().map(|letter| letter.origin().1.parse().expect("an offset")).collect()
}

/// With the settings that are shipped. The broker's clock and the test's are one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_that_changes_while_records_flow_holds_within_ten_seconds() {
    logs();
    let pipeline = Arc::new(Pipeline::start(1).await);
    let tenant = Uuid::new_v4();
    let worker = Process::start(&pipeline, &[]);
    let stop = Arc::<AtomicBool>::default();
    let flowing = tokio::spawn(flow(pipeline.clone(), tenant, stop.clone()));
    let kept = || async { pipeline.totals(tenant).await.records as i64 };
    // A topic of letters that more are always written to has no end to be read to.
    let over = || async {
        let done = pipeline.committed(0).await.map_or(0, |(next, _)| next);
        done - kept().await
    };
    eventually("records are kept", || async { kept().await >= 20 }).await;

    let bounded = clock::now_millis();
    set(&pipeline, tenant, Some(long(30))).await;
    eventually("the quota is used up", || async { over().await > 40 }).await;
    assert_eq!(counted(&pipeline, tenant).await, 30, "those from before are not counted");

    let before = kept().await;
    let freed = clock::now_millis();
    set(&pipeline, tenant, None).await;
    eventually("records are kept again", || async { kept().await >= before + 20 }).await;
    stop.store(true, Ordering::SeqCst);
    let sent = flowing.await.expect("the flow ends");
    pipeline.settled().await;
    worker.stop().await;

    let refused = refused(&pipeline).await;
    let kept = sent - refused.len() as i64;
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(kept as u64, kept));
    assert_eq!(counted(&pipeline, tenant).await, 30, "what no quota holds for is not counted");
    let times = pipeline.broker_times(0).await;
    assert_eq!(times.len() as i64, sent);
    let (first, last) = (*refused.first().expect("some are"), *refused.last().expect("some are"));
    assert_eq!(refused.len(), last + 1 - first, "nothing was kept in between");
    // The first record that was counted, and the last one that was refused.
    let (begun, ended) = (times[first - 30] - bounded, times[last] - freed);
    assert!(begun <= TAKEN_UP_WITHIN && ended <= TAKEN_UP_WITHIN, "{begun} ms, {ended} ms");
    Arc::into_inner(pipeline).expect("nobody else has it").end().await;
}

/// A tenant that lies in these partitions, given as (count, partition).
fn tenant_in(places: &[(i32, i32)]) -> Uuid {
    let fits = |tenant: &Uuid| places.iter().all(|(count, place)| partition_of(*tenant, *count) == *place);
    std::iter::repeat_with(Uuid::new_v4).find(fits).expect("there is no end")
}

/// Different records, of 1 unit, 2 units and so on.
fn records(pipeline: &Pipeline, tenant: Uuid, count: i64) -> Vec<UsageRecord> {
    (0..count).map(|i| pipeline.record(tenant, &format!("key-{i}"), 1 + i)).collect()
}

/// Another partition's worker goes on with what the first one has counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_grows_takes_the_count_along() {
    logs();
    let mut pipeline = Pipeline::start(2).await;
    let (stays, moves) = (tenant_in(&[(2, 0), (4, 0)]), tenant_in(&[(2, 0), (4, 2)]));
    for tenant in [stays, moves] {
        set(&pipeline, tenant, Some(long(50))).await;
    }
    let worker = pipeline.worker(&["consumer.batch_age=20ms"]);
    let all = [stays, moves].map(|tenant| (tenant, records(&pipeline, tenant, 70)));
    for (_, records) in &all {
        send(&pipeline, &records[..30]).await;
    }
    pipeline.settled().await;
    pipeline.grow(4).await;
    // Some come by the old count and are forwarded, and some have come before.
    for (_, records) in &all {
        send(&pipeline, &records[20..45]).await;
    }
    pipeline.partitions = 4;
    pipeline.settled().await;
    for (tenant, records) in &all {
        assert_eq!(pipeline.totals(*tenant).await, Totals::exactly(45, (1..=45).sum()), "{tenant}");
        assert_eq!(counted(&pipeline, *tenant).await, 45, "{tenant}");
        send(&pipeline, &records[40..]).await;
    }
    pipeline.settled().await;
    worker.stop().await;
    for tenant in [stays, moves] {
        assert_eq!(pipeline.totals(tenant).await, Totals::exactly(50, (1..=50).sum()), "{tenant}");
        assert_eq!(counted(&pipeline, tenant).await, 50, "{tenant}");
    }
    let letters = pipeline.dead_letters().await;
    assert!(letters.iter().all(|letter| letter.reason() == "quota_exceeded"), "{letters:?}");
    let places: Vec<_> = letters.iter().map(|letter| letter.origin().0).collect();
    let of = |partition: &str| places.iter().filter(|place| *place == partition).count();
    assert_eq!((of("0"), of("2")), (20, 20));
    pipeline.end().await;
}

/// The worst that a growth can do to a count: a batch that was stored and not counted yet. Its records count, and no more than they
/// find room beyond the quota.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_under_way_when_the_topic_grows_passes_the_quota_by_itself_at_most() {
    logs();
    let mut pipeline = Pipeline::start(2).await;
    let tenant = tenant_in(&[(2, 0), (4, 2)]);
    set(&pipeline, tenant, Some(long(50))).await;
    let settings = ["consumer.batch_rows=10", "consumer.batch_age=20ms"];
    let dead = Process::armed(&pipeline, "consumer.written=kill@2", &settings);
    let all = records(&pipeline, tenant, 100);
    send(&pipeline, &all[..30]).await;
    dead.died().await;
    let uncounted = pipeline.totals(tenant).await.records as i64 - counted(&pipeline, tenant).await;
    assert!(uncounted > 0, "a batch is stored and not counted");
    pipeline.grow(4).await;
    pipeline.partitions = 4;
    let worker = pipeline.worker(&settings);
    send(&pipeline, &all).await;
    pipeline.settled().await;
    worker.stop().await;
    assert_eq!(counted(&pipeline, tenant).await, 50);
    let kept = 50 + uncounted;
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(kept as u64, (1..=kept).sum()));
    assert_eq!(pipeline.dead_letters().await.len() as i64, 100 - kept);
    pipeline.end().await;
}
