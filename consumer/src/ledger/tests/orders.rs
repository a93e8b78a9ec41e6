//! Any order of deliveries, closings, answers, writes and rewinds.

use proptest::prelude::*;
use usage_schemas::{Kind, Rules};

use super::*;
use crate::judge::Registry;
use crate::testing::{marker, record, signed};

#[derive(Debug, Clone)]
pub enum Sent {
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

pub fn log(sent: &[(Sent, i64)]) -> Vec<OwnedMessage> {
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
            Sent::Marker => marker(offset, 1, offset),
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
        2 => Just(Sent::Marker),
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
                    registry.sources.insert("llm-gateway".into(), usage_control::Attribution::AnyTenant);
                    registry.keys.add("llm-gateway", "k1", crate::testing::KEY, 0, None);
                    for metric in ["llm.tokens", "late.metric"] {
                        crate::testing::register(&mut registry, metric, Kind::Counter, Rules::default());
                    }
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
        // Each batch moves to its own last marker, never to one behind its end.
        for batch in &world.done {
            let markers = fates.iter().filter(|(_, why)| *why == Some(NotKept::Marker)).map(|(offset, _)| *offset);
            let last = markers.filter(|offset| (batch.first..=batch.last).contains(offset)).max();
            let moved: Vec<i64> = batch.markers.iter().map(|marker| marker.complete_until.micros()).collect();
            prop_assert_eq!(moved, Vec::from_iter(last));
        }
    }
}
