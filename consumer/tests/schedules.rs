//! Schedules that reviews of the protocol found, each by name.

mod support;

use support::lanes::SETTINGS;
use support::workload::{REFUSED, Workload};
use support::{Message, Pipeline, Process, Servers, Totals, eventually, logs};
use usage_consumer::plan::{IdHash, METADATA_LIMIT, NotKept, Plan, Runs};
use usage_devstack::ClickHouse;
use usage_schemas::{Reason, Timestamp, UsageRecord};
use uuid::Uuid;

/// The first month is stored when the server stands still: whether the second is, nobody knows. It is looked for under a new epoch, and
/// a request that comes late is worthless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_two_months_with_a_write_error_between_them() {
    logs();
    let dir = tempfile::tempdir().unwrap();
    let clickhouse = ClickHouse::start(dir.path()).unwrap();
    let servers = Servers { clickhouse: clickhouse.url(), ..Servers::shared() };
    let pipeline = Pipeline::on(&servers, 1).await;
    let mut workload = Workload::new(&pipeline, 31);
    workload.send(&pipeline, 100).await;
    let settings: Vec<&str> = SETTINGS
        .iter()
        .copied()
        .chain(["consumer.session_timeout=60s", "clickhouse.write_timeout=5s"])
        .collect();
    let worker = Process::armed(&pipeline, "storage.insert=stop@2", &settings);
    worker.froze().await;
    assert_eq!(pipeline.stored_months().await, 1);
    clickhouse.pause();
    worker.resume();
    eventually("the second month has failed", || async { worker.log_contains("batch is cared for alone") })
        .await;
    clickhouse.resume();
    pipeline.settled().await;
    worker.stop().await;
    assert_eq!(pipeline.stored_months().await, 2);
    workload.check(&pipeline, "after all").await;
    assert_eq!(pipeline.rollup_differences().await, 0);
    pipeline.end().await;
    clickhouse.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_between_a_dead_letter_and_the_commit_writes_one_identity_twice() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = pipeline.tenant_of(0);
    let mut unheard = pipeline.record(tenant, "unheard", 1);
    unheard.metric = "llm.unheard".into();
    pipeline.send_records(&[pipeline.record(tenant, "a", 1), unheard, pipeline.record(tenant, "b", 2)]).await;
    // After its acknowledgement, in the first life and in the takeover that carries the plan out.
    for point in ["consumer.sent=kill", "takeover.sent=kill"] {
        Process::armed(&pipeline, point, &SETTINGS).died().await;
    }
    let worker = Process::start(&pipeline, &SETTINGS);
    pipeline.settled().await;
    worker.stop().await;
    let letters = pipeline.dead_letters().await;
    assert_eq!(letters.len(), 3, "one a life");
    let values =
        |letter: &support::DeadLetter| (letter.origin(), letter.reason().to_string(), letter.value.clone());
    assert!(letters.iter().all(|letter| values(letter) == values(&letters[0])), "{letters:?}");
    assert_eq!(letters[0].origin(), ("0".into(), "1".into()));
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(2, 3));
    pipeline.end().await;
}

/// Messages that are refused for reasons that change at every step, between kept ones: few plans take more characters.
fn checkered(pipeline: &Pipeline, count: usize) -> Vec<Message> {
    let tenant = pipeline.tenant_of(0);
    let message = |i: usize| {
        let mut record = pipeline.record(tenant, &format!("key-{i}"), 1);
        match i % 6 {
            1 => record.record_id = Uuid::new_v4(),
            3 => record.timestamp = Timestamp::from_micros(record.timestamp.micros() + 600_000_000),
            5 => record.subject_type = Some("Not A Name".into()),
            _ => {}
        }
        pipeline.message(&record)
    };
    (0..count).map(message).collect()
}

/// Rows that storage refuses are listed in the plan, for which 512 characters are free; the plan is as long as it may be before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_near_its_size_limit_with_rows_that_storage_refuses() {
    logs();
    let pipeline = Pipeline::start(1).await;
    pipeline.refuse_rows().await;
    let refused = pipeline.tenant_of(0);
    let mut messages = checkered(&pipeline, 6_000);
    // Spread over the first batch: none joins another one's run.
    for i in 0..20 {
        let record = pipeline.record(refused, &format!("{REFUSED}-{i}"), 1);
        messages.insert(i * 120 + 2, pipeline.message(&record));
    }
    pipeline.send(&messages).await;
    // So old that only its plan's length ends the first batch.
    Process::armed(&pipeline, "consumer.listed=kill", &["consumer.batch_age=5m"]).died().await;
    let (_, plan) = pipeline.committed(0).await.unwrap();
    assert!(plan.contains('R') && (2_800..4_096).contains(&plan.len()), "{} characters", plan.len());

    let worker = Process::start(&pipeline, &["consumer.batch_age=5s"]);
    pipeline.settled().await;
    worker.stop().await;
    assert_eq!(pipeline.stored_rows().await, 3_000);
    let letters = pipeline.dead_letters().await;
    let origins: std::collections::BTreeMap<_, _> =
        letters.iter().map(|letter| (letter.origin(), letter.reason())).collect();
    let of = |reason: &str| origins.values().filter(|other| **other == reason).count();
    assert_eq!(of("storage_refused"), 20);
    for reason in ["id_mismatch", "in_future", "invalid_record"] {
        assert_eq!(of(reason), 1_000, "{reason}");
    }
    pipeline.end().await;
}

/// The plan of checkered messages `0..count`, every second of them kept.
fn checkered_plan(ids: &[Uuid], count: usize) -> Plan {
    let reasons = [Reason::IdMismatch, Reason::InFuture, Reason::InvalidRecord];
    let offset = |i: usize| i64::try_from(i).unwrap();
    let not_kept =
        (0..count).filter(|i| i % 2 == 1).map(|i| (offset(i), NotKept::Refused(reasons[i / 2 % 3])));
    let kept: Vec<i64> = (0..count).step_by(2).map(offset).collect();
    Plan {
        count: 1,
        batch_seq: 7,
        first: 0,
        last: offset(count) - 1,
        kept: kept.len() as u64,
        hash: IdHash::of(ids[..count].iter().step_by(2)),
        not_kept: Runs::join(not_kept, &kept),
    }
}

/// A plan that has no room for the rows that storage refuses: nothing is dropped, the partition waits under an alarm until storage
/// takes them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_without_room_for_the_rows_that_storage_refuses() {
    logs();
    let pipeline = Pipeline::start(1).await;
    pipeline.refuse_rows().await;
    let tenant = pipeline.tenant_of(0);
    let key = |i: usize| if i.is_multiple_of(1_000) { format!("{REFUSED}-{i}") } else { format!("key-{i}") };
    let records: Vec<UsageRecord> = (0..8_000).map(|i| pipeline.record(tenant, &key(i), 1)).collect();
    let ids: Vec<Uuid> = records.iter().map(|record| record.record_id).collect();
    // As many as their plan has room for, to the last character but a few.
    let (mut fits, mut too_many) = (2_000, records.len());
    while too_many - fits > 1 {
        let middle = fits.midpoint(too_many);
        let text = checkered_plan(&ids, middle).to_text();
        if text.len() <= METADATA_LIMIT { fits = middle } else { too_many = middle }
    }
    let plan = checkered_plan(&ids, fits).to_text();
    assert!(plan.len() > METADATA_LIMIT - 4, "{} characters", plan.len());
    pipeline.send_records(&records[..fits]).await;
    pipeline.commit(0, 0, &plan).await;

    let worker = Process::start(&pipeline, &["consumer.retry_max=300ms"]);
    eventually("it waits", || async { worker.log_contains("the plan is too long with") }).await;
    assert_eq!(pipeline.stored_rows().await, 0);
    assert_eq!(pipeline.committed(0).await, Some((0, plan)));
    pipeline.maintenance().query("ALTER TABLE usage_records DROP CONSTRAINT picky").execute().await.unwrap();
    pipeline.settled().await;
    worker.stop().await;
    let kept = fits.div_ceil(2);
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(kept as u64, kept as i64));
    pipeline.end().await;
}
