//! What one process knows of its source's window. The caller brings the time, so that no clock has to be waited for in tests.

use std::time::{Duration, Instant};

use usage_limits::Tallied;

/// Why nothing is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The window is full; it ends after this time.
    Full { retry_after: Duration },
    /// The shared count is older than it may be, or was never heard of (`None`).
    Unknown { age: Option<Duration> },
}

/// What is done while the shared count is too old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Staleness {
    pub after: Duration,
    /// Admit by what this process alone has counted, instead of refusing.
    pub open: bool,
}

/// The count of one window: what the database last said, and what was admitted here since.
///
/// `total + flushing + pending` is at least what all processes had admitted when the database was last asked, and all that this one has.
/// What is pending when a window ends is forgotten: it belongs to a window in which nobody can admit any more.
#[derive(Debug)]
pub(crate) struct Count {
    limit: u64,
    length: Duration,
    stale: Staleness,
    /// Of all processes, as the database last said.
    total: u64,
    /// Sent to the database, without an answer yet.
    flushing: u64,
    /// Admitted since the last flush began.
    pending: u64,
    /// Start of the window on the database's clock, in microseconds since the Unix epoch.
    start_micros: i64,
    /// When it ends on this process's monotonic clock; never too early.
    ends: Instant,
    /// When this process began the window by itself, before the database spoke of it.
    rolled: Option<Instant>,
    /// When the last flush with an answer began: all that was counted before is in `total`.
    asked: Option<Instant>,
    largest_unconfirmed: u64,
}

impl Count {
    pub fn new(limit: u64, length: Duration, stale: Staleness, now: Instant) -> Self {
        Self {
            limit,
            length,
            stale,
            total: 0,
            flushing: 0,
            pending: 0,
            start_micros: i64::MIN,
            ends: now + length,
            rolled: None,
            asked: None,
            largest_unconfirmed: 0,
        }
    }

    /// Whether `units` more would be admitted.
    pub fn room(&mut self, units: u64, now: Instant) -> Result<(), Refused> {
        if self.is_stale(now) && !self.stale.open {
            return Err(Refused::Unknown { age: self.age(now) });
        }
        self.roll(now);
        if self.counted().saturating_add(units) > self.limit {
            return Err(Refused::Full { retry_after: self.ends.saturating_duration_since(now) });
        }
        Ok(())
    }

    /// Admits `units`, or none of them.
    pub fn admit(&mut self, units: u64, now: Instant) -> Result<(), Refused> {
        self.room(units, now)?;
        self.pending = self.pending.saturating_add(units);
        Ok(())
    }

    /// What a flush that begins now has to add. After an answer that was lost it is the same again with what came since: counted twice
    /// is refused too early, not counted is never.
    pub fn begin_flush(&mut self, now: Instant) -> u64 {
        self.roll(now);
        self.flushing = self.flushing.saturating_add(std::mem::take(&mut self.pending));
        self.flushing
    }

    /// The answer of a flush that began at `asked`.
    pub fn flushed(&mut self, seen: Tallied, asked: Instant, now: Instant) {
        self.roll(now);
        self.largest_unconfirmed = self.largest_unconfirmed();
        self.flushing = 0;
        self.asked = Some(asked);
        // A statement that read the clock before the edge and answered after it speaks of a window that is over. One that was sent after
        // it shows that the database's clock is behind what was expected, and that clock counts.
        let over = seen.start_micros < self.start_micros && self.rolled.is_some_and(|rolled| asked < rolled);
        if over {
            return;
        }
        self.total = u64::try_from(seen.count).unwrap_or(0);
        self.start_micros = seen.start_micros;
        // Some of the way to the answer is counted twice, so that the window never ends here before it does there.
        self.ends = now + self.length.saturating_sub(seen.elapsed);
        self.rolled = None;
    }

    /// Units that the window holds, as far as is known here.
    pub fn counted(&self) -> u64 {
        self.total.saturating_add(self.flushing).saturating_add(self.pending)
    }

    /// Units that the database has not confirmed.
    pub fn unconfirmed(&self) -> u64 {
        self.flushing.saturating_add(self.pending)
    }

    /// The most that was ever unconfirmed here.
    pub fn largest_unconfirmed(&self) -> u64 {
        self.largest_unconfirmed.max(self.unconfirmed())
    }

    /// How old the shared count is.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.asked.map(|asked| now.saturating_duration_since(asked))
    }

    pub fn is_stale(&self, now: Instant) -> bool {
        self.age(now).is_none_or(|age| age > self.stale.after)
    }

    /// Goes on to the window that `now` is in.
    fn roll(&mut self, now: Instant) {
        let Some(beyond) = now.checked_duration_since(self.ends) else { return };
        self.largest_unconfirmed = self.largest_unconfirmed();
        let passed = beyond.as_nanos() / self.length.as_nanos().max(1) + 1;
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        self.ends += self.length * passed;
        let micros = i64::try_from(self.length.as_micros()).unwrap_or(i64::MAX);
        self.start_micros = self.start_micros.saturating_add(micros.saturating_mul(i64::from(passed)));
        self.rolled = Some(now);
        (self.total, self.flushing, self.pending) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests;
