//! Commits and fences of others: a plan that somebody overwrites, a joint insert that a takeover of one of its partitions ends.

mod support;

use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::{Offset, TopicPartitionList};
use support::lanes::Lane;
use support::{Pipeline, Process, Totals, WITHIN, eventually, logs};
use usage_storage::Storage;
use usage_storage::clickhouse::ClickHouseStorage;

/// A member of the group that owns none of its partitions, as a worker that was evicted and has rejoined: it reads another topic.
async fn stranger(pipeline: &Pipeline) -> BaseConsumer {
    let (brokers, group, topic) =
        (pipeline.brokers.clone(), pipeline.group.clone(), pipeline.dead_letters.clone());
    let join = move || {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &brokers)
            .set("group.id", &group)
            .set("enable.auto.commit", "false")
            .set("partition.assignment.strategy", "cooperative-sticky")
            .create()
            .expect("a member");
        consumer.subscribe(&[&topic]).expect("subscribed");
        let deadline = Instant::now() + WITHIN;
        while consumer.assignment().expect("an assignment").count() == 0 {
            assert!(Instant::now() < deadline, "it becomes a member");
            drop(consumer.poll(Duration::from_millis(100)));
        }
        consumer
    };
    tokio::task::spawn_blocking(join).await.expect("no panic")
}

fn overwrite(stranger: &BaseConsumer, topic: &str, plans: &[Option<(i64, String)>]) {
    let mut list = TopicPartitionList::new();
    for (partition, plan) in (0..).zip(plans) {
        let Some((offset, text)) = plan else { continue };
        let mut element = list.add_partition(topic, partition);
        element.set_offset(Offset::Offset(*offset)).expect("an offset");
        element.set_metadata(text);
    }
    stranger
        .commit(&list, CommitMode::Sync)
        .expect("kafka takes a member's commit for partitions that it does not own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_another_overwrites_costs_work_and_no_counts() {
    logs();
    let mut lane = Lane::start(21).await;
    lane.send().await;
    lane.armed("consumer.planned=kill").died().await;
    let mut old = Vec::new();
    for partition in 0..lane.pipeline.partitions {
        old.push(lane.pipeline.committed(partition).await);
    }
    assert!(old.iter().flatten().any(|(_, text)| text.starts_with("p1;")), "{old:?}");
    let worker = lane.worker();
    let before = lane.pipeline.settled().await;

    // Under a worker that lives: its next commits are its own again.
    let stranger = stranger(&lane.pipeline).await;
    overwrite(&stranger, &lane.pipeline.topic, &old);
    assert_ne!(lane.pipeline.offsets().await, before);
    lane.send().await;
    lane.pipeline.settled().await;
    lane.workload.check(&lane.pipeline, "overwritten under its owner").await;

    // Before the next owner reads it: everything since is read again.
    overwrite(&stranger, &lane.pipeline.topic, &old);
    worker.kill9();
    drop(stranger);
    lane.finish("overwritten before a takeover").await;
    lane.pipeline.end().await;
}

/// The worker is frozen in the middle of an insert that carries all its partitions; another fences one of them, which ends the insert.
/// The worker takes that one over again as a whole, and settles the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_of_one_partition_ends_a_joint_insert_of_all() {
    logs();
    // A batch that is decided later than the others, which depends on the machine, is none of their insert's.
    for _ in 0..20 {
        if a_joint_insert_was_ended().await {
            return;
        }
    }
    panic!("of 20 inserts none carried all partitions");
}

/// False if the insert did not carry all partitions.
async fn a_joint_insert_was_ended() -> bool {
    let pipeline = Pipeline::start(3).await;
    let settings = ["consumer.session_timeout=60s", "consumer.batch_age=2s", "consumer.retry_max=300ms"];
    let worker = Process::armed(&pipeline, "storage.half_sent=stop@1", &settings);
    let taken_over = || worker.log_count("partition taken over");
    eventually("it holds all partitions", || async { taken_over() == 3 }).await;
    let tenants = [0, 1, 2].map(|partition| pipeline.tenant_of(partition));
    let source = &pipeline;
    let one = |i: usize| tenants.iter().map(move |tenant| source.record(*tenant, &format!("key-{i}"), 1));
    pipeline.send_records(&(0..50).flat_map(one).collect::<Vec<_>>()).await;
    worker.froze().await;
    // It is the worker's first insert, and one insert runs at a time: all plans that are committed are this one's.
    let mut planned = 0;
    for partition in 0..pipeline.partitions {
        let committed = pipeline.committed(partition).await;
        planned += i32::from(committed.is_some_and(|(_, text)| text.starts_with("p1;")));
    }
    if planned < pipeline.partitions {
        worker.kill9();
        pipeline.end().await;
        return false;
    }
    let foreign = ClickHouseStorage::connect(pipeline.clickhouse.clone()).writer();
    foreign.open(0).await.expect("it is fenced");
    worker.resume();
    pipeline.settled().await;
    assert_eq!(worker.log_count("taking over again"), 1);
    eventually("it holds the partition again", || async { taken_over() == 4 }).await;
    assert_eq!(worker.log_count("batch is cared for alone"), 2, "the other two");
    worker.stop().await;
    for tenant in tenants {
        assert_eq!(pipeline.totals(tenant).await, Totals::exactly(50, 50));
    }
    assert_eq!(pipeline.rollup_differences().await, 0);
    pipeline.end().await;
    true
}
