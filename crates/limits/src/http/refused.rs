//! Refusals that still hold, so that whoever floods costs no statement.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::rate::{Decision, Reason};

/// Subjects that one rule remembers: about 3 MiB. Beyond these the database is asked.
const MOST: usize = 10_000;
/// How often a full memory is looked through for what is over.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The refused subjects of one rule, by the hash that also names their buckets, until when.
#[derive(Debug)]
pub struct Refused {
    most: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    until: HashMap<[u8; 32], (Instant, Decision)>,
    swept: Option<Instant>,
}

impl Default for Refused {
    fn default() -> Self {
        Self::of_at_most(MOST)
    }
}

impl Refused {
    fn of_at_most(most: usize) -> Self {
        Self { most, inner: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The refusal as the database would repeat it: until its reset a window only gets fuller.
    pub fn decision(&self, subject: &[u8; 32], now: Instant) -> Option<Decision> {
        let mut inner = self.inner();
        let (until, decision) = inner.until.get(subject)?;
        let reset = until.saturating_duration_since(now);
        if reset.is_zero() {
            inner.until.remove(subject);
            return None;
        }
        Some(Decision { reset, ..decision.clone() })
    }

    /// Remembers what exceeded its limit. `asked` is the moment before the question: the reset counts from the database's clock,
    /// which was read later, so nothing is refused longer than there.
    pub fn remember(&self, subject: [u8; 32], decision: &Decision, asked: Instant) {
        if decision.reason != Reason::Exceeded {
            return;
        }
        let mut inner = self.inner();
        let due = inner.swept.is_none_or(|swept| asked.saturating_duration_since(swept) >= SWEEP_EVERY);
        if inner.until.len() >= self.most && due {
            inner.until.retain(|_, (until, _)| *until > asked);
            inner.swept = Some(asked);
        }
        let Some(until) = asked.checked_add(decision.reset) else { return };
        if inner.until.len() < self.most || inner.until.contains_key(&subject) {
            inner.until.insert(subject, (until, decision.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::{Quota, Rule};

    const SECOND: Duration = Duration::from_secs(1);

    fn decision(reset: Duration, reason: Reason) -> Decision {
        let policy = Rule::new("test", &[Quota::new(1, SECOND)]).unwrap().policies().remove(0);
        Decision { allowed: false, limit: 1, policy, remaining: Some(0), reset, reason }
    }

    #[test]
    fn a_refusal_holds_until_its_reset_which_comes_nearer() {
        let (refused, begin) = (Refused::default(), Instant::now());
        refused.remember([1; 32], &decision(3 * SECOND, Reason::Exceeded), begin);
        let again = refused.decision(&[1; 32], begin + SECOND).unwrap();
        assert_eq!(again, decision(2 * SECOND, Reason::Exceeded));
        assert_eq!(refused.decision(&[2; 32], begin), None);
        assert_eq!(refused.decision(&[1; 32], begin + 3 * SECOND), None);
        assert!(refused.inner().until.is_empty(), "what is over is forgotten");
    }

    #[test]
    fn only_what_was_counted_as_too_much_is_remembered() {
        let (refused, begin) = (Refused::default(), Instant::now());
        refused.remember([1; 32], &decision(SECOND, Reason::Degraded), begin);
        refused.remember([1; 32], &decision(SECOND, Reason::Allowed), begin);
        assert_eq!(refused.decision(&[1; 32], begin), None);
    }

    #[test]
    fn a_full_memory_takes_more_when_something_is_over_and_looks_seldom() {
        let (refused, begin) = (Refused::of_at_most(2), Instant::now());
        let at = |quarters: u32| begin + SECOND / 4 * quarters;
        let remember = |subject: u8, resets: Duration, quarters| {
            refused.remember([subject; 32], &decision(resets, Reason::Exceeded), at(quarters));
            refused.decision(&[subject; 32], at(quarters)).is_some()
        };
        assert!(remember(1, SECOND / 2, 0) && remember(2, 60 * SECOND, 0));
        assert!(!remember(3, 60 * SECOND, 0), "full");
        assert!(remember(2, 90 * SECOND, 0), "who is there already stays");
        assert!(!remember(3, 60 * SECOND, 3), "looked through less than a second ago");
        assert!(remember(3, 60 * SECOND, 4));
        assert_eq!(refused.inner().until.len(), 2);
    }
}
