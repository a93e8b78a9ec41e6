//! The floor: which ids of the outbox can never appear any more.
//!
//! An emitter holds a lock on the table from before it draws an id until its commit is visible. So once every transaction that held the lock
//! just after the sequence stood at `high` has gone, each id up to `high` is visible or never will be. Polls start above the floor, and
//! stay cheap while somebody's long transaction keeps vacuum from removing the rows that were delivered. A transaction that never
//! wrote into the outbox holds nothing up.
//!
//! All of it is memory of one connection to one start of the server; the rows in the table are the truth.

use std::collections::HashSet;

/// A transaction that holds the outbox's lock: `virtualtransaction` of `pg_locks`. A process id would not do: a busy pooled
/// connection is never gone.
pub type Holder = String;

/// Rounds of "read the sequence, then who holds the lock, then wait until those have gone".
#[derive(Debug, Default, Clone)]
pub struct Rounds {
    open: Option<Round>,
    proven: i64,
}

#[derive(Debug, Clone)]
struct Round {
    high: i64,
    holders: HashSet<Holder>,
}

impl Rounds {
    /// Takes in one look: `high` is the last id that was handed out, `holders` who held the lock **after** `high` was read. Returns
    /// the greatest id that is proven: a scan that starts from now on sees every row up to it that there will ever be.
    pub fn observe(&mut self, high: i64, holders: HashSet<Holder>) -> i64 {
        if let Some(round) = &mut self.open {
            round.holders.retain(|holder| holders.contains(holder));
            if round.holders.is_empty() {
                self.proven = self.proven.max(round.high);
                self.open = None;
            }
        }
        if self.open.is_none() {
            if holders.is_empty() {
                self.proven = self.proven.max(high);
            } else {
                self.open = Some(Round { high, holders });
            }
        }
        self.proven
    }

    /// The greatest proven id.
    pub fn proven(&self) -> i64 {
        self.proven
    }
}

/// The floor of one outbox partition: every row of it that is still to come or to deliver has a greater id.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Floor(i64);

impl Floor {
    pub fn get(self) -> i64 {
        self.0
    }

    /// Nothing is known any more: another server, another connection, or the look from 0 that is due now and then.
    pub fn reset(&mut self) {
        self.0 = 0;
    }

    /// Moves up after a pass. `lowest_left` is the lowest id that the pass saw and that is not delivered and deleted.
    pub fn advance(&mut self, pass: &Pass, lowest_left: Option<i64>) {
        if pass.from != self.0 {
            return;
        }
        let left = lowest_left.map_or(i64::MAX, |id| id - 1);
        self.0 = self.0.max(pass.proven.min(pass.covered).min(left));
    }
}

/// One look through a partition, page by page, from its floor upwards.
#[derive(Debug, Clone, Copy)]
pub struct Pass {
    from: i64,
    proven: i64,
    covered: i64,
}

impl Pass {
    /// Starts above `from`. `proven` has to be read before the first page is asked for.
    pub fn begin(from: i64, proven: i64) -> Self {
        Self { from, proven, covered: from }
    }

    /// The next page has the ids above this one.
    pub fn next_page(&self) -> i64 {
        self.covered
    }

    /// A page came whose greatest id is `last`; a page that is not full ends the pass.
    pub fn page(&mut self, last: Option<i64>, full: bool) {
        self.covered = if full { last.unwrap_or(self.covered) } else { i64::MAX };
    }

    /// Whether there may be another page.
    pub fn more(&self) -> bool {
        self.covered != i64::MAX
    }
}

#[cfg(test)]
mod tests;
