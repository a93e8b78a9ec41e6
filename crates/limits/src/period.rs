//! Periods that an allowance resets by: which window an instant lies in.
//!
//! A window is found from its index each time, never from the window before it, so that nothing drifts.

mod months;
#[cfg(test)]
mod tests;

use std::num::NonZeroU32;

use jiff::civil::Date;
use time::{Duration, OffsetDateTime, UtcOffset};

use crate::zone::Zone;
use months::{FIRST_YEAR, LAST_YEAR, Month};

/// The window reaches beyond the years 1 to 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the period reaches beyond the years 1 to 9999")]
pub struct OutOfCalendar;

/// A cycle of no months.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("every_months must be at least 1")]
pub struct ZeroMonths;

/// How time is cut into windows. All windows of a period tile the line: each ends where the next starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Period {
    /// The UTC calendar month. Index 0 is January 1970.
    CalendarMonthUtc,
    /// The UTC day. Index 0 is 1970-01-01.
    Day,
    /// A billing cycle: window k starts at `anchor` + k × `every_months` months, its day clamped to the last one of that month
    /// and the anchor's UTC time of day kept (whole microseconds). Windows before the anchor have negative indexes.
    Anchored { anchor: OffsetDateTime, every_months: NonZeroU32 },
    /// The calendar month of a time zone. Index 0 is January 1970 there.
    CalendarMonth { zone: Zone },
    /// `Day { zone }`, which Rust does not let stand beside [`Period::Day`]. The day of a time zone: 23, 24 or 25 hours, or none where clocks skipped a date. Index 0 is 1970-01-01 there.
    LocalDay { zone: Zone },
}

/// The instants from `start` up to, but not including, `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub start: OffsetDateTime,
    pub end: OffsetDateTime,
}

impl Window {
    pub fn contains(&self, instant: OffsetDateTime) -> bool {
        self.start <= instant && instant < self.end
    }

    /// A date that clocks skipped has a window without an instant in it.
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }
}

impl Period {
    /// A cycle of whole months from the start of a subscription.
    ///
    /// # Errors
    /// `every_months` is 0.
    pub fn anchored(anchor: OffsetDateTime, every_months: u32) -> Result<Self, ZeroMonths> {
        Ok(Self::Anchored { anchor, every_months: NonZeroU32::new(every_months).ok_or(ZeroMonths)? })
    }

    /// The window that `now` lies in.
    ///
    /// # Errors
    /// It reaches beyond the years 1 to 9999; so does the last month of 9999, whose end has no name.
    pub fn window_at(&self, now: OffsetDateTime) -> Result<Window, OutOfCalendar> {
        self.window_for(self.index_at(now)?)
    }

    /// The index of the window that `now` lies in.
    ///
    /// # Errors
    /// `now` lies outside of the years 1 to 9999.
    pub fn index_at(&self, now: OffsetDateTime) -> Result<i64, OutOfCalendar> {
        let now = now.checked_to_offset(UtcOffset::UTC).ok_or(OutOfCalendar)?;
        if !(FIRST_YEAR..=LAST_YEAR).contains(&now.year()) {
            return Err(OutOfCalendar);
        }
        match self {
            Self::CalendarMonthUtc => Ok(Month::of(now).since_1970()),
            Self::Day => Ok(days_since_1970(now)),
            Self::Anchored { anchor, every_months } => anchored_index(*anchor, *every_months, now),
            Self::CalendarMonth { zone } => {
                let date = zone.date_at(now)?;
                self.settle(Month::new(date.year().into(), date.month().into()).since_1970(), now)
            }
            Self::LocalDay { zone } => self.settle(epoch_days(zone.date_at(now)?), now),
        }
    }

    /// The window with this index.
    ///
    /// # Errors
    /// It reaches beyond the years 1 to 9999.
    pub fn window_for(&self, index: i64) -> Result<Window, OutOfCalendar> {
        let next = index.checked_add(1).ok_or(OutOfCalendar)?;
        Ok(Window { start: self.start_of(index)?, end: self.start_of(next)? })
    }

    /// Where the window with this index starts, in UTC.
    fn start_of(&self, index: i64) -> Result<OffsetDateTime, OutOfCalendar> {
        let start = match self {
            Self::CalendarMonthUtc => Month::after_1970(index)?.start_utc()?,
            Self::Day => OffsetDateTime::UNIX_EPOCH
                .checked_add(Duration::seconds(index.checked_mul(86_400).ok_or(OutOfCalendar)?))
                .ok_or(OutOfCalendar)?,
            Self::Anchored { anchor, every_months } => anchored_start(*anchor, *every_months, index)?,
            Self::CalendarMonth { zone } => zone.day_start(Month::after_1970(index)?.first_date()?)?,
            Self::LocalDay { zone } => zone.day_start(date_after_1970(index)?)?,
        };
        if (FIRST_YEAR..=LAST_YEAR).contains(&start.year()) { Ok(start) } else { Err(OutOfCalendar) }
    }

    /// The index near `guess` whose window holds `now`. Clocks that went back over midnight show yesterday's date again in
    /// today's window, so the date on the calendar is only a guess.
    fn settle(&self, guess: i64, now: OffsetDateTime) -> Result<i64, OutOfCalendar> {
        let mut index = guess;
        // Beyond the last window that has a name nothing starts any more, and before the first nothing ends.
        while self.start_of(index).is_ok_and(|start| now < start) {
            index -= 1;
        }
        while self.start_of(index + 1).is_ok_and(|start| start <= now) {
            index += 1;
        }
        Ok(index)
    }
}

/// The anchor as Postgres can store it, in UTC.
fn anchor_utc(anchor: OffsetDateTime) -> Result<OffsetDateTime, OutOfCalendar> {
    let utc = anchor.checked_to_offset(UtcOffset::UTC).ok_or(OutOfCalendar)?;
    utc.replace_nanosecond(utc.microsecond() * 1_000).map_err(|_| OutOfCalendar)
}

fn anchored_start(
    anchor: OffsetDateTime,
    every_months: NonZeroU32,
    index: i64,
) -> Result<OffsetDateTime, OutOfCalendar> {
    let anchor = anchor_utc(anchor)?;
    let months = index.checked_mul(i64::from(every_months.get())).ok_or(OutOfCalendar)?;
    let date = Month::of(anchor).plus(months)?.date_clamped(anchor.day())?;
    Ok(anchor.replace_date(date))
}

fn anchored_index(
    anchor: OffsetDateTime,
    every_months: NonZeroU32,
    now: OffsetDateTime,
) -> Result<i64, OutOfCalendar> {
    let months = Month::of(now).since_1970() - Month::of(anchor_utc(anchor)?).since_1970();
    let every = i64::from(every_months.get());
    // The window that starts in or before the month of `now`; only in that very month it may start after `now`.
    let index = months.div_euclid(every);
    let starts_in_this_month = months.rem_euclid(every) == 0;
    if starts_in_this_month && now < anchored_start(anchor, every_months, index)? {
        return Ok(index - 1);
    }
    Ok(index)
}

fn days_since_1970(now: OffsetDateTime) -> i64 {
    now.unix_timestamp().div_euclid(86_400)
}

fn epoch_days(date: Date) -> i64 {
    let seconds = date.at(0, 0, 0, 0).duration_since(Date::constant(1970, 1, 1).at(0, 0, 0, 0)).as_secs();
    seconds.div_euclid(86_400)
}

fn date_after_1970(index: i64) -> Result<Date, OutOfCalendar> {
    let days = jiff::Span::new().try_days(index).map_err(|_| OutOfCalendar)?;
    Date::constant(1970, 1, 1).checked_add(days).map_err(|_| OutOfCalendar)
}
