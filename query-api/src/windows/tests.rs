use std::collections::BTreeMap;

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::zones::known_zones;

fn instant(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().as_microsecond()
}

fn grid(size: WindowSize, zone: &str, from: &str, to: &str) -> Grid {
    Grid::new(size, &Zone::parse(zone).unwrap(), instant(from), instant(to)).unwrap()
}

/// Window bounds as text, in the zone.
fn texts(grid: &Grid, zone: &str) -> Vec<(String, String)> {
    let zone = Zone::parse(zone).unwrap();
    grid.windows().map(|window| (zone.format(window.start), zone.format(window.end))).collect()
}

/// Rows of a case file, without its header.
fn case_rows(file: &str) -> Vec<Vec<String>> {
    let directory = std::env::var_os("USAGE_CASES_DIR").map_or_else(
        || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cases"),
        std::path::PathBuf::from,
    );
    let text = std::fs::read_to_string(directory.join(file)).unwrap();
    text.lines()
        .skip(1)
        .filter(|line| !line.is_empty())
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect()
}

#[test]
fn every_row_of_day_windows() {
    let rows = case_rows("day_windows.tsv");
    assert!(rows.len() > 100, "{} rows", rows.len());
    for row in rows {
        let (zone, start, end) = (Zone::parse(&row[0]).unwrap(), instant(&row[2]), instant(&row[3]));
        let date: Date = row[1].parse().unwrap();
        assert_eq!(zone.day_start(date).unwrap(), start, "{row:?}");
        // Asked for a moment in the middle, the grid has exactly this window.
        let grid = Grid::new(WindowSize::Day, &zone, start + 1, end - 1).unwrap();
        assert_eq!(grid.windows().collect::<Vec<_>>(), [Window { start, end }], "{row:?}");
        // Lord Howe Island has days of 23.5 and 24.5 hours.
        let (whole, half) =
            row[4].split_once('.').map_or((row[4].as_str(), false), |(whole, half)| (whole, half == "5"));
        let minutes = whole.parse::<i64>().unwrap() * 60 + if half { 30 } else { 0 };
        assert_eq!(end - start, minutes * MINUTE, "{row:?}");
        // The hours of the day begin where the day does and fill it; the last may be shorter.
        let hours = Grid::new(WindowSize::Hour, &zone, start, end).unwrap();
        let count = i64::try_from(hours.windows().count()).unwrap();
        assert_eq!(count, (minutes + 59) / 60, "{row:?}");
    }
}

#[test]
fn every_row_of_month_windows() {
    let rows = case_rows("month_windows.tsv");
    assert!(rows.len() > 100, "{} rows", rows.len());
    for row in rows {
        let (zone, start, end) = (Zone::parse(&row[0]).unwrap(), instant(&row[2]), instant(&row[3]));
        let grid = Grid::new(WindowSize::Month, &zone, start, end).unwrap();
        assert_eq!(grid.windows().collect::<Vec<_>>(), [Window { start, end }], "{row:?}");
        assert!(zone.format(start).starts_with(&format!("{}-01T00:00:00", row[1])), "{row:?}");
    }
}

#[test]
fn problem_06_month_windows_begin_at_local_midnight() {
    let months = grid(WindowSize::Month, "Europe/Budapest", "2025-02-28T23:00:00Z", "2025-04-30T22:00:00Z");
    assert_eq!(
        texts(&months, "Europe/Budapest"),
        [
            ("2025-03-01T00:00:00+01:00".to_owned(), "2025-04-01T00:00:00+02:00".to_owned()),
            ("2025-04-01T00:00:00+02:00".to_owned(), "2025-05-01T00:00:00+02:00".to_owned()),
        ]
    );
    assert!(months.windows().all(|window| !months.is_partial(window)));
}

#[test]
fn problem_07_days_end_where_the_next_begins_over_a_clock_change() {
    let budapest = grid(WindowSize::Day, "Europe/Budapest", "2025-03-29T23:00:00Z", "2025-03-30T22:00:00Z");
    assert_eq!(
        texts(&budapest, "Europe/Budapest"),
        [("2025-03-30T00:00:00+01:00".to_owned(), "2025-03-31T00:00:00+02:00".to_owned())]
    );
    // No midnight on that day.
    let cairo = grid(WindowSize::Day, "Africa/Cairo", "2025-04-24T00:00:00Z", "2025-04-26T00:00:00Z");
    assert_eq!(
        texts(&cairo, "Africa/Cairo"),
        [
            ("2025-04-24T00:00:00+02:00".to_owned(), "2025-04-25T01:00:00+03:00".to_owned()),
            ("2025-04-25T01:00:00+03:00".to_owned(), "2025-04-26T00:00:00+03:00".to_owned()),
            ("2025-04-26T00:00:00+03:00".to_owned(), "2025-04-27T00:00:00+03:00".to_owned()),
        ]
    );
}

#[test]
fn problem_31_months_begin_on_the_edges_of_the_world() {
    let kiritimati = grid(WindowSize::Month, "Pacific/Apia", "2026-05-31T11:00:00Z", "2026-06-30T11:00:00Z");
    assert_eq!(
        texts(&kiritimati, "Pacific/Apia"),
        [("2026-06-01T00:00:00+13:00".to_owned(), "2026-07-01T00:00:00+13:00".to_owned())]
    );
    let pago = grid(WindowSize::Month, "Pacific/Pago_Pago", "2026-06-01T11:00:00Z", "2026-07-01T11:00:00Z");
    assert_eq!(
        texts(&pago, "Pacific/Pago_Pago"),
        [("2026-06-01T00:00:00-11:00".to_owned(), "2026-07-01T00:00:00-11:00".to_owned())]
    );
}

#[test]
fn problem_44_hours_divide_the_day_in_odd_zones() {
    // The clock goes back by half an hour at 02:00: 24.5 hours, the last window is half an hour long.
    let lord_howe =
        grid(WindowSize::Hour, "Australia/Lord_Howe", "2025-04-05T13:00:00Z", "2025-04-06T13:30:00Z");
    let windows: Vec<_> = lord_howe.windows().collect();
    assert_eq!(windows.len(), 25);
    assert_eq!(windows[24].end - windows[24].start, 30 * MINUTE);
    assert_eq!(windows[24].end, instant("2025-04-06T13:30:00Z"));
    // +05:45: hours begin at a quarter past in UTC.
    let kathmandu = grid(WindowSize::Hour, "Asia/Kathmandu", "2026-01-01T00:00:00Z", "2026-01-01T02:00:00Z");
    assert_eq!(
        texts(&kathmandu, "Asia/Kathmandu"),
        [
            ("2026-01-01T05:00:00+05:45".to_owned(), "2026-01-01T06:00:00+05:45".to_owned()),
            ("2026-01-01T06:00:00+05:45".to_owned(), "2026-01-01T07:00:00+05:45".to_owned()),
            ("2026-01-01T07:00:00+05:45".to_owned(), "2026-01-01T08:00:00+05:45".to_owned()),
        ]
    );
    assert!(kathmandu.is_partial(kathmandu.window_at(instant("2026-01-01T00:00:00Z"))));
}

#[test]
fn weeks_begin_on_monday() {
    let weeks = grid(WindowSize::Week, "America/New_York", "2026-03-04T12:00:00Z", "2026-03-16T04:00:00Z");
    assert_eq!(
        texts(&weeks, "America/New_York"),
        [
            ("2026-03-02T00:00:00-05:00".to_owned(), "2026-03-09T00:00:00-04:00".to_owned()),
            ("2026-03-09T00:00:00-04:00".to_owned(), "2026-03-16T00:00:00-04:00".to_owned()),
        ]
    );
    let partial: Vec<_> = weeks.windows().map(|window| weeks.is_partial(window)).collect();
    assert_eq!(partial, [true, false]);
}

#[test]
fn a_skipped_date_has_no_window() {
    let apia = grid(WindowSize::Day, "Pacific/Apia", "2011-12-29T10:00:00Z", "2011-12-31T10:00:00Z");
    let starts: Vec<_> = texts(&apia, "Pacific/Apia").into_iter().map(|(start, _)| start).collect();
    assert_eq!(starts, ["2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"]);
}

#[test]
fn an_hour_repeated_before_midnight_belongs_to_the_day_that_has_begun() {
    // 00:01 went back to 23:01 of the day before: 29 October has begun at its first midnight and keeps that hour.
    let day = grid(WindowSize::Day, "America/St_Johns", "2006-10-29T02:45:00Z", "2006-10-29T02:46:00Z");
    assert_eq!(day.windows().next().unwrap().start, instant("2006-10-29T02:30:00Z"));
}

#[test]
fn parts_follow_one_another_without_gap() {
    for (size, chunk) in
        [(WindowSize::Minute, 100), (WindowSize::Hour, 30), (WindowSize::Day, 2), (WindowSize::Month, 1)]
    {
        let grid = grid(size, "Africa/Cairo", "2025-04-20T13:07:11.5Z", "2025-05-12T01:00:00.000001Z");
        let mut at = instant("2025-04-20T13:07:11.5Z");
        let mut parts = 0;
        while at < instant("2025-05-12T01:00:00.000001Z") {
            let part = grid.part(at, chunk);
            assert_eq!(part.from, at);
            assert!(part.to > part.from);
            let starts = match &part.windows {
                Windows::Starts(starts) => starts,
                Windows::Within { days, .. } => days,
                Windows::Total => unreachable!("a grid has windows"),
            };
            assert!(starts[0] <= part.from && starts[starts.len() - 1] < part.to);
            at = part.to;
            parts += 1;
        }
        assert_eq!(at, instant("2025-05-12T01:00:00.000001Z"));
        assert!(parts > 1, "{size:?}");
    }
}

#[test]
fn a_part_begins_with_the_window_of_a_cursor() {
    let grid = grid(WindowSize::Hour, "Europe/Budapest", "2025-03-28T10:30:00Z", "2025-04-02T00:00:00Z");
    let part = grid.part(instant("2025-03-30T03:00:00Z"), 4);
    assert_eq!(part.from, instant("2025-03-30T03:00:00Z"));
    assert_eq!(part.to, instant("2025-03-30T22:00:00Z"), "to the end of the day");
    assert!(grid.is_start(instant("2025-03-30T03:00:00Z")));
    assert!(grid.is_start(instant("2025-03-28T10:00:00Z")), "the window that `from` clips");
    assert!(!grid.is_start(instant("2025-03-28T09:00:00Z")), "before the range");
    assert!(!grid.is_start(instant("2025-04-02T00:00:00Z")), "after the range");
    assert!(!grid.is_start(instant("2025-03-30T03:00:00Z") + 1));
}

#[test]
fn all_names_are_understood() {
    let mut sizes: BTreeMap<&str, WindowSize> = BTreeMap::new();
    for (name, size) in WindowSize::NAMES {
        assert_eq!(WindowSize::parse(name), Some(*size));
        sizes.insert(name, *size);
    }
    assert_eq!(sizes.len(), 11);
    for wrong in ["day", "PT60S", "YEAR", "", "P1Y", "PT5M"] {
        assert_eq!(WindowSize::parse(wrong), None, "{wrong}");
    }
}

/// Every zone of the bundled database, seven years, in one pass: days ascend, tile, and begin with their own date.
#[test]
fn days_of_every_zone_tile_and_begin_at_the_first_instant_of_their_date() {
    let (from, to) = (instant("2019-06-01T00:00:00Z"), instant("2026-06-01T00:00:00Z"));
    let mut zones = 0;
    for name in known_zones() {
        let zone = Zone::parse(&name).unwrap();
        let grid = Grid::new(WindowSize::Day, &zone, from, to).unwrap();
        let mut end = None;
        for window in grid.windows() {
            assert!(end.is_none_or(|end| end == window.start), "{name}");
            let date = zone.date_of(window.start).unwrap();
            assert!(zone.date_of(window.start - 1).unwrap() < date, "{name} {date}");
            assert!((20..=28).contains(&((window.end - window.start) / (60 * MINUTE))), "{name} {date}");
            end = Some(window.end);
        }
        assert!(end.is_some_and(|end| end >= to), "{name}");
        zones += 1;
    }
    assert!(zones > 400, "{zones} zones");
}

fn any_zone() -> impl Strategy<Value = String> {
    prop::sample::select(known_zones().collect::<Vec<_>>())
}

fn any_size() -> impl Strategy<Value = WindowSize> {
    prop::sample::select(WindowSize::NAMES.iter().map(|(_, size)| *size).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn windows_tile_the_range(zone in any_zone(), size in any_size(), from in 0_i64..1_800_000_000, length in 1_i64..5_000_000, micros in 0_i64..1_000_000) {
        let zone = Zone::parse(&zone).unwrap();
        let from = from * 1_000_000 + micros;
        let length = if size.width() == Some(MINUTE) { length / 20 + 1 } else { length };
        let to = from + length * 1_000_000;
        let grid = Grid::new(size, &zone, from, to).unwrap();
        let windows: Vec<_> = grid.windows().collect();
        prop_assert!(windows[0].start <= from && from < windows[0].end);
        let last = windows[windows.len() - 1];
        prop_assert!(last.start < to && to <= last.end);
        for pair in windows.windows(2) {
            prop_assert_eq!(pair[0].end, pair[1].start);
        }
        for window in &windows {
            prop_assert!(window.start < window.end);
            prop_assert_eq!(grid.window_at(window.start.max(from)), *window);
            prop_assert_eq!(grid.window_at(window.end - 1), *window);
            prop_assert!(grid.is_start(window.start));
        }
        let partial = windows.iter().filter(|window| grid.is_partial(**window)).count();
        prop_assert!(partial <= 2);
    }
}
