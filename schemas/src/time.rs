//! Times as microseconds since the Unix epoch.

use std::str::FromStr;

/// Microseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(i64);

/// Why a text is no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimestampError {
    #[error("not an RFC 3339 time")]
    NotRfc3339,
    #[error("leap second: send the second before or after")]
    LeapSecond,
}

const MICROS: i64 = 1_000_000;
const DAY_SECONDS: i64 = 86_400;
/// Days of the Gregorian calendar's cycle of 400 years.
const CYCLE_DAYS: i64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH_DAYS: i64 = 719_468;

impl Timestamp {
    /// A time from microseconds since the epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the epoch.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Parses RFC 3339 with an offset; digits beyond microseconds are cut off (towards the past, also before 1970). Years 0000
    /// to 9999; whether a time is reasonable is for [`crate::validate`] to say.
    pub fn parse(text: &str) -> Result<Self, TimestampError> {
        let mut rest = text.as_bytes();
        let parsed = Parsed::read(&mut rest).filter(|_| rest.is_empty()).ok_or(TimestampError::NotRfc3339)?;
        let minutes = days_from_civil(parsed.year, parsed.month, parsed.day) * 24 * 60
            + parsed.hour * 60
            + parsed.minute
            - parsed.offset_minutes;
        if parsed.second == 60 {
            // Leap seconds end a day of UTC; 60 is no second anywhere else.
            let last_of_day = minutes.rem_euclid(24 * 60) == 24 * 60 - 1;
            return Err(if last_of_day { TimestampError::LeapSecond } else { TimestampError::NotRfc3339 });
        }
        Ok(Self((minutes * 60 + parsed.second) * MICROS + parsed.micros))
    }
}

/// The fields of a text, each within its own range.
struct Parsed {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    micros: i64,
    offset_minutes: i64,
}

impl Parsed {
    fn read(rest: &mut &[u8]) -> Option<Self> {
        let year = number(rest, 4)?;
        one_of(rest, b"-")?;
        let month = number(rest, 2).filter(|month| (1..=12).contains(month))?;
        one_of(rest, b"-")?;
        let day = number(rest, 2).filter(|day| (1..=days_in_month(year, month)).contains(day))?;
        one_of(rest, b"Tt")?;
        let hour = number(rest, 2).filter(|hour| *hour < 24)?;
        one_of(rest, b":")?;
        let minute = number(rest, 2).filter(|minute| *minute < 60)?;
        one_of(rest, b":")?;
        let second = number(rest, 2).filter(|second| *second <= 60)?;
        let micros = if one_of(rest, b".").is_some() { fraction(rest)? } else { 0 };
        let offset_minutes = match one_of(rest, b"Zz+-")? {
            sign @ (b'+' | b'-') => {
                let hours = number(rest, 2).filter(|hours| *hours < 24)?;
                one_of(rest, b":")?;
                let minutes = number(rest, 2).filter(|minutes| *minutes < 60)?;
                if sign == b'-' { -(hours * 60 + minutes) } else { hours * 60 + minutes }
            }
            _ => 0,
        };
        Some(Self { year, month, day, hour, minute, second, micros, offset_minutes })
    }
}

fn one_of(rest: &mut &[u8], allowed: &[u8]) -> Option<u8> {
    let (first, after) = rest.split_first()?;
    allowed.contains(first).then(|| {
        *rest = after;
        *first
    })
}

fn number(rest: &mut &[u8], digits: usize) -> Option<i64> {
    let (head, after) = rest.split_at_checked(digits)?;
    *rest = after;
    head.iter().try_fold(0, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + i64::from(byte - b'0')))
}

/// Digits after the point as microseconds; at least one.
fn fraction(rest: &mut &[u8]) -> Option<i64> {
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (head, after) = rest.split_at(digits);
    *rest = after;
    let micros =
        (0..6).fold(0, |sum, place| sum * 10 + head.get(place).map_or(0, |digit| i64::from(digit - b'0')));
    (digits > 0).then_some(micros)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01. Years are counted from March, so that the leap day is a year's last; months of a year that begins
/// in March have 153 days in each five.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let year_of_cycle = year.rem_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let day_of_cycle = year_of_cycle * 365 + year_of_cycle / 4 - year_of_cycle / 100 + day_of_year;
    year.div_euclid(400) * CYCLE_DAYS + day_of_cycle - EPOCH_DAYS
}

/// Year, month and day of a day since 1970-01-01: the inverse of [`days_from_civil`].
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + EPOCH_DAYS;
    let day_of_cycle = days.rem_euclid(CYCLE_DAYS);
    // Leap days before this day: one in 4 years (1,461 days), none in 100 (36,524), one in 400 (the cycle's last day).
    let year_of_cycle =
        (day_of_cycle - day_of_cycle / 1_460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (year_of_cycle * 365 + year_of_cycle / 4 - year_of_cycle / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = days.div_euclid(CYCLE_DAYS) * 400 + year_of_cycle;
    if month < 10 { (year, month + 3, day) } else { (year + 1, month - 9, day) }
}

/// `YYYY-MM-DDTHH:MM:SS.ffffffZ`; years outside 0000 to 9999 have a sign and may have more digits (ISO 8601).
impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.0.div_euclid(MICROS);
        let micros = self.0.rem_euclid(MICROS);
        let (year, month, day) = civil_from_days(seconds.div_euclid(DAY_SECONDS));
        let second = seconds.rem_euclid(DAY_SECONDS);
        match year {
            0..=9999 => write!(f, "{year:04}")?,
            _ => write!(f, "{year:+05}")?,
        }
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        write!(f, "-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

impl FromStr for Timestamp {
    type Err = TimestampError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests;
