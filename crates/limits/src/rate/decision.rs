//! From what the statement counted to a decision.

use std::time::Duration;

use super::rule::{Algorithm, OnError, Policy, Quota, Rule};

/// Why a request was let through or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Counted, within the limit.
    Allowed,
    /// Over the limit; not counted in the window that decided.
    Exceeded,
    /// The database could not be asked in time: the rule's [`OnError`] decided.
    Degraded,
}

/// What the rule says about one request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Decision {
    pub allowed: bool,
    /// The quota that decided: the one that refused and takes longest, else the one with least left.
    pub policy: Policy,
    pub limit: i32,
    /// Units left in that window; unknown when degraded.
    pub remaining: Option<i32>,
    /// After a refusal: when the same request would fit, if nobody else came (a window's length for a cost above the limit,
    /// which never fits). Else: until the window ends; zero when degraded.
    pub reset: Duration,
    pub reason: Reason,
}

/// One window as the statement saw it.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Microseconds since the window's start.
    pub elapsed: i64,
    /// Its count when the statement began.
    pub count: i32,
    /// The count of the window before; 0 for fixed windows.
    pub previous: i32,
    /// Its count with this request, unless it was refused.
    pub counted: Option<i32>,
}

/// What the windows, shortest first, mean for a request of this cost.
pub fn decide(rule: &Rule, cost: i32, windows: &[Seen]) -> Decision {
    let policies = rule.policies();
    let all = || policies.iter().zip(windows);
    if windows.iter().all(|seen| seen.counted.is_some()) {
        let (left, policy, seen) = all()
            .map(|(policy, seen)| {
                (left(policy.quota, seen, seen.counted.unwrap_or(seen.count)), policy, seen)
            })
            // Of equals the longer: what it lacks takes longer to come back.
            .min_by_key(|(left, policy, _)| (*left, std::cmp::Reverse(policy.quota.length)))
            .unwrap_or_else(|| unreachable!("a rule has at least one window"));
        let reset = micros(policy.quota.micros() - seen.elapsed);
        return of(policy, true, Some(left), reset, Reason::Allowed);
    }
    let lacking = |policy: &Policy, seen: &Seen| left(policy.quota, seen, seen.count) < cost;
    let refused = all()
        .filter(|(policy, seen)| lacking(policy, seen))
        .map(|(policy, seen)| (wait(policy.quota, rule.algorithm(), cost, seen), policy, seen))
        .max_by_key(|(wait, ..)| *wait)
        // None lacked room when the statement began: others took it meanwhile, in the first window that was not counted.
        .or_else(|| {
            let (policy, seen) = all().find(|(_, seen)| seen.counted.is_none())?;
            let filled =
                Seen { count: seen.count + left(policy.quota, seen, seen.count) - cost + 1, ..*seen };
            Some((wait(policy.quota, rule.algorithm(), cost, &filled), policy, seen))
        });
    let (wait, policy, seen) = refused.unwrap_or_else(|| unreachable!("some window was not counted"));
    // What the statement saw may be old; at least it is known that the cost did not fit.
    let left = left(policy.quota, seen, seen.count).clamp(0, cost - 1);
    of(policy, false, Some(left), micros(wait), Reason::Exceeded)
}

/// The decision without the database.
pub fn degraded(rule: &Rule) -> Decision {
    let policies = rule.policies();
    of(&policies[0], rule.on_error() == OnError::Open, None, Duration::ZERO, Reason::Degraded)
}

fn of(policy: &Policy, allowed: bool, remaining: Option<i32>, reset: Duration, reason: Reason) -> Decision {
    Decision { allowed, limit: policy.quota.limit, policy: policy.clone(), remaining, reset, reason }
}

/// Units left when the window has `count` of its own.
fn left(quota: Quota, seen: &Seen, count: i32) -> i32 {
    let (previous, length) = (i128::from(seen.previous), i128::from(quota.micros()));
    let weighted = (previous * (length - i128::from(seen.elapsed)) + length - 1).div_euclid(length);
    let left = i128::from(quota.limit) - weighted - i128::from(count);
    i32::try_from(left.max(0)).unwrap_or(0)
}

/// Microseconds until `cost` fits.
fn wait(quota: Quota, algorithm: Algorithm, cost: i32, seen: &Seen) -> i64 {
    let length = quota.micros();
    let to_end = length - seen.elapsed;
    if algorithm == Algorithm::Fixed || cost > quota.limit {
        return if cost > quota.limit { length } else { to_end };
    }
    // A count of `weight` shrinks to at most `room` once `length - length × room / weight` of the next window has passed.
    let shrunk = |weight: i32, room: i32| match weight {
        0 => 0,
        _ => {
            let kept = i128::from(length) * i128::from(room) / i128::from(weight);
            i64::try_from(i128::from(length) - kept).unwrap_or(0).max(0)
        }
    };
    let room = quota.limit - seen.count - cost;
    if room >= 0 {
        (shrunk(seen.previous, room) - seen.elapsed).max(0)
    } else {
        // This window's own count is too much; it has to become the one before.
        to_end + shrunk(seen.count, quota.limit - cost)
    }
}

fn micros(count: i64) -> Duration {
    Duration::from_micros(u64::try_from(count).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: i64 = 1_000_000;

    fn rule(quotas: &[(i32, u64)]) -> Rule {
        let quotas: Vec<_> =
            quotas.iter().map(|(limit, length)| Quota::new(*limit, Duration::from_secs(*length))).collect();
        Rule::new("test", &quotas).unwrap()
    }

    fn seen(elapsed: i64, count: i32, counted: Option<i32>) -> Seen {
        Seen { elapsed, count, previous: 0, counted }
    }

    #[test]
    fn the_window_with_least_left_speaks_for_an_allowed_request() {
        let rule = rule(&[(10, 1), (100, 60)]);
        let decision = decide(&rule, 1, &[seen(0, 0, Some(1)), seen(20 * SECOND, 97, Some(98))]);
        assert_eq!((decision.allowed, decision.reason), (true, Reason::Allowed));
        assert_eq!(decision.policy.name, "test-60s");
        assert_eq!((decision.limit, decision.remaining), (100, Some(2)));
        assert_eq!(decision.reset, Duration::from_secs(40));
    }

    #[test]
    fn of_several_full_windows_the_one_that_takes_longest_speaks() {
        let rule = rule(&[(10, 1), (100, 60)]);
        let decision = decide(&rule, 3, &[seen(SECOND / 2, 9, None), seen(20 * SECOND, 98, None)]);
        assert_eq!((decision.allowed, decision.reason), (false, Reason::Exceeded));
        assert_eq!(decision.policy.name, "test-60s");
        assert_eq!((decision.remaining, decision.reset), (Some(2), Duration::from_secs(40)));
    }

    #[test]
    fn a_window_that_others_filled_meanwhile_has_nothing_left_for_this_cost() {
        let rule = rule(&[(10, 1), (100, 60)]);
        let decision = decide(&rule, 1, &[seen(0, 3, Some(4)), seen(20 * SECOND, 98, None)]);
        assert_eq!((decision.policy.name.as_str(), decision.remaining), ("test-60s", Some(0)));
        assert_eq!(decision.reset, Duration::from_secs(40));
    }

    #[test]
    fn the_rule_says_what_happens_without_the_database() {
        let open = degraded(&rule(&[(10, 1)]));
        assert_eq!((open.allowed, open.remaining, open.reason), (true, None, Reason::Degraded));
        assert!(!degraded(&rule(&[(10, 1)]).fail_closed()).allowed);
    }

    #[test]
    fn a_cost_above_the_limit_waits_for_a_window() {
        let decision = decide(&rule(&[(10, 60)]).sliding(), 11, &[seen(0, 0, None)]);
        assert_eq!((decision.remaining, decision.reset), (Some(10), Duration::from_secs(60)));
    }

    proptest! {
        #[test]
        fn a_sliding_window_has_room_after_the_wait_and_not_before(
            limit in 1..1_000, length in 1..100_000_u64, part in 0..1_000_i64, count in 0..1_000_i32, previous in 0..1_000_i32,
            cost in 1..10,
        ) {
            let quota = Quota::new(limit, Duration::from_secs(length));
            let elapsed = quota.micros() / 1_000 * part;
            let now = Seen { elapsed, count: count.min(limit), previous: previous.min(limit), counted: None };
            let fits = |later: i64| {
                let at = now.elapsed + later;
                let then = match at - quota.micros() {
                    past if past < 0 => Seen { elapsed: at, ..now },
                    past if past < quota.micros() => Seen { elapsed: past, count: 0, previous: now.count, counted: None },
                    past => Seen { elapsed: past - quota.micros(), count: 0, previous: 0, counted: None },
                };
                left(quota, &then, then.count) >= cost
            };
            prop_assume!(cost <= limit && !fits(0));
            let wait = wait(quota, Algorithm::Sliding, cost, &now);
            prop_assert!(fits(wait), "{now:?} does not fit after {wait}");
            prop_assert!(!fits(wait - 1), "{now:?} fits before {wait}");
        }
    }
}
