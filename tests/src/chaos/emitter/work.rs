//! What one worker of an emitter does next.

use std::collections::VecDeque;
use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;
use usage_schemas::{Kind, Quantity};
use uuid::Uuid;

use crate::chaos::oracle::{Content, Details, Fate};
use crate::workload::SOURCE;

/// Tenants of a run.
pub const TENANTS: usize = 8;
/// A transaction of more records than this is one that says much of one thing, every other time.
const MANY: u32 = 5;
/// Records that a worker may repeat or contradict.
const REMEMBERED: usize = 500;
const COUNTERS: [&str; 3] = ["llm.requests", "llm.input_tokens", "llm.output_tokens"];
const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;

/// How a record gets into the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    Rust,
    Sql,
    PastTheChecks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Commit,
    Rollback,
}

/// One record to be said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emit {
    pub tenant: Uuid,
    pub content: Content,
    pub fate: Fate,
    pub door: Door,
}

impl Emit {
    /// Whether both may be written by one call of the client.
    pub fn joins(&self, other: &Self) -> bool {
        let subject = |emit: &Self| {
            let details = &emit.content.details;
            (details.subject_id, details.subject_type.clone())
        };
        [self, other].iter().all(|emit| emit.door == Door::Rust)
            && (self.tenant, &self.content.metric) == (other.tenant, &other.content.metric)
            && subject(self) == subject(other)
    }

    fn key(&self) -> Option<&String> {
        self.content.details.idempotency_key.as_ref()
    }
}

/// One transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub emits: Vec<Emit>,
    pub open_for: Option<Duration>,
    pub ending: Ending,
}

/// Draws transactions and remembers what committed.
pub struct Worker {
    random: StdRng,
    tenants: Vec<Uuid>,
    /// Prefix of all keys.
    name: String,
    next: u64,
    /// Records of a transaction, at most.
    most: u32,
    kept: VecDeque<Emit>,
}

impl Worker {
    pub fn new(random: StdRng, tenants: Vec<Uuid>, name: String, most: u32) -> Self {
        Self { random, tenants, name, next: 0, most, kept: VecDeque::new() }
    }

    /// The next transaction, at `now` on a clock that is wrong by `hours`.
    pub fn plan(&mut self, now: i64, hours: i64) -> Plan {
        let count = self.random.random_range(1..=self.most);
        let mut emits: Vec<Emit> = if count > MANY && self.random.random_ratio(1, 2) {
            self.much_of_one(now, count)
        } else {
            (0..count).map(|_| self.emit(now, hours)).collect()
        };
        // Two copies in one transaction lie side by side in the topic.
        if self.random.random_ratio(1, 20) {
            emits.extend(emits.iter().find(|emit| emit.key().is_some()).cloned());
        }
        let open_for = if self.random.random_ratio(1, 50) {
            Some(Duration::from_millis(self.random.random_range(300..6_000)))
        } else {
            None
        };
        let ending = if self.random.random_ratio(1, 10) { Ending::Rollback } else { Ending::Commit };
        Plan { emits, open_for, ending }
    }

    /// What was said may be said again.
    pub fn committed(&mut self, plan: &Plan) {
        self.kept.extend(
            plan.emits.iter().filter(|emit| emit.fate == Fate::Kept && emit.key().is_some()).cloned(),
        );
        while self.kept.len() > REMEMBERED {
            self.kept.pop_front();
        }
    }

    fn emit(&mut self, now: i64, hours: i64) -> Emit {
        let percent = self.random.random_range(0..100);
        if percent < 12 && !self.kept.is_empty() {
            let mut again = self.kept[self.random.random_range(0..self.kept.len())].clone();
            again.door = self.door();
            // Two in twelve contradict what was said before.
            if percent < 2 {
                again.content.value = value(self.random.random_range(0..1_000_000), again.content.kind);
            }
            return again;
        }
        match percent {
            97 => {
                let (metric, fate) = ("llm.unregistered".into(), Fate::UnknownUsageType);
                let counter = self.fresh(now, 0, Kind::Counter);
                Emit { content: Content { metric, ..counter.content }, fate, ..counter }
            }
            98 => {
                let counter = self.fresh(now, 0, Kind::Counter);
                let content = Content { timestamp: now - 8 * 366 * DAY, ..counter.content };
                Emit { content, fate: Fate::TooOld, door: Door::PastTheChecks, ..counter }
            }
            _ => {
                let gauge = self.random.random_ratio(1, 5);
                self.fresh(now, hours, if gauge { Kind::Gauge } else { Kind::Counter })
            }
        }
    }

    /// One caller reports one metric of one tenant, as a gateway does that collects for a while.
    fn much_of_one(&mut self, now: i64, count: u32) -> Vec<Emit> {
        let mut emits: Vec<Emit> = (0..count).map(|_| self.fresh(now, 0, Kind::Counter)).collect();
        if let Some((first, rest)) = emits.split_first_mut() {
            first.door = Door::Rust;
            for emit in rest {
                emit.door = Door::Rust;
                emit.tenant = first.tenant;
                emit.content.metric.clone_from(&first.content.metric);
                let details = &first.content.details;
                emit.content.details.subject_id = details.subject_id;
                emit.content.details.subject_type.clone_from(&details.subject_type);
            }
        }
        emits
    }

    fn fresh(&mut self, now: i64, hours: i64, kind: Kind) -> Emit {
        self.next += 1;
        let noisy = self.random.random_ratio(1, 3);
        let tenant = self.tenants[if noisy { 0 } else { self.random.random_range(0..self.tenants.len()) }];
        let metric = match kind {
            Kind::Gauge => "gpu.utilization",
            Kind::Counter => COUNTERS[self.random.random_range(0..COUNTERS.len())],
        };
        let drawn = self.random.random_range(0..1_000_000);
        let backdated =
            if self.random.random_ratio(3, 10) { self.random.random_range(0..60 * DAY) } else { 0 };
        // The source's clock speaks of now; whoever backdates knows the time.
        let timestamp = if backdated > 0 { now - backdated } else { now + hours * HOUR };
        let in_future = backdated == 0 && hours > 0;
        let keyed = kind == Kind::Counter || in_future || self.random.random_ratio(1, 2);
        let key = keyed.then(|| format!("{}/{}", self.name, self.next));
        let details = self.details(key);
        Emit {
            tenant,
            content: Content { metric: metric.into(), kind, value: value(drawn, kind), timestamp, details },
            fate: if in_future { Fate::InFuture } else { Fate::Kept },
            door: if in_future { Door::PastTheChecks } else { self.door() },
        }
    }

    /// Each of them is there or not, whatever the others are.
    fn details(&mut self, idempotency_key: Option<String>) -> Details {
        let mut word = |words: [&str; 2]| {
            let drawn = self.random.random_range(0..4_usize);
            words.get(drawn).map(|word| (*word).to_owned())
        };
        let (resource_type, subject_type) = (word(["vm", "model.large"]), word(["user", "service-account"]));
        let mut id = |most: u128| {
            let drawn = self.random.random_range(0..most * 2);
            (drawn < most).then(|| Uuid::from_u128(drawn + 1))
        };
        let (resource_id, subject_id) = (id(50), id(1_000_000));
        let number = self.random.random_range(0..1_000);
        let metadata = metadata(self.random.random_range(0..6), number);
        Details {
            source: SOURCE.into(),
            idempotency_key,
            resource_id,
            resource_type,
            subject_id,
            subject_type,
            metadata,
        }
    }

    fn door(&mut self) -> Door {
        if self.random.random_ratio(1, 2) { Door::Rust } else { Door::Sql }
    }
}

/// Objects whose bytes whoever parses and prints them again would change.
fn metadata(form: u32, number: u32) -> Option<String> {
    match form {
        0 => Some("{}".into()),
        1 => Some(format!(r#"{{"z": {number}.10, "a":1e2,  "a": null}}"#)),
        2 => Some(format!(r#"{{"text":"\u00e9 é \/ \"{number}\" \t\\","list":[ ]}}"#)),
        3 => Some(format!("{{\n\t\"region\" : \"eu-{number}\"\n}}")),
        _ => None,
    }
}

/// Up to 18 decimal places; samples may be negative.
fn value(drawn: u32, kind: Kind) -> Quantity {
    let shift = if kind == Kind::Gauge { 500_000 } else { 0 };
    let unscaled = (i128::from(drawn) - shift) * 10_i128.pow(drawn % 4 * 4 + 1) + i128::from(drawn % 7);
    let unscaled = if kind == Kind::Counter { unscaled.abs() } else { unscaled };
    Quantity::from_unscaled(unscaled).expect("a generated value is in range")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng as _;

    use super::*;
    use crate::workload::tenants;

    const NOW: i64 = 1_790_000_000_000_000;

    fn emits(hours: i64) -> Vec<Emit> {
        let mut worker = Worker::new(StdRng::seed_from_u64(5), tenants(5, TENANTS), "e".into(), MANY);
        let mut emits = Vec::new();
        for _ in 0..2_000 {
            let plan = worker.plan(NOW, hours);
            if plan.ending == Ending::Commit {
                worker.committed(&plan);
                emits.extend(plan.emits);
            }
        }
        emits
    }

    #[test]
    fn a_run_has_repeats_contradictions_and_refusals_of_each_kind() {
        let emits = emits(0);
        let fates: BTreeSet<Fate> = emits.iter().map(|emit| emit.fate).collect();
        assert_eq!(fates, BTreeSet::from([Fate::Kept, Fate::TooOld, Fate::UnknownUsageType]));
        let keys: Vec<&String> = emits.iter().filter_map(|emit| emit.key()).collect();
        let distinct: BTreeSet<&String> = keys.iter().copied().collect();
        assert!(keys.len() > distinct.len() + 100);
        let said: BTreeSet<(Option<&String>, &Content)> = emits
            .iter()
            .filter(|emit| emit.key().is_some())
            .map(|emit| (emit.key(), &emit.content))
            .collect();
        assert!(said.len() > distinct.len() + 20, "some contradict");
    }

    #[test]
    fn each_detail_is_there_and_is_absent_whatever_the_others_are() {
        let emits = emits(0);
        let seen: BTreeSet<[bool; 5]> = emits
            .iter()
            .map(|Emit { content: Content { details, .. }, .. }| {
                let ids = [details.resource_id.is_some(), details.subject_id.is_some()];
                let types = [details.resource_type.is_some(), details.subject_type.is_some()];
                [ids[0], ids[1], types[0], types[1], details.metadata.is_some()]
            })
            .collect();
        assert_eq!(seen.len(), 32, "{seen:?}");
        let texts = emits.iter().filter_map(|emit| emit.content.details.metadata.as_deref());
        let (mut objects, mut changed) = (0, 0);
        for text in texts {
            let value: serde_json::Value = serde_json::from_str(text).unwrap();
            objects += usize::from(value.is_object());
            let canonical = value.to_string();
            changed += usize::from(canonical != text);
        }
        assert!(changed > 100 && changed < objects, "{changed} of {objects}");
    }

    #[test]
    fn a_repeat_says_the_same_but_for_the_value() {
        let emits = emits(0);
        let mut first: std::collections::BTreeMap<&String, &Emit> = std::collections::BTreeMap::new();
        for emit in emits.iter().filter(|emit| emit.key().is_some()) {
            let before = first.entry(emit.key().unwrap()).or_insert(emit);
            let same = |emit: &Emit| {
                (
                    emit.tenant,
                    emit.content.metric.clone(),
                    emit.content.timestamp,
                    emit.content.kind,
                    emit.content.details.clone(),
                    emit.fate,
                )
            };
            assert_eq!(same(before), same(emit));
        }
    }

    #[test]
    fn a_clock_that_is_ahead_makes_what_is_said_of_now_lie_in_the_future() {
        let ahead = emits(2);
        for emit in &ahead {
            assert_eq!(emit.fate == Fate::InFuture, emit.content.timestamp > NOW, "{emit:?}");
        }
        assert!(ahead.iter().any(|emit| emit.fate == Fate::InFuture));
        let behind = emits(-2);
        assert!(behind.iter().all(|emit| emit.content.timestamp <= NOW && emit.fate != Fate::InFuture));
    }

    #[test]
    fn counters_are_never_negative_and_samples_are_sometimes() {
        let emits = emits(0);
        let negative = |emit: &&Emit| emit.content.value.unscaled() < 0;
        assert!(emits.iter().filter(|emit| emit.content.kind == Kind::Counter).all(|emit| !negative(&emit)));
        assert!(emits.iter().filter(|emit| emit.content.kind == Kind::Gauge).any(|emit| negative(&emit)));
    }

    #[test]
    fn some_large_transactions_say_much_of_one_thing_and_all_say_new_things() {
        let mut worker = Worker::new(StdRng::seed_from_u64(7), tenants(7, TENANTS), "e".into(), 100);
        let plans: Vec<Plan> = (0..200).map(|_| worker.plan(NOW, 0)).collect();
        let runs = |plan: &Plan| plan.emits.chunk_by(Emit::joins).map(<[Emit]>::len).max();
        assert!(plans.iter().filter(|plan| runs(plan) > Some(50)).count() > 20);
        assert!(plans.iter().any(|plan| plan.emits.len() > 50 && runs(plan) < Some(10)));
        let fresh = plans.iter().filter(|plan| runs(plan) > Some(50)).flat_map(|plan| &plan.emits);
        let keys: Vec<&String> = fresh.filter_map(Emit::key).collect();
        assert!(keys.iter().collect::<BTreeSet<_>>().len() > keys.len() * 9 / 10, "few are repeats");
    }

    #[test]
    fn every_transaction_says_something_and_some_are_long_or_rolled_back() {
        let mut worker = Worker::new(StdRng::seed_from_u64(6), tenants(6, TENANTS), "e".into(), MANY);
        let plans: Vec<Plan> = (0..1_000).map(|_| worker.plan(NOW, 0)).collect();
        assert!(plans.iter().all(|plan| !plan.emits.is_empty()));
        assert!(plans.iter().any(|plan| plan.open_for.is_some()));
        assert!(plans.iter().any(|plan| plan.ending == Ending::Rollback));
    }
}
