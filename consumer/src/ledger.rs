//! What one partition has in hand: at most one batch in flight, one that is closed and one that takes in rows.
//!
//! A record is decided against, in this order, the batch itself, the batches before it, the filter and storage. What only
//! storage, a fresh registry or the policy point can decide is copied and decided when its batch is closed, in the order of offsets
//! and by one query. An id leaves "in flight" for the filter in one step: the owner's thread does both.

mod decide;
mod fate;
mod question;
mod room;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use usage_schemas::RecordRef;
use usage_service::clock;
use usage_storage::{IdProbe, Rows};

use crate::batch::{Decided, Deferred, Identity, Limits, Open, RECORD_OVERHEAD, Whose};
use crate::budget::Charge;
use crate::dead_letter::Outgoing;
use crate::filter::IdFilter;
use crate::judge::{Judge, Place, Verdict};
use crate::message::{Envelope, OwnedMessage};
use crate::plan::not_kept_limit;
use fate::{Fate, forbidden, repeated};
use room::{Counters, Room};

pub use question::{Answer, Question};

/// A closed batch.
enum Closed {
    Waiting(Box<Open>, Asked),
    Ready(Arc<Decided>),
}

/// The question that a closed batch waits for.
#[derive(Debug, Clone, Copy)]
struct Asked {
    number: u64,
    registry: bool,
}

/// The hand of one partition.
pub struct Ledger {
    place: Place,
    /// Number of the last batch that is done.
    done_seq: i64,
    /// The first offset that is not done.
    next: i64,
    /// The next offset that may be delivered; what lies below is stale.
    position: i64,
    in_flight: Option<Arc<Decided>>,
    closed: Option<Closed>,
    open: Open,
    /// Batches that became durable while `closed` waits: the answer it waits for may be older than they are.
    lingering: Vec<Arc<Decided>>,
    counters: Counters,
}

/// The offset from which everything must be delivered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewind(pub i64);

/// What is known of an id without asking anybody.
enum Known {
    Kept([u8; 16]),
    Undecided,
    No,
}

impl Ledger {
    /// Starts at `next`, which is delivered first, after batch `done_seq`.
    pub fn new(place: Place, done_seq: i64, next: i64, now: Instant) -> Self {
        Self {
            place,
            done_seq,
            next,
            position: next,
            in_flight: None,
            closed: None,
            open: Open::new(now),
            lingering: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Offsets below `from` were held to quotas and counted before a restore.
    pub fn with_quotas_from(mut self, from: i64) -> Self {
        self.counters.from = from;
        self
    }

    pub fn place(&self) -> Place {
        self.place
    }

    /// The first offset that is not done, and the number of the last batch that is.
    pub fn done(&self) -> (i64, i64) {
        (self.next, self.done_seq)
    }

    pub fn position(&self) -> i64 {
        self.position
    }

    pub fn in_flight(&self) -> Option<&Arc<Decided>> {
        self.in_flight.as_ref()
    }

    /// True when nothing is in hand.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.closed.is_none() && self.open.is_empty()
    }

    /// The broker's time of the oldest row in hand, milliseconds since the Unix epoch.
    pub fn oldest(&self) -> Option<i64> {
        let closed = self.closed.as_ref().map(|closed| match closed {
            Closed::Waiting(open, _) => open.oldest,
            Closed::Ready(decided) => decided.oldest,
        });
        let open = (!self.open.is_empty()).then_some(self.open.oldest);
        self.in_flight.as_ref().map(|batch| batch.oldest).or(closed).or(open)
    }

    /// What all batches in hand have taken from the budget.
    pub fn charge(&self) -> Charge {
        let mut charge = self.open.charge;
        if let Some(in_flight) = &self.in_flight {
            charge.add(in_flight.charge);
        }
        match &self.closed {
            Some(Closed::Waiting(open, _)) => charge.add(open.charge),
            Some(Closed::Ready(decided)) => charge.add(decided.charge),
            None => {}
        }
        charge
    }

    /// True while the partition must take in nothing: the open batch is full and can't be closed yet.
    pub fn is_full(&self, limits: &Limits) -> bool {
        self.closed.is_some() && self.open.is_full(limits)
    }

    fn known(&self, id: &Identity) -> Known {
        let mut undecided = self.open.deferred_ids.contains(id);
        let mut kept = self.open.hash_of(id);
        match &self.closed {
            Some(Closed::Waiting(open, _)) => {
                undecided |= open.deferred_ids.contains(id);
                kept = kept.or_else(|| open.hash_of(id));
            }
            Some(Closed::Ready(decided)) => kept = kept.or_else(|| decided.hash_of(id)),
            None => {}
        }
        kept = kept.or_else(|| self.in_flight.as_ref().and_then(|batch| batch.hash_of(id)));
        match kept {
            Some(hash) => Known::Kept(hash),
            None if undecided => Known::Undecided,
            None => Known::No,
        }
    }

    /// Takes in a delivered message and returns what it takes from the budget; `None` if it was delivered before.
    pub fn deliver(
        &mut self,
        message: &Envelope<'_>,
        judge: &Judge,
        filter: &IdFilter,
        copy: impl FnOnce() -> OwnedMessage,
        now: Instant,
    ) -> Option<Charge> {
        if message.offset < self.position {
            return None;
        }
        self.position = message.offset + 1;
        if judge.stale {
            return Some(self.defer(message, judge, copy(), true, now));
        }
        let charge = Charge { records: 1, bytes: message.size() + RECORD_OVERHEAD };
        let copied = Charge { bytes: charge.bytes + message.header_bytes, ..charge };
        let (offset, timestamp) = (message.offset, message.timestamp);
        let why = match judge.judge(message, self.place) {
            Verdict::Record { record, content_hash } => {
                match self.known(&(record.tenant_id, record.record_id)) {
                    Known::Kept(hash) => Some((judge.whose(&record), repeated(hash, content_hash))),
                    Known::No if !filter.may_contain(&record.record_id) => {
                        match self.room(judge, &record, message) {
                            Room::Unbound => {
                                self.open.keep(&record, content_hash, offset, clock::now_micros());
                                None
                            }
                            Room::Granted(key) => {
                                self.open.keep(&record, content_hash, offset, clock::now_micros());
                                self.open.spent.add(key, offset);
                                None
                            }
                            Room::UsedUp(refusal) => {
                                self.open.note_over_quota(record.source);
                                Some((judge.whose(&record), Fate::Refused(refusal)))
                            }
                            Room::Unknown => return Some(self.defer(message, judge, copy(), false, now)),
                        }
                    }
                    Known::No | Known::Undecided => {
                        return Some(self.defer(message, judge, copy(), false, now));
                    }
                }
            }
            Verdict::OnBehalf { record, .. } => {
                self.open.pairs.add(record.source, record.tenant_id, record.metric);
                return Some(self.defer(message, judge, copy(), true, now));
            }
            Verdict::Refused(refusal) if refusal.by_registry => {
                return Some(self.defer(message, judge, copy(), true, now));
            }
            Verdict::Marker(heard) => {
                self.open.heard.push(heard);
                Some((Whose::default(), Fate::Marker))
            }
            Verdict::Forward { partition, hops } => {
                Some((Whose::default(), Fate::Forward { partition, hops }))
            }
            Verdict::Refused(refusal) => Some((judge.claims(message, &refusal), Fate::Refused(refusal))),
        };
        let Some((whose, fate)) = why else {
            self.open.note(offset, timestamp, charge, None, now);
            return Some(charge);
        };
        let why = fate.not_kept();
        *self.open.tally.entry((whose, why)).or_default() += 1;
        let mut charge = charge;
        if let Some(action) = fate.action() {
            self.open.outgoing.push(Outgoing { message: copy(), action });
            charge = copied;
        }
        self.open.note(offset, timestamp, charge, Some(why), now);
        Some(charge)
    }

    /// Has a message wait for what only storage, a fresh registry or the database's counters can say; what it takes from the budget.
    fn defer(
        &mut self,
        message: &Envelope<'_>,
        judge: &Judge,
        copy: OwnedMessage,
        by_registry: bool,
        now: Instant,
    ) -> Charge {
        let charge = Charge { records: 1, bytes: message.size() + RECORD_OVERHEAD + message.header_bytes };
        if let Some(record) = judge.claimed(message) {
            self.open.deferred_ids.insert((record.tenant_id, record.record_id));
            if let Some(key) = self.quota_key(judge, &record, message) {
                *self.open.undecided.entry(key).or_default() += 1;
            }
        }
        self.open.deferred.push(Deferred { message: copy, by_registry });
        self.open.note(message.offset, message.timestamp, charge, None, now);
        charge
    }

    /// The batch that takes in rows, if it could be closed now.
    pub fn closable(&self) -> Option<&Open> {
        (self.closed.is_none() && !self.open.is_empty()).then_some(&self.open)
    }

    /// True while a closed batch waits for its answer.
    pub fn is_waiting(&self) -> bool {
        matches!(self.closed, Some(Closed::Waiting(..)))
    }

    /// Closes the open batch, if it is not empty and none is closed. The question is what the batch must know before it can go
    /// on; without one it is ready. `last_question` counts the questions of all ledgers there ever were. A rewind as in `answer`.
    pub fn close(
        &mut self,
        limits: &Limits,
        judge: &Judge,
        filter: &IdFilter,
        last_question: &mut u64,
        now: Instant,
    ) -> (Option<Question>, Option<(Rewind, Charge)>) {
        if self.closable().is_none() {
            return (None, None);
        }
        let next = self.open.next(now);
        let open = std::mem::replace(&mut self.open, next);
        if open.deferred.is_empty() {
            let (decided, cut) = self.decide(open, Rows::default(), limits);
            self.closed = Some(Closed::Ready(Arc::new(decided)));
            return (None, cut.map(|rewind| (rewind, self.drop_open(rewind))));
        }
        let registry = open.deferred.iter().any(|deferred| deferred.by_registry);
        *last_question += 1;
        let asked = Asked { number: *last_question, registry };
        (Some(self.ask(Box::new(open), asked, judge, filter)), None)
    }

    /// Has the batch wait for the answer. Storage is asked only about what could be kept and may be stored: by the filter, which
    /// has all that is durable now; what becomes durable from here on lingers.
    fn ask(&mut self, open: Box<Open>, asked: Asked, judge: &Judge, filter: &IdFilter) -> Question {
        let mut probes = Vec::new();
        let mut counters = HashSet::new();
        for Deferred { message, .. } in &open.deferred {
            let envelope = message.envelope();
            let Some(record) = judge.candidate(&envelope) else { continue };
            counters.extend(self.quota_key(judge, &record, &envelope).filter(|key| !self.is_counted(key)));
            if filter.may_contain(&record.record_id) {
                probes.push(IdProbe {
                    tenant_id: record.tenant_id,
                    metric: record.metric.to_string(),
                    timestamp: record.timestamp.micros(),
                    record_id: record.record_id,
                });
            }
        }
        let pairs = open.pairs.clone();
        self.closed = Some(Closed::Waiting(open, asked));
        self.lingering.clear();
        let counters = counters.into_iter().collect();
        Question { number: asked.number, probes, registry: asked.registry, pairs, counters }
    }

    /// Decides what the closed batch had to leave open; `judge` has a registry read after the batch was closed. If the plan does not
    /// fit, the batch ends earlier and the rest must be delivered again; the charge is what that gives back. If the registry turned
    /// against a record, or a quota holds now, and was not asked for, or the policy point was not asked about a source as the registry
    /// has it now, the batch asks again.
    pub fn answer(
        &mut self,
        answer: &Answer,
        judge: &Judge,
        filter: &IdFilter,
        limits: &Limits,
        last_question: &mut u64,
    ) -> (Option<Question>, Option<(Rewind, Charge)>) {
        if !matches!(self.closed, Some(Closed::Waiting(_, asked)) if asked.number == answer.number) {
            return (None, None);
        }
        let Some(Closed::Waiting(mut open, asked)) = self.closed.take() else { return (None, None) };
        self.learn(&answer.counters, &answer.counts);
        let permitted = |record: &RecordRef<'_>| {
            let attribution = judge.registry.attribution(record.source);
            answer.permissions.allows(record.source, attribution, record.tenant_id, record.metric)
        };
        let (mut registry, mut counters) = (false, false);
        for Deferred { message, .. } in &open.deferred {
            let envelope = message.envelope();
            match judge.judge(&envelope, self.place) {
                Verdict::Refused(refusal) => registry |= refusal.by_registry && !asked.registry,
                Verdict::OnBehalf { record, .. } if permitted(&record).is_none() => {
                    registry = true;
                    open.pairs.add(record.source, record.tenant_id, record.metric);
                }
                Verdict::OnBehalf { record, .. } if permitted(&record) == Some(false) => {}
                Verdict::Record { record, .. } | Verdict::OnBehalf { record, .. } => {
                    let key = self.quota_key(judge, &record, &envelope);
                    counters |= key.is_some_and(|key| !self.is_counted(&key));
                }
                Verdict::Marker(_) | Verdict::Forward { .. } => {}
            }
        }
        if registry || counters {
            *last_question += 1;
            let asked = Asked { number: *last_question, registry: registry || asked.registry };
            return (Some(self.ask(open, asked, judge, filter)), None);
        }
        open.undecided.clear();
        let mut kept = Open::new(open.opened);
        for Deferred { message, .. } in std::mem::take(&mut open.deferred) {
            let envelope = message.envelope();
            let (whose, fate) = match judge.judge(&envelope, self.place) {
                Verdict::OnBehalf { record, .. } if permitted(&record) != Some(true) => {
                    (judge.whose(&record), Fate::Refused(forbidden()))
                }
                Verdict::Record { record, content_hash } | Verdict::OnBehalf { record, content_hash } => {
                    let id = &(record.tenant_id, record.record_id);
                    let earlier = open.hash_of(id).or_else(|| kept.hash_of(id)).or_else(|| self.earlier(id));
                    match earlier.or_else(|| answer.stored.get(id).copied()) {
                        Some(hash) => (judge.whose(&record), repeated(hash, content_hash)),
                        None => {
                            match self.room_behind(judge, &record, &envelope, &[Some(&open), Some(&kept)]) {
                                Room::UsedUp(refusal) => {
                                    open.note_over_quota(record.source);
                                    (judge.whose(&record), Fate::Refused(refusal))
                                }
                                room => {
                                    kept.keep(&record, content_hash, message.offset, clock::now_micros());
                                    if let Room::Granted(key) = room {
                                        kept.spent.add(key, message.offset);
                                    }
                                    continue;
                                }
                            }
                        }
                    }
                }
                Verdict::Marker(heard) => {
                    open.heard.push(heard);
                    (Whose::default(), Fate::Marker)
                }
                Verdict::Forward { partition, hops } => (Whose::default(), Fate::Forward { partition, hops }),
                Verdict::Refused(refusal) => (judge.claims(&envelope, &refusal), Fate::Refused(refusal)),
            };
            *open.tally.entry((whose, fate.not_kept())).or_default() += 1;
            open.not_kept.push((message.offset, fate.not_kept()));
            if let Some(action) = fate.action() {
                open.outgoing.push(Outgoing { message, action });
            }
        }
        open.not_kept.sort_unstable_by_key(|(offset, _)| *offset);
        open.outgoing.sort_unstable_by_key(|outgoing| outgoing.message.offset);
        open.spent.join(kept.spent);
        self.lingering.clear();
        let (decided, cut) = self.decide(*open, kept.rows, limits);
        self.closed = Some(Closed::Ready(Arc::new(decided)));
        (None, cut.map(|rewind| (rewind, self.drop_open(rewind))))
    }

    /// The hash that an earlier batch has for an id: in flight, or durable since the question was asked.
    fn earlier(&self, id: &Identity) -> Option<[u8; 16]> {
        self.in_flight.iter().chain(&self.lingering).find_map(|batch| batch.hash_of(id))
    }

    /// A batch that could go now: none is in flight and this one is decided.
    pub fn ready(&self) -> Option<&Arc<Decided>> {
        match (&self.in_flight, &self.closed) {
            (None, Some(Closed::Ready(decided))) => Some(decided),
            _ => None,
        }
    }

    /// Sends the ready batch on its way.
    pub fn start(&mut self) -> Option<Arc<Decided>> {
        self.ready()?;
        let Some(Closed::Ready(decided)) = self.closed.take() else { return None };
        self.in_flight = Some(decided.clone());
        Some(decided)
    }

    /// The batch in flight is done, but for the rows at `refused`, which storage does not take: its ids belong into the filter now, its
    /// charge is free.
    pub fn finish(&mut self, refused: &[i64]) -> Option<Arc<Decided>> {
        self.count_done(refused);
        let decided = self.in_flight.take()?;
        self.done_seq = decided.batch.batch_seq;
        self.next = decided.last + 1;
        if let Some(Closed::Waiting(..)) = self.closed {
            self.lingering.push(decided.clone());
        }
        Some(decided)
    }

    /// Drops everything behind the batch in flight, or behind what is done: it was decided on something that did not hold.
    pub fn rewind(&mut self) -> (Rewind, Charge) {
        let rewind = Rewind(self.in_flight.as_ref().map_or(self.next, |batch| batch.last + 1));
        let mut charge = Charge::default();
        match self.closed.take() {
            Some(Closed::Waiting(open, _)) => charge.add(open.charge),
            Some(Closed::Ready(decided)) => charge.add(decided.charge),
            None => {}
        }
        self.lingering.clear();
        charge.add(self.drop_open(rewind));
        (rewind, charge)
    }

    /// The plan of the batch in flight is longer than the broker takes: it ends earlier, under the same number.
    pub fn shorten(&mut self, metadata_limit: usize, limits: &mut Limits) -> (Rewind, Charge) {
        limits.not_kept = limits.not_kept.min(not_kept_limit(metadata_limit)).max(1);
        let mut charge = self.in_flight.take().map_or_else(Charge::default, |batch| batch.charge);
        let (rewind, more) = self.rewind();
        charge.add(more);
        (rewind, charge)
    }

    fn drop_open(&mut self, Rewind(offset): Rewind) -> Charge {
        let charge = self.open.charge;
        self.open = Open::new(self.open.opened);
        self.position = offset;
        charge
    }
}
