use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn holders(names: &[&str]) -> HashSet<Holder> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn without_emitters_everything_handed_out_is_proven() {
    let mut rounds = Rounds::default();
    assert_eq!(rounds.observe(7, holders(&[])), 7);
    assert_eq!(rounds.observe(9, holders(&[])), 9);
}

#[test]
fn an_open_emitter_holds_its_round_and_no_later_one_does() {
    let mut rounds = Rounds::default();
    assert_eq!(rounds.observe(10, holders(&["3/1"])), 0);
    // Others come and go; they are not in the round.
    assert_eq!(rounds.observe(20, holders(&["3/1", "4/1"])), 0);
    assert_eq!(
        rounds.observe(30, holders(&["4/1", "5/1"])),
        10,
        "the round of 10 is over, that of 30 waits for two"
    );
    assert_eq!(rounds.observe(40, holders(&["5/1"])), 10);
    assert_eq!(rounds.observe(50, holders(&["6/1"])), 30);
}

#[test]
fn the_same_connection_with_the_next_transaction_is_another_holder() {
    let mut rounds = Rounds::default();
    rounds.observe(10, holders(&["3/1"]));
    assert_eq!(rounds.observe(11, holders(&["3/2"])), 10);
}

#[test]
fn the_floor_stays_below_what_is_left() {
    let mut floor = Floor::default();
    let mut pass = Pass::begin(floor.get(), 100);
    pass.page(Some(50), true);
    assert!(pass.more() && pass.next_page() == 50);
    floor.advance(&pass, Some(20));
    assert_eq!(floor.get(), 19);
    let mut pass = Pass::begin(floor.get(), 100);
    pass.page(Some(50), true);
    floor.advance(&pass, None);
    assert_eq!(floor.get(), 50, "as far as the page went");
    let mut pass = Pass::begin(floor.get(), 100);
    pass.page(None, false);
    assert!(!pass.more());
    floor.advance(&pass, None);
    assert_eq!(floor.get(), 100, "as far as it is proven");
}

#[test]
fn a_pass_from_elsewhere_moves_nothing() {
    let mut floor = Floor::default();
    let mut pass = Pass::begin(30, 100);
    pass.page(None, false);
    floor.advance(&pass, None);
    assert_eq!(floor.get(), 0);
}

/// A model of the database: transactions draw ids, commit or roll back in any order, and hold the lock from their first id to their end.
#[derive(Default)]
struct Model {
    sequence: i64,
    serial: u64,
    /// Open transactions with the ids that they wrote.
    open: BTreeMap<u64, BTreeSet<i64>>,
    visible: BTreeSet<i64>,
    committed: BTreeSet<i64>,
    delivered: BTreeSet<i64>,
}

impl Model {
    fn lock_holders(&self) -> HashSet<Holder> {
        self.open.keys().map(ToString::to_string).collect()
    }

    /// What will or may be visible and is not delivered: nothing of it may be at or below the floor.
    fn outstanding(&self) -> impl Iterator<Item = i64> + '_ {
        self.open.values().flatten().copied().chain(self.visible.iter().copied())
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// A transaction begins and writes so many rows.
    Begin(u8),
    /// The open transaction of this place writes another row.
    Write(usize),
    Commit(usize),
    RollBack(usize),
    /// The relay reads the sequence.
    ReadSequence,
    /// The relay reads the locks and takes both in.
    ReadLocks,
    /// The relay begins a pass: it reads the proof.
    BeginPass,
    /// The relay reads a page of so many rows.
    Page(u8),
    /// The rows of the pass are delivered and deleted but for every n-th; the floor moves.
    EndPass(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1_u8..4).prop_map(Step::Begin),
        2 => any::<usize>().prop_map(Step::Write),
        4 => any::<usize>().prop_map(Step::Commit),
        1 => any::<usize>().prop_map(Step::RollBack),
        3 => Just(Step::ReadSequence),
        3 => Just(Step::ReadLocks),
        3 => Just(Step::BeginPass),
        4 => (1_u8..5).prop_map(Step::Page),
        3 => (0_u8..4).prop_map(Step::EndPass),
    ]
}

struct Relay {
    rounds: Rounds,
    floor: Floor,
    high: Option<i64>,
    pass: Option<(Pass, Vec<i64>)>,
}

impl Relay {
    fn new() -> Self {
        Self { rounds: Rounds::default(), floor: Floor::default(), high: None, pass: None }
    }

    fn end_pass(&mut self, model: &mut Model, keep_every: u8) {
        let Some((pass, seen)) = self.pass.take() else { return };
        let mut left = None;
        for (place, id) in seen.into_iter().enumerate() {
            if keep_every > 0 && place % usize::from(keep_every) == 0 {
                left = Some(left.map_or(id, |lowest: i64| lowest.min(id)));
            } else {
                model.visible.remove(&id);
                model.delivered.insert(id);
            }
        }
        self.floor.advance(&pass, left);
    }

    fn page(&mut self, model: &Model, limit: usize) {
        let Some((pass, seen)) = &mut self.pass else { return };
        if !pass.more() {
            return;
        }
        let rows: Vec<i64> = model.visible.range(pass.next_page() + 1..).take(limit).copied().collect();
        pass.page(rows.last().copied(), rows.len() == limit);
        seen.extend(rows);
    }
}

fn apply(model: &mut Model, relay: &mut Relay, step: &Step) {
    let nth = |model: &Model, place: usize| {
        let count = model.open.len();
        (count > 0).then(|| *model.open.keys().nth(place % count).unwrap())
    };
    match *step {
        Step::Begin(rows) => {
            model.serial += 1;
            let ids = (0..i64::from(rows)).map(|row| model.sequence + row + 1).collect();
            model.sequence += i64::from(rows);
            model.open.insert(model.serial, ids);
        }
        Step::Write(place) => {
            if let Some(transaction) = nth(model, place) {
                model.sequence += 1;
                model.open.get_mut(&transaction).unwrap().insert(model.sequence);
            }
        }
        Step::Commit(place) => {
            if let Some(ids) = nth(model, place).and_then(|transaction| model.open.remove(&transaction)) {
                model.committed.extend(&ids);
                model.visible.extend(ids);
            }
        }
        Step::RollBack(place) => {
            if let Some(transaction) = nth(model, place) {
                model.open.remove(&transaction);
            }
        }
        Step::ReadSequence => relay.high = Some(model.sequence),
        Step::ReadLocks => {
            if let Some(high) = relay.high.take() {
                relay.rounds.observe(high, model.lock_holders());
            }
        }
        Step::BeginPass => {
            relay.pass = Some((Pass::begin(relay.floor.get(), relay.rounds.proven()), Vec::new()))
        }
        Step::Page(limit) => relay.page(model, usize::from(limit)),
        Step::EndPass(keep_every) => relay.end_pass(model, keep_every),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// In every order of commits and looks: nothing that is still to come or to deliver is at or below the floor, and in the end, without any
    /// look from 0, all that was committed is delivered and the floor is at the top.
    #[test]
    fn nothing_is_ever_skipped(steps in proptest::collection::vec(step(), 1..120)) {
        let (mut model, mut relay) = (Model::default(), Relay::new());
        for step in &steps {
            apply(&mut model, &mut relay, step);
            let lowest = model.outstanding().min();
            prop_assert!(lowest.is_none_or(|id| id > relay.floor.get()), "{lowest:?} is below {:?} after {step:?}", relay.floor);
        }
        while !model.open.is_empty() {
            apply(&mut model, &mut relay, &Step::Commit(0));
        }
        relay.end_pass(&mut model, 0);
        for _ in 0..2 {
            for step in [Step::ReadSequence, Step::ReadLocks, Step::BeginPass, Step::Page(255), Step::EndPass(0)] {
                apply(&mut model, &mut relay, &step);
            }
        }
        prop_assert_eq!(&model.delivered, &model.committed);
        prop_assert_eq!(relay.floor.get(), model.sequence);
    }
}
