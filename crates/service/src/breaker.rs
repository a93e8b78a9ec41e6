//! A circuit breaker as a plain state machine: the caller brings the time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// When a breaker opens and when it lets a probe through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Consecutive failures that open it.
    pub failures: usize,
    /// The failures must lie within this time.
    pub window: Duration,
    /// How long it stays open before one call may probe.
    pub half_open_after: Duration,
}

impl Default for BreakerConfig {
    /// 5 failures within 10 s; a probe after 30 s.
    fn default() -> Self {
        Self { failures: 5, window: Duration::from_secs(10), half_open_after: Duration::from_secs(30) }
    }
}

/// Whether a call may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permit {
    /// Closed: go ahead.
    Allowed,
    /// Half open: this one call decides; report how it ended.
    Probe,
    /// Open: refuse the call; ask again after the time given.
    Refused(Duration),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Closed,
    Open {
        since: Instant,
    },
    /// A probe is under way. One that never reports (its task was dropped) is given up after the half-open interval.
    Probing {
        since: Instant,
    },
}

/// Opens after consecutive failures, half-opens after a while, closes after a successful probe.
#[derive(Debug, Clone)]
pub struct CircuitBreaker {
    config: BreakerConfig,
    state: State,
    /// Times of consecutive failures, oldest first, at most `config.failures`.
    failures: VecDeque<Instant>,
}

impl CircuitBreaker {
    pub fn new(config: BreakerConfig) -> Self {
        Self { config, state: State::Closed, failures: VecDeque::new() }
    }

    /// Asks for a call. After [`Permit::Allowed`] and [`Permit::Probe`] report the result.
    pub fn permit(&mut self, now: Instant) -> Permit {
        let (State::Open { since } | State::Probing { since }) = self.state else { return Permit::Allowed };
        let waited = now.saturating_duration_since(since);
        if waited < self.config.half_open_after {
            return Permit::Refused(self.config.half_open_after - waited);
        }
        self.state = State::Probing { since: now };
        Permit::Probe
    }

    /// A call succeeded. Closes the breaker, unless the call was begun before it opened and no probe is under way.
    pub fn success(&mut self) {
        if matches!(self.state, State::Open { .. }) {
            return;
        }
        self.state = State::Closed;
        self.failures.clear();
    }

    /// A call failed in a way that speaks against the backend (a refused question does not).
    pub fn failure(&mut self, now: Instant) {
        match self.state {
            State::Closed => {
                self.failures.push_back(now);
                while self.failures.len() > self.config.failures {
                    self.failures.pop_front();
                }
                let oldest = self.failures.front().copied().unwrap_or(now);
                let within = now.saturating_duration_since(oldest) <= self.config.window;
                if self.failures.len() == self.config.failures && within {
                    self.open(now);
                }
            }
            State::Probing { .. } => self.open(now),
            State::Open { .. } => {}
        }
    }

    /// True while calls are refused or a probe is under way.
    pub fn is_open(&self) -> bool {
        self.state != State::Closed
    }

    fn open(&mut self, now: Instant) {
        self.state = State::Open { since: now };
        self.failures.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn opened(start: Instant) -> CircuitBreaker {
        let mut breaker = CircuitBreaker::new(BreakerConfig::default());
        for second in 0..5 {
            assert_eq!(breaker.permit(start + second * SECOND), Permit::Allowed);
            breaker.failure(start + second * SECOND);
        }
        breaker
    }

    #[test]
    fn five_failures_within_ten_seconds_open_it() {
        let start = Instant::now();
        let mut breaker = opened(start);
        assert!(breaker.is_open());
        assert_eq!(breaker.permit(start + 14 * SECOND), Permit::Refused(20 * SECOND));
    }

    #[test]
    fn a_success_in_between_starts_the_count_anew() {
        let start = Instant::now();
        let mut breaker = CircuitBreaker::new(BreakerConfig::default());
        for _ in 0..4 {
            breaker.failure(start);
        }
        breaker.success();
        for _ in 0..4 {
            breaker.failure(start);
        }
        assert_eq!(breaker.permit(start), Permit::Allowed);
        breaker.failure(start);
        assert!(breaker.is_open());
    }

    #[test]
    fn slow_failures_do_not_open_it_until_five_lie_close() {
        let start = Instant::now();
        let mut breaker = CircuitBreaker::new(BreakerConfig::default());
        for step in 0..20 {
            breaker.failure(start + step * 3 * SECOND);
            assert!(!breaker.is_open(), "step {step}");
        }
        let late = start + 58 * SECOND;
        for step in 0..4 {
            breaker.failure(late + step * SECOND);
        }
        assert!(breaker.is_open());
    }

    #[test]
    fn one_probe_at_a_time_decides() {
        let start = Instant::now();
        let mut breaker = opened(start);
        let later = start + 34 * SECOND;
        assert_eq!(breaker.permit(later), Permit::Probe);
        assert!(matches!(breaker.permit(later), Permit::Refused(_)));
        breaker.failure(later + SECOND);
        assert_eq!(breaker.permit(later + 2 * SECOND), Permit::Refused(29 * SECOND));
        let again = later + 31 * SECOND;
        assert_eq!(breaker.permit(again), Permit::Probe);
        breaker.success();
        assert_eq!(breaker.permit(again), Permit::Allowed);
    }

    #[test]
    fn a_probe_that_never_reports_is_given_up() {
        let start = Instant::now();
        let mut breaker = opened(start);
        assert_eq!(breaker.permit(start + 34 * SECOND), Permit::Probe);
        assert_eq!(breaker.permit(start + 64 * SECOND), Permit::Probe);
    }

    #[test]
    fn what_began_before_the_opening_changes_nothing() {
        let start = Instant::now();
        let mut breaker = opened(start);
        breaker.success();
        breaker.failure(start + 20 * SECOND);
        assert_eq!(breaker.permit(start + 24 * SECOND), Permit::Refused(10 * SECOND));
    }
}
