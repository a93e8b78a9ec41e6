//! CSV and NDJSON of whole ranges.

use axum::http::StatusCode;
use serde_json::Value;

use crate::memory::{Mood, record};
use crate::support::{Harness, Setup};

const RAW: &str = "/v1/usage/raw?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z";
const AGGREGATED: &str =
    "/v1/usage/aggregated?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z&metric=tokens&window_size=MINUTE";

/// 2,500 records, more than two pages of a stream.
fn many() -> Harness {
    let api = Harness::new();
    for at in 0..2_500_i64 {
        let time =
            usage_schemas::Timestamp::from_micros(1_767_225_600_000_000 + at / 3 * 1_000_000).to_string();
        let mut found = record(api.tenant, "tokens", &format!("{at}.5"), &time);
        found.metadata = Some(format!("{{\"at\":\n{at}}}"));
        api.memory.add(found);
    }
    api
}

#[tokio::test]
async fn ndjson_has_each_record_of_the_range_once() {
    let api = many();
    let answer = api.get_as(RAW, "application/x-ndjson").await;
    assert_eq!((answer.status, answer.broken), (StatusCode::OK, false));
    assert_eq!(answer.header("content-type"), "application/x-ndjson");
    let records: Vec<Value> = answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (paged, _) = api.all_rows(&format!("{RAW}&limit=1000")).await;
    assert_eq!(records, paged);
    assert_eq!(records.len(), 2_500);
}

#[tokio::test]
async fn csv_has_each_record_of_the_range_once_below_one_header() {
    let api = many();
    let answer = api.get_as(RAW, "text/csv").await;
    let mut reader = csv::Reader::from_reader(answer.text.as_bytes());
    let id = reader.headers().unwrap().iter().position(|name| name == "record_id").unwrap();
    let ids: std::collections::HashSet<String> =
        reader.records().map(|row| row.unwrap()[id].to_owned()).collect();
    assert_eq!(ids.len(), 2_500);
    assert_eq!(answer.text.matches("record_id").count(), 1);
}

#[tokio::test]
async fn a_stream_may_begin_at_a_cursor_but_has_no_limit() {
    let api = many();
    let cursor =
        api.get(&format!("{RAW}&limit=1000")).await.json()["next_cursor"].as_str().unwrap().to_owned();
    let rest = api.get_as(&format!("{RAW}&cursor={cursor}"), "application/x-ndjson").await;
    assert_eq!(rest.text.lines().count(), 1_500);
    let answer = api.get_as(&format!("{RAW}&limit=10"), "text/csv").await;
    assert_eq!(answer.problem(400, "invalid-parameter"), ["limit:not_applicable"]);
}

#[tokio::test]
async fn aggregated_csv_has_all_rows_of_all_pages() {
    for page_rows in [7, 10_000] {
        let api = many().instance(Setup::page_rows(page_rows));
        let answer = api.get_as(AGGREGATED, "text/csv").await;
        let (rows, _) = api.all_rows(AGGREGATED).await;
        assert_eq!(answer.text.lines().count(), rows.len() + 1, "{page_rows}");
        let values: Vec<_> =
            answer.text.lines().skip(1).map(|line| line.split(',').nth(3).unwrap().to_owned()).collect();
        assert_eq!(
            values,
            rows.iter().map(|row| row["value"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        );
        let filled = api.get_as(&format!("{AGGREGATED}&fill=zero"), "text/csv").await;
        assert_eq!(filled.text.lines().count(), 1_441);
    }
}

#[tokio::test]
async fn a_failure_midway_breaks_the_body_off() {
    for accept in ["application/x-ndjson", "text/csv"] {
        let api = many();
        api.memory.set_mood(Mood::AwayAfter(2));
        let answer = api.get_as(RAW, accept).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert!(answer.broken, "{accept}: the body must not end cleanly");
        let api = many().instance(Setup::page_rows(10));
        api.memory.set_mood(Mood::AwayAfter(1));
        assert!(api.get_as(AGGREGATED, "text/csv").await.broken);
    }
}

#[tokio::test]
async fn a_failure_at_once_is_a_problem() {
    let api = many();
    api.memory.set_mood(Mood::AwayAfter(0));
    api.get_as(RAW, "text/csv").await.problem(503, "unavailable");
    api.get_as(AGGREGATED, "text/csv").await.problem(503, "unavailable");
}
