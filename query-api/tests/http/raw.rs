//! `GET /v1/usage/raw`, `/records/{id}`, `/metadata/watermarks`

use serde_json::{Value, json};
use uuid::Uuid;

use crate::memory::record;
use crate::support::Harness;

const DAY: &str = "/v1/usage/raw?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z";

fn values(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["value"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_record_has_all_its_fields() {
    let api = Harness::new();
    let mut found = record(api.tenant, "tokens", "12.50", "2026-01-01T10:00:00.000001Z");
    found.record_id = Uuid::from_u128(7);
    found.idempotency_key = Some("order-1".to_owned());
    found.subject_id = Some(Uuid::from_u128(8));
    found.subject_type = Some("user".to_owned());
    found.metadata = Some(r#"{"n":1.0, "n2":12345678901234567890.5}"#.to_owned());
    api.memory.add(found);
    let answer = api.get(DAY).await;
    let expected = format!(
        concat!(
            r#"{{"from":"2026-01-01T00:00:00Z","to":"2026-01-02T00:00:00Z","data":[{{"record_id":"00000000-0000-0000-0000-000000000007","#,
            r#""tenant_id":"{}","source":"gateway","metric":"tokens","kind":"counter","value":"12.5","#,
            r#""timestamp":"2026-01-01T10:00:00.000001Z","idempotency_key":"order-1","resource_id":null,"resource_type":null,"#,
            r#""subject_id":"00000000-0000-0000-0000-000000000008","subject_type":"user","#,
            r#""metadata":{{"n":1.0, "n2":12345678901234567890.5}},"status":"active","#,
            r#""ingested_at":"2026-01-01T10:00:01.000001Z","inactive_at":null,"version":1}}],"next_cursor":null}}"#
        ),
        api.tenant
    );
    assert_eq!(answer.text, expected);
    let single = api.get("/v1/usage/records/00000000-0000-0000-0000-000000000007").await;
    assert_eq!(single.json(), answer.json()["data"][0]);
}

#[tokio::test]
async fn pages_ascend_and_an_exhausted_cursor_gives_an_empty_page() {
    let api = Harness::new();
    for hour in [5, 3, 4, 1, 2, 0] {
        api.add("tokens", &hour.to_string(), &format!("2026-01-01T0{hour}:00:00Z"));
    }
    let first = api.get(&format!("{DAY}&limit=3")).await.json();
    assert_eq!(values(first["data"].as_array().unwrap()), ["0", "1", "2"]);
    // Other steps with the same cursor.
    let second =
        api.get(&format!("{DAY}&limit=2&cursor={}", first["next_cursor"].as_str().unwrap())).await.json();
    assert_eq!(values(second["data"].as_array().unwrap()), ["3", "4"]);
    let third =
        api.get(&format!("{DAY}&limit=1&cursor={}", second["next_cursor"].as_str().unwrap())).await.json();
    assert_eq!(values(third["data"].as_array().unwrap()), ["5"]);
    let last =
        api.get(&format!("{DAY}&limit=1&cursor={}", third["next_cursor"].as_str().unwrap())).await.json();
    assert_eq!((&last["data"], &last["next_cursor"]), (&json!([]), &Value::Null));
}

#[tokio::test]
async fn problem_78_a_cursor_is_exact_to_the_microsecond() {
    let api = Harness::new();
    for (value, time) in [("1", "00.123001"), ("2", "00.123002"), ("3", "00.123999")] {
        api.add("tokens", value, &format!("2026-01-01T00:00:{time}Z"));
    }
    let (rows, pages) = api.all_rows(&format!("{DAY}&limit=1")).await;
    assert_eq!((values(&rows), pages), (vec!["1", "2", "3"], 4));
}

#[tokio::test]
async fn problem_15_many_records_of_one_time_are_paged_once_each() {
    let api = Harness::new();
    for _ in 0..500 {
        api.add("tokens", "1", "2026-01-01T12:00:00Z");
    }
    let (rows, _) = api.all_rows(&format!("{DAY}&limit=7")).await;
    let ids: std::collections::HashSet<_> =
        rows.iter().map(|row| row["record_id"].as_str().unwrap()).collect();
    assert_eq!((rows.len(), ids.len()), (500, 500));
}

#[tokio::test]
async fn filters_and_status_select() {
    let api = Harness::new();
    api.add("tokens", "1", "2026-01-01T01:00:00Z");
    api.add("bytes", "2", "2026-01-01T02:00:00Z");
    let mut inactive = record(api.tenant, "tokens", "4", "2026-01-01T03:00:00Z");
    inactive.active = false;
    inactive.inactive_at = Some(inactive.timestamp);
    inactive.source = "batch".to_owned();
    api.memory.add(inactive);
    for (filter, expected) in [
        ("", vec!["1", "2"]),
        ("&status=active", vec!["1", "2"]),
        ("&status=inactive", vec!["4"]),
        ("&status=all", vec!["1", "2", "4"]),
        ("&status=all&metric=tokens", vec!["1", "4"]),
        ("&status=all&source=batch", vec!["4"]),
        ("&metric=tokens&metric=bytes", vec!["1", "2"]),
        ("&subject_type=user", vec![]),
    ] {
        assert_eq!(values(&api.rows(&format!("{DAY}{filter}")).await), expected, "{filter}");
    }
    assert_eq!(
        api.rows(&format!("{DAY}&status=inactive")).await[0]["inactive_at"],
        "2026-01-01T03:00:00.000000Z"
    );
}

#[tokio::test]
async fn an_empty_range_and_an_unknown_metric() {
    let api = Harness::new();
    let empty = "/v1/usage/raw?from=2026-01-01T00:00:00Z&to=2026-01-01T00:00:00Z";
    assert_eq!(api.rows(empty).await, [] as [Value; 0]);
    assert_eq!(api.memory.calls(), 0);
    api.get(&format!("{DAY}&metric=tokenz")).await.problem(404, "unknown-metric");
}

#[tokio::test]
async fn problem_36_another_tenants_record_is_not_there() {
    let api = Harness::new();
    let foreign = record(Uuid::new_v4(), "tokens", "1", "2026-01-01T01:00:00Z");
    let (id, owner) = (foreign.record_id, foreign.tenant_id);
    api.memory.add(foreign);
    let path = format!("/v1/usage/records/{id}");
    let answer = api.get(&path).await;
    assert_eq!(answer.problem(404, "not-found"), [] as [String; 0]);
    // Just as for a record that nobody has.
    let nobody = api.get(&format!("/v1/usage/records/{}", Uuid::new_v4())).await;
    assert_eq!(nobody.detail(), answer.detail());
    // Neither headers nor parameters change whose records are read.
    for name in ["x-tenant-id", "tenant-id", "x-usage-tenant"] {
        let request = axum::http::Request::get(&path)
            .header("authorization", crate::support::bearer(api.tenant, usage_access::Scopes::all()))
            .header(name, owner.to_string());
        let answer = api.send(request.body(axum::body::Body::empty()).unwrap()).await;
        answer.problem(404, "not-found");
    }
    let answer = api.get(&format!("{DAY}&tenant_id={owner}")).await;
    assert_eq!(answer.problem(400, "invalid-parameter"), ["tenant_id:unknown_parameter"]);
    assert_eq!(api.rows(DAY).await, [] as [Value; 0]);
    let aggregated = api.rows(&DAY.replace("raw", "aggregated").replace("?", "?metric=tokens&")).await;
    assert_eq!(aggregated, [] as [Value; 0]);
    assert_eq!(api.get("/v1/usage/metadata/watermarks").await.json()["sources"], json!([]));
}

#[tokio::test]
async fn ids_are_judged_by_name() {
    let api = Harness::new();
    let nil = Uuid::nil().to_string();
    for (id, code) in [
        ("x", "invalid_uuid"),
        (nil.as_str(), "nil_uuid"),
        ("%ff", "invalid_uuid"),
        ("a%2Fb", "invalid_uuid"),
    ] {
        let answer = api.get(&format!("/v1/usage/records/{id}")).await;
        assert_eq!(answer.problem(400, "invalid-parameter"), [format!("id:{code}")], "{id}");
    }
    let answer = api.get(&format!("/v1/usage/records/{}?expand=1", Uuid::new_v4())).await;
    assert_eq!(answer.problem(400, "invalid-parameter"), ["expand:unknown_parameter"]);
}

#[tokio::test]
async fn watermarks_count_as_strings_and_ascend_by_source() {
    let api = Harness::new();
    for (source, time) in [("gateway", "01"), ("batch", "02"), ("gateway", "03")] {
        let mut found = record(api.tenant, "tokens", "1", &format!("2026-01-01T{time}:00:00Z"));
        found.source = source.to_owned();
        api.memory.add(found);
    }
    let answer = api.get("/v1/usage/metadata/watermarks").await;
    assert_eq!(
        answer.text,
        concat!(
            r#"{"complete_until":null,"sources":[{"source":"batch","records":"1","latest_timestamp":"2026-01-01T02:00:00.000000Z","#,
            r#""latest_ingested_at":"2026-01-01T02:00:01.000000Z","complete_until":null},{"source":"gateway","records":"2","#,
            r#""latest_timestamp":"2026-01-01T03:00:00.000000Z","latest_ingested_at":"2026-01-01T03:00:01.000000Z","complete_until":null}]}"#
        )
    );
}
