//! Whose usage a source may emit, asked while batches are decided.

use std::collections::BTreeSet;

use usage_control::Attribution;

use super::*;
use crate::judge::Registry;
use crate::testing::{SOURCE, record, signed};

const PERMITTED: Uuid = Uuid::from_u128(0x2001);
const REFUSED: Uuid = Uuid::from_u128(0x2002);

fn forbidden(why: &Option<NotKept>) -> bool {
    *why == Some(NotKept::Refused(Reason::ForbiddenTenant))
}

fn reregistered(world: &World, attribution: Attribution) -> Arc<Registry> {
    let Registry { reading, keys: _, types, sources: _ } = &*world.judge.registry;
    let mut registry = Registry { reading: reading + 1, types: types.clone(), ..Registry::default() };
    registry.keys.add(SOURCE, "k1", crate::testing::KEY, 0, None);
    registry.sources.insert(SOURCE.into(), attribution);
    Arc::new(registry)
}

#[test]
fn each_pair_is_asked_about_once_a_batch_and_a_refusal_each_time() {
    let tenants = [PERMITTED, REFUSED, tenant()];
    let log =
        (0..60).map(|i| signed(i, &record(tenants[usize::try_from(i % 3).unwrap()], &format!("{i}"), 1)));
    let mut world = World::new(log.collect());
    world.policy.insert(PERMITTED, Allowed::Everything);
    // Two batches of 30.
    for _ in 0..2 {
        (0..30).for_each(|_| world.deliver());
        world.close();
        world.answer();
        world.start();
        world.finish();
    }
    world.drain();
    let asked = |tenant| {
        let of = |pair: &&Pair| pair.source == SOURCE && pair.tenant_id == tenant;
        world.pairs.iter().filter(of).count()
    };
    assert_eq!((asked(PERMITTED), asked(REFUSED), asked(tenant())), (1, 2, 0));
    let refused: Vec<i64> =
        world.fates().iter().filter(|(_, why)| forbidden(why)).map(|(offset, _)| *offset).collect();
    assert_eq!(refused, (0..60).filter(|offset| offset % 3 == 1).collect::<Vec<_>>());
    assert_eq!(world.stored.len(), 40);
}

#[test]
fn a_permission_for_some_metrics_keeps_these_only() {
    let mut other = record(PERMITTED, "other", 1);
    other.metric = "llm.calls".into();
    let mut world = World::new(vec![
        signed(0, &record(PERMITTED, "a", 1)),
        signed(1, &other),
        signed(2, &record(PERMITTED, "b", 1)),
        signed(3, &other),
    ]);
    let mut registry = reregistered(&world, Attribution::AnyTenant);
    let types = Arc::get_mut(&mut registry).unwrap();
    crate::testing::register(
        types,
        "llm.calls",
        usage_schemas::Kind::Counter,
        usage_schemas::Rules::default(),
    );
    world.judge.refresh(registry);
    world.policy.insert(PERMITTED, Allowed::Metrics(BTreeSet::from(["llm.tokens".to_string()])));
    world.drain();
    let refused: Vec<bool> = world.fates().iter().map(|(_, why)| forbidden(why)).collect();
    assert_eq!(refused, [false, true, false, true]);
}

#[test]
fn nothing_is_decided_by_a_registry_that_is_too_old() {
    let mut world =
        World::new(vec![signed(0, &record(tenant(), "a", 1)), signed(1, &record(tenant(), "b", 1))]);
    world.judge.stale = true;
    world.deliver();
    let question = world.close_asking().0.expect("a fresh one is asked for");
    assert!(question.registry && world.ledger.ready().is_none());
    // It comes with the answer, and has no key of the source.
    world.judge.refresh(Arc::new(Registry { reading: 1, ..Registry::default() }));
    world.judge.stale = false;
    world.ask(&question);
    world.drain();
    let unknown = Some(NotKept::Refused(Reason::UnknownSource));
    assert_eq!(world.fates(), [(0, unknown), (1, unknown)]);
}

/// The answer about one metric says nothing about another that becomes known while it is awaited.
#[test]
fn a_metric_that_was_not_asked_about_is_asked_about_before_it_is_refused() {
    let mut other = record(PERMITTED, "other", 1);
    other.metric = "llm.calls".into();
    let mut world = World::new(vec![signed(0, &record(PERMITTED, "a", 1)), signed(1, &other)]);
    world.policy.insert(PERMITTED, Allowed::Metrics(BTreeSet::from(["llm.calls".to_string()])));
    world.deliver();
    world.deliver();
    world.close();
    let metrics = |world: &World| world.pairs.last().unwrap().metrics.iter().cloned().collect::<Vec<_>>();
    assert_eq!(metrics(&world), ["llm.tokens"], "the other one is not registered yet");
    // So nothing was said about it.
    let said = Permission {
        asked: BTreeSet::from(["llm.tokens".into()]),
        ..permission(PERMITTED, Allowed::Nothing)
    };
    world.found[0].permissions = Permissions::of(&[said], Instant::now());
    let mut registry = reregistered(&world, Attribution::AnyTenant);
    let types = Arc::get_mut(&mut registry).unwrap();
    crate::testing::register(
        types,
        "llm.calls",
        usage_schemas::Kind::Counter,
        usage_schemas::Rules::default(),
    );
    world.judge.refresh(registry);
    world.judge.permissions.clear();
    world.drain();
    assert_eq!(metrics(&world), ["llm.calls", "llm.tokens"]);
    let refused: Vec<bool> = world.fates().iter().map(|(_, why)| forbidden(why)).collect();
    assert_eq!(refused, [true, false]);
}

#[test]
fn copies_of_a_record_that_waits_for_the_policy_count_once_and_in_order() {
    let first = record(PERMITTED, "a", 1);
    let mut other = first.clone();
    other.value = usage_schemas::Quantity::from_unscaled(2).unwrap();
    let mut world = World::new(vec![signed(0, &first), signed(1, &other), signed(2, &first)]);
    world.policy.insert(PERMITTED, Allowed::Everything);
    world.deliver();
    world.close();
    // The copies come while the first one waits.
    world.deliver();
    world.deliver();
    world.drain();
    let fates: Vec<_> = world.fates().into_iter().map(|(_, why)| why).collect();
    assert_eq!(fates, [None, Some(NotKept::Refused(Reason::Conflict)), Some(NotKept::Duplicate)]);
}

#[test]
fn a_copy_of_what_is_stored_is_found_when_its_permission_had_to_be_asked_for() {
    let first = record(PERMITTED, "a", 1);
    let mut world = World::new(vec![signed(0, &first)]);
    world.policy.insert(PERMITTED, Allowed::Everything);
    world.stored.insert((PERMITTED, first.record_id), usage_schemas::ids::content_hash(&first.borrowed()));
    world.filter.insert(&first.record_id);
    world.drain();
    assert_eq!(world.fates(), [(0, Some(NotKept::Duplicate))]);
}

#[test]
fn a_source_that_is_registered_otherwise_meanwhile_is_asked_about_again() {
    let mut world =
        World::new(vec![signed(0, &record(REFUSED, "a", 1)), signed(1, &record(PERMITTED, "b", 1))]);
    world.deliver();
    world.deliver();
    world.close();
    assert_eq!(world.pairs.len(), 2);
    // Before the answer comes, the refused tenant becomes the source's home.
    let registry = reregistered(&world, Attribution::HomeTenant(REFUSED));
    world.judge.refresh(registry);
    let found = world.found.remove(0);
    let (again, _) =
        world.ledger.answer(&found, &world.judge, &world.filter, &world.limits, &mut world.asked);
    let again = again.expect("the answer was about another registration");
    // The home is among them, and the registry answers for it.
    assert!(again.pairs.clone().into_pairs().iter().any(|pair| pair.tenant_id == PERMITTED));
    let answer = Permission {
        attribution: Attribution::HomeTenant(REFUSED),
        ..permission(PERMITTED, Allowed::Nothing)
    };
    let permissions = Permissions::of(&[answer], Instant::now());
    world.found.push(Answer { number: again.number, permissions, ..Answer::default() });
    world.answer();
    world.start();
    world.finish();
    let fates = world.fates();
    assert_eq!(fates[0], (0, None));
    assert!(forbidden(&fates[1].1));
}
