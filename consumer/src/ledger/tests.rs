use std::time::Duration;

use proptest::prelude::*;
use usage_schemas::Kind;
use usage_schemas::codec::Encoder;
use uuid::Uuid;

use super::*;
use crate::batch::Decided;
use crate::judge::Registry;
use crate::plan::{Committed, METADATA_LIMIT};
use crate::testing::{copy, judge, record, sealed, signed};

const PLACE: Place = Place { partition: 0, count: 1 };

fn limits() -> Limits {
    Limits {
        rows: 1_000,
        bytes: 1 << 20,
        age: Duration::from_millis(1),
        not_kept: not_kept_limit(METADATA_LIMIT),
        deferred: 1_000,
    }
}

fn tenant() -> Uuid {
    Uuid::from_u128(0x1111_2222_3333_4444_5555_6666_7777_8888)
}

/// One partition with its log, storage and filter, all in memory.
struct World {
    ledger: Ledger,
    judge: Judge,
    filter: IdFilter,
    limits: Limits,
    log: Vec<OwnedMessage>,
    /// Index of the next message that Kafka delivers.
    reading: usize,
    stored: HashMap<Identity, [u8; 16]>,
    /// Batches that were done, in order.
    done: Vec<Arc<Decided>>,
    /// What storage said when closed batches asked; answers may come late, even after a rewind.
    found: Vec<(u64, HashMap<Identity, [u8; 16]>)>,
    used: Charge,
    /// Number of the last question.
    asked: u64,
}

impl World {
    fn new(log: Vec<OwnedMessage>) -> Self {
        Self {
            ledger: Ledger::new(PLACE, 10, 0, Instant::now()),
            judge: judge(),
            filter: IdFilter::with_capacity(0),
            limits: limits(),
            log,
            reading: 0,
            stored: HashMap::new(),
            done: Vec::new(),
            found: Vec::new(),
            used: Charge::default(),
            asked: 0,
        }
    }

    fn refund(&mut self, charge: Charge) {
        self.used.records -= charge.records;
        self.used.bytes -= charge.bytes;
    }

    fn rewound(&mut self, (Rewind(offset), charge): (Rewind, Charge)) {
        self.refund(charge);
        self.reading = self.log.partition_point(|message| message.offset < offset);
    }

    fn deliver(&mut self) {
        let Some(message) = self.log.get(self.reading) else { return };
        self.reading += 1;
        let now = Instant::now();
        let taken =
            self.ledger.deliver(&message.envelope(), &self.judge, &self.filter, || copy(message), now);
        self.used.add(taken.expect("it was not delivered before"));
    }

    fn close(&mut self) {
        let (question, cut) = self.close_asking();
        question.into_iter().for_each(|question| self.ask(&question));
        cut.into_iter().for_each(|cut| self.rewound(cut));
    }

    fn close_asking(&mut self) -> (Option<Question>, Option<(Rewind, Charge)>) {
        self.ledger.close(&self.limits, &self.judge, &self.filter, &mut self.asked, Instant::now())
    }

    fn ask(&mut self, question: &Question) {
        let ask = |probe: &IdProbe| {
            let id = (probe.tenant_id, probe.record_id);
            Some((id, *self.stored.get(&id)?))
        };
        self.found.push((question.number, question.probes.iter().filter_map(ask).collect()));
    }

    fn answer(&mut self) {
        if self.found.is_empty() {
            return;
        }
        let (number, found) = self.found.remove(0);
        let (again, cut) =
            self.ledger.answer(number, &self.judge, &self.filter, &found, &self.limits, &mut self.asked);
        again.into_iter().for_each(|question| self.ask(&question));
        cut.into_iter().for_each(|cut| self.rewound(cut));
    }

    fn start(&mut self) {
        self.ledger.start();
    }

    fn finish(&mut self) {
        if let Some(decided) = self.ledger.finish() {
            let rows = &decided.batch.rows;
            let ids = rows.tenant_id.iter().zip(&rows.record_id);
            for ((tenant, id), hash) in ids.zip(&rows.content_hash) {
                assert_eq!(self.stored.insert((*tenant, *id), *hash), None, "an id is stored twice");
                self.filter.insert(id);
            }
            self.refund(decided.charge);
            self.done.push(decided);
        }
    }

    fn rewind(&mut self) {
        let rewind = self.ledger.rewind();
        self.rewound(rewind);
    }

    fn drain(&mut self) {
        while self.reading < self.log.len() || !self.ledger.is_idle() {
            (0..50).for_each(|_| self.deliver());
            self.close();
            self.answer();
            self.start();
            self.finish();
        }
    }

    /// What became of each offset, from the plans of the batches that were done.
    fn fates(&self) -> Vec<(i64, Option<NotKept>)> {
        let mut fates = Vec::new();
        for (number, decided) in (11..).zip(&self.done) {
            let plan = decided.plan(1);
            assert_eq!(plan.batch_seq, number, "numbers follow each other");
            let text = plan.to_text();
            assert!(text.len() <= METADATA_LIMIT, "{} characters", text.len());
            assert_eq!(crate::plan::parse(&text).map(|read| matches!(read, Committed::Planned(_))), Ok(true));
            let kept = &decided.batch.rows.offset;
            let delivered = self.log.iter().map(|message| message.offset);
            for offset in delivered.filter(|offset| (plan.first..=plan.last).contains(offset)) {
                let why = plan.not_kept.get(offset);
                assert_eq!(why.is_none(), kept.contains(&offset), "offset {offset}");
                fates.push((offset, why));
            }
            let refused = |why: NotKept| matches!(why, NotKept::Refused(_) | NotKept::Forwarded);
            let letters: Vec<i64> = decided.outgoing.iter().map(|outgoing| outgoing.message.offset).collect();
            let expected: Vec<i64> = fates
                .iter()
                .filter(|(offset, why)| *offset >= plan.first && why.is_some_and(refused))
                .map(|(offset, _)| *offset)
                .collect();
            assert_eq!(letters, expected, "one message goes out for each refusal");
        }
        fates
    }
}

#[derive(Debug, Clone)]
enum Sent {
    Record { id: u8, content: bool },
    Unregistered { id: u8 },
    Unsigned,
    Marker,
}

#[derive(Debug, Clone)]
enum Step {
    Deliver(u8),
    Close,
    Answer,
    Start,
    Finish,
    Rewind,
    Register,
}

fn log(sent: &[(Sent, i64)]) -> Vec<OwnedMessage> {
    let mut offset = 0;
    let message = |(sent, gap): &(Sent, i64)| {
        offset += gap;
        match sent {
            Sent::Record { id, content } => {
                signed(offset, &record(tenant(), &format!("k{id}"), 1 + i64::from(*content)))
            }
            Sent::Unregistered { id } => {
                let mut record = record(tenant(), &format!("u{id}"), 1);
                record.metric = "late.metric".into();
                signed(offset, &record)
            }
            Sent::Unsigned => {
                let mut message = signed(offset, &record(tenant(), "k0", 1));
                message.value.as_mut().unwrap().pop();
                message
            }
            Sent::Marker => sealed(offset, "usage-collector.marker.v1", b"llm-gateway", b"{}", "llm-gateway"),
        }
    };
    sent.iter().map(message).collect()
}

fn sent() -> impl Strategy<Value = Vec<(Sent, i64)>> {
    let one = prop_oneof![
        12 => (0u8..12, prop::bool::weighted(0.2)).prop_map(|(id, content)| Sent::Record { id, content }),
        12 => (12u8..=255).prop_map(|id| Sent::Record { id, content: false }),
        3 => (0u8..4).prop_map(|id| Sent::Unregistered { id }),
        1 => Just(Sent::Unsigned),
        1 => Just(Sent::Marker),
    ];
    proptest::collection::vec((one, prop_oneof![9 => Just(1i64), 1 => Just(3i64)]), 1..120)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1u8..12).prop_map(Step::Deliver),
        3 => Just(Step::Close),
        3 => Just(Step::Answer),
        3 => Just(Step::Start),
        2 => Just(Step::Finish),
        1 => Just(Step::Rewind),
        1 => Just(Step::Register),
    ];
    proptest::collection::vec(step, 0..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Whatever the order of closing, answers, writes and rewinds: each identity is kept at its first valid row, every other copy is a
    /// duplicate or a conflict, and every row is decided exactly once.
    #[test]
    fn every_row_is_decided_once_and_every_identity_kept_once(sent in sent(), steps in steps()) {
        let mut world = World::new(log(&sent));
        for step in steps {
            match step {
                Step::Deliver(count) => (0..count).for_each(|_| world.deliver()),
                Step::Close => world.close(),
                Step::Answer => world.answer(),
                Step::Start => world.start(),
                Step::Finish => world.finish(),
                Step::Rewind => world.rewind(),
                Step::Register => {
                    let mut registry = Registry::default();
                    registry.keys.add("llm-gateway", "k1", crate::testing::KEY, 0, None);
                    registry.types.insert("llm.tokens".into(), Kind::Counter);
                    registry.types.insert("late.metric".into(), Kind::Counter);
                    world.judge.registry = Arc::new(registry);
                }
            }
            prop_assert_eq!(world.used, world.ledger.charge());
        }
        world.drain();
        prop_assert_eq!(world.used, Charge::default());

        let fates = world.fates();
        let offsets: Vec<i64> = world.log.iter().map(|message| message.offset).collect();
        prop_assert_eq!(fates.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), offsets);
        let mut first: HashMap<u8, bool> = HashMap::new();
        let mut registered: HashMap<u8, bool> = HashMap::new();
        for ((sent, _), (offset, why)) in sent.iter().zip(&fates) {
            let expected = match sent {
                Sent::Record { id, content } => match first.get(id) {
                    None => {
                        first.insert(*id, *content);
                        None
                    }
                    Some(kept) if kept == content => Some(NotKept::Duplicate),
                    Some(_) => Some(NotKept::Refused(Reason::Conflict)),
                },
                // Kept from its registration on, and never twice.
                Sent::Unregistered { id } if registered.contains_key(id) => Some(NotKept::Duplicate),
                Sent::Unregistered { id } => {
                    if why.is_none() {
                        registered.insert(*id, true);
                        None
                    } else {
                        Some(NotKept::Refused(Reason::UnknownUsageType))
                    }
                }
                Sent::Unsigned => Some(NotKept::Refused(Reason::Undecodable)),
                Sent::Marker => Some(NotKept::Marker),
            };
            prop_assert_eq!(*why, expected, "offset {}", offset);
        }
    }
}

#[test]
fn a_copy_in_the_batch_in_flight_is_a_duplicate() {
    let twice = record(tenant(), "a", 1);
    let mut world = World::new(vec![signed(0, &twice), signed(1, &twice)]);
    world.deliver();
    world.close();
    world.start();
    world.deliver();
    world.drain();
    assert_eq!(world.fates(), [(0, None), (1, Some(NotKept::Duplicate))]);
}

#[test]
fn a_batch_that_became_durable_while_storage_was_asked_counts() {
    // Row 1 waits for the registry, so its batch asks; the batch before it becomes durable only after storage looked.
    let mut unregistered = record(tenant(), "a", 1);
    unregistered.metric = "late.metric".into();
    let twice = record(tenant(), "b", 1);
    let mut world = World::new(vec![signed(0, &twice), signed(1, &unregistered), signed(2, &twice)]);
    world.deliver();
    world.close();
    world.start();
    // A filter that knows the id already makes row 2 wait for storage.
    world.filter.insert(&twice.record_id);
    world.deliver();
    world.close();
    world.finish();
    world.answer();
    world.drain();
    let refused = NotKept::Refused(Reason::UnknownUsageType);
    assert_eq!(world.fates(), [(0, None), (1, Some(refused)), (2, Some(NotKept::Duplicate))]);
}

#[test]
fn a_plan_that_would_be_too_long_ends_its_batch_earlier() {
    // Duplicates between kept rows at changing distances pack badly.
    let key = |i: i64| if i % 3 == 2 { i / 2 } else { i };
    let messages = (0..400).map(|i| signed(i * 2, &record(tenant(), &format!("{}", key(i)), 1)));
    let mut world = World::new(messages.collect());
    world.limits.not_kept = 60;
    (0..400).for_each(|_| world.deliver());
    assert!(world.ledger.closable().unwrap().is_full(&world.limits));
    world.drain();
    assert!(world.done.len() > 1);
    for decided in &world.done {
        assert!(decided.not_kept.pack(decided.first).len() <= 60);
    }
    let identities: std::collections::HashSet<i64> = (0..400).map(key).collect();
    assert_eq!(world.fates().len(), 400);
    assert_eq!(world.stored.len(), identities.len());
}

#[test]
fn a_plan_that_the_broker_refuses_is_made_shorter_under_the_same_number() {
    let mut sent = Vec::new();
    for i in 0..300u32 {
        sent.push((Sent::Record { id: (i / 3 + 12) as u8, content: false }, 1));
    }
    let mut world = World::new(log(&sent));
    (0..300).for_each(|_| world.deliver());
    world.close();
    let long = world.ledger.start().unwrap();
    let mut limits = world.limits;
    let rewound = world.ledger.shorten(700, &mut limits);
    assert_eq!(rewound.0, Rewind(0));
    world.rewound(rewound);
    world.limits = limits;
    world.drain();
    assert_eq!(world.done[0].batch.batch_seq, long.batch.batch_seq);
    assert!(world.done[0].last < long.last);
    assert_eq!(world.fates().len(), 300);
}

#[test]
fn what_was_delivered_before_is_passed_over() {
    let message = signed(5, &record(tenant(), "a", 1));
    let mut ledger = Ledger::new(PLACE, 0, 6, Instant::now());
    let filter = IdFilter::with_capacity(0);
    assert_eq!(
        ledger.deliver(&message.envelope(), &judge(), &filter, || copy(&message), Instant::now()),
        None
    );
    assert!(ledger.is_idle());
}

#[test]
fn full_and_closable() {
    let mut world = World::new((0..6).map(|i| signed(i, &record(tenant(), &format!("{i}"), 1))).collect());
    world.limits.rows = 3;
    assert!(world.ledger.closable().is_none());
    (0..3).for_each(|_| world.deliver());
    assert!(!world.ledger.is_full(&world.limits), "it can be closed");
    world.close();
    (0..3).for_each(|_| world.deliver());
    assert!(world.ledger.is_full(&world.limits));
    world.start();
    assert!(!world.ledger.is_full(&world.limits));
}

#[test]
fn an_answer_to_the_ledger_before_a_takeover_is_passed_over() {
    let twice = record(tenant(), "a", 1);
    let message = signed(0, &twice);
    let mut world = World::new(vec![message]);
    world.filter.insert(&twice.record_id);
    world.deliver();
    world.close();
    // The partition is taken over again, and the takeover stores the first copy; the answer from before comes late.
    world.ledger = Ledger::new(PLACE, 10, 0, Instant::now());
    (world.reading, world.used) = (0, Charge::default());
    world.stored.insert((tenant(), twice.record_id), usage_schemas::ids::content_hash(&twice.borrowed()));
    world.deliver();
    world.close();
    world.answer();
    assert!(world.ledger.is_waiting(), "for its own answer");
    world.drain();
    assert_eq!(world.fates(), [(0, Some(NotKept::Duplicate))]);
}

#[test]
fn storage_is_asked_only_about_what_could_be_kept_and_may_be_stored() {
    let unregistered = |key: &str| {
        let mut record = record(tenant(), key, 1);
        record.metric = "late.metric".into();
        record
    };
    let (new, known) = (unregistered("new"), unregistered("known"));
    let honest = record(tenant(), "forged", 1);
    let mut forged = honest.clone();
    forged.metric = "\\".repeat(100_000);
    let mut badly_signed = signed(2, &honest);
    badly_signed.value = Some(Encoder::new().encode(&forged));
    let mut world = World::new(vec![signed(0, &new), signed(1, &known), badly_signed]);
    world.filter.insert(&known.record_id);
    world.filter.insert(&forged.record_id);
    (0..3).for_each(|_| world.deliver());
    let question = world.close_asking().0.expect("all of them wait");
    assert!(question.registry);
    let asked: Vec<Uuid> = question.probes.iter().map(|probe| probe.record_id).collect();
    assert_eq!(asked, [known.record_id]);
}

#[test]
fn what_a_registry_refuses_that_was_not_asked_for_is_asked_again() {
    let record = record(tenant(), "a", 1);
    let mut world = World::new(vec![signed(0, &record)]);
    // A false hit.
    world.filter.insert(&record.record_id);
    world.deliver();
    world.close();
    let fresh = std::mem::replace(&mut world.judge.registry, Arc::new(Registry::default()));
    world.answer();
    assert!(world.ledger.is_waiting(), "for a fresh registry");
    world.judge.registry = fresh;
    world.drain();
    assert_eq!(world.fates(), [(0, None)]);
}

#[test]
fn the_headers_of_what_is_copied_are_charged() {
    let padding = vec![0; 500_000];
    let padded = |mut message: OwnedMessage| {
        let header = rdkafka::message::Header { key: "padding", value: Some(&padding) };
        message.headers = message.headers.take().map(|headers| headers.insert(header));
        message
    };
    let kept = record(tenant(), "kept", 1);
    let mut unregistered = record(tenant(), "unregistered", 1);
    unregistered.metric = "late.metric".into();
    let mut undecodable = padded(signed(2, &kept));
    undecodable.value = None;
    let log = vec![padded(signed(0, &kept)), padded(signed(1, &unregistered)), undecodable];
    let mut world = World::new(log);
    let mut taken = || {
        let before = world.used.bytes;
        world.deliver();
        world.used.bytes - before
    };
    assert!(taken() < 5_000, "a kept record keeps no header");
    assert!(taken() > 500_000, "deferred");
    assert!(taken() > 500_000, "dead letter");
    assert_eq!(world.used, world.ledger.charge());
}

#[test]
fn an_id_that_another_tenant_uses_is_another_identity() {
    let sampled = |tenant: u128, id: u128| {
        let mut sampled = record(Uuid::from_u128(tenant), "", 1);
        sampled.idempotency_key = None;
        sampled.kind = Kind::Gauge;
        sampled.metric = "vm.memory".into();
        sampled.record_id = Uuid::from_u128(0x0188_4b5e_0000_7000_8000_0000_0000_0000 + id);
        sampled
    };
    // Both in one batch; then one that is durable, asked for together with the other tenant's.
    let sent = [(1, 1), (2, 1), (1, 2), (1, 2), (2, 2)].map(|(tenant, id)| sampled(tenant, id));
    let mut world = World::new((0..).zip(&sent).map(|(offset, record)| signed(offset, record)).collect());
    (0..3).for_each(|_| world.deliver());
    world.close();
    world.start();
    world.finish();
    world.drain();
    let duplicate = Some(NotKept::Duplicate);
    assert_eq!(world.fates(), [(0, None), (1, None), (2, None), (3, duplicate), (4, None)]);
    assert_eq!(world.stored.len(), 4);
}
