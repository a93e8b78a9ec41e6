//! The topic is deleted and made anew: offsets begin at 0 again, batch numbers and identities do not.

mod support;

use support::{Pipeline, Process, Totals, eventually, logs, points};
use usage_schemas::UsageRecord;
use uuid::Uuid;

const PARTITIONS: i32 = 3;
const EACH: usize = 100;

fn records(pipeline: &Pipeline, tenants: &[Uuid], range: std::ops::Range<usize>) -> Vec<UsageRecord> {
    let one = |i: usize| tenants.iter().map(move |tenant| pipeline.record(*tenant, &format!("key-{i}"), 1));
    range.flat_map(one).collect()
}

/// What happens to the worker while the topic is made anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worker {
    /// Stopped before, and another one started afterwards.
    Another,
    /// It goes on.
    LivesOn,
    /// It dies when it has noticed, before it has noted it.
    Dies,
    /// Another one is started and reads the old topic's id; the log that it looks at next is the new one.
    TakesOver,
}

/// Some new records and everything of the first life again come into the second one, more than the first had: a worker that went on where it was
/// would pass the new ones over.
async fn lives_again(kind: Worker) {
    let pipeline = Pipeline::start(PARTITIONS).await;
    let tenants: Vec<Uuid> = (0..PARTITIONS).map(|partition| pipeline.tenant_of(partition)).collect();
    let first = records(&pipeline, &tenants, 0..EACH);
    pipeline.send_records(&first).await;
    let points = if kind == Worker::Dies { points::ANEW[0].armed("kill") } else { String::new() };
    let mut worker = Process::armed(&pipeline, &points, &[]);
    pipeline.settled().await;
    let before = pipeline.control.progress().await.unwrap();
    match kind {
        Worker::Another => {
            worker.stop().await;
            pipeline.make_anew().await;
            worker = Process::start(&pipeline, &[]);
        }
        Worker::TakesOver => {
            worker.stop().await;
            worker = Process::armed(&pipeline, "takeover.topic=stop@1", &["consumer.session_timeout=45s"]);
            worker.froze().await;
            pipeline.make_anew().await;
            worker.resume();
        }
        Worker::LivesOn | Worker::Dies => pipeline.make_anew().await,
    }
    let second: Vec<UsageRecord> =
        records(&pipeline, &tenants, EACH..EACH + 50).into_iter().chain(first).collect();
    pipeline.send_records(&second).await;
    if kind == Worker::Dies {
        worker.died().await;
        worker = Process::start(&pipeline, &[]);
    }
    eventually("what is new is stored", || async { pipeline.rows(&tenants).await >= 3 * 150 }).await;
    pipeline.settled().await;
    worker.stop().await;
    for tenant in &tenants {
        assert_eq!(pipeline.totals(*tenant).await, Totals::exactly(150, 150));
    }
    assert_eq!(pipeline.dead_letters().await, []);
    let after = pipeline.control.progress().await.unwrap();
    for (before, after) in before.iter().zip(&after) {
        assert!(after.batch_seq > before.batch_seq, "numbers never go back: {before:?}, {after:?}");
        assert_eq!(after.next_offset, Some(150));
    }
    // For a backup of before, whose offsets are none of the new log. Of the numbers of the second life none is below.
    let anew = pipeline.control.topics_made_anew().await.unwrap();
    for (before, after) in before.iter().zip(&after) {
        let last = anew[&after.kafka_partition];
        assert!(before.batch_seq <= last && last < after.batch_seq, "{before:?}, {last}, {after:?}");
    }
    // What the old log may have held behind the last offset that was read is a loss that somebody must know of. A worker that lived
    // on may have read more under the old offsets before it noticed.
    let gaps = pipeline.control.gaps().await.unwrap();
    let found: Vec<_> = gaps.iter().map(|gap| (gap.kafka_partition, gap.accepted)).collect();
    assert_eq!(found, (0..PARTITIONS).map(|partition| (partition, false)).collect::<Vec<_>>());
    for (before, gap) in before.iter().zip(&gaps) {
        assert!(Some(gap.from_offset) >= before.next_offset, "{before:?}, {gap:?}");
    }
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_made_anew_between_two_workers_counts_nothing_twice() {
    logs();
    lives_again(Worker::Another).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_made_anew_under_a_worker_loses_and_doubles_nothing() {
    logs();
    lives_again(Worker::LivesOn).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_dies_when_it_has_noticed_a_topic_that_was_made_anew() {
    logs();
    lives_again(Worker::Dies).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_made_anew_under_a_takeover_stops_no_partition() {
    logs();
    lives_again(Worker::TakesOver).await;
}
