//! Months in UTC, the partitions of the tables, as ClickHouse's `toYYYYMM` numbers them.

const MICROS_PER_SECOND: i64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// Width of a rollup's bucket in seconds.
pub(crate) const BUCKET_SECONDS: u32 = 900;

/// First and last timestamps that the tables hold (`DateTime` in the rollups), in microseconds.
pub(crate) const TIMESTAMPS: std::ops::Range<i64> =
    0..(u32::MAX as i64 / BUCKET_SECONDS as i64) * 900 * MICROS_PER_SECOND;

/// Number of the month, e.g. 202611.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Month(pub(crate) u32);

impl Month {
    /// Month of a time in seconds since the Unix epoch.
    pub(crate) fn of_seconds(seconds: i64) -> Self {
        let (year, month) = civil(seconds.div_euclid(SECONDS_PER_DAY));
        Self(u32::try_from(year).expect("checked against TIMESTAMPS") * 100 + month)
    }

    /// First instant, in seconds since the Unix epoch.
    pub(crate) fn start_seconds(self) -> i64 {
        days(i64::from(self.0 / 100), i64::from(self.0 % 100)) * SECONDS_PER_DAY
    }

    pub(crate) fn next(self) -> Self {
        if self.0 % 100 == 12 { Self(self.0 + 89) } else { Self(self.0 + 1) }
    }
}

/// Finds months of times that mostly lie in the same one.
#[derive(Debug)]
pub(crate) struct MonthFinder {
    month: Month,
    micros: std::ops::Range<i64>,
}

impl Default for MonthFinder {
    fn default() -> Self {
        Self { month: Month(0), micros: 0..0 }
    }
}

impl MonthFinder {
    pub(crate) fn of_micros(&mut self, micros: i64) -> Month {
        if !self.micros.contains(&micros) {
            self.month = Month::of_seconds(micros.div_euclid(MICROS_PER_SECOND));
            self.micros = self.month.start_seconds() * MICROS_PER_SECOND
                ..self.month.next().start_seconds() * MICROS_PER_SECOND;
        }
        self.month
    }
}

/// Start of the rollup bucket of a time in microseconds, in seconds.
pub(crate) fn bucket_of_micros(micros: i64) -> u32 {
    let seconds = u32::try_from(micros.div_euclid(MICROS_PER_SECOND)).expect("checked against TIMESTAMPS");
    seconds - seconds % BUCKET_SECONDS
}

/// Year and month of a day counted from 1970-01-01: years of 400-year cycles that begin in March, so that the leap day is last.
fn civil(day: i64) -> (i64, u32) {
    let day = day + 719_468;
    let cycle = day.div_euclid(146_097);
    let in_cycle = day.rem_euclid(146_097);
    let year_of_cycle = (in_cycle - in_cycle / 1_460 + in_cycle / 36_524 - in_cycle / 146_096) / 365;
    let in_year = in_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let from_march = (5 * in_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (cycle * 400 + year_of_cycle + i64::from(month <= 2), u32::try_from(month).expect("1 to 12"))
}

/// Day of the first of a month, counted from 1970-01-01.
fn days(year: i64, month: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let cycle = year.div_euclid(400);
    let year_of_cycle = year.rem_euclid(400);
    let from_march = (month + 9) % 12;
    let in_year = (153 * from_march + 2) / 5;
    cycle * 146_097 + year_of_cycle * 365 + year_of_cycle / 4 - year_of_cycle / 100 + in_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_agree_with_the_calendar() {
        // Every day that the tables hold, against the `time` crate.
        let last = TIMESTAMPS.end / MICROS_PER_SECOND / SECONDS_PER_DAY;
        for day in 0..last {
            let date = time::OffsetDateTime::from_unix_timestamp(day * SECONDS_PER_DAY).unwrap().date();
            let month = Month::of_seconds(day * SECONDS_PER_DAY + 86_399);
            assert_eq!(month.0, date.year() as u32 * 100 + u32::from(u8::from(date.month())), "{date}");
            if date.day() == 1 {
                assert_eq!(month.start_seconds(), day * SECONDS_PER_DAY, "{date}");
                assert_eq!(Month::of_seconds(day * SECONDS_PER_DAY - 1).next(), month);
            }
        }
    }

    #[test]
    fn the_finder_sees_the_last_microsecond() {
        let mut finder = MonthFinder::default();
        let start = Month(202602).start_seconds() * MICROS_PER_SECOND;
        assert_eq!(finder.of_micros(start), Month(202602));
        assert_eq!(finder.of_micros(start - 1), Month(202601));
        assert_eq!(finder.of_micros(start + 1), Month(202602));
        assert_eq!(finder.of_micros(TIMESTAMPS.end - 1), Month(210602));
    }

    #[test]
    fn buckets_are_quarters_of_an_hour() {
        assert_eq!(bucket_of_micros(899_999_999), 0);
        assert_eq!(bucket_of_micros(900_000_000), 900);
        assert_eq!(bucket_of_micros(TIMESTAMPS.end - 1) % 900, 0);
    }
}
