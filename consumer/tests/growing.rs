//! The topic grows (protocol 5.4): every identity has one decider before and after, whoever sends where.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use support::{Message, Pipeline, Process, Totals, eventually, logs};
use usage_consumer::counts;
use usage_consumer::plan::{IdHash, NotKept, Plan, Runs};
use usage_consumer::side_reader::SideReader;
use usage_schemas::partition::partition_of;
use usage_schemas::{Timestamp, UsageRecord, ids};
use usage_service::clock;
use usage_storage::{PlannedBatch, Rows, Storage as _};
use uuid::Uuid;

const DAY: i64 = 86_400_000_000;

/// A tenant that lies in these partitions, given as (count, partition).
fn tenant_in(places: &[(i32, i32)]) -> Uuid {
    let fits = |tenant: &Uuid| places.iter().all(|(count, place)| partition_of(*tenant, *count) == *place);
    std::iter::repeat_with(Uuid::new_v4).find(fits).expect("there is no end")
}

fn records(pipeline: &Pipeline, tenant: Uuid, range: std::ops::Range<usize>) -> Vec<UsageRecord> {
    range.map(|i| pipeline.record(tenant, &format!("key-{i}"), 1 + i as i64)).collect()
}

async fn assert_exact(pipeline: &Pipeline, expected: &[(Uuid, Totals)]) {
    for (tenant, totals) in expected {
        eventually("the tenant's total is exact", || async { pipeline.totals(*tenant).await == *totals })
            .await;
    }
}

/// Kafka partitions in which a tenant's rows are stored, with their number.
async fn places(pipeline: &Pipeline, tenant: Uuid) -> BTreeMap<i32, u64> {
    let rows: Vec<(i32, u64)> = pipeline
        .maintenance()
        .query("SELECT kafka_partition, count() FROM usage_records WHERE tenant_id = toUUID(?) GROUP BY kafka_partition")
        .bind(tenant.to_string())
        .fetch_all()
        .await
        .expect("clickhouse answers");
    rows.into_iter().collect()
}

/// A worker planned a batch of two months by the old count, stored one month and died; then the topic grew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_of_an_old_partition_count_after_a_grow() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let (stays, moves) = (tenant_in(&[(2, 0), (4, 0)]), tenant_in(&[(2, 0), (4, 2)]));
    let mut sent = Vec::new();
    for i in 0..10 {
        for tenant in [stays, moves] {
            let mut record = pipeline.record(tenant, &format!("key-{i}"), 1 + i);
            let age = if i % 2 == 0 { 60 * DAY } else { 0 };
            record.timestamp = Timestamp::from_micros(record.timestamp.micros() - age);
            sent.push(record);
        }
    }
    // A copy, which the plan does not keep.
    sent.push(sent[3].clone());
    pipeline.send_records(&sent).await;
    let last = sent.len() as i64 - 1;
    let kept: Vec<i64> = (0..last).collect();
    let plan = Plan {
        count: 2,
        batch_seq: 7,
        first: 0,
        last,
        kept: kept.len() as u64,
        hash: IdHash::of(sent[..kept.len()].iter().map(|record| &record.record_id)),
        not_kept: Runs::join([(last, NotKept::Duplicate)], &kept),
    };
    pipeline.commit(0, 0, &plan.to_text()).await;
    let mut rows = Rows::default();
    let begun = clock::now_micros() - 30 * DAY;
    for (offset, record) in sent.iter().enumerate().filter(|(_, record)| record.timestamp.micros() < begun) {
        let borrowed = record.borrowed();
        rows.push(&borrowed, ids::content_hash(&borrowed), offset as i64, clock::now_micros());
    }
    let dead = pipeline.storage.writer();
    dead.open(0).await.unwrap();
    dead.write(&[Arc::new(PlannedBatch { partition: 0, batch_seq: 7, rows })]).await.unwrap();

    pipeline.grow(4).await;
    let worker = pipeline.worker(&[]);
    let expected = [stays, moves].map(|tenant| (tenant, Totals::exactly(10, 55)));
    assert_exact(&pipeline, &expected).await;
    // What was stored counts where it lies, the rest under a new number where it belongs now.
    eventually("nothing is in hand", || async {
        pipeline.committed(0).await == Some((last + 1, "d1;8".into()))
    })
    .await;
    assert_eq!(places(&pipeline, stays).await, BTreeMap::from([(0, 10)]));
    assert_eq!(places(&pipeline, moves).await, BTreeMap::from([(0, 5), (2, 5)]));
    // Whatever comes again, by whichever count, is known.
    let again: Vec<Message> =
        [2, 4].iter().flat_map(|count| sent.iter().map(|r| pipeline.message_by(r, *count))).collect();
    let offsets = pipeline.send(&again).await;
    pipeline.all_done(&again, &offsets).await;
    assert_exact(&pipeline, &expected).await;
    worker.stop().await;
    assert_eq!(pipeline.dead_letters().await, []);
    pipeline.end().await;
}

/// Tenants with what must come out, and their messages; a quarter is sent twice.
fn load(pipeline: &Pipeline, tenants: usize, each: usize) -> (Vec<(Uuid, Totals)>, Vec<UsageRecord>) {
    let tenants: Vec<Uuid> = (0..tenants).map(|_| Uuid::new_v4()).collect();
    let mut sent: Vec<UsageRecord> = Vec::new();
    for i in 0..each {
        for tenant in &tenants {
            sent.push(pipeline.record(*tenant, &format!("key-{i}"), 1 + i as i64));
        }
    }
    sent.extend(sent.clone().into_iter().step_by(4));
    let total = Totals::exactly(each as u64, (1..=each as i64).sum());
    (tenants.iter().map(|tenant| (*tenant, total.clone())).collect(), sent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_paused_over_a_whole_grow() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let (expected, sent) = load(&pipeline, 20, 200);
    let tenants: Vec<Uuid> = expected.iter().map(|(tenant, _)| *tenant).collect();
    let settings = ["consumer.batch_rows=100", "consumer.batch_age=20ms"];
    let (early, late) = sent.split_at(sent.len() / 2);
    pipeline.send_records(early).await;
    let zombie = Process::start(&pipeline, &settings);
    eventually("it is in the middle", || async { pipeline.rows(&tenants).await > 0 }).await;
    zombie.pause();
    pipeline.grow(4).await;
    let other = Process::start(&pipeline, &settings);
    // The zombie's session of 6 s runs out; one producer has seen the new partitions, the other has not.
    let (seen, unseen) = late.split_at(late.len() / 2);
    let seen: Vec<Message> = seen.iter().map(|record| pipeline.message_by(record, 4)).collect();
    let stored = pipeline.rows(&tenants).await;
    pipeline.send(&seen).await;
    eventually("the other has gone on", || async { pipeline.rows(&tenants).await > stored }).await;
    zombie.resume();
    pipeline.send_records(unseen).await;
    assert_exact(&pipeline, &expected).await;
    zombie.stop().await;
    other.stop().await;
    assert_exact(&pipeline, &expected).await;
    assert_eq!(pipeline.dead_letters().await, []);
    pipeline.end().await;
}

/// An identity that was stored by the old count and comes again by the new one, by the old one and by a partitioner of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_and_conflicts_are_found_across_a_grow() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let (moves, stays) = (tenant_in(&[(2, 1), (4, 3)]), tenant_in(&[(2, 1), (4, 1)]));
    let worker = pipeline.worker(&[]);
    let mut sent = records(&pipeline, moves, 0..10);
    sent.extend(records(&pipeline, stays, 0..10));
    let old: Vec<Message> = sent.iter().map(|record| pipeline.message(record)).collect();
    let offsets = pipeline.send(&old).await;
    pipeline.all_done(&old, &offsets).await;

    pipeline.grow(4).await;
    let mut messages: Vec<Message> = old.clone();
    messages.extend(sent.iter().map(|record| pipeline.message_by(record, 4)));
    messages.extend(
        sent.iter()
            .enumerate()
            .map(|(i, record)| Message { partition: i as i32 % 4, ..pipeline.message(record) }),
    );
    let mut other = sent[4].clone();
    other.metadata = Some("{}".into());
    // The decider of both is partition 3: one is sent there, one has to be forwarded.
    let conflicts = [pipeline.message_by(&other, 4), pipeline.message(&other)];
    messages.extend(conflicts.iter().cloned());
    messages.extend(records(&pipeline, moves, 10..20).iter().map(|record| pipeline.message(record)));
    messages.extend(records(&pipeline, stays, 10..20).iter().map(|record| pipeline.message_by(record, 4)));
    let offsets = pipeline.send(&messages).await;
    assert_exact(&pipeline, &[moves, stays].map(|tenant| (tenant, Totals::exactly(20, 210)))).await;
    pipeline.all_done(&messages, &offsets).await;
    eventually("both conflicts are dead letters", || async { pipeline.dead_letters().await.len() >= 2 })
        .await;
    worker.stop().await;
    assert_eq!(places(&pipeline, moves).await, BTreeMap::from([(1, 10), (3, 10)]));

    let letters = pipeline.dead_letters().await;
    assert_eq!(letters.len(), 2, "{letters:?}");
    let mut hops = Vec::new();
    for letter in &letters {
        assert_eq!((letter.reason(), letter.origin().0.as_str()), ("conflict", "3"));
        assert_eq!(letter.value, conflicts[0].value, "byte for byte");
        let forwarded = letter.headers.iter().find(|(name, _)| name == "usage-forwarded");
        hops.push(forwarded.map(|(_, hops)| String::from_utf8_lossy(hops).into_owned()));
        let own: Vec<_> = letter.headers.iter().filter(|(name, _)| name != "usage-forwarded").collect();
        assert_eq!(own, conflicts[0].headers.iter().collect::<Vec<_>>());
    }
    hops.sort();
    assert_eq!(hops, [None, Some("1".to_string())]);
    pipeline.end().await;
}

/// It meets no fence, for it has nothing to write: by the old count it would send the record to a partition that sends it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_has_not_noticed_the_grow_forwards_nothing_by_the_old_count() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let worker = pipeline.worker(&["clickhouse.flush_age=1h"]);
    let known = [tenant_in(&[(2, 0), (3, 0)]), tenant_in(&[(2, 1), (3, 1)])];
    for tenant in known {
        pipeline.send_records(&records(&pipeline, tenant, 0..1)).await;
        eventually("both partitions run", || async {
            pipeline.totals(tenant).await == Totals::exactly(1, 1)
        })
        .await;
    }
    pipeline.grow(3).await;
    let ends = (pipeline.end_of(0).await, pipeline.end_of(1).await);
    // By the old count it belongs into partition 1.
    let tenant = tenant_in(&[(2, 1), (3, 0)]);
    let record = pipeline.record(tenant, "key", 5);
    pipeline.send(&[pipeline.message_by(&record, 3)]).await;
    assert_exact(&pipeline, &[(tenant, Totals::exactly(1, 5))]).await;
    assert_eq!(places(&pipeline, tenant).await, BTreeMap::from([(0, 1)]));
    assert_eq!(
        (pipeline.end_of(0).await, pipeline.end_of(1).await),
        (ends.0 + 1, ends.1),
        "nothing was forwarded"
    );
    worker.stop().await;
    pipeline.end().await;
}

/// A takeover has read its plan, and the topic grows before it carries it out: no fence stops what has nothing to write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_that_slept_through_a_grow_forwards_nothing_by_the_old_count() {
    logs();
    let pipeline = Pipeline::start(2).await;
    // By the old count it belongs into partition 1, by the new one where it lies.
    let tenant = tenant_in(&[(2, 1), (3, 0)]);
    let record = pipeline.record(tenant, "key", 5);
    pipeline.send(&[Message { partition: 0, ..pipeline.message(&record) }]).await;
    let plan = Plan {
        count: 2,
        batch_seq: 7,
        first: 0,
        last: 0,
        kept: 0,
        hash: IdHash::of([]),
        not_kept: Runs::join([(0, NotKept::Forwarded)], &[]),
    };
    pipeline.commit(0, 0, &plan.to_text()).await;
    let ends = (pipeline.end_of(0).await, pipeline.end_of(1).await);
    // Its session outlasts the sleep, so that only the count can hold it back.
    let worker = Process::armed(&pipeline, "takeover.planned=stop", &["consumer.session_timeout=60s"]);
    worker.froze().await;
    pipeline.grow(3).await;
    worker.resume();
    assert_exact(&pipeline, &[(tenant, Totals::exactly(1, 5))]).await;
    worker.stop().await;
    assert_eq!(places(&pipeline, tenant).await, BTreeMap::from([(0, 1)]));
    assert_eq!((pipeline.end_of(0).await, pipeline.end_of(1).await), ends, "nothing was forwarded");
    assert_eq!(pipeline.dead_letters().await, []);
    pipeline.end().await;
}

/// What each worker does every 10 s, whether its group notices the new partitions or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_at_the_topic_announces_partitions_that_were_added_by_hand() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let reader = SideReader::new(pipeline.config(&[]).side_reader(), &pipeline.topic).unwrap();
    let outbox = Uuid::new_v4();
    for partition in 0..2 {
        pipeline.control.open_progress(partition).await.unwrap();
    }
    counts::look(&pipeline.control, &reader).await.unwrap();
    assert_eq!(pipeline.control.partition_counts().await.unwrap().known, [2], "nothing is new");
    let worker = pipeline.worker(&[]);
    pipeline.send(&pipeline.markers_of(outbox, 100)).await;
    eventually("both partitions are complete", || async { pipeline.complete_until().await == Some(100) })
        .await;
    worker.stop().await;

    pipeline.alter_by_hand(3).await;
    eventually("the look has seen them", || async {
        counts::look(&pipeline.control, &reader).await.unwrap();
        pipeline.control.partition_counts().await.unwrap().known == [2, 3]
    })
    .await;
    assert_eq!(pipeline.complete_until().await, None, "records may lie in the third one");
    counts::look(&pipeline.control, &reader).await.unwrap();
    let counts = pipeline.control.partition_counts().await.unwrap();
    assert_eq!((counts.current, counts.growing), (2, false), "only an operator grows the topic");
    pipeline.end().await;
}

/// Somebody ran `kafka-topics --alter`: what is recorded goes on to decide, what is new waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_sees_another_count_in_kafka_waits_and_names_the_command() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let tenants = [tenant_in(&[(2, 0), (3, 2)]), tenant_in(&[(2, 1), (3, 0)]), tenant_in(&[(2, 1), (3, 1)])];
    let worker = Process::start(&pipeline, &[]);
    for tenant in tenants {
        pipeline.send_records(&records(&pipeline, tenant, 0..10)).await;
        assert_exact(&pipeline, &[(tenant, Totals::exactly(10, 55))]).await;
    }
    let outbox = Uuid::new_v4();
    pipeline.send(&pipeline.markers_of(outbox, 100)).await;
    eventually("both partitions are complete", || async { pipeline.complete_until().await == Some(100) })
        .await;
    pipeline.alter_by_hand(3).await;
    const COMMAND: &str = "run `usagectl topics grow --partitions 3`";
    eventually("the worker names the command", || async { worker.log_contains(COMMAND) }).await;
    // What producers put into the third partition hides completeness until somebody reads it: records may lie there, from before
    // anybody saw it.
    eventually("nothing is known", || async { pipeline.complete_until().await.is_none() }).await;
    let markers = pipeline.markers_of(outbox, 200);
    let offsets = pipeline.send(&markers).await;
    pipeline.all_done(&markers, &offsets).await;
    assert_eq!(pipeline.complete_until().await, None);
    // A producer that spreads over three: what lies in the old partitions is decided by two.
    for tenant in tenants {
        let more: Vec<Message> =
            records(&pipeline, tenant, 10..20).iter().map(|record| pipeline.message_by(record, 3)).collect();
        pipeline.send(&more).await;
    }
    assert_exact(&pipeline, &[tenants[1], tenants[2]].map(|tenant| (tenant, Totals::exactly(20, 210)))).await;
    assert_eq!(places(&pipeline, tenants[1]).await, BTreeMap::from([(1, 20)]));
    assert_eq!(pipeline.totals(tenants[0]).await, Totals::exactly(10, 55), "the third partition waits");
    // One that starts now does not begin.
    let second = Process::start(&pipeline, &[]);
    eventually("it names the command too", || async { second.log_contains(COMMAND) }).await;
    second.stop().await;

    pipeline.grow(3).await;
    assert_exact(&pipeline, &tenants.map(|tenant| (tenant, Totals::exactly(20, 210)))).await;
    pipeline.send(&[pipeline.marker_of(outbox, 300, 2)]).await;
    eventually("the third one counts", || async { pipeline.complete_until().await == Some(200) }).await;
    worker.stop().await;
    assert_eq!(pipeline.dead_letters().await, []);
    pipeline.end().await;
}
