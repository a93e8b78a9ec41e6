//! Callers come back one after the other.
//!
//! Windows of all subjects end at the same moment: who is refused until then comes back with everybody else. So each is told a
//! time of its own, a little later: by its hash, so that what it is told does not change from answer to answer.

use std::time::Duration;

use crate::rate::{Decision, Reason};

/// Longest that anybody is told to wait beyond the reset, in seconds.
const MOST_SECONDS: u64 = 60;
/// And as a part of the window.
const PART: u64 = 10;

/// The decision as the subject with this hash is told of it: `reset` up to a tenth of the window later, in whole seconds.
pub fn spread(decision: Decision, digest: &[u8; 32]) -> Decision {
    // Nothing is known about its reset.
    if decision.reason == Reason::Degraded {
        return decision;
    }
    let most = (decision.policy.quota.length.as_secs() / PART).min(MOST_SECONDS);
    let place = u64::from(u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]));
    let later = Duration::from_secs((place * (most + 1)) >> 32);
    Decision { reset: decision.reset.saturating_add(later), ..decision }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::{Policy, Quota};

    fn told(window: u64, reset: Duration, first: u8, reason: Reason) -> Duration {
        let quota = Quota::new(1, Duration::from_secs(window));
        let policy = Policy { name: "test".to_owned(), quota };
        let decision = Decision { allowed: false, limit: 1, policy, remaining: Some(0), reset, reason };
        spread(decision, &[first; 32]).reset
    }

    #[test]
    fn nobody_is_told_to_come_too_early_and_nobody_much_too_late() {
        let reset = Duration::from_millis(1_500);
        for (window, most) in [(1, 0), (9, 0), (10, 1), (60, 6), (600, 60), (86_400, 60)] {
            let told: Vec<_> =
                (0..=255).map(|first| told(window, reset, first, Reason::Exceeded) - reset).collect();
            assert_eq!(told.iter().min(), Some(&Duration::ZERO), "{window}");
            assert_eq!(told.iter().max(), Some(&Duration::from_secs(most)), "{window}");
            // Evenly: each second has its share.
            for second in 0..=most {
                let here = told.iter().filter(|later| later.as_secs() == second).count() as u64;
                assert!(
                    (256 / (most + 1)..=256 / (most + 1) + 1).contains(&here),
                    "{window}: {here} at {second}"
                );
            }
        }
    }

    #[test]
    fn what_is_not_known_stays_so() {
        assert_eq!(told(600, Duration::ZERO, 255, Reason::Degraded), Duration::ZERO);
    }
}
