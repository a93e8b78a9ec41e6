//! The partitions of the topic as one outbox partition sees them: which of them take messages just now.
//!
//! A partition without a leader must not hold up the others: it is left out until its next attempt, and what is on the way to it is not
//! waited for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use usage_service::retry::Backoff;

/// Messages of one attempt at a partition that failed before.
const PROBE: usize = 64;

#[derive(Debug)]
struct Lane {
    in_flight: usize,
    state: State,
    backoff: Backoff,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Takes messages.
    Open,
    /// Does not answer within the time that a healthy one needs.
    Slow,
    /// The last attempt failed.
    Failing { retry_at: Instant },
}

/// State of all partitions of the topic.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: HashMap<i32, Lane>,
    base: Duration,
    max: Duration,
    reopened: bool,
}

impl Lanes {
    pub(crate) fn new(base: Duration, max: Duration) -> Self {
        Self { lanes: HashMap::new(), base, max, reopened: false }
    }

    /// Whether a message may go to the partition now; if so it counts as on its way.
    pub(crate) fn admit(&mut self, partition: i32, now: Instant) -> bool {
        let lane = self.lanes.entry(partition).or_insert_with(|| Lane {
            in_flight: 0,
            state: State::Open,
            backoff: Backoff::new(self.base, self.max),
        });
        let admitted = match lane.state {
            State::Open => true,
            State::Slow => false,
            State::Failing { retry_at } => now >= retry_at && lane.in_flight < PROBE,
        };
        if admitted {
            lane.in_flight += 1;
        }
        admitted
    }

    /// A message that was admitted has arrived.
    pub(crate) fn delivered(&mut self, partition: i32) {
        let Some(lane) = self.landed(partition) else { return };
        let opens = match lane.state {
            State::Open => false,
            State::Slow => lane.in_flight == 0,
            State::Failing { .. } => true,
        };
        lane.backoff.reset();
        if opens {
            lane.state = State::Open;
            self.reopened = true;
        }
    }

    /// A message that was admitted has failed in a way that may pass. Returns the wait if it begins now.
    pub(crate) fn failed(&mut self, partition: i32, now: Instant) -> Option<Duration> {
        let lane = self.landed(partition)?;
        // One outage fails a whole batch: only its first message counts.
        if matches!(lane.state, State::Failing { retry_at } if now < retry_at) {
            return None;
        }
        let wait = lane.backoff.next();
        lane.state = State::Failing { retry_at: now + wait };
        Some(wait)
    }

    /// A message that was admitted was not sent, or was refused for what it is.
    pub(crate) fn withdrawn(&mut self, partition: i32) {
        if let Some(lane) = self.landed(partition)
            && lane.state == State::Slow
            && lane.in_flight == 0
        {
            lane.state = State::Open;
            self.reopened = true;
        }
    }

    fn landed(&mut self, partition: i32) -> Option<&mut Lane> {
        let lane = self.lanes.get_mut(&partition)?;
        lane.in_flight = lane.in_flight.saturating_sub(1);
        Some(lane)
    }

    /// Messages on the way to partitions that answer.
    pub(crate) fn awaited(&self) -> usize {
        self.lanes.values().filter(|lane| lane.state == State::Open).map(|lane| lane.in_flight).sum()
    }

    /// No longer waits for those that have not answered.
    pub(crate) fn stop_awaiting(&mut self) {
        for lane in self.lanes.values_mut().filter(|lane| lane.state == State::Open && lane.in_flight > 0) {
            lane.state = State::Slow;
        }
    }

    /// Whether none of `count` partitions takes a message now.
    pub(crate) fn all_closed(&self, count: i32, now: Instant) -> bool {
        let closed = |lane: &&Lane| match lane.state {
            State::Open => false,
            State::Slow => true,
            State::Failing { retry_at } => now < retry_at || lane.in_flight >= PROBE,
        };
        usize::try_from(count).is_ok_and(|count| self.lanes.values().filter(closed).count() >= count)
    }

    /// Whether a partition has opened since the last time this was asked.
    pub(crate) fn take_reopened(&mut self) -> bool {
        std::mem::take(&mut self.reopened)
    }

    /// Whether the next attempt at some partition is due and has not begun.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.lanes.values().any(|lane| {
            matches!(lane.state, State::Failing { retry_at } if now >= retry_at && lane.in_flight == 0)
        })
    }

    /// Opens the partitions whose next attempt was due at `then` and for which there was nothing to attempt.
    pub(crate) fn open_unused(&mut self, then: Instant) {
        for lane in self.lanes.values_mut() {
            if matches!(lane.state, State::Failing { retry_at } if retry_at <= then) && lane.in_flight == 0 {
                lane.state = State::Open;
            }
        }
    }

    /// Whether the last attempt at some partition failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.lanes.values().any(|lane| matches!(lane.state, State::Failing { .. }))
    }

    /// The longest wait that is on, for the gauge.
    pub(crate) fn longest_wait(&self, now: Instant) -> Duration {
        let wait = |lane: &Lane| match lane.state {
            State::Failing { retry_at } => retry_at.saturating_duration_since(now),
            _ => Duration::ZERO,
        };
        self.lanes.values().map(wait).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Duration = Duration::from_secs(1);

    fn lanes() -> Lanes {
        Lanes::new(BASE, 60 * BASE)
    }

    #[test]
    fn an_open_partition_takes_everything_and_is_awaited() {
        let (mut lanes, now) = (lanes(), Instant::now());
        for _ in 0..1000 {
            assert!(lanes.admit(3, now));
        }
        assert_eq!(lanes.awaited(), 1000);
        for _ in 0..1000 {
            lanes.delivered(3);
        }
        assert_eq!(lanes.awaited(), 0);
        assert!(!lanes.take_reopened() && !lanes.is_due(now));
    }

    #[test]
    fn a_failed_batch_waits_once_and_then_probes() {
        let (mut lanes, now) = (lanes(), Instant::now());
        for _ in 0..100 {
            assert!(lanes.admit(0, now));
        }
        let wait = lanes.failed(0, now).unwrap();
        assert!(wait <= BASE);
        for _ in 0..99 {
            assert_eq!(lanes.failed(0, now), None, "one outage, one wait");
        }
        assert!(!lanes.admit(0, now) && lanes.admit(1, now), "the others go on");
        let later = now + BASE;
        assert!(lanes.is_due(later) && !lanes.take_reopened());
        assert_eq!((0..200).filter(|_| lanes.admit(0, later)).count(), PROBE);
        assert!(!lanes.is_due(later), "an attempt is on its way");
        assert_eq!(lanes.awaited(), 1, "a probe is not waited for");
        lanes.delivered(0);
        assert!(lanes.take_reopened() && lanes.admit(0, later));
    }

    #[test]
    fn waits_grow_while_probes_fail_and_start_over_after_success() {
        let (mut lanes, mut now) = (lanes(), Instant::now());
        let mut longest = Duration::ZERO;
        for _ in 0..200 {
            assert!(lanes.admit(0, now));
            longest = longest.max(lanes.failed(0, now).unwrap());
            now += 60 * BASE;
        }
        assert!(longest > 8 * BASE && longest <= 60 * BASE, "{longest:?}");
        assert!(lanes.admit(0, now));
        lanes.delivered(0);
        assert!(lanes.admit(0, now));
        assert!(lanes.failed(0, now).unwrap() <= BASE);
    }

    #[test]
    fn a_slow_partition_is_left_out_until_all_of_it_has_landed() {
        let (mut lanes, now) = (lanes(), Instant::now());
        assert!(lanes.admit(0, now) && lanes.admit(0, now) && lanes.admit(1, now));
        lanes.delivered(1);
        lanes.stop_awaiting();
        assert_eq!(lanes.awaited(), 0);
        assert!(!lanes.admit(0, now) && lanes.admit(1, now));
        lanes.delivered(0);
        assert!(!lanes.admit(0, now));
        lanes.withdrawn(0);
        assert!(lanes.take_reopened() && lanes.admit(0, now));
    }

    #[test]
    fn all_closed_needs_every_partition() {
        let (mut lanes, now) = (lanes(), Instant::now());
        assert!(lanes.admit(0, now));
        lanes.failed(0, now);
        assert!(!lanes.all_closed(2, now) && lanes.all_closed(1, now));
        assert!(lanes.admit(1, now));
        lanes.stop_awaiting();
        assert!(lanes.all_closed(2, now));
        assert!(!lanes.all_closed(2, now + BASE), "an attempt is due");
        assert!(lanes.is_failing());
        assert!(lanes.longest_wait(now) <= BASE && lanes.longest_wait(now + BASE) == Duration::ZERO);
    }

    #[test]
    fn an_attempt_without_rows_opens_the_partition() {
        let (mut lanes, now) = (lanes(), Instant::now());
        assert!(lanes.admit(0, now));
        lanes.failed(0, now);
        lanes.open_unused(now);
        assert!(!lanes.admit(0, now) && lanes.is_failing(), "its attempt is not due");
        lanes.open_unused(now + BASE);
        assert!(lanes.admit(0, now) && !lanes.is_failing());
    }
}
