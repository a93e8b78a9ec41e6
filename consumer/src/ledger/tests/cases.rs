//! Single orders, each by name.

use usage_schemas::codec::Encoder;
use usage_schemas::{Kind, Timestamp};

use super::orders::{Sent, log};
use super::*;
use crate::judge::Registry;
use crate::testing::{NOW, marker, record, signed};

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

#[test]
fn what_is_not_kept_is_tallied_under_its_metric_if_that_is_registered() {
    let other = |change: fn(&mut usage_schemas::UsageRecord)| {
        let mut record = record(tenant(), "b", 1);
        change(&mut record);
        record
    };
    let kept = record(tenant(), "a", 1);
    let undecodable = |mut message: OwnedMessage| {
        message.value.as_mut().unwrap().truncate(20);
        message
    };
    let badly_signed = |mut message: OwnedMessage| {
        message.key = Some(b"another".to_vec());
        message
    };
    let log = vec![
        signed(0, &kept),
        signed(1, &kept),
        signed(2, &other(|record| record.metric = "late.metric".into())),
        // A gauge's metric.
        signed(3, &other(|record| record.metric = "vm.memory".into())),
        signed(4, &other(|record| record.timestamp = Timestamp::from_micros(0))),
        badly_signed(signed(5, &kept)),
        undecodable(signed(6, &kept)),
        signed(7, &other(|record| record.record_id = Uuid::from_u128(1))),
        marker(8, 1, NOW),
        // Known only to storage.
        signed(9, &record(tenant(), "stored", 1)),
    ];
    let mut world = World::new(log);
    let stored = record(tenant(), "stored", 1);
    world.filter.insert(&stored.record_id);
    world.stored.insert((tenant(), stored.record_id), usage_schemas::ids::content_hash(&stored.borrowed()));
    world.drain();
    let mut tally = crate::batch::Tally::new();
    for (of, records) in world.done.iter().flat_map(|decided| decided.tally.clone()) {
        *tally.entry(of).or_default() += records;
    }
    let of = |metric: Option<&str>| Whose { tenant_id: Some(tenant()), metric: metric.map(Into::into) };
    let tokens = || of(Some("llm.tokens"));
    let refused = NotKept::Refused;
    let expected = [
        ((tokens(), NotKept::Duplicate), 2),
        ((of(None), refused(Reason::UnknownUsageType)), 1),
        ((of(Some("vm.memory")), refused(Reason::SchemaViolation)), 1),
        ((tokens(), refused(Reason::TooOld)), 1),
        ((tokens(), refused(Reason::BadSignature)), 1),
        ((Whose::default(), refused(Reason::Undecodable)), 1),
        ((tokens(), refused(Reason::IdMismatch)), 1),
        ((Whose::default(), NotKept::Marker), 1),
    ];
    assert_eq!(tally, expected.into());
    // The name is the registry's own, not a copy for each record.
    let names = tally.keys().filter_map(|(whose, _)| whose.metric.as_ref());
    let mut registered = names.filter_map(|name| {
        let (own, _) = world.judge.registry.types.get_key_value(name)?;
        Some(Arc::ptr_eq(own, name))
    });
    assert!(registered.all(|shared| shared));
}
