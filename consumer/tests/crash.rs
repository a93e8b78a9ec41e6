//! Workers that die, stop, come and go: the totals stay exact.

mod support;

use std::time::Duration;

use support::{Message, Pipeline, Process, Totals, WITHIN, eventually, logs};
use usage_consumer::plan::{IdHash, NotKept, Plan, Runs};
use usage_schemas::{Reason, UsageRecord};
use uuid::Uuid;

fn records(pipeline: &Pipeline, tenant: Uuid, range: std::ops::Range<usize>) -> Vec<UsageRecord> {
    range.map(|i| pipeline.record(tenant, &format!("key-{i}"), 1 + i as i64)).collect()
}

/// The plan of the rows of one partition whose offsets begin at 0.
fn plan(batch_seq: i64, records: &[UsageRecord], not_kept: &[(i64, NotKept)]) -> Plan {
    let is_kept = |offset: &i64| !not_kept.iter().any(|(other, _)| other == offset);
    let kept: Vec<i64> = (0..records.len() as i64).filter(is_kept).collect();
    let ids: Vec<Uuid> = kept.iter().map(|offset| records[*offset as usize].record_id).collect();
    Plan {
        count: 1,
        batch_seq,
        first: 0,
        last: records.len() as i64 - 1,
        kept: kept.len() as u64,
        hash: IdHash::of(&ids),
        not_kept: Runs::join(not_kept.iter().copied(), &kept),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_committed_plan_is_carried_out_to_the_letter() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = Uuid::new_v4();
    let sent = records(&pipeline, tenant, 0..10);
    pipeline.send_records(&sent).await;
    // Decided once by a worker that died: nothing of it would be decided like that now.
    let not_kept = [(3, NotKept::Refused(Reason::UnknownUsageType)), (5, NotKept::Duplicate)];
    let plan = plan(41, &sent, &not_kept);
    pipeline.commit(0, 0, &plan.to_text()).await;

    // What is sent below is one batch, also if it is sent slowly.
    let worker = pipeline.worker(&["consumer.batch_age=3s"]);
    eventually("the plan is done", || async { pipeline.committed(0).await == Some((10, "d1;41".into())) })
        .await;
    let sum: i64 = (1..=10).sum::<i64>() - 4 - 6;
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(8, sum));
    let letters = pipeline.dead_letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].reason(), letters[0].origin()), ("unknown_usage_type", ("0".into(), "3".into())));

    // What follows goes on under the next number; the identities that the plan did not keep are free.
    pipeline.send_records(&sent).await;
    eventually("what follows is done", || async {
        pipeline.committed(0).await == Some((20, "d1;42".into()))
    })
    .await;
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(10, 55));
    worker.stop().await;
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_was_stored_already_changes_nothing() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = Uuid::new_v4();
    let sent = records(&pipeline, tenant, 0..10);
    pipeline.send_records(&sent).await;
    let worker = pipeline.worker(&["consumer.batch_age=1s"]);
    eventually("all are stored", || async { pipeline.committed(0).await == Some((10, "d1;1".into())) }).await;
    worker.stop().await;
    // The worker died after its transaction, before the next commit.
    pipeline.commit(0, 0, &plan(1, &sent, &[]).to_text()).await;
    let worker = pipeline.worker(&[]);
    eventually("it is done again", || async { pipeline.committed(0).await == Some((10, "d1;1".into())) })
        .await;
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(10, 55));
    worker.stop().await;
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_does_not_fit_stops_its_partition_and_no_other() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let (stopped, running) = (pipeline.tenant_of(0), pipeline.tenant_of(1));
    let sent = records(&pipeline, stopped, 0..10);
    pipeline.send_records(&sent).await;
    let mut damaged = plan(3, &sent, &[]);
    damaged.count = 2;
    damaged.hash = IdHash::of([&Uuid::nil()]);
    let text = damaged.to_text();
    pipeline.commit(0, 0, &text).await;
    let worker = pipeline.worker(&[]);
    pipeline.send_records(&records(&pipeline, running, 0..10)).await;
    eventually("the other partition goes on", || async {
        pipeline.totals(running).await == Totals::exactly(10, 55)
    })
    .await;
    worker.stop().await;
    assert_eq!(pipeline.committed(0).await, Some((0, text)));
    assert_eq!(pipeline.totals(stopped).await.records, 0);
    // The way out: Kafka's own tool clears the text.
    pipeline.commit(0, 0, "").await;
    let worker = pipeline.worker(&[]);
    eventually("it runs again", || async { pipeline.totals(stopped).await == Totals::exactly(10, 55) }).await;
    worker.stop().await;
    pipeline.end().await;
}

/// Tenants, their messages in one shuffled log with a quarter sent twice, and what must come out.
fn load(pipeline: &Pipeline, tenants: usize, each: usize) -> (Vec<(Uuid, Totals)>, Vec<Message>) {
    let tenants: Vec<Uuid> = (0..tenants).map(|_| Uuid::new_v4()).collect();
    let mut messages = Vec::new();
    for i in 0..each {
        for tenant in &tenants {
            messages.push(pipeline.message(&pipeline.record(*tenant, &format!("key-{i}"), 1 + i as i64)));
        }
    }
    let again: Vec<Message> = messages.iter().step_by(4).cloned().collect();
    // Some copies close to the first, some far behind.
    for (i, message) in again.into_iter().enumerate() {
        let at = if i % 2 == 0 { (i * 4 + 7).min(messages.len()) } else { messages.len() };
        messages.insert(at, message);
    }
    let total = Totals::exactly(each as u64, (1..=each as i64).sum());
    (tenants.iter().map(|tenant| (*tenant, total.clone())).collect(), messages)
}

async fn assert_exact(pipeline: &Pipeline, expected: &[(Uuid, Totals)]) {
    for (tenant, totals) in expected {
        assert_eq!(pipeline.totals(*tenant).await, *totals, "tenant {tenant}");
    }
    assert_eq!(pipeline.dead_letters().await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_105_workers_killed_in_the_middle_lose_and_double_nothing() {
    logs();
    let pipeline = Pipeline::start(4).await;
    let (expected, messages) = load(&pipeline, 20, 600);
    let tenants: Vec<Uuid> = expected.iter().map(|(tenant, _)| *tenant).collect();
    // Small batches, so that each life ends in the middle of several.
    let settings = ["consumer.batch_rows=100", "consumer.batch_age=20ms", "clickhouse.flush_age=500ms"];
    let mut offsets = Vec::new();
    let mut stored = 0;
    for part in messages.chunks(messages.len() / 7 + 1) {
        offsets.extend(pipeline.send(part).await);
        let worker = Process::start(&pipeline, &settings);
        eventually("something more is stored", || async { pipeline.rows(&tenants).await > stored }).await;
        worker.kill9();
        stored = pipeline.rows(&tenants).await;
    }
    let worker = Process::start(&pipeline, &settings);
    pipeline.all_done(&messages, &offsets).await;
    worker.stop().await;
    assert_exact(&pipeline, &expected).await;
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_41_workers_come_and_go_under_load() {
    logs();
    let pipeline = Pipeline::start(6).await;
    let (expected, messages) = load(&pipeline, 30, 400);
    let settings = ["consumer.batch_rows=200", "consumer.batch_age=20ms", "clickhouse.flush_age=500ms"];
    let first = Process::start(&pipeline, &settings);
    let mut offsets = Vec::new();
    let mut second = None;
    for (round, part) in messages.chunks(messages.len() / 8 + 1).enumerate() {
        match round {
            2 | 6 => second = Some(Process::start(&pipeline, &settings)),
            4 => second.take().expect("it was started").stop().await,
            _ => {}
        }
        offsets.extend(pipeline.send(part).await);
        // The part is on its way through before the next change of the group.
        let last = offsets.len() - 1;
        let (partition, offset) = (messages[last].partition, offsets[last]);
        eventually("the part is done", || async {
            pipeline.committed(partition).await.is_some_and(|(next, _)| next > offset)
        })
        .await;
    }
    pipeline.all_done(&messages, &offsets).await;
    first.stop().await;
    second.expect("it was started").stop().await;
    assert_exact(&pipeline, &expected).await;
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_wakes_up_after_its_partitions_were_taken_changes_nothing() {
    logs();
    let pipeline = Pipeline::start(4).await;
    let (expected, messages) = load(&pipeline, 20, 300);
    let tenants: Vec<Uuid> = expected.iter().map(|(tenant, _)| *tenant).collect();
    let settings = ["consumer.batch_rows=100", "consumer.batch_age=20ms"];
    let (early, late) = messages.split_at(messages.len() / 2);
    let mut offsets = pipeline.send(early).await;
    let zombie = Process::start(&pipeline, &settings);
    eventually("it is in the middle", || async { pipeline.rows(&tenants).await > 0 }).await;
    zombie.pause();
    let other = Process::start(&pipeline, &settings);
    // Its session of 6 s runs out, the other takes over and finishes what was planned.
    pipeline.all_done(early, &offsets).await;
    zombie.resume();
    offsets.extend(pipeline.send(late).await);
    pipeline.all_done(&messages, &offsets).await;
    zombie.stop().await;
    other.stop().await;
    assert_exact(&pipeline, &expected).await;
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_stops_within_ten_seconds_and_leaves_nothing_in_hand() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let (expected, messages) = load(&pipeline, 4, 50);
    let worker = Process::start(&pipeline, &[]);
    let offsets = pipeline.send(&messages).await;
    pipeline.all_done(&messages, &offsets).await;
    worker.terminate();
    worker.stopped(Duration::from_secs(11)).await;
    for partition in 0..2 {
        if let Some((_, text)) = pipeline.committed(partition).await {
            assert!(text.starts_with("d1;"), "{text}");
        }
    }
    assert_exact(&pipeline, &expected).await;
    tokio::time::timeout(WITHIN, pipeline.end()).await.expect("the databases are free");
}
