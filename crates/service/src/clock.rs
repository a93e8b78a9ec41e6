//! The only reader of the wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;

/// Microseconds since the Unix epoch. A clock before 1970 counts as the epoch, one beyond the year 294,000 as that year.
pub fn now_micros() -> i64 {
    #[allow(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    #[cfg(any(test, feature = "failpoints"))]
    let micros = testing::wrong_by(micros);
    micros
}

/// A wall clock that is wrong, for tests of what must not depend on it.
#[cfg(any(test, feature = "failpoints"))]
pub mod testing {
    use std::cell::Cell;

    thread_local! {
        static STEP: Cell<i64> = const { Cell::new(0) };
    }

    /// From now on the wall clock of this thread is wrong by so many microseconds; 0 sets it right.
    pub fn step(micros: i64) {
        STEP.set(micros);
    }

    pub(super) fn wrong_by(micros: i64) -> i64 {
        micros.saturating_add(STEP.get())
    }
}

/// Milliseconds since the Unix epoch.
pub fn now_millis() -> i64 {
    now_micros() / 1_000
}

/// The present time in UTC, cut to microseconds, for the libraries that speak the `time` crate.
pub fn now() -> OffsetDateTime {
    from_micros(now_micros())
}

/// A time from microseconds since the Unix epoch. What lies beyond the years that `time` knows becomes its first or last second.
pub fn from_micros(micros: i64) -> OffsetDateTime {
    const LAST: i64 = 253_402_300_799; // 9999-12-31T23:59:59Z
    const FIRST: i64 = -377_705_116_800; // -9999-01-01T00:00:00Z
    let nanos = i128::from(micros) * 1_000;
    OffsetDateTime::from_unix_timestamp_nanos(nanos).unwrap_or_else(|_| {
        let bound = if micros < 0 { FIRST } else { LAST };
        OffsetDateTime::from_unix_timestamp(bound).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    })
}

/// Microseconds since the Unix epoch of a time.
pub fn to_micros(time: OffsetDateTime) -> i64 {
    let micros = time.unix_timestamp_nanos().div_euclid(1_000);
    i64::try_from(micros).unwrap_or(if micros < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micros_survive_the_way_through_time() {
        for micros in [0, 1, -1, 1_700_000_000_123_456, -62_135_596_800_000_000] {
            assert_eq!(to_micros(from_micros(micros)), micros);
        }
    }

    #[test]
    fn far_times_stop_at_the_bounds() {
        assert_eq!(from_micros(i64::MAX).year(), 9999);
        assert_eq!(from_micros(i64::MIN).year(), -9999);
    }

    #[test]
    fn a_step_moves_the_clock_of_one_thread() {
        let hour = 3_600_000_000;
        let before = now_micros();
        testing::step(hour);
        let ahead = now_micros();
        let other = std::thread::spawn(now_micros).join().unwrap();
        testing::step(0);
        assert!(ahead - before >= hour && other - before < hour && now_micros() - before < hour);
    }

    #[test]
    fn the_clocks_agree() {
        let before = now_micros();
        let middle = to_micros(now());
        assert!(before <= middle && middle <= now_micros());
        assert!(now_millis() >= before / 1_000);
        // Later than this file, so not in seconds or milliseconds by mistake.
        assert!(before > 1_700_000_000_000_000);
    }
}
