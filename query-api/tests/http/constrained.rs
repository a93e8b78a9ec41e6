//! Permissions with bounds: they are filters of every answer, and nothing beyond them can be told from it.

use axum::http::StatusCode;
use serde_json::{Value, json};
use usage_access::policy::Constraints;
use usage_control::{Completeness, SourceComplete};

use crate::memory::record;
use crate::policy::Says;
use crate::support::{Harness, Setup};

const RANGE: &str = "from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z";
/// 2026-01-01T00:00:00Z
const DAY: i64 = 1_767_225_600_000_000;

/// Every metric from every source, each with a value of its own; what lies outside of [`limited`] has at least three digits.
fn filled(setup: Setup) -> Harness {
    let api = Harness::with(setup);
    let values = [
        ("tokens", "gateway", "1"),
        ("bytes", "gateway", "2"),
        ("level", "gateway", "444"),
        ("tokens", "batch", "888"),
        ("bytes", "batch", "1666"),
        ("level", "batch", "3222"),
    ];
    for (at, (metric, source, value)) in values.into_iter().enumerate() {
        let mut found = record(api.tenant, metric, value, &format!("2026-01-01T0{at}:00:00Z"));
        found.source = source.to_owned();
        api.memory.add(found);
    }
    api
}

fn limited() -> Says {
    Says::limited(&["bytes", "tokens"], &["gateway"])
}

fn cells(rows: &[Value], names: &[&str]) -> Vec<String> {
    let cell = |row: &Value, name: &str| row[name].as_str().unwrap_or("-").to_owned();
    rows.iter().map(|row| names.iter().map(|name| cell(row, name)).collect::<Vec<_>>().join(" ")).collect()
}

#[tokio::test]
async fn totals_hold_only_what_may_be_seen() {
    let api = filled(Setup::default());
    api.policy.says(limited());
    for (question, names, expected) in [
        ("group_by=metric", &["metric", "value"][..], &["bytes 2", "tokens 1"][..]),
        ("metric=tokens", &["value"], &["1"]),
        ("metric=tokens&metric=bytes&aggregation=count", &["value"], &["2"]),
        ("metric=tokens&group_by=source", &["source", "value"], &["gateway 1"]),
        ("metric=tokens&source=gateway", &["value"], &["1"]),
        (
            "group_by=metric,source&aggregation=max",
            &["metric", "source", "value"],
            &["bytes gateway 2", "tokens gateway 1"],
        ),
        ("group_by=metric&fill=zero", &["metric", "value"], &["bytes 2", "tokens 1"]),
        ("group_by=metric,source&fill=zero&window_size=P1D", &["metric", "value"], &["bytes 2", "tokens 1"]),
        ("metric=bytes&window_size=HOUR", &["window_start", "value"], &["2026-01-01T01:00:00Z 2"]),
    ] {
        let rows = api.rows(&format!("/v1/usage/aggregated?{RANGE}&{question}")).await;
        assert_eq!(cells(&rows, names), expected, "{question}");
    }
    let csv = api.get_as(&format!("/v1/usage/aggregated?{RANGE}&group_by=metric,source"), "text/csv").await;
    let lines: Vec<&str> =
        csv.text.lines().skip(1).map(|line| line.split_once("false,").unwrap().1).collect();
    assert_eq!(lines, ["bytes,gateway,2,byte", "tokens,gateway,1,token"]);
}

#[tokio::test]
async fn records_are_only_those_that_may_be_seen() {
    let api = filled(Setup::default());
    let everything = api.rows(&format!("/v1/usage/raw?{RANGE}&status=all")).await;
    assert_eq!(everything.len(), 6);
    api.policy.says(limited());
    for (question, expected) in [
        ("", &["tokens gateway", "bytes gateway"][..]),
        ("&status=all", &["tokens gateway", "bytes gateway"]),
        ("&metric=bytes", &["bytes gateway"]),
        ("&source=gateway&limit=1", &["tokens gateway"]),
    ] {
        let path = format!("/v1/usage/raw?{RANGE}{question}");
        assert_eq!(cells(&api.rows(&path).await, &["metric", "source"]), expected, "{question}");
    }
    for accept in ["text/csv", "application/x-ndjson"] {
        let answer = api.get_as(&format!("/v1/usage/raw?{RANGE}&status=all"), accept).await;
        let lines = answer.text.lines().count() - usize::from(accept == "text/csv");
        assert!(!answer.broken && lines == 2, "{}", answer.text);
        assert!(!answer.text.contains("batch") && !answer.text.contains("level"), "{}", answer.text);
    }
    let stranger = api.get("/v1/usage/records/018f3c5e-0000-7000-8000-000000000001").await;
    for row in everything {
        let answer = api.get(&format!("/v1/usage/records/{}", row["record_id"].as_str().unwrap())).await;
        if row["metric"] != "level" && row["source"] == "gateway" {
            assert_eq!((answer.status, answer.json()), (StatusCode::OK, row));
        } else {
            answer.problem(404, "not-found");
            assert_eq!(answer.detail(), stranger.detail(), "as if it were not there");
        }
    }
}

/// A stream of several pages: each of them is asked for within the bounds.
#[tokio::test]
async fn later_pages_of_a_stream_are_bounded_too() {
    let api = filled(Setup::page_rows(1));
    for at in 0..2_500 {
        let mut found =
            record(api.tenant, if at % 2 == 0 { "tokens" } else { "level" }, "1", "2026-01-01T12:00:00Z");
        found.source = if at % 3 == 0 { "batch" } else { "gateway" }.to_owned();
        api.memory.add(found);
    }
    api.policy.says(limited());
    let answer = api.get_as(&format!("/v1/usage/raw?{RANGE}"), "application/x-ndjson").await;
    assert_eq!(answer.text.lines().count(), 2 + 833, "pages of 1,000");
    let answer =
        api.get_as(&format!("/v1/usage/aggregated?{RANGE}&group_by=metric,source"), "text/csv").await;
    assert_eq!(answer.text.lines().count(), 1 + 2, "{}", answer.text);
    for question in api.memory.questions() {
        let (metrics, sources) = question.filters.expect("no single record was asked for");
        assert_eq!(
            (metrics, sources),
            (vec!["bytes".to_owned(), "tokens".to_owned()], vec!["gateway".to_owned()])
        );
    }
}

#[tokio::test]
async fn what_is_named_and_lies_outside_is_refused_and_looked_up_nowhere() {
    let api = filled(Setup::default());
    api.policy.says(limited());
    for path in [
        format!("/v1/usage/aggregated?{RANGE}&metric=level"),
        format!("/v1/usage/aggregated?{RANGE}&metric=tokens&metric=level&aggregation=count"),
        format!("/v1/usage/aggregated?{RANGE}&metric=tokens&source=batch"),
        format!("/v1/usage/aggregated?{RANGE}&metric=tokens&source=batch&source=gateway"),
        format!("/v1/usage/aggregated?{RANGE}&metric=there.is.none"),
        format!("/v1/usage/raw?{RANGE}&metric=level"),
        format!("/v1/usage/raw?{RANGE}&source=batch"),
        format!("/v1/usage/raw?{RANGE}&source=there.is.none"),
    ] {
        let answer = api.get(&path).await;
        answer.problem(403, "forbidden");
        assert_eq!(answer.detail(), "the action `read` was refused", "{path}");
    }
    assert_eq!((api.memory.calls(), api.registry.calls()), (0, 0));
}

#[tokio::test]
async fn types_are_those_that_may_be_seen_and_hints_name_no_other() {
    let api = filled(Setup::default());
    api.policy.says(Says::limited(&["bytes", "levels", "tokens"], &[]));
    assert_eq!(cells(&api.rows("/v1/usage/types").await, &["name"]), ["bytes", "tokens"]);
    assert_eq!(api.get("/v1/usage/types/tokens").await.status, StatusCode::OK);
    for name in ["level", "token", "there.is.none"] {
        api.get(&format!("/v1/usage/types/{name}")).await.problem(403, "forbidden");
    }
    // Permitted, but not registered: the nearest would be `level`.
    for path in [
        "/v1/usage/types/levels".to_owned(),
        format!("/v1/usage/aggregated?{RANGE}&metric=levels"),
        format!("/v1/usage/raw?{RANGE}&metric=levels"),
    ] {
        let answer = api.get(&path).await;
        answer.problem(404, "unknown-metric");
        assert!(!answer.text.contains("`level`"), "{}", answer.text);
    }
    let new = |name: &str| format!(r#"{{"name":"{name}","kind":"counter","unit":"request"}}"#);
    assert_eq!(api.post("/v1/usage/types", &new("levels")).await.status, StatusCode::CREATED);
    let calls = api.registry.calls();
    for name in ["requests", "level"] {
        api.post("/v1/usage/types", &new(name)).await.problem(403, "forbidden");
    }
    assert_eq!(api.registry.calls(), calls);
    // Types have no source: a permission that is limited to sources can't be held.
    api.policy.says(limited());
    for path in ["/v1/usage/types", "/v1/usage/types/tokens"] {
        api.get(path).await.problem(403, "forbidden");
    }
}

#[tokio::test]
async fn watermarks_and_completeness_are_those_of_what_may_be_seen() {
    let api = filled(Setup { cache: std::time::Duration::ZERO, ..Setup::default() });
    let source = |source: &str, complete_until| SourceComplete {
        source: source.to_owned(),
        retired: false,
        complete_until: Some(complete_until),
    };
    let sources = vec![source("batch", DAY + 1), source("gateway", DAY + 2), source("other", DAY)];
    api.registry.set_completeness(Completeness { gap: false, sources });
    let total = format!("/v1/usage/aggregated?{RANGE}&metric=tokens");
    assert_eq!(api.get(&total).await.json()["complete_until"], "2026-01-01T00:00:00.000000Z");

    api.policy.says(limited());
    assert_eq!(api.get(&total).await.json()["complete_until"], "2026-01-01T00:00:00.000002Z");
    assert_eq!(
        api.get("/v1/usage/metadata/watermarks").await.json(),
        json!({"complete_until": "2026-01-01T00:00:00.000002Z", "sources": [{
            "source": "gateway", "records": "2", "latest_timestamp": "2026-01-01T01:00:00.000000Z",
            "latest_ingested_at": "2026-01-01T01:00:01.000000Z", "complete_until": "2026-01-01T00:00:00.000002Z",
        }]})
    );
    // One of the sources that may be seen was never heard of: nothing is known.
    api.policy.says(Says::limited(&[], &["gateway", "there.is.none"]));
    assert_eq!(api.get(&total).await.json()["complete_until"], Value::Null);
    let watermarks = api.get("/v1/usage/metadata/watermarks").await.json();
    assert_eq!(
        (&watermarks["complete_until"], &watermarks["sources"][0]["records"]),
        (&Value::Null, &json!("3"))
    );
    // Without records of what may be seen, a source is not even named.
    api.policy.says(Says::limited(&["tokens"], &["there.is.none"]));
    assert_eq!(api.get("/v1/usage/metadata/watermarks").await.json()["sources"], json!([]));
}

#[tokio::test]
async fn a_cursor_is_good_within_the_bounds_that_it_was_made_in() {
    for path in [
        format!("/v1/usage/aggregated?{RANGE}&group_by=metric,source"),
        format!("/v1/usage/raw?{RANGE}&limit=1"),
    ] {
        let api = filled(Setup::page_rows(1));
        let others = [
            Says::Shipped,
            Says::limited(&["bytes", "tokens"], &[]),
            Says::limited(&["bytes", "level", "tokens"], &["gateway"]),
            Says::limited(&["bytes", "tokens"], &["batch", "gateway"]),
        ];
        let next = async |says: &Says| {
            api.policy.says(says.clone());
            let cursor = api.get(&path).await.json()["next_cursor"].as_str().unwrap().to_owned();
            format!("{path}&cursor={cursor}")
        };
        let own = next(&limited()).await;
        assert_eq!(api.get(&own).await.status, StatusCode::OK);
        // The same bounds for another instance and at another time are the same.
        assert_eq!(api.instance(Setup::page_rows(1)).get(&own).await.status, StatusCode::OK);
        for says in &others {
            let theirs = next(says).await;
            assert_eq!(api.get(&theirs).await.status, StatusCode::OK);
            let answer = api.get(&own).await;
            assert_eq!(answer.problem(400, "invalid-cursor"), ["cursor:cursor_of_another_query"], "{says:?}");
            api.policy.says(limited());
            let answer = api.get_as(&theirs.replace("&limit=1", ""), "text/csv").await;
            assert_eq!(answer.problem(400, "invalid-cursor"), ["cursor:cursor_of_another_query"], "{says:?}");
        }
    }
}

/// Who may see all metrics but one by their names is not told that one's name when another is misspelt.
#[tokio::test]
async fn a_hint_is_no_name_that_was_not_permitted() {
    let api = filled(Setup::default());
    for (says, hinted) in [
        (Says::AllBut("tokens"), false),
        (Says::Shipped, true),
        (Says::limited(&["token", "bytes"], &[]), false),
        (Says::limited(&["token", "tokens"], &[]), true),
    ] {
        api.policy.says(says.clone());
        for path in [
            format!("/v1/usage/aggregated?{RANGE}&metric=token"),
            format!("/v1/usage/raw?{RANGE}&metric=token"),
            format!("/v1/usage/raw?{RANGE}&metric=token&source=gateway"),
            "/v1/usage/types/token".to_owned(),
        ] {
            let answer = api.get(&path).await;
            assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path} {}", answer.text);
            assert_eq!(answer.text.contains("tokens"), hinted, "{path} under {says:?}: {}", answer.text);
        }
    }
}

/// The tenant is the token's: a policy may take it away, never give another one.
#[tokio::test]
async fn tenants_of_a_permission_give_nobody_another_tenants_usage() {
    let api = filled(Setup::default());
    let stranger = api.stranger();
    let both = Constraints { tenants: Some([api.tenant, stranger.tenant].into()), ..Constraints::default() };
    api.policy.says(Says::Permit(both));
    let path = format!("/v1/usage/raw?{RANGE}");
    assert_eq!((api.rows(&path).await.len(), stranger.rows(&path).await.len()), (6, 0));
    let theirs = Constraints { tenants: Some([api.tenant].into()), ..Constraints::default() };
    api.policy.says(Says::Permit(theirs));
    assert_eq!(api.rows(&path).await.len(), 6);
    stranger.get(&path).await.problem(403, "forbidden");
}
