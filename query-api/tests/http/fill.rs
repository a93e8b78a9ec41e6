//! `fill=zero`: every window for each group seen.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::memory::record;
use crate::support::{Harness, Setup};

const DAYS: &str = "/v1/usage/aggregated?from=2026-01-01T00:00:00Z&to=2026-01-04T00:00:00Z&fill=zero";

fn values(rows: &[Value]) -> Vec<Value> {
    rows.iter().map(|row| row["value"].clone()).collect()
}

#[tokio::test]
async fn windows_without_records_have_rows() {
    let api = Harness::new();
    api.add("tokens", "5", "2026-01-02T12:00:00Z");
    for (aggregation, expected) in [
        ("sum", json!(["0", "5", "0"])),
        ("count", json!(["0", "1", "0"])),
        ("min", json!([null, "5", null])),
        ("max", json!([null, "5", null])),
        ("avg", json!([null, "5", null])),
        ("latest", json!([null, "5", null])),
    ] {
        let rows = api.rows(&format!("{DAYS}&metric=tokens&window_size=DAY&aggregation={aggregation}")).await;
        assert_eq!(json!(values(&rows)), expected, "{aggregation}");
    }
    assert_eq!(
        api.rows(&format!("{}&metric=tokens&window_size=DAY", DAYS.replace("fill=zero", "fill=none")))
            .await
            .len(),
        1
    );
}

#[tokio::test]
async fn the_single_total_is_filled_too() {
    let api = Harness::new();
    let rows = api.rows(&format!("{DAYS}&metric=tokens")).await;
    assert_eq!(
        rows,
        [
            json!({"window_start": "2026-01-01T00:00:00Z", "window_end": "2026-01-04T00:00:00Z", "partial": false, "value": "0", "unit": "token"})
        ]
    );
    let unfilled = DAYS.replace("fill=zero", "fill=none");
    assert_eq!(api.rows(&format!("{unfilled}&metric=tokens")).await, [] as [Value; 0]);
}

#[tokio::test]
async fn a_group_seen_once_has_every_window_and_unseen_ones_none() {
    let api = Harness::new();
    api.add("tokens", "1", "2026-01-01T12:00:00Z");
    api.add("bytes", "2", "2026-01-03T12:00:00Z");
    let rows = api.rows(&format!("{DAYS}&group_by=metric&window_size=DAY")).await;
    let brief: Vec<_> =
        rows.iter().map(|row| (row["metric"].as_str().unwrap(), row["value"].as_str().unwrap())).collect();
    assert_eq!(
        brief,
        [("bytes", "0"), ("tokens", "1"), ("bytes", "0"), ("tokens", "0"), ("bytes", "2"), ("tokens", "0")]
    );
    let nobody = api.rows(&format!("{DAYS}&metric=level&group_by=source&window_size=DAY")).await;
    assert_eq!(nobody, [] as [Value; 0]);
}

#[tokio::test]
async fn problem_45_filled_days_of_cairo_are_the_days_of_the_rows() {
    let api = Harness::new();
    // 25 April 2025 begins at 01:00; one record in its first second, one in the last of the day before.
    api.add("tokens", "1", "2025-04-24T21:59:59Z");
    api.add("tokens", "2", "2025-04-24T22:00:00Z");
    let path = "/v1/usage/aggregated?metric=tokens&from=2025-04-22T22:00:00Z&to=2025-04-26T21:00:00Z&window_size=DAY\
                &window_time_zone=Africa/Cairo&fill=zero";
    let rows = api.rows(path).await;
    let brief: Vec<_> = rows
        .iter()
        .map(|row| (row["window_start"].as_str().unwrap(), row["value"].as_str().unwrap()))
        .collect();
    assert_eq!(
        brief,
        [
            ("2025-04-23T00:00:00+02:00", "0"),
            ("2025-04-24T00:00:00+02:00", "1"),
            ("2025-04-25T01:00:00+03:00", "2"),
            ("2025-04-26T00:00:00+03:00", "0"),
        ]
    );
    assert!(rows.iter().all(|row| row["partial"] == false));
}

#[tokio::test]
async fn ten_years_of_minutes_are_a_page_at_a_time() {
    let api = Harness::new();
    api.add("tokens", "7", "2020-06-01T00:00:30Z");
    let path = "/v1/usage/aggregated?metric=tokens&from=2016-01-01T00:00:00Z&to=2026-01-01T00:00:00Z&window_size=MINUTE&fill=zero";
    let answer = api.get(path).await.json();
    assert_eq!(answer["data"].as_array().unwrap().len(), 10_000);
    assert_eq!(answer["data"][9_999]["window_start"], "2016-01-07T22:39:00Z");
    let next = answer["next_cursor"].as_str().unwrap();
    let second = api.get(&format!("{path}&cursor={next}")).await.json();
    assert_eq!(second["data"][0]["window_start"], "2016-01-07T22:40:00Z");
    // The one record of ten years is found in a few questions when nothing is filled.
    let before = api.memory.calls();
    let rows = api.rows(&path.replace("fill=zero", "fill=none")).await;
    assert_eq!((rows.len(), rows[0]["window_start"].as_str()), (1, Some("2020-06-01T00:00:00Z")));
    assert!(api.memory.calls() - before < 10, "{} questions", api.memory.calls() - before);
}

#[tokio::test]
async fn a_page_may_end_within_a_window_of_many_groups() {
    let api = Harness::with(Setup::page_rows(3));
    for source in 0..8 {
        let mut found = record(
            api.tenant,
            "tokens",
            "1",
            if source % 2 == 0 { "2026-01-01T12:00:00Z" } else { "2026-01-03T12:00:00Z" },
        );
        found.source = format!("s{source}");
        api.memory.add(found);
    }
    let (rows, pages) = api.all_rows(&format!("{DAYS}&metric=tokens&group_by=source&window_size=DAY")).await;
    assert_eq!((rows.len(), pages), (24, 8));
    let expected: Vec<_> = (1..=3)
        .flat_map(|day| (0..8).map(move |source| (format!("2026-01-0{day}T00:00:00Z"), format!("s{source}"))))
        .collect();
    let found: Vec<_> = rows
        .iter()
        .map(|row| {
            (row["window_start"].as_str().unwrap().to_owned(), row["source"].as_str().unwrap().to_owned())
        })
        .collect();
    assert_eq!(found, expected);
    let ones = rows.iter().filter(|row| row["value"] == "1").count();
    assert_eq!(ones, 8);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Filled answers are the unfilled ones plus zeros, for any page size.
    #[test]
    fn filling_only_adds_zeros(
        records in prop::collection::vec((0_i64..4 * 86_400, 0_u8..4, 1_i64..100), 0..40),
        page in 1_usize..9,
        size in prop::sample::select(vec!["PT15M", "HOUR", "DAY", "WEEK", ""]),
        grouped in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let api = Harness::with(Setup { limits: usage_query_api::state::Limits { aggregated_rows: page * 37, ..Default::default() }, ..Setup::default() });
            for (second, source, value) in &records {
                let at = (1_743_100_000 + second) * 1_000_000;
                let mut found = record(api.tenant, "tokens", &value.to_string(), &usage_schemas::Timestamp::from_micros(at).to_string());
                found.source = format!("s{source}");
                api.memory.add(found);
            }
            let mut path = "/v1/usage/aggregated?metric=tokens&from=2025-03-27T18:00:00Z&to=2025-03-31T20:30:00Z&window_time_zone=Europe/Budapest".to_owned();
            if !size.is_empty() {
                path.push_str(&format!("&window_size={size}"));
            }
            if grouped {
                path.push_str("&group_by=source");
            }
            let key = |row: &Value| (row["window_start"].as_str().unwrap().to_owned(), row["source"].as_str().map(str::to_owned));
            let (plain, _) = api.all_rows(&path).await;
            let (filled, _) = api.all_rows(&format!("{path}&fill=zero")).await;
            let plain: BTreeMap<_, _> = plain.iter().map(|row| (key(row), row.clone())).collect();
            let groups: std::collections::BTreeSet<_> = plain.keys().map(|(_, source)| source.clone()).collect();
            let windows: std::collections::BTreeSet<_> = filled.iter().map(|row| row["window_start"].as_str().unwrap().to_owned()).collect();
            let groups = if grouped { groups.len() } else { 1 };
            assert_eq!(filled.len(), windows.len() * groups);
            let mut kept = 0;
            for row in &filled {
                match plain.get(&key(row)) {
                    Some(found) => { assert_eq!(found, row); kept += 1; }
                    None => assert_eq!(row["value"], "0"),
                }
            }
            assert_eq!(kept, plain.len());
        });
    }
}
