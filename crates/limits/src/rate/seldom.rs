//! A log line that comes at most once in a while, however often its reason does.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct Seldom(Mutex<(Option<Instant>, u64)>);

impl Seldom {
    /// If the line may be written now: how many were left out since the one before.
    pub fn may(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            state.1 += 1;
            return None;
        }
        let left_out = state.1;
        *state = (Some(now), 0);
        Some(left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_says_how_many_it_stands_for() {
        let (seldom, begin) = (Seldom::default(), Instant::now());
        let at = |millis| seldom.may(begin + Duration::from_millis(millis));
        assert_eq!([at(0), at(1), at(999), at(1_000), at(1_500)], [Some(0), None, None, Some(2), None]);
        assert_eq!(at(60_000), Some(1));
    }
}
