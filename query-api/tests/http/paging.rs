//! Pages of aggregates: each row once, in order, whatever happens meanwhile.

use serde_json::Value;
use uuid::Uuid;

use crate::memory::record;
use crate::support::{Harness, Setup};

const DAYS: &str = "/v1/usage/aggregated?from=2026-01-01T00:00:00Z&to=2026-01-11T00:00:00Z";

/// 10 days with 7 subjects each, one of them unknown.
fn filled(api: &Harness) {
    for day in 1..=10 {
        for subject in 0..7_u128 {
            let mut found = record(api.tenant, "tokens", "1.5", &format!("2026-01-{day:02}T12:00:00Z"));
            found.subject_id = (subject > 0).then(|| Uuid::from_u128(subject));
            api.memory.add(found);
        }
    }
}

#[tokio::test]
async fn pages_hold_each_row_once_in_order() {
    for page_rows in [1, 3, 7, 10, 69, 70, 71] {
        let api = Harness::with(Setup::page_rows(page_rows));
        filled(&api);
        let path = format!("{DAYS}&metric=tokens&window_size=DAY&group_by=subject");
        let whole = api.instance(Setup::default()).rows(&path).await;
        let (rows, pages) = api.all_rows(&path).await;
        assert_eq!(rows, whole);
        assert_eq!(
            (rows.len(), pages),
            (70, 70_usize.div_ceil(page_rows)),
            "{page_rows} a page: no empty page at the end"
        );
    }
}

#[tokio::test]
async fn the_total_is_paged_by_group() {
    let api = Harness::with(Setup::page_rows(2));
    filled(&api);
    let (rows, pages) = api.all_rows(&format!("{DAYS}&metric=tokens&group_by=subject")).await;
    assert_eq!((rows.len(), pages), (7, 4));
    assert!(rows.iter().all(|row| row["value"] == "15"));
    assert_eq!(rows[6]["subject_id"], Value::Null, "unknown subjects come last");
}

#[tokio::test]
async fn problem_80_rows_that_arrive_meanwhile_neither_hide_nor_repeat_others() {
    let api = Harness::with(Setup::page_rows(5));
    filled(&api);
    let path = format!("{DAYS}&metric=tokens&window_size=DAY&group_by=subject");
    let before = api.instance(Setup::default()).rows(&path).await;
    let (mut seen, mut next) = (Vec::new(), path.clone());
    loop {
        let json = api.get(&next).await.json();
        seen.extend(
            json["data"]
                .as_array()
                .unwrap()
                .iter()
                .map(|row| (row["window_start"].clone(), row["subject_id"].clone())),
        );
        // A new subject on the first and on the last day, both sides of the page that was read.
        for day in ["01", "10"] {
            let mut late = record(api.tenant, "tokens", "1", &format!("2026-01-{day}T13:00:00Z"));
            late.subject_id = Some(Uuid::new_v4());
            api.memory.add(late);
        }
        let Some(cursor) = json["next_cursor"].as_str() else { break };
        next = format!("{path}&cursor={cursor}");
    }
    let distinct: std::collections::HashSet<_> = seen.iter().map(|row| format!("{row:?}")).collect();
    assert_eq!(distinct.len(), seen.len(), "a row came twice");
    for row in before {
        assert!(seen.contains(&(row["window_start"].clone(), row["subject_id"].clone())), "{row} was missed");
    }
}

#[tokio::test]
async fn any_instance_goes_on_with_a_page() {
    let api = Harness::with(Setup::page_rows(10));
    filled(&api);
    let path = format!("{DAYS}&metric=tokens&window_size=DAY&group_by=subject");
    let cursor = api.get(&path).await.json()["next_cursor"].as_str().unwrap().to_owned();
    let next = format!("{path}&cursor={cursor}");
    let here = api.rows(&next).await;
    assert_eq!(api.instance(Setup::page_rows(10)).rows(&next).await, here);
    let stranger = api.instance(Setup { cursor_key: b"another key", ..Setup::page_rows(10) });
    assert_eq!(stranger.get(&next).await.problem(400, "invalid-cursor"), ["cursor:invalid_cursor"]);
}

#[tokio::test]
async fn a_cursor_is_good_for_its_query_and_tenant_only() {
    let mut api = Harness::with(Setup::page_rows(10));
    filled(&api);
    let path = format!("{DAYS}&metric=tokens&window_size=DAY&group_by=subject");
    let cursor = api.get(&path).await.json()["next_cursor"].as_str().unwrap().to_owned();
    // The same query, written otherwise.
    let same = format!(
        "/v1/usage/aggregated?to=2026-01-11T01:00:00%2B01:00&from=2026-01-01T00:00:00Z&window_size=P1D&group_by=subject&metric=tokens&metric=tokens&fill=none&cursor={cursor}"
    );
    assert_eq!(api.rows(&same).await, api.rows(&format!("{path}&cursor={cursor}")).await);
    for other in [
        format!("{path}&source=gateway"),
        path.replace("DAY", "HOUR"),
        path.replace("2026-01-11", "2026-01-12"),
        format!("{path}&aggregation=count"),
        format!("{path}&fill=zero"),
    ] {
        let answer = api.get(&format!("{other}&cursor={cursor}")).await;
        assert_eq!(answer.problem(400, "invalid-cursor"), ["cursor:cursor_of_another_query"], "{other}");
    }
    for altered in
        [format!("{cursor}A"), cursor[1..].to_owned(), "eyJhIjoxfQ".to_owned(), cursor.to_lowercase()]
    {
        let answer = api.get(&format!("{path}&cursor={altered}")).await;
        assert_eq!(answer.problem(400, "invalid-cursor"), ["cursor:invalid_cursor"], "{altered}");
    }
    api.tenant = Uuid::new_v4();
    let answer = api.get(&format!("{path}&cursor={cursor}")).await;
    assert_eq!(answer.problem(400, "invalid-cursor"), ["cursor:cursor_of_another_query"]);
}

#[tokio::test]
async fn pages_of_the_first_window_that_the_range_clips() {
    let api = Harness::with(Setup::page_rows(3));
    filled(&api);
    let path = "/v1/usage/aggregated?from=2026-01-01T12:00:00Z&to=2026-01-02T12:00:00.000001Z&metric=tokens&window_size=DAY&group_by=subject";
    let (rows, pages) = api.all_rows(path).await;
    assert_eq!((rows.len(), pages), (14, 5));
    assert!(rows.iter().all(|row| row["partial"] == true && row["value"] == "1.5"));
    let (filled, _) = api.all_rows(&format!("{path}&fill=zero")).await;
    assert_eq!(filled, rows);
}
