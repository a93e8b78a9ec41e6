use std::fs;

use proptest::prelude::*;
use time::format_description::well_known::Rfc3339;
use time::macros::datetime;

use super::*;

fn at(text: &str) -> OffsetDateTime {
    OffsetDateTime::parse(text, &Rfc3339).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

/// The rows of a case file under its column names' line.
fn rows<const N: usize>(name: &str) -> Vec<[String; N]> {
    let path = usage_devstack::testing::cases_dir().join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let row = |line: &str| -> [String; N] {
        let cells: Vec<String> = line.split('\t').map(str::to_owned).collect();
        cells.try_into().unwrap_or_else(|cells: Vec<_>| panic!("{name}: {} columns in {line:?}", cells.len()))
    };
    let rows: Vec<_> = text.lines().skip(1).filter(|line| !line.is_empty()).map(row).collect();
    assert!(!rows.is_empty(), "{name} has no rows");
    rows
}

fn window(start: &str, end: &str) -> Window {
    Window { start: at(start), end: at(end) }
}

#[test]
fn anchored_periods() {
    for row in rows::<6>("anchored_periods.tsv") {
        let [anchor, every, now, index, start, end] = &row;
        let period = Period::anchored(at(anchor), every.parse().unwrap()).unwrap();
        let (now, index) = (at(now), index.parse().unwrap());
        assert_eq!(period.index_at(now), Ok(index), "{row:?}");
        assert_eq!(period.window_at(now), Ok(window(start, end)), "{row:?}");
        assert_eq!(period.window_for(index), Ok(window(start, end)), "{row:?}");
    }
}

#[test]
fn days_of_zones() {
    for row in rows::<5>("day_windows.tsv") {
        let [zone, date, start, next, _hours] = &row;
        let period = Period::LocalDay { zone: Zone::parse(zone).unwrap() };
        let index = epoch_days(date.parse().unwrap());
        let expected = window(start, next);
        assert_eq!(period.window_for(index), Ok(expected), "{row:?}");
        if !expected.is_empty() {
            assert_eq!(period.index_at(expected.start), Ok(index), "{row:?}");
            assert_eq!(period.index_at(expected.end - Duration::MICROSECOND), Ok(index), "{row:?}");
        }
    }
}

#[test]
fn months_of_zones() {
    for row in rows::<4>("month_windows.tsv") {
        let [zone, month, start, next] = &row;
        let period = Period::CalendarMonth { zone: Zone::parse(zone).unwrap() };
        let (year, month) = month.split_once('-').unwrap();
        let index = Month::new(year.parse().unwrap(), month.parse().unwrap()).since_1970();
        assert_eq!(period.window_for(index), Ok(window(start, next)), "{row:?}");
        assert_eq!(period.index_at(at(start)), Ok(index), "{row:?}");
        assert_eq!(period.index_at(at(next) - Duration::MICROSECOND), Ok(index), "{row:?}");
    }
}

#[test]
fn plain_periods_count_from_1970() {
    assert_eq!(
        Period::CalendarMonthUtc.window_at(at("2024-02-29T23:59:59.999999+00:00")).unwrap(),
        window("2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z")
    );
    assert_eq!(Period::CalendarMonthUtc.index_at(at("1969-12-31T23:59:59Z")), Ok(-1));
    // The instant counts, not the date that its offset shows.
    assert_eq!(
        Period::Day.window_at(at("2024-03-01T01:00:00+02:00")).unwrap(),
        window("2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z")
    );
}

#[test]
fn a_clock_that_goes_back_over_midnight_does_not_reopen_yesterday() {
    // In St. John's clocks went from 00:01 on the 29th back to 23:01 on the 28th.
    let period = Period::LocalDay { zone: Zone::parse("America/St_Johns").unwrap() };
    let today = period.window_at(at("2006-10-29T02:30:00Z")).unwrap();
    let shows_yesterday = at("2006-10-29T02:45:00Z");
    assert_eq!(period.window_at(shows_yesterday).unwrap(), today);
}

#[test]
fn a_date_that_was_skipped_holds_no_instant() {
    let period = Period::LocalDay { zone: Zone::parse("Pacific/Apia").unwrap() };
    let last = period.index_at(at("2011-12-30T09:59:59Z")).unwrap();
    assert!(period.window_for(last + 1).unwrap().is_empty());
    assert_eq!(period.index_at(at("2011-12-30T10:00:00Z")), Ok(last + 2));
}

#[test]
fn what_leaves_the_calendar_is_an_error() {
    let first = datetime!(0001-01-01 00:00 UTC);
    let last = datetime!(9999-12-31 23:59:59.999999 UTC);
    for period in [Period::CalendarMonthUtc, Period::Day] {
        assert_eq!(period.window_at(first).unwrap().start, first);
        assert_eq!(period.window_at(first - Duration::SECOND), Err(OutOfCalendar));
        assert_eq!(period.window_at(last), Err(OutOfCalendar), "its end lies in year 10000");
        for index in [i64::MIN, i64::MAX, i64::MAX - 1] {
            assert_eq!(period.window_for(index), Err(OutOfCalendar));
        }
    }
    let anchored = Period::anchored(datetime!(2024-01-31 00:00 UTC), u32::MAX).unwrap();
    assert_eq!(anchored.index_at(first), Ok(-1));
    assert_eq!(anchored.window_at(first), Err(OutOfCalendar));
    for index in [i64::MIN, -1, 1, i64::MAX] {
        assert_eq!(anchored.window_for(index), Err(OutOfCalendar));
    }
    for zone in ["Pacific/Kiritimati", "America/Los_Angeles"] {
        let zone = Zone::parse(zone).unwrap();
        for period in [Period::LocalDay { zone: zone.clone() }, Period::CalendarMonth { zone }] {
            assert_eq!(period.window_for(i64::MAX), Err(OutOfCalendar));
            assert_eq!(period.window_for(i64::MIN), Err(OutOfCalendar));
            assert_eq!(period.window_at(first - Duration::SECOND), Err(OutOfCalendar));
            assert!(period.window_at(datetime!(0001-03-01 12:00 UTC)).is_ok());
            assert!(period.window_at(datetime!(9999-10-15 12:00 UTC)).is_ok());
        }
    }
}

#[test]
fn a_cycle_of_no_months_is_refused() {
    assert_eq!(Period::anchored(OffsetDateTime::UNIX_EPOCH, 0), Err(ZeroMonths));
}

#[test]
fn problem_63_an_anchor_beside_a_change_of_clocks_keeps_its_utc_time_of_day() {
    // Half past eleven at night on 31 March in Los Angeles is 1 April in UTC.
    let period = Period::anchored(at("2017-03-31T23:30:00-07:00"), 1).unwrap();
    let starts: Vec<_> = (0..24).map(|index| period.window_for(index).unwrap().start).collect();
    for (index, start) in starts.iter().enumerate() {
        assert_eq!((start.day(), start.hour(), start.minute()), (1, 6, 30), "period {index}: {start}");
    }
    // Whoever bills by the local calendar takes the month of the zone: it starts at local midnight on both sides.
    let local = Period::CalendarMonth { zone: Zone::parse("America/Los_Angeles").unwrap() };
    assert_eq!(
        local.window_at(at("2017-03-31T23:30:00-07:00")).unwrap(),
        window("2017-03-01T08:00:00Z", "2017-04-01T07:00:00Z")
    );
}

#[test]
fn problem_64_a_monthly_chain_from_the_31st_returns_to_the_31st() {
    let period = Period::anchored(datetime!(2025-01-31 09:00 UTC), 1).unwrap();
    let mut now = datetime!(2025-01-31 09:00 UTC);
    let mut days = Vec::new();
    for _ in 0..24 {
        let window = period.window_at(now).unwrap();
        days.push(window.start.day());
        // Each reset asks anew from the end of the last window, as a biller does.
        now = window.end;
    }
    let year = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    assert_eq!(days, [year, year].concat());
}

fn instants() -> impl Strategy<Value = OffsetDateTime> {
    let first = datetime!(0001-01-01 00:00 UTC).unix_timestamp_nanos() / 1_000;
    let last = datetime!(9999-12-31 23:59:59.999999 UTC).unix_timestamp_nanos() / 1_000;
    (first..=last).prop_map(|micros| OffsetDateTime::from_unix_timestamp_nanos(micros * 1_000).unwrap())
}

fn periods() -> impl Strategy<Value = Period> {
    let zones = prop::sample::select(vec![
        "UTC",
        "Europe/Budapest",
        "America/St_Johns",
        "America/Los_Angeles",
        "Pacific/Apia",
        "Asia/Manila",
        "Africa/Cairo",
    ]);
    (0..5, instants(), 1..40_u32, zones).prop_map(|(kind, anchor, every, zone)| {
        let zone = Zone::parse(zone).unwrap();
        match kind {
            0 => Period::CalendarMonthUtc,
            1 => Period::Day,
            2 => Period::CalendarMonth { zone },
            3 => Period::LocalDay { zone },
            _ => Period::anchored(anchor, every).unwrap(),
        }
    })
}

proptest! {
    #[test]
    fn windows_tile_and_every_instant_is_in_exactly_one(period in periods(), now in instants()) {
        let index = period.index_at(now).unwrap();
        // At both ends of the calendar a window may reach out of it: an error, never a wrong window.
        let Ok(window) = period.window_for(index) else {
            let close = |edge: OffsetDateTime| (now - edge).abs() < Duration::days(40 * 31);
            prop_assert!(close(datetime!(0001-01-01 00:00 UTC)) || close(datetime!(9999-12-31 00:00 UTC)));
            return Ok(());
        };
        prop_assert!(window.contains(now), "{window:?}");
        prop_assert_eq!(period.index_at(window.start).unwrap(), index);
        prop_assert_eq!(period.index_at(window.end - Duration::MICROSECOND).unwrap(), index);
        if let Ok(before) = period.window_for(index - 1) {
            prop_assert_eq!(before.end, window.start);
            prop_assert!(!before.contains(now) && before.start <= before.end);
        }
        if let Ok(after) = period.window_for(index + 1) {
            prop_assert_eq!(after.start, window.end);
            prop_assert!(!after.contains(now));
            prop_assert!(after.is_empty() || period.index_at(window.end).unwrap() == index + 1);
        }
    }

    #[test]
    fn an_anchored_window_starts_on_the_anchors_day_or_the_months_last(
        anchor in instants(), every in 1..40_u32, index in -3_000..3_000_i64,
    ) {
        let period = Period::anchored(anchor, every).unwrap();
        let Ok(window) = period.window_for(index) else { return Ok(()) };
        let last_day = window.start.month().length(window.start.year());
        prop_assert_eq!(window.start.day(), anchor.day().min(last_day));
        prop_assert_eq!(window.start.time(), anchor.time());
        let months = |instant: OffsetDateTime| Month::of(instant).since_1970();
        prop_assert_eq!(months(window.start) - months(anchor), index * i64::from(every));
    }
}
