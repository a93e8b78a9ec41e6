//! Logs whose beginning is gone, and offsets that an operator moved.

mod support;

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientConfig, ClientContext, Message as _, Offset, TopicPartitionList};
use support::{Pipeline, Process, Totals, WITHIN, eventually, logs};
use usage_consumer::context::restart_at;
use usage_schemas::UsageRecord;
use uuid::Uuid;

fn records(pipeline: &Pipeline, tenant: Uuid, range: std::ops::Range<usize>) -> Vec<UsageRecord> {
    range.map(|i| pipeline.record(tenant, &format!("key-{i}"), 1)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_start_begins_where_the_log_does() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = Uuid::new_v4();
    pipeline.send_records(&records(&pipeline, tenant, 0..10)).await;
    pipeline.delete_before(0, 4).await;
    let worker = pipeline.worker(&[]);
    eventually("the rest is stored", || async { pipeline.totals(tenant).await == Totals::exactly(6, 6) })
        .await;
    worker.stop().await;
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_are_gone_stop_the_partition_until_the_offset_is_moved() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = Uuid::new_v4();
    pipeline.send_records(&records(&pipeline, tenant, 0..10)).await;
    let worker = pipeline.worker(&[]);
    eventually("all are done", || async { pipeline.committed(0).await == Some((10, "d1;1".into())) }).await;
    worker.stop().await;
    pipeline.send_records(&records(&pipeline, tenant, 10..20)).await;
    pipeline.delete_before(0, 13).await;

    let worker = Process::start(&pipeline, &[]);
    eventually("the partition is stopped", || async { worker.log_contains("offsets 10 to 12 are gone") })
        .await;
    assert_eq!(pipeline.committed(0).await, Some((10, "d1;1".into())), "no silent jump");
    worker.stop().await;
    // The same when the commit has expired: the control database knows how far it was.
    pipeline.commit(0, 13, "").await;
    let worker = pipeline.worker(&[]);
    eventually("the rest is stored", || async { pipeline.totals(tenant).await == Totals::exactly(17, 17) })
        .await;
    worker.stop().await;
    let gaps = pipeline.control.gaps().await.unwrap();
    assert_eq!(gaps.len(), 1);
    assert_eq!((gaps[0].from_offset, gaps[0].to_offset, gaps[0].accepted), (10, 13, false));
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_moved_backwards_count_nothing_twice() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let tenants: Vec<Uuid> = (0..8).map(|_| Uuid::new_v4()).collect();
    for tenant in &tenants {
        pipeline.send_records(&records(&pipeline, *tenant, 0..300)).await;
    }
    let mut ends = Vec::new();
    let all: u64 = 300 * tenants.len() as u64;
    let worker = pipeline.worker(&[]);
    eventually("all are stored", || async { pipeline.rows(&tenants).await == all }).await;
    worker.stop().await;
    for partition in 0..2 {
        let (end, _) = pipeline.committed(partition).await.unwrap();
        ends.push(end);
        let (of, to) = (format!("{}:{partition}", pipeline.topic), (end / 3).to_string());
        pipeline.group_tool(&["--topic", &of, "--reset-offsets", "--to-offset", &to, "--execute"]).await;
        assert_eq!(pipeline.committed(partition).await, Some((end / 3, String::new())));
    }
    let worker = pipeline.worker(&[]);
    for (partition, end) in (0..).zip(ends) {
        eventually("it is through again", || async {
            pipeline
                .committed(partition)
                .await
                .is_some_and(|(next, text)| next == end && text.starts_with("d1;"))
        })
        .await;
    }
    worker.stop().await;
    for tenant in &tenants {
        assert_eq!(pipeline.totals(*tenant).await, Totals::exactly(300, 300));
    }
    assert_eq!(pipeline.dead_letters().await, []);
    pipeline.end().await;
}

/// `offsets.retention.minutes` has run out over a group without members, which Kafka's own tool does at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_96_offsets_that_have_expired_skip_and_double_nothing() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let tenants: Vec<Uuid> = (0..4).map(|_| Uuid::new_v4()).collect();
    for tenant in &tenants {
        pipeline.send_records(&records(&pipeline, *tenant, 0..50)).await;
    }
    let worker = pipeline.worker(&[]);
    pipeline.settled().await;
    worker.stop().await;
    pipeline.group_tool(&["--topic", &pipeline.topic, "--delete-offsets"]).await;
    assert_eq!(pipeline.offsets().await, [-1, -1]);
    for tenant in &tenants {
        pipeline.send_records(&records(&pipeline, *tenant, 50..60)).await;
    }
    let worker = pipeline.worker(&[]);
    pipeline.settled().await;
    worker.stop().await;
    for tenant in &tenants {
        assert_eq!(pipeline.totals(*tenant).await, Totals::exactly(60, 60));
    }
    assert_eq!(pipeline.control.gaps().await.unwrap(), []);
    pipeline.end().await;
}

/// Starts at an offset that the log does not have, without a pause: the fetcher gives up.
struct Stray;

impl ClientContext for Stray {}

impl ConsumerContext for Stray {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, err: RDKafkaRespErr, tpl: &mut TopicPartitionList) {
        if err == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            tpl.set_all_offsets(Offset::Offset(0)).unwrap();
            consumer.incremental_assign(tpl).unwrap();
        } else {
            consumer.incremental_unassign(tpl).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetcher_that_gave_up_is_started_anew() {
    logs();
    let pipeline = Pipeline::start(1).await;
    pipeline.send_records(&records(&pipeline, Uuid::new_v4(), 0..10)).await;
    pipeline.delete_before(0, 4).await;
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &pipeline.brokers).set("group.id", &pipeline.group);
    config.set("partition.assignment.strategy", "cooperative-sticky").set("auto.offset.reset", "error");
    let topic = pipeline.topic.clone();
    let read = move || {
        let consumer: BaseConsumer<Stray> = config.create_with_context(Stray).unwrap();
        consumer.subscribe(&[&topic]).unwrap();
        let deadline = Instant::now() + WITHIN;
        let mut restarted = false;
        loop {
            assert!(Instant::now() < deadline, "a message comes after the restart");
            match consumer.poll(Duration::from_millis(100)) {
                Some(Ok(message)) => return (restarted, message.offset()),
                Some(Err(KafkaError::MessageConsumption(RDKafkaErrorCode::AutoOffsetReset))) => {
                    let mut list = TopicPartitionList::new();
                    list.add_partition_offset(&topic, 0, Offset::Offset(7)).unwrap();
                    let sought = consumer.seek_partitions(list, Duration::from_secs(5)).unwrap();
                    assert!(sought.elements()[0].error().is_err(), "this is why it is started anew");
                    restart_at(&consumer, &topic, 0, 7).unwrap();
                    restarted = true;
                }
                _ => {}
            }
        }
    };
    assert_eq!(tokio::task::spawn_blocking(read).await.unwrap(), (true, 7));
    pipeline.end().await;
}
