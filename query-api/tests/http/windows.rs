//! Windows as a caller sees them: other systems' faults, held against right answers.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{Harness, case_rows};

fn path(from: &str, to: &str, size: &str, zone: &str) -> String {
    format!(
        "/v1/usage/aggregated?metric=tokens&from={from}&to={to}&window_size={size}&window_time_zone={zone}"
    )
}

/// (window_start, value, partial) of each row.
fn brief(rows: &[Value]) -> Vec<(String, String, bool)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rows.iter()
        .map(|row| (text(&row["window_start"]), text(&row["value"]), row["partial"].as_bool().unwrap()))
        .collect()
}

fn row(start: &str, value: &str) -> (String, String, bool) {
    (start.to_owned(), value.to_owned(), false)
}

#[tokio::test]
async fn problem_06_a_month_holds_its_first_and_last_instant_and_no_other() {
    let api = Harness::new();
    for (value, time) in [
        ("1", "2025-02-28T22:59:59.999999Z"),
        ("2", "2025-02-28T23:00:00Z"),
        ("4", "2025-03-31T21:59:59.999999Z"),
        ("8", "2025-03-31T22:00:00Z"),
    ] {
        api.add("tokens", value, time);
    }
    let rows =
        api.rows(&path("2025-01-31T23:00:00Z", "2025-04-30T22:00:00Z", "MONTH", "Europe/Budapest")).await;
    let expected = [
        row("2025-02-01T00:00:00+01:00", "1"),
        row("2025-03-01T00:00:00+01:00", "6"),
        row("2025-04-01T00:00:00+02:00", "8"),
    ];
    assert_eq!(brief(&rows), expected);
    assert_eq!(rows[1]["window_end"], "2025-04-01T00:00:00+02:00");
}

#[tokio::test]
async fn problem_07_a_day_with_a_clock_change_counts_all_its_hours() {
    let api = Harness::new();
    // One token in each of the 23 hours of the day, one before and one after.
    for hour in -1..=23_i64 {
        let at = 1_743_289_200_000_000 + hour * 3_600_000_000;
        let time = usage_schemas::Timestamp::from_micros(at).to_string();
        api.add("tokens", "1", &time);
    }
    let rows =
        api.rows(&path("2025-03-29T23:00:00Z", "2025-03-30T22:00:00Z", "P1D", "Europe/Budapest")).await;
    assert_eq!(brief(&rows), [row("2025-03-30T00:00:00+01:00", "23")]);
    let cairo = api.rows(&path("2025-04-24T22:00:00Z", "2025-04-25T21:00:00Z", "DAY", "Africa/Cairo")).await;
    assert_eq!(cairo, [] as [Value; 0]);
    api.add("tokens", "5", "2025-04-25T20:59:59.999999Z");
    let cairo = api.rows(&path("2025-04-24T22:00:00Z", "2025-04-25T21:00:00Z", "DAY", "Africa/Cairo")).await;
    assert_eq!(brief(&cairo), [row("2025-04-25T01:00:00+03:00", "5")]);
}

#[tokio::test]
async fn problem_31_months_end_at_local_midnight_in_plus_13_and_minus_11() {
    let api = Harness::new();
    for (value, time) in [
        ("1", "2026-05-31T10:59:59Z"),
        ("2", "2026-05-31T11:00:00Z"),
        ("4", "2026-06-01T10:59:59Z"),
        ("8", "2026-06-01T11:00:00Z"),
    ] {
        api.add("tokens", value, time);
    }
    let range = ("2026-05-31T10:00:00Z", "2026-06-01T12:00:00Z");
    let apia = api.rows(&path(range.0, range.1, "MONTH", "Pacific/Apia")).await;
    assert_eq!(apia.iter().map(|row| row["value"].clone()).collect::<Vec<_>>(), [json!("1"), json!("14")]);
    assert_eq!(apia[1]["window_start"], "2026-06-01T00:00:00+13:00");
    let pago = api.rows(&path(range.0, range.1, "MONTH", "Pacific/Pago_Pago")).await;
    assert_eq!(pago.iter().map(|row| row["value"].clone()).collect::<Vec<_>>(), [json!("7"), json!("8")]);
    assert_eq!(pago[1]["window_start"], "2026-06-01T00:00:00-11:00");
}

#[tokio::test]
async fn problem_44_hours_of_odd_zones_begin_with_the_day() {
    let api = Harness::new();
    for (value, time) in [
        ("1", "2025-04-06T12:59:59Z"),
        ("2", "2025-04-06T13:00:00Z"),
        ("4", "2025-04-06T13:29:59Z"),
        ("8", "2025-04-06T13:30:00Z"),
    ] {
        api.add("tokens", value, time);
    }
    // The day has 24.5 hours: its 25th window is half an hour long and ends with it.
    let rows =
        api.rows(&path("2025-04-05T13:00:00Z", "2025-04-07T13:30:00Z", "PT1H", "Australia/Lord_Howe")).await;
    let bounds: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                row["window_start"].as_str().unwrap(),
                row["window_end"].as_str().unwrap(),
                row["value"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        bounds,
        [
            ("2025-04-06T22:30:00+10:30", "2025-04-06T23:30:00+10:30", "1"),
            ("2025-04-06T23:30:00+10:30", "2025-04-07T00:00:00+10:30", "6"),
            ("2025-04-07T00:00:00+10:30", "2025-04-07T01:00:00+10:30", "8"),
        ]
    );
    let kathmandu =
        api.rows(&path("2025-04-06T12:15:00Z", "2025-04-06T13:30:00Z", "HOUR", "Asia/Kathmandu")).await;
    assert_eq!(kathmandu[0]["window_start"], "2025-04-06T18:00:00+05:45");
}

#[tokio::test]
async fn problem_61_single_days_add_up_to_the_whole_range() {
    let api = Harness::new();
    for minute in 0..5 * 24 * 6 {
        let at = 1_767_205_800_000_000 + minute * 600_000_000;
        api.add("tokens", "1.1", &usage_schemas::Timestamp::from_micros(at).to_string());
    }
    // Five days from midnight in Kolkata, as one range and as five.
    let day = |day: i64| zone_time(1_767_205_800 + day * 86_400);
    let whole = api.rows(&path(&day(0), &day(5), "DAY", "Asia/Kolkata")).await;
    assert_eq!(whole.len(), 5);
    for (index, row) in whole.iter().enumerate() {
        let (from, to) = (day(index as i64), day(index as i64 + 1));
        let single = api.rows(&path(&from, &to, "DAY", "Asia/Kolkata")).await;
        assert_eq!(single, std::slice::from_ref(row));
        let total = api.rows(&format!("/v1/usage/aggregated?metric=tokens&from={from}&to={to}")).await;
        assert_eq!(total[0]["value"], row["value"]);
    }
    let total = api.rows(&format!("/v1/usage/aggregated?metric=tokens&from={}&to={}", day(0), day(5))).await;
    assert_eq!(total[0]["value"], "792");
}

/// A time with the offset of Kolkata, encoded for a query.
fn zone_time(seconds: i64) -> String {
    let local = usage_schemas::Timestamp::from_micros((seconds + 19_800) * 1_000_000).to_string();
    format!("{}%2B05:30", local.trim_end_matches(".000000Z"))
}

#[tokio::test]
async fn problem_62_an_instant_counts_the_same_whatever_offset_it_is_asked_with() {
    let api = Harness::new();
    api.add("tokens", "1", "2026-04-01T04:00:00Z");
    // The same range in winter and summer offsets; New York changed its clocks in between.
    for (from, to) in [
        ("2026-04-01T04:00:00Z", "2026-05-01T04:00:00Z"),
        ("2026-03-31T23:00:00-05:00", "2026-04-30T23:00:00-05:00"),
        ("2026-04-01T00:00:00-04:00", "2026-05-01T00:00:00-04:00"),
    ] {
        let rows = api.rows(&path(from, to, "MONTH", "America/New_York")).await;
        assert_eq!(brief(&rows), [row("2026-04-01T00:00:00-04:00", "1")], "{from}");
        assert_eq!(
            api.get(&path(from, to, "MONTH", "America/New_York")).await.json()["from"],
            "2026-04-01T00:00:00-04:00"
        );
    }
}

#[tokio::test]
async fn only_what_the_range_clips_is_partial() {
    let api = Harness::new();
    for day in 1..=4 {
        api.add("tokens", "1", &format!("2026-01-0{day}T12:00:00Z"));
    }
    let rows = api.rows(&path("2026-01-01T11:00:00Z", "2026-01-04T00:00:00Z", "DAY", "UTC")).await;
    let partial: Vec<_> = rows.iter().map(|row| row["partial"].as_bool().unwrap()).collect();
    assert_eq!(partial, [true, false, false]);
    assert_eq!(rows[0]["window_start"], "2026-01-01T00:00:00Z");
    let total = api
        .rows("/v1/usage/aggregated?metric=tokens&from=2026-01-01T11:00:00Z&to=2026-01-04T00:00:00Z")
        .await;
    assert_eq!(
        (&total[0]["partial"], &total[0]["window_start"]),
        (&json!(false), &json!("2026-01-01T11:00:00Z"))
    );
}

#[tokio::test]
async fn every_spelling_of_a_size_is_echoed() {
    let api = Harness::new();
    for size in ["MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "PT1M", "PT15M", "PT1H", "P1D", "P1W", "P1M"] {
        let answer = api
            .get(&path("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", size, "europe/budapest"))
            .await
            .json();
        assert_eq!(
            (&answer["window_size"], &answer["window_time_zone"]),
            (&json!(size), &json!("Europe/Budapest"))
        );
    }
}

/// Each row of the case files, over HTTP: the day's first and last microsecond lie in it, their neighbours do not.
#[tokio::test]
async fn every_day_and_month_of_the_case_files_has_its_bounds_over_http() {
    for (file, size) in [("day_windows.tsv", "DAY"), ("month_windows.tsv", "MONTH")] {
        let rows = case_rows(file);
        assert!(rows.len() > 100);
        for case in rows {
            let (zone, start, end) = (&case[0], instant(&case[2]), instant(&case[3]));
            let api = Harness::new();
            for (value, at) in [("1", start - 1), ("10", start), ("100", end - 1), ("1000", end)] {
                api.add("tokens", value, &usage_schemas::Timestamp::from_micros(at).to_string());
            }
            let (from, to) = (start - 1, end + 1);
            let text = |at: i64| usage_schemas::Timestamp::from_micros(at).to_string();
            let rows = api.rows(&path(&text(from), &text(to), size, zone)).await;
            let values: Vec<_> = rows.iter().map(|row| row["value"].as_str().unwrap()).collect();
            assert_eq!(values, ["1", "110", "1000"], "{case:?}");
            let found: Vec<_> =
                ["window_start", "window_end"].map(|name| instant(rows[1][name].as_str().unwrap())).into();
            assert_eq!(found, [start, end], "{case:?}");
            assert_eq!(rows[1]["partial"], false, "{case:?}");
        }
    }
}

fn instant(text: &str) -> i64 {
    usage_schemas::Timestamp::parse(text).unwrap().micros()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Whatever the zone and the size, every record lies in one window: the windows add up to the total.
    #[test]
    fn windows_of_any_zone_add_up_to_the_total(
        zone in prop::sample::select(usage_query_api::zones::known_zones().collect::<Vec<_>>()),
        size in prop::sample::select(vec!["MINUTE", "PT15M", "HOUR", "DAY", "WEEK", "MONTH"]),
        from in 1_546_300_800_000_000_i64..1_798_761_600_000_000,
        length in 1_i64..3_000_000_000_000,
        records in prop::collection::vec((-100_000_000_000_i64..3_100_000_000_000, 1_i64..1_000_000), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let api = Harness::new();
            let text = |at: i64| usage_schemas::Timestamp::from_micros(at).to_string();
            let mut expected = ethnum::I256::ZERO;
            for (offset, value) in &records {
                api.add("tokens", &format!("0.{value:018}"), &text(from + offset));
                if (0..length).contains(offset) {
                    expected += ethnum::I256::from(*value);
                }
            }
            let path = path(&text(from), &text(from + length), size, &zone.replace('+', "%2B"));
            let (rows, _) = api.all_rows(&path).await;
            let units = |row: &Value| {
                let value = usage_schemas::Quantity::parse(row["value"].as_str().unwrap()).unwrap();
                ethnum::I256::from(value.unscaled())
            };
            assert_eq!(rows.iter().map(units).sum::<ethnum::I256>(), expected, "{path}");
            let counted: Vec<_> = api.rows(&format!("{path}&aggregation=count")).await;
            let count: usize = counted.iter().map(|row| row["value"].as_str().unwrap().parse::<usize>().unwrap()).sum();
            assert_eq!(count, records.iter().filter(|(offset, _)| (0..length).contains(offset)).count());
            for pair in rows.windows(2) {
                let bound = |row: &Value, name: &str| instant(row[name].as_str().unwrap());
                assert!(bound(&pair[0], "window_end") <= bound(&pair[1], "window_start"), "{path}");
            }
        });
    }
}
