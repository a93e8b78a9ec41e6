//! IANA time zones out of the bundled database, never the machine's, so that every instance cuts the same periods.

use std::sync::LazyLock;

use jiff::civil::Date;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};
use time::OffsetDateTime;

use crate::period::OutOfCalendar;

static BUNDLED: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The name is not an IANA time zone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an IANA time zone")]
pub struct UnknownZone(pub String);

/// An IANA time zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone(TimeZone);

impl Zone {
    /// Finds a zone by its IANA name, in any case.
    ///
    /// # Errors
    /// There is no such zone; also for `Etc/Unknown` and `Factory`, which say that nobody chose one.
    pub fn parse(name: &str) -> Result<Self, UnknownZone> {
        let unset = name.eq_ignore_ascii_case("Etc/Unknown") || name.eq_ignore_ascii_case("Factory");
        match BUNDLED.get(name) {
            Ok(zone) if !unset && !zone.is_unknown() => Ok(Self(zone)),
            _ => Err(UnknownZone(name.to_owned())),
        }
    }

    /// The IANA name.
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    pub(crate) fn date_at(&self, instant: OffsetDateTime) -> Result<Date, OutOfCalendar> {
        let micros = instant.unix_timestamp_nanos().div_euclid(1_000);
        let micros = i64::try_from(micros).map_err(|_| OutOfCalendar)?;
        let timestamp = Timestamp::from_microsecond(micros).map_err(|_| OutOfCalendar)?;
        Ok(self.0.to_datetime(timestamp).date())
    }

    /// The first instant at which the zone's calendar shows `date`; where clocks skipped the whole date, the first instant of
    /// the next one that exists.
    pub(crate) fn day_start(&self, date: Date) -> Result<OffsetDateTime, OutOfCalendar> {
        let midnight = date.at(0, 0, 0, 0);
        let at = |offset: jiff::tz::Offset| offset.to_timestamp(midnight).map_err(|_| OutOfCalendar);
        let start = match self.0.to_ambiguous_timestamp(midnight).offset() {
            AmbiguousOffset::Unambiguous { offset } => at(offset)?,
            // Midnight comes twice: the day has begun at the first.
            AmbiguousOffset::Fold { before, .. } => at(before)?,
            // There is no midnight: the day begins with the change of the clocks that skipped it.
            AmbiguousOffset::Gap { before, .. } => {
                let would_be = at(before)?;
                let after = would_be.checked_add(SignedDuration::from_nanos(1)).map_err(|_| OutOfCalendar)?;
                self.0.preceding(after).next().map_or(would_be, |change| change.timestamp())
            }
        };
        OffsetDateTime::from_unix_timestamp_nanos(start.as_nanosecond()).map_err(|_| OutOfCalendar)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_iana_names_in_any_case() {
        assert_eq!(Zone::parse("europe/BUDAPEST").unwrap().name(), "Europe/Budapest");
        assert_eq!(Zone::parse("UTC").unwrap().name(), "UTC");
        for unset in ["", "Etc/Unknown", "factory", "+02:00", "EST5EDT4", "../etc/passwd"] {
            assert_eq!(Zone::parse(unset).unwrap_err(), UnknownZone(unset.to_owned()));
        }
    }
}
