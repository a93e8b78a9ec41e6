//! Time zones: names, the first instant of a date, and how a time is written in a zone.
//!
//! Only the bundled IANA database is used, never the machine's, so that every instance cuts the same windows.

use std::sync::LazyLock;

use jiff::civil::Date;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, tz};

use crate::hints::{Spelling, closest};

static BUNDLED: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// A time that lies outside of what the calendar can express.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the time is outside of the calendar")]
pub struct OutOfCalendar;

/// An IANA time zone.
#[derive(Debug, Clone)]
pub struct Zone {
    name: String,
    zone: TimeZone,
}

impl Zone {
    pub fn utc() -> Self {
        Self { name: "UTC".to_owned(), zone: TimeZone::UTC }
    }

    /// Finds a zone by its IANA name, in any case (RFC 6557).
    ///
    /// # Errors
    /// The name of the nearest known zone, if the text is short enough to be one mistyped.
    pub fn parse(name: &str) -> Result<Self, Option<&'static str>> {
        // "Etc/Unknown" and "Factory" say that nobody set a zone; they must not count as UTC.
        let unset = name.eq_ignore_ascii_case("Etc/Unknown") || name.eq_ignore_ascii_case("Factory");
        match BUNDLED.get(name) {
            Ok(zone) if !unset && !zone.is_unknown() => {
                let name = zone.iana_name().unwrap_or(name).to_owned();
                Ok(Self { name, zone })
            }
            _ => Err(nearest_zone(name)),
        }
    }

    /// The canonical spelling of the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The civil date of an instant (microseconds since the Unix epoch).
    ///
    /// # Errors
    /// The instant is outside of years -9999 to 9999.
    pub fn date_of(&self, micros: i64) -> Result<Date, OutOfCalendar> {
        let instant = Timestamp::from_microsecond(micros).map_err(|_| OutOfCalendar)?;
        Ok(self.zone.to_datetime(instant).date())
    }

    /// The first instant (microseconds) at which the zone's calendar shows `date`; where the date was skipped, the first
    /// instant of the next one that exists.
    ///
    /// # Errors
    /// The date is at the edge of the calendar.
    pub fn day_start(&self, date: Date) -> Result<i64, OutOfCalendar> {
        let midnight = date.at(0, 0, 0, 0);
        let at = |offset: tz::Offset| offset.to_timestamp(midnight).map_err(|_| OutOfCalendar);
        let start = match self.zone.to_ambiguous_timestamp(midnight).offset() {
            AmbiguousOffset::Unambiguous { offset } => at(offset)?,
            // Midnight happens twice; the day has begun at the earlier one.
            AmbiguousOffset::Fold { before, .. } => at(before)?,
            // Midnight is skipped: the day begins with the change itself, which is the last transition at or before the
            // instant that midnight would have been. (A gap of a whole day lands in the next date.)
            AmbiguousOffset::Gap { before, .. } => {
                let would_be = at(before)?;
                let just_after =
                    would_be.checked_add(jiff::SignedDuration::from_nanos(1)).map_err(|_| OutOfCalendar)?;
                self.zone.preceding(just_after).next().map_or(would_be, |change| change.timestamp())
            }
        };
        Ok(start.as_microsecond())
    }

    /// RFC 3339 with the zone's offset, microseconds only where there are some; `Z` for UTC itself.
    pub fn format(&self, micros: i64) -> String {
        let Ok(instant) = Timestamp::from_microsecond(micros) else {
            return usage_schemas::Timestamp::from_micros(micros).to_string();
        };
        // RFC 3339 has no seconds in an offset: local mean times are written with the nearest whole minute, which names the same instant.
        let seconds = self.zone.to_offset(instant).seconds();
        let minutes = (seconds + 30 * seconds.signum()) / 60;
        let offset = tz::Offset::from_seconds(minutes * 60).unwrap_or(tz::Offset::UTC);
        let local = offset.to_datetime(instant);
        let mut text = format!(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
            local.year(),
            local.month(),
            local.day(),
            local.hour(),
            local.minute(),
            local.second()
        );
        let fraction = micros.rem_euclid(1_000_000);
        if fraction != 0 {
            text.push_str(&format!(".{fraction:06}"));
        }
        if self.is_utc() {
            text.push('Z');
        } else {
            let sign = if minutes < 0 { '-' } else { '+' };
            text.push_str(&format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60));
        }
        text
    }

    fn is_utc(&self) -> bool {
        matches!(
            self.name.as_str(),
            "UTC" | "Etc/UTC" | "Etc/UCT" | "UCT" | "Zulu" | "Etc/Zulu" | "Universal" | "Etc/Universal"
        )
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// All names of the bundled database that stand for a real zone.
pub fn known_zones() -> impl Iterator<Item = String> {
    BUNDLED
        .available()
        .map(|name| name.to_string())
        .filter(|name| !matches!(name.as_str(), "Etc/Unknown" | "Factory"))
}

fn nearest_zone(name: &str) -> Option<&'static str> {
    static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| known_zones().collect());
    let spellings = NAMES.iter().flat_map(|known| {
        // A bare city ("Budapest") is nearer to its zone than any short name is.
        let city = known.rsplit('/').next().unwrap_or(known);
        [(known.as_str(), 0), (city, 1)].map(|(text, penalty)| Spelling { text, penalty, means: known })
    });
    closest(name, spellings)
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    fn instant(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_microsecond()
    }

    fn zone(name: &str) -> Zone {
        Zone::parse(name).unwrap()
    }

    #[test]
    fn a_day_starts_when_midnight_is_skipped_at_the_change() {
        // Clocks went from 00:00 to 01:00.
        assert_eq!(
            zone("Africa/Cairo").day_start(date(2025, 4, 25)).unwrap(),
            instant("2025-04-24T22:00:00Z")
        );
        // Clocks went from 23:30 to 00:30: the date began at half past midnight.
        assert_eq!(
            zone("America/Toronto").day_start(date(1919, 3, 31)).unwrap(),
            instant("1919-03-31T04:30:00Z")
        );
    }

    #[test]
    fn a_day_starts_at_the_first_of_two_midnights() {
        // Clocks went from 01:00 back to 00:00.
        assert_eq!(
            zone("America/Havana").day_start(date(2023, 11, 5)).unwrap(),
            instant("2023-11-05T04:00:00Z")
        );
        // Clocks went from 00:01 back to 23:01 of the day before.
        assert_eq!(
            zone("America/St_Johns").day_start(date(2006, 10, 29)).unwrap(),
            instant("2006-10-29T02:30:00Z")
        );
    }

    #[test]
    fn a_skipped_date_has_no_length() {
        let apia = zone("Pacific/Apia");
        assert_eq!(apia.day_start(date(2011, 12, 30)).unwrap(), apia.day_start(date(2011, 12, 31)).unwrap());
        assert_eq!(apia.day_start(date(2011, 12, 31)).unwrap(), instant("2011-12-30T10:00:00Z"));
    }

    #[test]
    fn times_carry_the_offset_of_their_own_moment() {
        let budapest = zone("Europe/Budapest");
        assert_eq!(budapest.format(instant("2025-03-29T23:00:00Z")), "2025-03-30T00:00:00+01:00");
        assert_eq!(budapest.format(instant("2025-03-30T22:00:00Z")), "2025-03-31T00:00:00+02:00");
        assert_eq!(
            zone("America/St_Johns").format(instant("2025-01-01T00:00:00.000120Z")),
            "2024-12-31T20:30:00.000120-03:30"
        );
        assert_eq!(
            zone("Europe/London").format(instant("2025-01-01T00:00:00Z")),
            "2025-01-01T00:00:00+00:00"
        );
        assert_eq!(Zone::utc().format(instant("2025-01-01T00:00:00Z")), "2025-01-01T00:00:00Z");
    }

    #[test]
    fn an_offset_with_seconds_still_names_the_instant() {
        let amsterdam = zone("Europe/Amsterdam");
        for (name, at) in
            [("Europe/Amsterdam", -1_800_000_000_000_000_i64), ("America/New_York", -3_000_000_000_000_000)]
        {
            let text = zone(name).format(at);
            assert_eq!(instant(&text), at, "{text}");
        }
        assert_eq!(amsterdam.name(), "Europe/Amsterdam");
    }

    #[test]
    fn unknown_zones_name_the_nearest() {
        assert_eq!(Zone::parse("Europe/Budapset").unwrap_err(), Some("Europe/Budapest"));
        assert_eq!(Zone::parse("Budapest").unwrap_err(), Some("Europe/Budapest"));
        assert_eq!(Zone::parse("europe/BUDAPEST").unwrap().name(), "Europe/Budapest");
        for unset in ["", "Etc/Unknown", "factory", "+02:00", "EST5EDT4", "../etc/passwd"] {
            assert!(Zone::parse(unset).is_err(), "{unset}");
        }
    }

    #[test]
    fn a_text_that_is_no_slip_of_the_pen_is_compared_with_nothing() {
        for length in [65, 65_000] {
            assert_eq!(Zone::parse(&"a/".repeat(length)).unwrap_err(), None);
        }
    }
}
