//! Quotas on real servers: a flood beside a quiet tenant, changes, restores, and workers that die between counting and committing.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use support::lanes::{Lane, SETTINGS, in_lanes};
use support::points::{self, Visit};
use support::quotas::{counted, long, of, send, set};
use support::{Pipeline, Process, SOURCE, Totals, eventually, logs};
use usage_control::{Quota, QuotaScope};
use usage_schemas::UsageRecord;
use uuid::Uuid;

fn units(record: &UsageRecord) -> i64 {
    i64::try_from(record.value.unscaled() / 1_000_000_000_000_000_000).unwrap()
}

/// What a log of records must give: the kept records and the offsets of the letters, if they are decided one after another.
struct Expected {
    kept: BTreeMap<Uuid, Vec<UsageRecord>>,
    letters: BTreeSet<(String, String)>,
}

impl Expected {
    fn of(sent: &[(i32, i64, UsageRecord)], quotas: &[(Uuid, i64)]) -> Self {
        let mut expected = Self { kept: BTreeMap::new(), letters: BTreeSet::new() };
        let mut in_order: Vec<_> = sent.iter().collect();
        in_order.sort_by_key(|(partition, offset, _)| (*partition, *offset));
        for (partition, offset, record) in in_order {
            let kept = expected.kept.entry(record.tenant_id).or_default();
            if kept.iter().any(|other| other.record_id == record.record_id) {
                continue;
            }
            let limit =
                quotas.iter().find(|(tenant, _)| *tenant == record.tenant_id).map(|(_, limit)| *limit);
            if limit.is_some_and(|limit| kept.len() as i64 >= limit) {
                expected.letters.insert((partition.to_string(), offset.to_string()));
            } else {
                kept.push(record.clone());
            }
        }
        expected
    }

    /// Kept and over quota is what was emitted, kept is within the limits, the counters are what is kept.
    async fn check(&self, pipeline: &Pipeline, quotas: &[(Uuid, i64)], when: &str) {
        for (tenant, kept) in &self.kept {
            let totals = Totals::exactly(kept.len() as u64, kept.iter().map(units).sum());
            assert_eq!(pipeline.totals(*tenant).await, totals, "{when}: tenant {tenant}");
            let counts = if quotas.iter().any(|(of, _)| of == tenant) { kept.len() as i64 } else { 0 };
            assert_eq!(counted(pipeline, *tenant).await, counts, "{when}: counter of tenant {tenant}");
        }
        let letters = pipeline.dead_letters().await;
        let other = letters.iter().find(|letter| letter.reason() != "quota_exceeded");
        assert!(other.is_none(), "{when}: {other:?}");
        let tenants: BTreeSet<String> = self.kept.keys().map(ToString::to_string).collect();
        let own = letters.iter().filter(|letter| {
            let key = String::from_utf8_lossy(letter.key.as_deref().unwrap_or_default()).into_owned();
            tenants.contains(&key)
        });
        let origins: BTreeSet<_> = own.map(|letter| letter.origin()).collect();
        assert_eq!(origins, self.letters, "{when}: letters by identity");
    }
}

/// Of each tenant `each` records in turns, and some of them twice.
fn load(pipeline: &Pipeline, tenants: &[Uuid], each: usize) -> Vec<UsageRecord> {
    let mut records = Vec::new();
    for i in 0..each {
        for tenant in tenants {
            records.push(pipeline.record(*tenant, &format!("key-{i}"), 1 + i as i64));
            if i % 5 == 3 {
                records.push(pipeline.record(*tenant, &format!("key-{}", i / 2), 1 + (i / 2) as i64));
            }
        }
    }
    records
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_over_its_quota_takes_nothing_from_a_quiet_tenant_of_the_same_partition() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let (flooding, quiet) = (Uuid::new_v4(), Uuid::new_v4());
    let quotas = [(flooding, 100), (quiet, 500)];
    for (tenant, limit) in quotas {
        set(&pipeline, tenant, Some(long(limit))).await;
    }
    let worker = pipeline.worker(&["consumer.batch_age=50ms"]);
    let mut sent = Vec::new();
    for round in 0..10 {
        let mut records: Vec<_> =
            (0..2_000).map(|i| pipeline.record(flooding, &format!("flood-{round}-{i}"), 1)).collect();
        for i in 0..30 {
            records.insert(i * 60, pipeline.record(quiet, &format!("quiet-{round}-{i}"), 1 + i as i64));
        }
        sent.extend(send(&pipeline, &records).await);
    }
    pipeline.settled().await;
    worker.stop().await;
    let expected = Expected::of(&sent, &quotas);
    assert_eq!((expected.kept[&flooding].len(), expected.kept[&quiet].len()), (100, 300));
    assert_eq!(expected.letters.len(), 19_900);
    expected.check(&pipeline, &quotas, "after the flood").await;
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_that_is_set_or_taken_away_holds_without_a_restart() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = Uuid::new_v4();
    let worker = pipeline.worker(&["consumer.quota_refresh=200ms", "consumer.batch_age=20ms"]);
    let next = std::sync::atomic::AtomicUsize::new(0);
    // One record more; whether it was kept.
    let kept = || async {
        let i = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let before = pipeline.totals(tenant).await.records;
        send(&pipeline, &[pipeline.record(tenant, &format!("key-{i}"), 1)]).await;
        pipeline.settled().await;
        pipeline.totals(tenant).await.records > before
    };
    assert!(kept().await);
    pipeline.control.set_quota(&QuotaScope::Source(SOURCE.into()), Some(long(0))).await.unwrap();
    eventually("a default of the source holds", || async { !kept().await }).await;
    set(&pipeline, tenant, None).await;
    eventually("the tenant's own goes before it", || async { kept().await }).await;
    pipeline.control.remove_quota(&of(tenant)).await.unwrap();
    eventually("the default holds again", || async { !kept().await }).await;
    pipeline.control.remove_quota(&QuotaScope::Source(SOURCE.into())).await.unwrap();
    eventually("nothing holds", || async { kept().await }).await;
    worker.stop().await;
    assert_eq!(counted(&pipeline, tenant).await, 0, "what no quota holds for is not counted");
    pipeline.end().await;
}

/// As a replay does it: the same bytes, a new time of the broker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_over_its_quota_that_comes_again_is_kept_in_a_later_window() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = Uuid::new_v4();
    set(&pipeline, tenant, Some(Quota { max_records: 2, window_seconds: 3 })).await;
    let worker = pipeline.worker(&["consumer.batch_age=20ms"]);
    let records: Vec<_> = (0..6).map(|i| pipeline.record(tenant, &format!("key-{i}"), 1)).collect();
    send(&pipeline, &records).await;
    pipeline.settled().await;
    // By the broker's clock they may lie in several windows.
    let mut windows = BTreeMap::<i64, u64>::new();
    for at in pipeline.broker_times(0).await {
        *windows.entry(at / 3_000).or_default() += 1;
    }
    let expected: u64 = windows.values().map(|records| (*records).min(2)).sum();
    assert_eq!(pipeline.totals(tenant).await.records, expected, "{windows:?}");
    eventually("all are kept", || async {
        send(&pipeline, &records).await;
        pipeline.settled().await;
        pipeline.totals(tenant).await == Totals::exactly(6, 6)
    })
    .await;
    worker.stop().await;
    let used = pipeline.control.quota_use(SOURCE, tenant, 100).await.unwrap();
    assert!(used.len() >= 3 && used.iter().all(|window| window.records <= 2), "{used:?}");
    assert_eq!(counted(&pipeline, tenant).await, 6);
    pipeline.end().await;
}

/// `usagectl storage restored` does the same between its other steps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_again_after_a_restore_is_neither_held_to_its_quota_nor_counted() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = Uuid::new_v4();
    set(&pipeline, tenant, Some(long(10))).await;
    let records: Vec<_> = (0..15).map(|i| pipeline.record(tenant, &format!("key-{i}"), 1)).collect();
    let worker = pipeline.worker(&["consumer.batch_age=20ms"]);
    send(&pipeline, &records).await;
    pipeline.settled().await;
    worker.stop().await;
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(10, 10));
    pipeline.control.spare_quotas().await.unwrap();
    pipeline.commit(0, 0, "").await;
    // The worker that reads it again dies with the plan in hand, and the next one carries it out.
    Process::armed(&pipeline, "consumer.planned=kill", &SETTINGS).died().await;
    let worker = pipeline.worker(&["consumer.batch_age=20ms"]);
    pipeline.settled().await;
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(15, 15), "what was refused is kept now");
    assert_eq!(counted(&pipeline, tenant).await, 10);
    send(&pipeline, &[pipeline.record(tenant, "new", 1)]).await;
    pipeline.settled().await;
    worker.stop().await;
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(15, 15), "the window is used up as before");
    pipeline.end().await;
}

/// A visit with tenants of its own in every partition: one with a quota, one without.
struct Visited {
    quotas: Vec<(Uuid, i64)>,
    sent: Vec<(i32, i64, UsageRecord)>,
}

impl Visited {
    async fn begin(pipeline: &Pipeline) -> Self {
        let (mut quotas, mut tenants) = (Vec::new(), Vec::new());
        for partition in 0..pipeline.partitions {
            let (bound, free) = (pipeline.tenant_of(partition), pipeline.tenant_of(partition));
            // Used up in the middle of the second or third batch.
            quotas.push((bound, 33 + 5 * i64::from(partition)));
            tenants.extend([bound, free]);
        }
        for (tenant, limit) in &quotas {
            set(pipeline, *tenant, Some(long(*limit))).await;
        }
        let sent = send(pipeline, &load(pipeline, &tenants, 60)).await;
        Self { quotas, sent }
    }

    async fn finish(&self, lane: &Lane, when: &str) {
        let worker = lane.worker();
        lane.pipeline.settled().await;
        worker.stop().await;
        let expected = Expected::of(&self.sent, &self.quotas);
        for (tenant, limit) in &self.quotas {
            assert_eq!(expected.kept[tenant].len() as i64, *limit);
        }
        expected.check(&lane.pipeline, &self.quotas, when).await;
        assert_eq!(lane.pipeline.rollup_differences().await, 0, "{when}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_dies_around_the_reading_and_the_writing_of_counters() {
    logs();
    in_lanes(points::QUOTAS, async |lane: &mut Lane, visit: Visit| {
        let visited = Visited::begin(&lane.pipeline).await;
        lane.armed(&visit.armed("kill")).died().await;
        visited.finish(lane, visit.point).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_57_workers_that_die_one_after_another_count_no_batch_twice() {
    logs();
    // Before and after the transaction that counts, by who made the plan and by who carries it out.
    let visits = [
        ("consumer.planned", "control.count"),
        ("consumer.written", "control.counted"),
        ("control.advance", "takeover.carried_out"),
        ("consumer.advanced", "takeover.settled"),
    ];
    let first = visits.map(|(point, _)| Visit { point, at: 2 });
    let second = BTreeMap::from(visits);
    in_lanes(&first, async |lane: &mut Lane, visit: Visit| {
        let visited = Visited::begin(&lane.pipeline).await;
        lane.armed(&visit.armed("kill")).died().await;
        let then = second[visit.point];
        lane.armed(&format!("{then}=kill@1")).died().await;
        visited.finish(lane, &format!("{}, then {then}", visit.point)).await;
    })
    .await;
}
