//! What a relay may say about completeness, and when; plain functions on what the database has shown.

use std::time::Duration;

use usage_schemas::Timestamp;

use crate::pg_time::PgTime;

/// Between two markers of an outbox into which nobody emits.
pub(super) const IDLE: Duration = Duration::from_secs(10);

/// What the database says before anything is stored or sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    pub clock: PgTime,
    /// The last id that was handed out.
    pub high: i64,
    /// An id that some row has above it.
    pub beyond: Option<i64>,
    /// Least and greatest `complete_until` of the partitions.
    pub least: PgTime,
    pub greatest: PgTime,
    pub hold_until: PgTime,
}

/// Why no marker may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Alarm {
    #[error(
        "the id sequence of the outbox stands at {high}, but a row has id {beyond}: run `usagectl outbox repair`"
    )]
    SequenceBehind { high: i64, beyond: i64 },
    #[error("the database's clock went back: completeness waits until it has passed {until}")]
    ClockBehind { until: PgTime },
    #[error(
        "the outbox refuses what markers need: run `usagectl outbox migrate`, and look at the relay's rights"
    )]
    Refused,
}

impl Alarm {
    /// The label `reason`.
    pub(crate) const REASONS: [&str; 3] = ["sequence_behind", "clock_behind", "refused"];

    pub(crate) fn reason(self) -> &'static str {
        let [sequence, clock, refused] = Self::REASONS;
        match self {
            Self::SequenceBehind { .. } => sequence,
            Self::ClockBehind { .. } => clock,
            Self::Refused => refused,
        }
    }
}

impl State {
    /// What forbids markers. Behind a lagging sequence nothing may be stored either: rows with ids that were never handed out are missed
    /// by a pass that ends where the sequence stands.
    pub(super) fn alarm(&self) -> Option<Alarm> {
        if let Some(beyond) = self.beyond {
            return Some(Alarm::SequenceBehind { high: self.high, beyond });
        }
        let until = self.hold_until.max(self.new_hold().unwrap_or(PgTime::NEG_INFINITY));
        (self.least <= until && until > PgTime::NEG_INFINITY).then_some(Alarm::ClockBehind { until })
    }

    /// A clock that is behind what it once said has to be remembered until every partition is complete beyond that: what is emitted
    /// meanwhile is older than what some partition claims.
    pub(super) fn new_hold(&self) -> Option<PgTime> {
        (self.clock < self.greatest).then_some(self.greatest)
    }
}

/// Up to when a source is complete: all partitions are, and nothing of it waits that is older. `None`: not known.
pub(crate) fn until(partitions: PgTime, oldest_waiting: Option<PgTime>) -> Option<Timestamp> {
    let until = oldest_waiting.map_or(partitions, |oldest| oldest.min(partitions));
    until.timestamp()
}

/// How often markers are due: each second, and seldom once all that was emitted is said to be complete.
#[derive(Debug, Default)]
pub(super) struct Pace {
    high: Option<i64>,
    /// Something was last emitted about here.
    busy_at: Option<PgTime>,
    /// All partitions of this relay are complete until here.
    settled: Option<PgTime>,
}

impl Pace {
    /// Takes in a look; `open`: somebody is still emitting.
    pub(super) fn looked(&mut self, clock: PgTime, high: i64, open: bool) {
        if self.high != Some(high) || open {
            self.high = Some(high);
            self.busy_at = Some(clock);
        }
    }

    pub(super) fn settle(&mut self, until: Option<PgTime>) {
        self.settled = until;
    }

    /// Whether a turn is due, `since` the last one.
    pub(super) fn is_due(&self, since: Duration) -> bool {
        let idle = self.settled.is_some_and(|settled| self.busy_at.is_none_or(|busy| settled > busy));
        !idle || since >= IDLE
    }
}

#[cfg(test)]
mod tests;
