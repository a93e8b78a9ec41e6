//! Quotas, in any order of what happens to batches, held against a model that goes through the log once.

use proptest::prelude::*;
use usage_control::{Quota, QuotaRule, QuotaScope, Quotas};
use usage_schemas::codec::Decoder;

use super::*;
use crate::quota::spent_by_plan;
use crate::testing::{NOW, SOURCE, record, signed};

const WINDOW: i32 = 10;

fn tenant_at(number: u8) -> Uuid {
    Uuid::from_u128(u128::from(number) + 1)
}

/// Of every tenant of the tests' source.
fn quotas(max_records: i64) -> Arc<Quotas> {
    Arc::new(Quotas::new([rule(max_records)]))
}

fn rule(max_records: i64) -> QuotaRule {
    let quota = Some(Quota { max_records, window_seconds: WINDOW });
    QuotaRule { scope: QuotaScope::Source(SOURCE.into()), quota, updated_at: 0 }
}

#[derive(Debug, Clone)]
struct Sent {
    tenant: u8,
    id: u8,
    content: bool,
    registered: bool,
    /// Seconds after the first window's begin; a broker's clock may go back.
    at: i64,
}

fn log(sent: &[Sent]) -> Vec<OwnedMessage> {
    let message = |(offset, sent): (i64, &Sent)| {
        let mut record =
            record(tenant_at(sent.tenant), &format!("k{}", sent.id), 1 + i64::from(sent.content));
        if !sent.registered {
            record.metric = "late.metric".into();
        }
        let mut message = signed(offset, &record);
        message.timestamp = NOW / 10_000 * 10_000 + sent.at * 1_000;
        message
    };
    (0..).zip(sent).map(message).collect()
}

/// What becomes of each message if they are decided one after another, and what is counted in the end.
fn model(sent: &[Sent], log: &[OwnedMessage], max_records: i64) -> (Vec<Option<NotKept>>, Vec<i64>) {
    let mut kept = HashMap::<(u8, u8), bool>::new();
    let mut windows = HashMap::<(u8, i64), i64>::new();
    let mut decide = |(sent, message): (&Sent, &OwnedMessage)| {
        if !sent.registered {
            return Some(NotKept::Refused(Reason::UnknownUsageType));
        }
        if let Some(content) = kept.get(&(sent.tenant, sent.id)) {
            let conflict = NotKept::Refused(Reason::Conflict);
            return Some(if *content == sent.content { NotKept::Duplicate } else { conflict });
        }
        let window = message.timestamp / 1_000 / i64::from(WINDOW);
        let used = windows.entry((sent.tenant, window)).or_default();
        // A tenant without a quota.
        if sent.tenant > 0 && *used >= max_records {
            return Some(NotKept::Refused(Reason::QuotaExceeded));
        }
        *used += i64::from(sent.tenant > 0);
        kept.insert((sent.tenant, sent.id), sent.content);
        None
    };
    let fates = sent.iter().zip(log).map(&mut decide).collect();
    let mut counts: Vec<i64> = windows.into_values().filter(|records| *records > 0).collect();
    counts.sort_unstable();
    (fates, counts)
}

#[derive(Debug, Clone)]
enum Step {
    Deliver(u8),
    Close,
    Answer,
    Start,
    Advance,
    Finish,
    Rewind,
    /// The worker dies. If the plan of its batch is committed, the next one carries it out, else it decides anew.
    Crash {
        planned: bool,
    },
    /// The filter takes an id for stored.
    FalseHit {
        tenant: u8,
        id: u8,
    },
}

impl World {
    fn crash(&mut self, planned: bool) {
        let in_flight = self.ledger.in_flight().cloned();
        if let Some(batch) = in_flight.filter(|batch| planned || self.advanced == batch.batch.batch_seq) {
            let plan = match crate::plan::parse(&batch.plan(1).to_text()) {
                Ok(Committed::Planned(plan)) => plan,
                other => panic!("{other:?}"),
            };
            let range = self.log.iter().filter(|message| (plan.first..=plan.last).contains(&message.offset));
            let rows: Vec<OwnedMessage> = range.map(copy).collect();
            let spent = spent_by_plan(&plan, &rows, &Decoder::new(), &self.judge.quotas, 0);
            let sorted = |mut counts: Vec<(QuotaKey, i64)>| {
                counts.sort();
                counts
            };
            assert_eq!(sorted(spent.counts(&[])), sorted(batch.spent.counts(&[])), "as who made it would");
            self.finish();
        }
        let (next, done_seq) = self.ledger.done();
        self.ledger = Ledger::new(PLACE, done_seq, next, Instant::now());
        self.ledger.counters.most = self.most;
        self.reading = usize::try_from(next).unwrap();
        self.used = Charge::default();
        self.found.clear();
    }
}

fn sent() -> impl Strategy<Value = Vec<Sent>> {
    let one = (0u8..3, 0u8..40, prop::bool::weighted(0.1), prop::bool::weighted(0.9), 0i64..4);
    let all = proptest::collection::vec(one, 1..120);
    all.prop_map(|all| {
        let message = |(i, (tenant, id, content, registered, jitter)): (i64, _)| Sent {
            tenant,
            id,
            content,
            registered,
            at: i / 5 + jitter,
        };
        (0..).zip(all).map(message).collect()
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1u8..12).prop_map(Step::Deliver),
        4 => Just(Step::Close),
        4 => Just(Step::Answer),
        4 => Just(Step::Start),
        2 => Just(Step::Advance),
        3 => Just(Step::Finish),
        1 => Just(Step::Rewind),
        1 => prop::bool::ANY.prop_map(|planned| Step::Crash { planned }),
        1 => (0u8..3, 0u8..40).prop_map(|(tenant, id)| Step::FalseHit { tenant, id }),
    ];
    proptest::collection::vec(step, 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever happens to batches, records are decided as if there were none, and the counters are what was kept.
    #[test]
    fn quotas_are_decided_in_the_order_of_the_log_and_counted_once(
        sent in sent(),
        steps in steps(),
        max_records in 0i64..8,
        most in prop_oneof![Just(1), Just(100)],
        not_kept in prop_oneof![Just(20), Just(1_000)],
    ) {
        let mut world = World::new(log(&sent));
        world.most = most;
        world.limits.not_kept = not_kept;
        world.ledger.counters.most = most;
        let unbound = QuotaRule { scope: QuotaScope::Tenant(SOURCE.into(), tenant_at(0)), quota: None, updated_at: 0 };
        world.judge.quotas = Arc::new(Quotas::new([rule(max_records), unbound]));
        for step in steps {
            match step {
                Step::Deliver(count) => (0..count).for_each(|_| world.deliver()),
                Step::Close => world.close(),
                Step::Answer => world.answer(),
                Step::Start => world.start(),
                Step::Advance => world.advance(),
                Step::Finish => world.finish(),
                Step::Rewind => world.rewind(),
                Step::Crash { planned } => world.crash(planned),
                Step::FalseHit { tenant, id } => {
                    world.filter.insert(&record(tenant_at(tenant), &format!("k{id}"), 1).record_id);
                }
            }
            prop_assert_eq!(world.used, world.ledger.charge());
        }
        world.drain();
        let (expected, windows) = model(&sent, &world.log, max_records);
        let fates: Vec<_> = world.fates().into_iter().map(|(_, why)| why).collect();
        prop_assert_eq!(fates, expected);
        let mut counted: Vec<i64> = world.counted.values().copied().collect();
        counted.sort_unstable();
        prop_assert_eq!(counted, windows);
    }
}

fn of_one_tenant(ids: &[&str]) -> Vec<OwnedMessage> {
    (0..).zip(ids).map(|(offset, id)| signed(offset, &record(tenant(), id, 1))).collect()
}

const OVER: Option<NotKept> = Some(NotKept::Refused(Reason::QuotaExceeded));

#[test]
fn without_quotas_nobody_asks_for_counters() {
    let mut world = World::new(of_one_tenant(&["a", "b"]));
    (0..2).for_each(|_| world.deliver());
    assert!(world.ledger.closable().unwrap().deferred.is_empty());
    assert!(world.close_asking().0.is_none());
    // Those of another source are no reason either.
    let other = QuotaRule { scope: QuotaScope::Source("mail".into()), ..rule(0) };
    let mut world = World::new(of_one_tenant(&["a"]));
    world.judge.quotas = Arc::new(Quotas::new([other]));
    world.deliver();
    assert!(world.close_asking().0.is_none());
    assert!(world.ledger.ready().unwrap().spent.counts(&[]).is_empty());
}

#[test]
fn a_key_is_asked_for_once_and_counted_on_from_there() {
    let ids = ["a", "b", "c", "d", "e", "f"];
    let mut world = World::new(of_one_tenant(&ids));
    world.judge.quotas = quotas(4);
    (0..2).for_each(|_| world.deliver());
    let question = world.close_asking().0.expect("the first of a window waits");
    assert_eq!((question.counters.len(), question.probes.len(), question.registry), (1, 0, false));
    world.ask(&question);
    world.answer();
    world.start();
    (0..4).for_each(|_| world.deliver());
    assert!(world.close_asking().0.is_none(), "the batch in flight is counted in memory");
    world.drain();
    let fates: Vec<_> = world.fates().into_iter().map(|(_, why)| why).collect();
    assert_eq!(fates, [None, None, None, None, OVER, OVER]);
    assert_eq!(world.done[1].over_quota, [(SOURCE.to_string(), 2)].into());
    assert_eq!(world.counted.values().copied().collect::<Vec<_>>(), [4]);
}

#[test]
fn a_record_over_its_quota_claims_no_identity() {
    let mut log = of_one_tenant(&["a", "b", "b", "b"]);
    // The last copy comes in the next window, as a replayed one does.
    log[3].timestamp += i64::from(WINDOW) * 1_000;
    let mut world = World::new(log);
    world.judge.quotas = quotas(1);
    world.drain();
    let fates: Vec<_> = world.fates().into_iter().map(|(_, why)| why).collect();
    assert_eq!(fates, [None, OVER, OVER, None]);
    assert_eq!(world.stored.len(), 2);
}

#[test]
fn a_quota_set_while_a_batch_waits_is_asked_for() {
    let mut world = World::new(of_one_tenant(&["a", "b"]));
    let first = record(tenant(), "a", 1);
    world.filter.insert(&first.record_id);
    (0..2).for_each(|_| world.deliver());
    world.close();
    world.judge.quotas = quotas(0);
    world.answer();
    assert!(world.ledger.is_waiting(), "for its counters");
    world.drain();
    let fates: Vec<_> = world.fates().into_iter().map(|(_, why)| why).collect();
    // The second one was decided before.
    assert_eq!(fates, [OVER, None]);
}

#[test]
fn what_storage_refuses_of_a_batch_is_asked_for_again() {
    let mut world = World::new(of_one_tenant(&["a", "b", "c", "d"]));
    world.judge.quotas = quotas(2);
    (0..2).for_each(|_| world.deliver());
    world.close();
    world.answer();
    world.start();
    (0..2).for_each(|_| world.deliver());
    world.close();
    // Storage does not take the first; the second counts.
    let key = world.ledger.in_flight().unwrap().spent.counts(&[])[0].0.clone();
    world.counted.insert(key.clone(), 1);
    world.advanced = 11;
    let decided = world.ledger.finish(&[0]).unwrap();
    world.refund(decided.charge);
    world.rewind();
    (0..2).for_each(|_| world.deliver());
    world.close();
    world.answer();
    let ready = world.ledger.ready().unwrap();
    assert_eq!((ready.spent.of(&key), ready.not_kept.get(3)), (1, OVER));
}

#[test]
fn what_was_read_before_a_restore_is_neither_held_to_quotas_nor_counted() {
    let mut world = World::new(of_one_tenant(&["a", "b", "c", "d", "e"]));
    world.judge.quotas = quotas(1);
    world.ledger = Ledger::new(PLACE, 10, 0, Instant::now()).with_quotas_from(3);
    world.drain();
    let fates: Vec<_> = world.fates().into_iter().map(|(_, why)| why).collect();
    assert_eq!(fates, [None, None, None, None, OVER]);
    assert_eq!(world.counted.values().copied().collect::<Vec<_>>(), [1]);
}

#[test]
fn a_flood_does_not_make_small_batches() {
    // One quiet record among nine of a tenant that floods, and a marker now and then: what no run can join.
    let (flooding, quiet) = (tenant_at(1), tenant_at(2));
    let message = |offset: i64| match offset {
        _ if offset % 500 == 499 => crate::testing::marker(offset, 1, offset),
        _ if offset * 7 % 10 == 3 => signed(offset, &record(quiet, &format!("q{offset}"), 1)),
        _ => signed(offset, &record(flooding, &format!("f{offset}"), 1)),
    };
    let mut world = World::new((0..10_000).map(message).collect());
    let scope = QuotaScope::Tenant(SOURCE.into(), flooding);
    world.judge.quotas = Arc::new(Quotas::new([QuotaRule { scope, ..rule(0) }]));
    world.limits = Limits { rows: 10_000, bytes: 64 << 20, deferred: 10_000, ..limits() };
    // The window is known from the batch before.
    world.deliver();
    world.close();
    world.answer();
    world.start();
    (1..10_000).for_each(|_| world.deliver());
    world.drain();
    let sizes: Vec<i64> = world.done.iter().map(|batch| batch.last - batch.first + 1).collect();
    assert_eq!(sizes, [1, 9_999]);
    assert_eq!(world.done[1].batch.rows.len(), 980, "no quiet record is refused");
    assert!(world.done[1].not_kept.pack(1).len() < 2_000);
}
