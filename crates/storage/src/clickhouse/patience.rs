//! A deadline that doubles while calls run into it, so that a growing table is not asked in vain for ever.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Longest deadline.
const LONGEST: Duration = Duration::from_secs(160);

#[derive(Debug)]
pub(crate) struct Patience {
    first: Duration,
    timeouts: AtomicU32,
}

impl Patience {
    pub(crate) fn new(first: Duration) -> Self {
        Self { first, timeouts: AtomicU32::new(0) }
    }

    pub(crate) fn deadline(&self) -> Duration {
        doubled(self.first, self.timeouts.load(Ordering::Relaxed), LONGEST)
    }

    pub(crate) fn timed_out(&self) {
        // Nobody counts to 2^32 deadlines.
        self.timeouts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self) {
        self.timeouts.store(0, Ordering::Relaxed);
    }
}

/// `first`, doubled `times` times, at most `longest`.
pub(crate) fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    first.saturating_mul(1 << times.min(16)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_grow_and_come_back() {
        let patience = Patience::new(Duration::from_secs(5));
        let mut seconds = Vec::new();
        for _ in 0..7 {
            seconds.push(patience.deadline().as_secs());
            patience.timed_out();
        }
        assert_eq!(seconds, [5, 10, 20, 40, 80, 160, 160]);
        patience.answered();
        assert_eq!(patience.deadline().as_secs(), 5);
    }
}
