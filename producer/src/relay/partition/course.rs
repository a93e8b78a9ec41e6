//! Where the worker of a partition reads next.
//!
//! A walk goes from the floor through all rows. While partitions of the topic are closed, walks leave rows lying, and what is new is read
//! beside them, page by page in turn: so whoever writes now waits for one page of the backlog, not for all of it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::relay::floor::{Floor, Pass, Proof, Proven};
use crate::relay::lanes::Lanes;
use crate::relay::rows::RowKey;

/// How often a walk starts from 0, whatever the floor is: a row wrongly below it is late, not lost.
const BELT: Duration = Duration::from_secs(60);
/// While rows are left lying, a whole walk begins this often at most, unless there is a reason.
const SWEEP: Duration = Duration::from_secs(1);

/// Which of the two a page belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Walk,
    /// Behind everything that was seen.
    Tail,
}

/// What is to be read of a partition, and how much of it has been read.
pub(super) struct Course {
    floor: Floor,
    walk: Option<Walk>,
    /// Rows were left lying; everything up to this id was seen.
    tail: Option<i64>,
    sweep_at: Instant,
    belt_at: Instant,
    /// A row has to be looked at again that a walk may have passed.
    soon: bool,
}

struct Walk {
    from: i64,
    pass: Pass,
    /// It goes to the end. Else it is for the partitions whose next attempt is due, and ends once each of them has one.
    whole: bool,
    begun: Instant,
    /// Time of its own pages.
    spent: Duration,
    /// Rows that it saw and that are still there.
    left: BTreeSet<RowKey>,
    last_seen: i64,
    skipped: bool,
}

impl Course {
    pub(super) fn new(now: Instant) -> Self {
        Self { floor: Floor::default(), walk: None, tail: None, sweep_at: now, belt_at: now, soon: false }
    }

    /// Starts from nothing: what was learnt belongs to a connection.
    pub(super) fn reset(&mut self) {
        self.floor.reset();
        self.walk = None;
        self.tail = None;
    }

    /// Another look at what was passed is needed, soon.
    pub(super) fn look_again(&mut self) {
        self.soon = true;
    }

    /// Begins a walk if one is needed and none is under way. `proven` is what rounds have proven by now.
    pub(super) fn begin(&mut self, now: Instant, proven: Proven, lanes: &mut Lanes) {
        if self.walk.is_some() {
            // It may have passed what has opened since: the reason stays for the next one.
            return;
        }
        let reopened = lanes.take_reopened();
        let timely = now >= self.belt_at || now >= self.sweep_at;
        let whole = self.tail.is_none() || std::mem::take(&mut self.soon) || reopened || timely;
        if !whole && !lanes.is_due(now) {
            return;
        }
        if now >= self.belt_at {
            self.floor.reset();
        }
        let from = self.floor.get();
        self.walk = Some(Walk {
            from,
            pass: Pass::begin(from, proven),
            whole,
            begun: now,
            spent: Duration::ZERO,
            left: BTreeSet::new(),
            last_seen: from,
            skipped: false,
        });
    }

    /// Whether a walk is under way.
    pub(super) fn is_walking(&self) -> bool {
        self.walk.is_some()
    }

    /// The next page has the rows above this id. `None`: there is nothing to read of this part.
    pub(super) fn next(&self, part: Part) -> Option<i64> {
        match part {
            Part::Walk => self.walk.as_ref().map(|walk| walk.pass.next_page()),
            Part::Tail => self.tail,
        }
    }

    /// A page was read; `full`: there may be another one.
    pub(super) fn read(&mut self, part: Part, keys: impl IntoIterator<Item = RowKey>, full: bool) {
        match (part, &mut self.walk) {
            (Part::Walk, Some(walk)) => {
                let mut last = None;
                for key in keys {
                    last = Some(key.id);
                    walk.left.insert(key);
                }
                walk.last_seen = last.unwrap_or(walk.last_seen);
                walk.pass.page(last, full);
            }
            (Part::Walk, None) => {}
            (Part::Tail, _) => {
                let last = keys.into_iter().last().map(|key| key.id);
                self.tail = self.tail.map(|seen| last.map_or(seen, |last| seen.max(last)));
            }
        }
    }

    /// Rows that are no longer there.
    pub(super) fn gone<'a>(&mut self, keys: impl IntoIterator<Item = &'a RowKey>) {
        if let Some(walk) = &mut self.walk {
            for key in keys {
                walk.left.remove(key);
            }
        }
    }

    /// A page of the walk has been dealt with, which took `spent`; `skipped`: some of its rows were left lying. Ends the walk if that was
    /// all of it. Returns what the walk has confirmed by now.
    pub(super) fn walked(
        &mut self,
        skipped: bool,
        spent: Duration,
        now: Instant,
        lanes: &mut Lanes,
    ) -> Option<Proof> {
        let mut walk = self.walk.take()?;
        walk.skipped |= skipped;
        walk.spent += spent;
        let lowest_left = walk.left.first().map(|key| key.id);
        let confirmed = walk.pass.confirms(lowest_left);
        if walk.pass.more() {
            if walk.whole || lanes.is_due(now) {
                self.walk = Some(walk);
            }
            return confirmed;
        }
        self.floor.advance(&walk.pass, lowest_left);
        if walk.pass.saw_the_end() {
            lanes.open_unused(walk.begun);
        }
        if walk.from == 0 {
            self.belt_at = now + BELT;
        }
        // A walk reads everything that is left lying again: it may take a tenth of the time.
        self.sweep_at = now + SWEEP.max(walk.spent * 10);
        self.tail = walk.skipped.then(|| self.tail.unwrap_or(0).max(walk.last_seen));
        confirmed
    }
}

#[cfg(test)]
mod tests;
