//! Arithmetic on months, without days.

use time::{Date, OffsetDateTime, Time};

use super::OutOfCalendar;

pub const FIRST_YEAR: i32 = 1;
pub const LAST_YEAR: i32 = 9_999;
const EPOCH: i64 = 1_970 * 12;

/// A month of a year, as the count of months since the start of year 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Month(i64);

impl Month {
    /// `month` counts from 1.
    pub fn new(year: i64, month: i64) -> Self {
        Self(year * 12 + month - 1)
    }

    pub fn of(instant: OffsetDateTime) -> Self {
        Self::new(instant.year().into(), u8::from(instant.month()).into())
    }

    pub fn since_1970(self) -> i64 {
        self.0 - EPOCH
    }

    pub fn after_1970(months: i64) -> Result<Self, OutOfCalendar> {
        Self(EPOCH).plus(months)
    }

    pub fn plus(self, months: i64) -> Result<Self, OutOfCalendar> {
        let sum = self.0.checked_add(months).ok_or(OutOfCalendar)?;
        let year = sum.div_euclid(12);
        if (i64::from(FIRST_YEAR)..=i64::from(LAST_YEAR)).contains(&year) {
            Ok(Self(sum))
        } else {
            Err(OutOfCalendar)
        }
    }

    /// The date with this day, or the month's last one if it has fewer.
    pub fn date_clamped(self, day: u8) -> Result<Date, OutOfCalendar> {
        let year = i32::try_from(self.0.div_euclid(12)).map_err(|_| OutOfCalendar)?;
        let month = self.month()?;
        Date::from_calendar_date(year, month, day.min(month.length(year))).map_err(|_| OutOfCalendar)
    }

    pub fn start_utc(self) -> Result<OffsetDateTime, OutOfCalendar> {
        Ok(self.date_clamped(1)?.with_time(Time::MIDNIGHT).assume_utc())
    }

    pub fn first_date(self) -> Result<jiff::civil::Date, OutOfCalendar> {
        let year = i16::try_from(self.0.div_euclid(12)).map_err(|_| OutOfCalendar)?;
        let month = i8::try_from(self.0.rem_euclid(12) + 1).map_err(|_| OutOfCalendar)?;
        jiff::civil::Date::new(year, month, 1).map_err(|_| OutOfCalendar)
    }

    fn month(self) -> Result<time::Month, OutOfCalendar> {
        let number = u8::try_from(self.0.rem_euclid(12) + 1).map_err(|_| OutOfCalendar)?;
        time::Month::try_from(number).map_err(|_| OutOfCalendar)
    }
}
