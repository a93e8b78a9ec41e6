//! One partition in memory, for tests of its ledger.

mod cases;
mod orders;
mod quotas;
mod tenants;

use std::collections::HashMap;
use std::time::Duration;

use usage_control::{QuotaCounts, QuotaKey};
use usage_schemas::Reason;
use uuid::Uuid;

use super::*;
use crate::attribution::{Allowed, Pair, Permission, Permissions};
use crate::batch::Decided;
use crate::plan::{Committed, METADATA_LIMIT, NotKept};
use crate::testing::{TENANTS, copy, judge, permission};

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
    TENANTS[1]
}

/// One partition with its log, storage, filter and counters, all in memory.
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
    /// What the database has: the last batch, and what quotas have counted up to it.
    advanced: i64,
    counted: HashMap<QuotaKey, i64>,
    /// What storage and the database said when closed batches asked; answers may come late, even after a rewind.
    found: Vec<Answer>,
    /// What the policy point says of tenants for whom nothing is known yet; nothing is a refusal.
    policy: HashMap<Uuid, Allowed>,
    /// What it was asked about, in order.
    pairs: Vec<Pair>,
    used: Charge,
    /// Number of the last question.
    asked: u64,
    /// Counters that a ledger holds.
    most: usize,
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
            advanced: 10,
            counted: HashMap::new(),
            found: Vec::new(),
            policy: HashMap::new(),
            pairs: Vec::new(),
            used: Charge::default(),
            asked: 0,
            most: 100,
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
        let stored = question.probes.iter().filter_map(ask).collect();
        let records = question.counters.iter().map(|key| self.counted.get(key).copied().unwrap_or(0));
        let counts = QuotaCounts { batch_seq: self.advanced, records: records.collect() };
        let counters = question.counters.clone();
        let pairs = question.pairs.clone().into_pairs();
        let said = |pair: &Pair| {
            let allowed = self.policy.get(&pair.tenant_id).cloned().unwrap_or(Allowed::Nothing);
            Permission { asked: pair.metrics.clone(), ..permission(pair.tenant_id, allowed) }
        };
        let said: Vec<Permission> = pairs.iter().map(said).collect();
        let permissions = Permissions::of(&said, Instant::now());
        said.iter().for_each(|permission| self.judge.permissions.learn(permission, Instant::now()));
        self.pairs.extend(pairs);
        self.found.push(Answer { number: question.number, stored, permissions, counters, counts });
    }

    fn answer(&mut self) {
        if self.found.is_empty() {
            return;
        }
        let found = self.found.remove(0);
        let (again, cut) =
            self.ledger.answer(&found, &self.judge, &self.filter, &self.limits, &mut self.asked);
        again.into_iter().for_each(|question| self.ask(&question));
        cut.into_iter().for_each(|cut| self.rewound(cut));
    }

    fn start(&mut self) {
        self.ledger.start();
    }

    /// The transaction that ends the batch in flight; the owner hears of it later.
    fn advance(&mut self) {
        let Some(batch) = self.ledger.in_flight() else { return };
        if batch.batch.batch_seq > self.advanced {
            self.advanced = batch.batch.batch_seq;
            for (key, records) in batch.spent.counts(&[]) {
                *self.counted.entry(key).or_default() += records;
            }
        }
    }

    fn finish(&mut self) {
        self.advance();
        if let Some(decided) = self.ledger.finish(&[]) {
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
