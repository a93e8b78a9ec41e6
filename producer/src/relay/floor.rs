//! The floor, and completeness: which ids of the outbox can never appear any more, and up to when everything has gone out.
//!
//! An emitter holds a lock on the table from before it draws an id until its commit is visible. So once every transaction that held the lock
//! just after the sequence stood at `high` has gone, each id up to `high` is visible or never will be. Polls start above the floor, and
//! stay cheap while somebody's long transaction keeps vacuum from removing the rows that were delivered. A transaction that never
//! wrote into the outbox holds nothing up.
//!
//! The same wait proves completeness. A row's `emitted_at` is the clock at its INSERT, under the lock. So once every transaction has gone that
//! held the lock just after the clock stood at T, every row emitted before T is visible or never will be, and a pass that begins then, and
//! from which nothing is left up to the last id handed out by then, has brought all of them to Kafka.
//!
//! All of it is memory of one connection to one start of the server; the rows in the table are the truth.

use std::collections::HashSet;

use crate::pg_time::PgTime;

/// A transaction that holds the outbox's lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    /// `virtualtransaction` of `pg_locks`. A process id would not do: a busy pooled connection is never gone.
    pub transaction: String,
    /// It was prepared for a two-phase commit, which gave it another name: the one under which it emitted has gone.
    pub prepared: bool,
}

/// One look at the database. It is read in the order of the fields, which is what the proofs rest on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Look {
    pub clock: PgTime,
    /// The last id that was handed out.
    pub high: i64,
    /// Who holds the outbox's lock.
    pub holders: HashSet<Holder>,
}

/// A look that contradicts an earlier one of the same connection: nothing that was learnt holds any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WentBack {
    #[error("the database's clock went back")]
    Clock,
    #[error("the outbox's id sequence went back")]
    Sequence,
}

/// What rounds have proven.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Proven {
    /// A scan that starts from now on sees every row up to this id that there will ever be.
    pub ids: i64,
    /// The last id that was handed out at the last look; absent before the first.
    pub high: Option<i64>,
    pub complete: Option<Proof>,
}

/// A pass that begins after this was proven, and leaves no row up to `high`, makes its partition complete until `until`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Proof {
    /// Exclusive, on the database's clock.
    pub until: PgTime,
    high: i64,
    /// Proofs of an earlier series are void, as is what was confirmed by them.
    pub series: u64,
}

/// Rounds of "read the clock and the sequence, then who holds the lock, then wait until those have gone".
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Grows with every start over.
    session: u64,
    series: u64,
    open: Option<Round>,
    /// A round is over whose last id is still to be read: its members may have drawn ids until they ended.
    over: Option<PgTime>,
    /// Of the last look.
    prepared: HashSet<Holder>,
    clock: Option<PgTime>,
    proven: Proven,
}

#[derive(Debug)]
struct Round {
    /// Absent: the round is only for the floor.
    until: Option<PgTime>,
    high: i64,
    holders: HashSet<Holder>,
}

impl Rounds {
    /// Starts from nothing: another connection, or another server.
    pub(crate) fn start_over(&mut self) {
        *self = Self { session: self.session + 1, series: self.series + 1, ..Self::default() };
    }

    /// Voids what is proven or under way of completeness. The floor stands.
    pub(crate) fn void_completeness(&mut self) {
        self.series += 1;
        self.proven.complete = None;
        self.over = None;
        if let Some(round) = &mut self.open {
            round.until = None;
        }
    }

    pub(crate) fn session(&self) -> u64 {
        self.session
    }

    pub(crate) fn series(&self) -> u64 {
        self.series
    }

    pub(crate) fn proven(&self) -> Proven {
        self.proven
    }

    /// Takes in one look.
    ///
    /// # Errors
    /// Clock or sequence are behind the last look's.
    pub(crate) fn observe(&mut self, look: Look) -> Result<(), WentBack> {
        if self.clock.is_some_and(|before| look.clock < before) {
            return Err(WentBack::Clock);
        }
        if self.proven.high.is_some_and(|before| look.high < before) {
            return Err(WentBack::Sequence);
        }
        self.clock = Some(look.clock);
        self.proven.high = Some(look.high);
        if let Some(until) = self.over.take() {
            self.proven.complete = Some(Proof { until, high: look.high, series: self.series });
        }
        if let Some(round) = &mut self.open {
            round.go_on(&look.holders, &self.prepared);
            if round.holders.is_empty() {
                self.proven.ids = self.proven.ids.max(round.high);
                self.over = round.until;
                self.open = None;
            }
        }
        self.prepared = look.holders.iter().filter(|holder| holder.prepared).cloned().collect();
        if self.open.is_none() {
            if look.holders.is_empty() {
                self.proven.ids = self.proven.ids.max(look.high);
                self.over = Some(look.clock);
            } else {
                self.open = Some(Round { until: Some(look.clock), high: look.high, holders: look.holders });
            }
        }
        Ok(())
    }
}

impl Round {
    /// Takes out whoever has gone. A member that was prepared since the last look has gone under its old name only, and which of the newly
    /// prepared ones it is can't be told: all of them are members from now on.
    fn go_on(&mut self, now: &HashSet<Holder>, prepared_before: &HashSet<Holder>) {
        let renamed = self.holders.iter().any(|holder| !holder.prepared && !now.contains(holder));
        self.holders.retain(|holder| now.contains(holder));
        if renamed {
            let newly = now.iter().filter(|holder| holder.prepared && !prepared_before.contains(holder));
            self.holders.extend(newly.cloned());
        }
    }
}

/// The floor of one outbox partition: every row of it that is still to come or to deliver has a greater id.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Floor(i64);

impl Floor {
    pub(crate) fn get(self) -> i64 {
        self.0
    }

    /// Nothing is known any more: another server, another connection, or the look from 0 that is due now and then.
    pub(crate) fn reset(&mut self) {
        self.0 = 0;
    }

    /// Moves up after a pass. `lowest_left` is the lowest id that the pass saw and that is not delivered and deleted.
    pub(crate) fn advance(&mut self, pass: &Pass, lowest_left: Option<i64>) {
        if pass.from != self.0 {
            return;
        }
        let left = lowest_left.map_or(i64::MAX, |id| id - 1);
        self.0 = self.0.max(pass.proven.ids.min(pass.covered).min(left));
    }
}

/// One look through a partition, page by page, from its floor upwards.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pass {
    from: i64,
    proven: Proven,
    covered: i64,
    ended: bool,
}

impl Pass {
    /// Starts above `from`. `proven` has to be read before the first page is asked for.
    pub(crate) fn begin(from: i64, proven: Proven) -> Self {
        Self { from, proven, covered: from, ended: false }
    }

    /// The next page has the ids above this one.
    pub(crate) fn next_page(&self) -> i64 {
        self.covered
    }

    /// A page came whose greatest id is `last`, with all rows of that id. A page that is not full ends the pass, and so does one that reaches what there was when it
    /// began: while rows come faster than they go, it would never end, and rows that commit late lie behind it.
    pub(crate) fn page(&mut self, last: Option<i64>, full: bool) {
        self.covered = if full { last.unwrap_or(self.covered) } else { i64::MAX };
        self.ended = self.covered == i64::MAX || self.proven.high.is_some_and(|high| self.covered >= high);
    }

    /// Whether there is another page of this pass.
    pub(crate) fn more(&self) -> bool {
        !self.ended
    }

    /// Whether it has come to the end of the partition.
    pub(crate) fn saw_the_end(&self) -> bool {
        self.covered == i64::MAX
    }

    /// What the pass confirms by now; `lowest_left` as in [`Floor::advance`].
    pub(crate) fn confirms(&self, lowest_left: Option<i64>) -> Option<Proof> {
        let proof = self.proven.complete?;
        let through = self.covered >= proof.high && lowest_left.is_none_or(|id| id > proof.high);
        through.then_some(proof)
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
