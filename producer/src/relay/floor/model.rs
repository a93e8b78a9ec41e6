//! A model of an outbox with several relays, in every order of commits and looks: nothing is skipped, and nothing is said to be
//! complete too early.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::relay::markers;

const PARTS: usize = 2;
const RELAYS: usize = 2;

/// A row that was written and not rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    part: usize,
    emitted_at: i64,
}

#[derive(Debug, Clone, Default)]
struct Transaction {
    prepared: bool,
    rows: BTreeMap<i64, Row>,
    /// Rows that it brings back from waiting, and when it said so.
    returns: Option<(Vec<Row>, i64)>,
}

/// The database.
#[derive(Debug, Default)]
struct Model {
    clock: i64,
    sequence: i64,
    serial: u64,
    open: BTreeMap<u64, Transaction>,
    visible: BTreeMap<i64, Row>,
    waiting: Vec<Row>,
    /// Oldest row and time of a return.
    returned: Vec<(i64, i64)>,
    complete: [Option<i64>; PARTS],
    written: usize,
    delivered: usize,
}

impl Model {
    fn tick(&mut self) -> i64 {
        self.clock += 1;
        self.clock
    }

    fn write(&mut self, transaction: &mut Transaction, part: usize, emitted_at: Option<i64>) {
        self.sequence += 1;
        let emitted_at = emitted_at.unwrap_or_else(|| self.tick());
        transaction.rows.insert(self.sequence, Row { part, emitted_at });
    }

    fn holders(&self) -> HashSet<Holder> {
        let named = |(serial, transaction): (&u64, &Transaction)| Holder {
            transaction: format!("{}/{serial}", if transaction.prepared { -1 } else { 3 }),
            prepared: transaction.prepared,
        };
        self.open.iter().map(named).collect()
    }

    fn commit(&mut self, serial: u64) {
        let Some(transaction) = self.open.remove(&serial) else { return };
        if let Some((rows, returned_at)) = transaction.returns {
            for row in &rows {
                let at = self.waiting.iter().position(|waiting| waiting == row).unwrap();
                self.waiting.swap_remove(at);
            }
            let oldest = rows.iter().map(|row| row.emitted_at).min().unwrap();
            self.returned.push((oldest, returned_at));
        } else {
            self.written += transaction.rows.len();
        }
        self.visible.extend(transaction.rows);
    }

    /// What a marker would say now.
    fn until(&self) -> Option<i64> {
        let partitions = self.complete.iter().map(|until| until.unwrap_or(i64::MIN)).min()?;
        let returned = self.returned.iter().filter(|(_, at)| *at >= partitions).map(|(oldest, _)| *oldest);
        let oldest = self.waiting.iter().map(|row| row.emitted_at).chain(returned).min();
        let until = markers::until(PgTime(partitions), oldest.map(PgTime))?;
        // Back to the database's own time.
        Some(until.micros() - PgTime(0).timestamp()?.micros())
    }

    /// Times of rows that are, or may come to be, and are not in Kafka.
    fn outstanding(&self) -> impl Iterator<Item = i64> + '_ {
        let open = self.open.values().flat_map(|transaction| transaction.rows.values());
        open.chain(self.visible.values()).chain(&self.waiting).map(|row| row.emitted_at)
    }

    fn outstanding_ids(&self, part: usize) -> Option<i64> {
        let open = self.open.values().flat_map(|transaction| &transaction.rows);
        open.chain(&self.visible).filter(|(_, row)| row.part == part).map(|(id, _)| *id).min()
    }
}

#[derive(Debug)]
struct Walk {
    pass: Pass,
    left: BTreeSet<i64>,
}

/// One relay; each of them works on all partitions, as a zombie would.
#[derive(Debug, Default)]
struct Relay {
    rounds: Rounds,
    /// The first half of a look.
    looking: Option<(i64, i64)>,
    floors: [Floor; PARTS],
    walks: [Option<Walk>; PARTS],
    confirmed: [Option<Proof>; PARTS],
}

impl Relay {
    fn start_over(&mut self) {
        let mut rounds = std::mem::take(&mut self.rounds);
        rounds.start_over();
        *self = Self { rounds, confirmed: self.confirmed, ..Self::default() };
    }

    fn page(&mut self, model: &Model, part: usize, limit: usize) {
        let Some(walk) = self.walks[part].as_mut().filter(|walk| walk.pass.more()) else { return };
        let above = model.visible.range(walk.pass.next_page() + 1..).filter(|(_, row)| row.part == part);
        let ids: Vec<i64> = above.take(limit).map(|(id, _)| *id).collect();
        walk.pass.page(ids.last().copied(), ids.len() == limit);
        walk.left.extend(ids);
    }

    /// Everything that was seen goes, but for every n-th row.
    fn settle(&mut self, model: &mut Model, part: usize, keep_every: usize, aside: bool) {
        let Some(walk) = &mut self.walks[part] else { return };
        let left: Vec<i64> = walk.left.iter().copied().collect();
        for (place, id) in left.into_iter().enumerate() {
            if keep_every > 0 && place % keep_every == 0 {
                continue;
            }
            // Another relay may have been faster.
            if let Some(row) = model.visible.remove(&id) {
                if aside {
                    model.waiting.push(row);
                } else {
                    model.delivered += 1;
                }
            }
            walk.left.remove(&id);
        }
        let lowest_left = walk.left.first().copied();
        self.confirmed[part] = walk.pass.confirms(lowest_left).or(self.confirmed[part]);
        if !walk.pass.more() {
            self.floors[part].advance(&walk.pass, lowest_left);
            self.walks[part] = None;
        }
    }

    fn store(&mut self, model: &mut Model) {
        for part in 0..PARTS {
            let proof = self.confirmed[part].filter(|proof| proof.series == self.rounds.series());
            model.complete[part] = model.complete[part].max(proof.map(|proof| proof.until.0));
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// A transaction begins and writes so many rows into a partition.
    Begin(usize, usize),
    /// The open transaction of this place writes another row.
    Write(usize, usize),
    Prepare(usize),
    Commit(usize),
    RollBack(usize),
    /// A transaction begins to bring back what waits.
    Return,
    ReadClockAndSequence(usize),
    ReadLocks(usize),
    BeginPass(usize, usize),
    Page(usize, usize, usize),
    Settle(usize, usize, usize),
    SetAside(usize, usize, usize),
    Store(usize),
    Void(usize),
    RestartRelay(usize),
    RestartServer,
}

fn step() -> impl Strategy<Value = Step> {
    let (relay, part) = (0..RELAYS, 0..PARTS);
    prop_oneof![
        4 => (1_usize..4, part.clone()).prop_map(|(rows, part)| Step::Begin(rows, part)),
        2 => (any::<usize>(), part.clone()).prop_map(|(place, part)| Step::Write(place, part)),
        2 => any::<usize>().prop_map(Step::Prepare),
        4 => any::<usize>().prop_map(Step::Commit),
        1 => any::<usize>().prop_map(Step::RollBack),
        1 => Just(Step::Return),
        6 => relay.clone().prop_map(Step::ReadClockAndSequence),
        6 => relay.clone().prop_map(Step::ReadLocks),
        5 => (relay.clone(), part.clone()).prop_map(|(relay, part)| Step::BeginPass(relay, part)),
        5 => (relay.clone(), part.clone(), 1_usize..4).prop_map(|(relay, part, rows)| Step::Page(relay, part, rows)),
        5 => (relay.clone(), part.clone(), 0_usize..4).prop_map(|(relay, part, keep)| Step::Settle(relay, part, keep)),
        1 => (relay.clone(), part, 0_usize..3).prop_map(|(relay, part, keep)| Step::SetAside(relay, part, keep)),
        4 => relay.clone().prop_map(Step::Store),
        1 => relay.clone().prop_map(Step::Void),
        1 => relay.prop_map(Step::RestartRelay),
        1 => Just(Step::RestartServer),
    ]
}

/// Steps as they come, and those together that a relay mostly takes together, so that few of them lead far.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let look = (0..RELAYS).prop_map(|relay| vec![Step::ReadClockAndSequence(relay), Step::ReadLocks(relay)]);
    let pass = (0..RELAYS, 0..PARTS).prop_map(|(relay, part)| {
        vec![
            Step::BeginPass(relay, part),
            Step::Page(relay, part, usize::MAX),
            Step::Settle(relay, part, 0),
            Step::Store(relay),
        ]
    });
    let some = prop_oneof![3 => step().prop_map(|step| vec![step]), 1 => look, 1 => pass];
    proptest::collection::vec(some, 1..100).prop_map(|steps| steps.into_iter().flatten().collect())
}

fn apply(model: &mut Model, relays: &mut [Relay; RELAYS], step: &Step) {
    model.tick();
    let nth = |model: &Model, place: usize| {
        let count = model.open.len();
        (count > 0).then(|| *model.open.keys().nth(place % count).unwrap())
    };
    match *step {
        Step::Begin(rows, part) => {
            let mut transaction = Transaction::default();
            (0..rows).for_each(|_| model.write(&mut transaction, part, None));
            model.serial += 1;
            model.open.insert(model.serial, transaction);
        }
        Step::Write(place, part) => {
            if let Some(serial) = nth(model, place)
                && !model.open[&serial].prepared
                && model.open[&serial].returns.is_none()
            {
                let mut transaction = model.open.remove(&serial).unwrap();
                model.write(&mut transaction, part, None);
                model.open.insert(serial, transaction);
            }
        }
        Step::Prepare(place) => {
            if let Some(serial) = nth(model, place) {
                model.open.get_mut(&serial).unwrap().prepared = true;
            }
        }
        Step::Commit(place) => {
            if let Some(serial) = nth(model, place) {
                model.commit(serial);
            }
        }
        Step::RollBack(place) => {
            if let Some(serial) = nth(model, place) {
                model.open.remove(&serial);
            }
        }
        Step::Return => {
            let busy = model.open.values().any(|transaction| transaction.returns.is_some());
            if !busy && !model.waiting.is_empty() {
                let rows = model.waiting.clone();
                let mut transaction =
                    Transaction { returns: Some((rows.clone(), model.clock)), ..Transaction::default() };
                rows.iter().for_each(|row| model.write(&mut transaction, row.part, Some(row.emitted_at)));
                model.serial += 1;
                model.open.insert(model.serial, transaction);
            }
        }
        Step::ReadClockAndSequence(relay) => relays[relay].looking = Some((model.clock, model.sequence)),
        Step::ReadLocks(relay) => {
            if let Some((clock, high)) = relays[relay].looking.take() {
                let look = Look { clock: PgTime(clock), high, holders: model.holders() };
                relays[relay].rounds.observe(look).unwrap();
            }
        }
        Step::BeginPass(relay, part) => {
            let relay = &mut relays[relay];
            let pass = Pass::begin(relay.floors[part].get(), relay.rounds.proven());
            relay.walks[part] = Some(Walk { pass, left: BTreeSet::new() });
        }
        Step::Page(relay, part, limit) => relays[relay].page(model, part, limit),
        Step::Settle(relay, part, keep_every) => relays[relay].settle(model, part, keep_every, false),
        Step::SetAside(relay, part, keep_every) => relays[relay].settle(model, part, keep_every, true),
        Step::Store(relay) => relays[relay].store(model),
        Step::Void(relay) => relays[relay].rounds.void_completeness(),
        Step::RestartRelay(relay) => relays[relay].start_over(),
        Step::RestartServer => {
            // Prepared transactions live on, under another name.
            let kept: Vec<Transaction> = std::mem::take(&mut model.open)
                .into_values()
                .filter(|transaction| transaction.prepared)
                .collect();
            for transaction in kept {
                model.serial += 1;
                model.open.insert(model.serial, transaction);
            }
            relays.iter_mut().for_each(Relay::start_over);
        }
    }
}

/// Looks twice, so that a round is over and its ids are known, then passes everything.
const SWEEP: [Step; 4] =
    [Step::ReadClockAndSequence(0), Step::ReadLocks(0), Step::ReadClockAndSequence(0), Step::ReadLocks(0)];

fn sweep(model: &mut Model, relays: &mut [Relay; RELAYS]) {
    let passes = (0..PARTS).flat_map(|part| {
        [Step::BeginPass(0, part), Step::Page(0, part, usize::MAX), Step::Settle(0, part, 0)]
    });
    for step in SWEEP.into_iter().chain(passes).chain([Step::Store(0)]) {
        apply(model, relays, &step);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// At every moment: nothing that is still to come or to deliver is at or below a floor, or older than what a marker would say. In the end
    /// everything that was committed has been delivered once, the floor is at the top, and completeness has passed the last row.
    #[test]
    fn nothing_is_skipped_and_nothing_is_complete_too_early(steps in steps()) {
        let (mut model, mut relays) = (Model::default(), <[Relay; RELAYS]>::default());
        for step in &steps {
            apply(&mut model, &mut relays, step);
            for part in 0..PARTS {
                let lowest = model.outstanding_ids(part);
                for relay in &relays {
                    let floor = relay.floors[part];
                    prop_assert!(lowest.is_none_or(|id| id > floor.get()), "{lowest:?} is below {floor:?} after {step:?}");
                }
            }
            if let Some(until) = model.until() {
                let oldest = model.outstanding().min();
                prop_assert!(oldest.is_none_or(|oldest| oldest >= until), "{oldest:?} is before {until} after {step:?}");
            }
        }
        while let Some(serial) = model.open.keys().next().copied() {
            model.commit(serial);
        }
        // The first sweep ends a round that is under way and empties the outbox, the second has a round of its own.
        sweep(&mut model, &mut relays);
        apply(&mut model, &mut relays, &Step::Return);
        apply(&mut model, &mut relays, &Step::Commit(0));
        sweep(&mut model, &mut relays);
        sweep(&mut model, &mut relays);
        prop_assert_eq!((model.visible.len(), model.waiting.len()), (0, 0));
        prop_assert_eq!(model.delivered, model.written);
        let last = model.clock;
        sweep(&mut model, &mut relays);
        prop_assert!(model.until().is_some_and(|until| until > last), "{:?} does not pass {last}", model.until());
        for floor in &relays[0].floors {
            prop_assert_eq!(floor.get(), model.sequence);
        }
    }
}
