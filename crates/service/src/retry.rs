//! Waiting between attempts.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Exponential backoff with full jitter: attempt n waits a random time up to `min(max, base * 2^n)`.
///
/// Full jitter spreads workers that failed together; a wait is never shorter than a millisecond, so that a fault that comes at once
/// does not become a busy loop.
#[derive(Debug, Clone)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    attempts: u32,
    random: StdRng,
}

impl Backoff {
    /// First bound of [`Backoff::default`].
    pub const BASE: Duration = Duration::from_secs(1);
    /// Last bound of [`Backoff::default`].
    pub const MAX: Duration = Duration::from_secs(60);

    /// `base` bounds the first wait, `max` every wait. A `max` below `base` counts as `base`.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self::with_random(base, max, StdRng::from_os_rng())
    }

    /// The same waits for the same seed, for tests.
    pub fn seeded(base: Duration, max: Duration, seed: u64) -> Self {
        Self::with_random(base, max, StdRng::seed_from_u64(seed))
    }

    fn with_random(base: Duration, max: Duration, random: StdRng) -> Self {
        Self { base, max: max.max(base), attempts: 0, random }
    }

    /// How long to wait before the next attempt.
    #[allow(clippy::should_implement_trait, reason = "an iterator would invite adaptors that lose the state")]
    pub fn next(&mut self) -> Duration {
        let bound = self.bound();
        self.attempts = self.attempts.saturating_add(1);
        let micros = u64::try_from(bound.as_micros()).unwrap_or(u64::MAX);
        let least = micros.min(1_000);
        Duration::from_micros(self.random.random_range(least..=micros))
    }

    /// The greatest wait that [`Backoff::next`] could return now.
    pub fn bound(&self) -> Duration {
        let factor = 1_u32.checked_shl(self.attempts).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.max)
    }

    /// Attempts since the last reset.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// After a success: the next failure waits as the first one did.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

impl Default for Backoff {
    /// 1 s to 60 s.
    fn default() -> Self {
        Self::new(Self::BASE, Self::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn bounds_double_up_to_the_maximum() {
        let mut backoff = Backoff::seeded(SECOND, 60 * SECOND, 7);
        let mut bounds = Vec::new();
        for _ in 0..8 {
            let bound = backoff.bound();
            let wait = backoff.next();
            assert!(wait <= bound && wait >= Duration::from_millis(1), "{wait:?} of {bound:?}");
            bounds.push(bound.as_secs());
        }
        assert_eq!(bounds, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(backoff.attempts(), 8);
    }

    #[test]
    fn reset_starts_over() {
        let mut backoff = Backoff::seeded(SECOND, 60 * SECOND, 7);
        for _ in 0..5 {
            backoff.next();
        }
        backoff.reset();
        assert_eq!((backoff.bound(), backoff.attempts()), (SECOND, 0));
    }

    #[test]
    fn thousands_of_attempts_do_not_overflow() {
        let mut backoff = Backoff::seeded(SECOND, 60 * SECOND, 7);
        for _ in 0..10_000 {
            assert!(backoff.next() <= 60 * SECOND);
        }
    }

    #[test]
    fn jitter_spreads_over_the_whole_range() {
        let waits: Vec<Duration> =
            (0..200).map(|seed| Backoff::seeded(SECOND, SECOND, seed).next()).collect();
        assert!(
            waits.iter().any(|wait| *wait < SECOND / 4) && waits.iter().any(|wait| *wait > 3 * SECOND / 4)
        );
    }

    #[test]
    fn the_same_seed_gives_the_same_waits() {
        let waits = |seed| {
            let mut backoff = Backoff::seeded(SECOND, 60 * SECOND, seed);
            (0..5).map(|_| backoff.next()).collect::<Vec<_>>()
        };
        assert_eq!(waits(1), waits(1));
        assert_ne!(waits(1), waits(2));
    }

    #[test]
    fn odd_bounds_are_taken_as_they_can_be_meant() {
        assert_eq!(Backoff::seeded(2 * SECOND, SECOND, 1).bound(), 2 * SECOND);
        assert_eq!(Backoff::seeded(Duration::ZERO, Duration::ZERO, 1).next(), Duration::ZERO);
    }
}
