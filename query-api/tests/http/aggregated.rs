//! `GET /v1/usage/aggregated`: values, groups, filters, shapes.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::memory::record;
use crate::support::Harness;

const DAY: &str = "/v1/usage/aggregated?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z";

fn path(rest: &str) -> String {
    format!("{DAY}&{rest}")
}

async fn value(api: &Harness, rest: &str) -> Value {
    let rows = api.rows(&path(rest)).await;
    assert_eq!(rows.len(), 1, "{rest}: {rows:?}");
    rows[0]["value"].clone()
}

#[tokio::test]
async fn the_answer_has_its_members_in_order() {
    let api = Harness::new();
    api.add("tokens", "1.50", "2026-01-01T10:00:00Z");
    let answer = api.get(&path("metric=tokens&window_size=PT1H&group_by=metric,source")).await;
    assert_eq!(
        answer.text,
        concat!(
            r#"{"from":"2026-01-01T00:00:00Z","to":"2026-01-02T00:00:00Z","aggregation":"sum","window_size":"PT1H","#,
            r#""window_time_zone":"UTC","complete_until":null,"data":[{"window_start":"2026-01-01T10:00:00Z","#,
            r#""window_end":"2026-01-01T11:00:00Z","partial":false,"metric":"tokens","source":"gateway","#,
            r#""value":"1.5","unit":"token"}],"next_cursor":null}"#
        )
    );
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.header("cache-control"), "no-store");
}

#[tokio::test]
async fn values_are_exact_strings() {
    let api = Harness::new();
    // More than a float holds, and more than 128 bits of 10^-18 hold.
    for second in 0..40 {
        api.add(
            "tokens",
            "99999999999999999999.999999999999999999",
            &format!("2026-01-01T00:00:{second:02}Z"),
        );
    }
    api.add("bytes", "9007199254740993", "2026-01-01T00:00:00Z");
    assert_eq!(value(&api, "metric=tokens").await, "3999999999999999999999.99999999999999996");
    assert_eq!(value(&api, "metric=bytes").await, "9007199254740993");
    assert_eq!(value(&api, "metric=tokens&aggregation=count").await, "40");
    assert_eq!(value(&api, "metric=tokens&aggregation=avg").await, "99999999999999999999.999999999999999999");
}

#[tokio::test]
async fn every_aggregation_of_a_gauge() {
    let api = Harness::new();
    for (sample, time) in [("-2.5", "03:00:00"), ("10", "01:00:00"), ("1", "02:00:00")] {
        api.add("level", sample, &format!("2026-01-01T{time}Z"));
    }
    for (aggregation, expected) in [
        ("sum", "8.5"),
        ("count", "3"),
        ("min", "-2.5"),
        ("max", "10"),
        ("avg", "2.833333333333333333"),
        ("latest", "-2.5"),
    ] {
        assert_eq!(
            value(&api, &format!("metric=level&aggregation={aggregation}")).await,
            expected,
            "{aggregation}"
        );
    }
}

#[tokio::test]
async fn problem_13_latest_of_equal_times_is_the_greatest_id() {
    let api = Harness::new();
    for (id, sample) in [(2_u128, "2"), (3, "3"), (1, "1")] {
        let mut sample = record(api.tenant, "level", sample, "2026-01-01T01:00:00Z");
        sample.record_id = Uuid::from_u128(id);
        api.memory.add(sample);
    }
    assert_eq!(value(&api, "metric=level&aggregation=latest").await, "3");
}

#[tokio::test]
async fn the_unit_is_the_metrics_and_a_count_has_none() {
    let api = Harness::new();
    api.add("tokens", "1", "2026-01-01T01:00:00Z");
    api.add("bytes", "1", "2026-01-01T01:00:00Z");
    let rows = api.rows(&path("group_by=metric")).await;
    let units: Vec<_> = rows.iter().map(|row| (row["metric"].clone(), row["unit"].clone())).collect();
    assert_eq!(units, [(json!("bytes"), json!("byte")), (json!("tokens"), json!("token"))]);
    let rows = api.rows(&path("metric=tokens&aggregation=count")).await;
    assert_eq!(rows[0].get("unit"), None);
}

#[tokio::test]
async fn different_units_are_never_added() {
    let api = Harness::new();
    api.registry.put("tokens_in", usage_schemas::Kind::Counter, "token");
    api.add("tokens", "1", "2026-01-01T01:00:00Z");
    api.add("tokens_in", "2", "2026-01-01T01:00:00Z");
    api.add("bytes", "4", "2026-01-01T01:00:00Z");
    assert_eq!(value(&api, "metric=tokens&metric=tokens_in").await, "3");
    assert_eq!(value(&api, "metric=tokens&metric=bytes&aggregation=count").await, "2");
    let answer = api.get(&path("metric=tokens&metric=bytes")).await;
    assert_eq!(answer.problem(400, "invalid-parameter"), ["metric:needs_group_by"]);
    assert!(answer.detail().contains("byte, token"), "{}", answer.detail());
}

#[tokio::test]
async fn groups_ascend_with_nulls_last() {
    let api = Harness::new();
    for (subject, subject_type) in
        [(None, None), (Some(2), Some("user")), (Some(1), Some("user")), (Some(1), None)]
    {
        let mut found = record(api.tenant, "tokens", "1", "2026-01-01T01:00:00Z");
        found.subject_id = subject.map(Uuid::from_u128);
        found.subject_type = subject_type.map(str::to_owned);
        api.memory.add(found);
    }
    let rows = api.rows(&path("metric=tokens&group_by=subject")).await;
    let groups: Vec<_> =
        rows.iter().map(|row| (row["subject_id"].clone(), row["subject_type"].clone())).collect();
    let (one, two) = (json!(Uuid::from_u128(1)), json!(Uuid::from_u128(2)));
    assert_eq!(
        groups,
        [(one.clone(), json!("user")), (one, Value::Null), (two, json!("user")), (Value::Null, Value::Null)]
    );
    assert_eq!(rows[0].get("metric"), None, "only what was grouped by");
}

#[tokio::test]
async fn filters_mean_any_of_their_values_and_all_of_them() {
    let api = Harness::new();
    for (source, resource_type, value) in
        [("a", Some("vm"), "1"), ("b", Some("vm"), "2"), ("b", Some("disk"), "4"), ("c", None, "8")]
    {
        let mut found = record(api.tenant, "tokens", value, "2026-01-01T01:00:00Z");
        found.source = source.to_owned();
        found.resource_type = resource_type.map(str::to_owned);
        found.resource_id = resource_type.map(|kind| Uuid::from_u128(kind.len() as u128));
        api.memory.add(found);
    }
    for (filter, sum) in [
        ("source=a", "1"),
        ("source=a&source=b", "7"),
        ("source=b&resource_type=vm", "2"),
        ("resource_type=vm&resource_type=disk", "7"),
        ("resource_id=00000000-0000-0000-0000-000000000004", "4"),
    ] {
        assert_eq!(value(&api, &format!("metric=tokens&{filter}")).await, sum, "{filter}");
    }
    assert_eq!(api.rows(&path("metric=tokens&source=d")).await, [] as [Value; 0]);
}

#[tokio::test]
async fn problem_34_an_injection_is_a_bad_parameter_or_an_unknown_metric() {
    let api = Harness::new();
    api.add("tokens", "1", "2026-01-01T01:00:00Z");
    let evil = "x%27%29%20OR%201%3D1%20--";
    for name in ["source", "subject_type", "resource_type", "subject_id"] {
        let answer = api.get(&path(&format!("metric=tokens&{name}={evil}"))).await;
        assert_eq!(answer.problem(400, "invalid-parameter").len(), 1, "{name}");
    }
    api.get(&path(&format!("metric={evil}"))).await.problem(404, "unknown-metric");
    api.get(&path(&format!("metric=tokens&group_by={evil}"))).await.problem(400, "invalid-parameter");
    api.get(&path(&format!("metric=tokens&window_time_zone={evil}"))).await.problem(400, "invalid-parameter");
    assert_eq!(api.memory.calls(), 0, "storage was never asked");
}

#[tokio::test]
async fn inactive_records_do_not_count() {
    let api = Harness::new();
    api.add("tokens", "1", "2026-01-01T01:00:00Z");
    let mut inactive = record(api.tenant, "tokens", "5", "2026-01-01T01:00:00Z");
    inactive.active = false;
    api.memory.add(inactive);
    assert_eq!(value(&api, "metric=tokens").await, "1");
}

#[tokio::test]
async fn an_empty_range_is_an_empty_answer_and_asks_nobody() {
    let api = Harness::new();
    api.add("tokens", "1", "2026-01-01T00:00:00Z");
    let range = "/v1/usage/aggregated?from=2026-01-01T00:00:00Z&to=2026-01-01T01:00:00%2B01:00&metric=tokens";
    for rest in ["", "&window_size=DAY", "&fill=zero", "&window_size=MINUTE&fill=zero"] {
        let answer = api.get(&format!("{range}{rest}")).await;
        assert_eq!(answer.json()["data"], json!([]), "{rest}");
        assert_eq!(answer.json()["next_cursor"], Value::Null);
    }
    assert_eq!(api.memory.calls(), 0);
    let reversed =
        "/v1/usage/aggregated?from=2026-01-01T00:00:00.000001Z&to=2026-01-01T00:00:00Z&metric=tokens";
    assert_eq!(api.get(reversed).await.problem(400, "invalid-parameter"), ["from:from_after_to"]);
}

#[tokio::test]
async fn ranges_are_half_open_to_the_microsecond() {
    let api = Harness::new();
    for (value, time) in
        [("1", "2025-12-31T23:59:59.999999Z"), ("2", "2026-01-01T00:00:00Z"), ("4", "2026-01-02T00:00:00Z")]
    {
        api.add("tokens", value, time);
    }
    assert_eq!(value(&api, "metric=tokens").await, "2");
}

#[tokio::test]
async fn an_unknown_metric_names_the_nearest() {
    let api = Harness::new();
    let answer = api.get(&path("metric=token&metric=tokens&metric=byts")).await;
    assert_eq!(answer.problem(404, "unknown-metric"), ["metric:unknown_metric", "metric:unknown_metric"]);
    assert!(
        answer.text.contains("did you mean `bytes`?") && answer.text.contains("did you mean `tokens`?"),
        "{}",
        answer.text
    );
}

#[tokio::test]
async fn csv_has_the_same_rows_fields_and_order() {
    let api = Harness::new();
    let mut found = record(api.tenant, "tokens", "1.25", "2026-01-01T01:00:00Z");
    found.source = "gateway-eu".to_owned();
    api.memory.add(found);
    api.add("level", "-3", "2026-01-01T01:00:00Z");
    let query = path("group_by=metric,source,resource&window_size=HOUR&window_time_zone=Asia/Kolkata");
    let answer = api.get_as(&query, "text/csv").await;
    assert_eq!(answer.header("content-type"), "text/csv; charset=utf-8; header=present");
    assert_eq!(
        answer.text,
        "window_start,window_end,partial,metric,source,resource_id,resource_type,value,unit\r\n\
         2026-01-01T06:00:00+05:30,2026-01-01T07:00:00+05:30,false,level,gateway,,,-3,percent\r\n\
         2026-01-01T06:00:00+05:30,2026-01-01T07:00:00+05:30,false,tokens,gateway-eu,,,1.25,token\r\n"
    );
    let json = api.get(&query).await.json();
    // Sorted: whether serde_json's map keeps the order depends on a feature that any dependency may turn on.
    let mut names: Vec<_> = json["data"][0].as_object().unwrap().keys().cloned().collect();
    names.sort();
    let mut header: Vec<_> = answer.text.lines().next().unwrap().split(',').map(str::to_owned).collect();
    header.sort();
    assert_eq!(names, header);
}

#[tokio::test]
async fn csv_without_rows_has_its_header() {
    let api = Harness::new();
    let answer = api.get_as(&path("metric=tokens"), "text/csv").await;
    assert_eq!(answer.text, "window_start,window_end,partial,value,unit\r\n");
}

#[tokio::test]
async fn csv_units_that_look_like_formulas_are_defused() {
    let api = Harness::new();
    api.registry.put("odd", usage_schemas::Kind::Gauge, "=cmd()");
    api.add("odd", "-1", "2026-01-01T01:00:00Z");
    let answer = api.get_as(&path("metric=odd"), "text/csv").await;
    assert!(answer.text.ends_with(",false,-1,'=cmd()\r\n"), "{}", answer.text);
}
