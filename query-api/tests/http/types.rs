//! Usage types over HTTP.

use axum::body::Body;
use axum::http::Request;
use serde_json::json;
use usage_access::Scopes;

use crate::support::{Harness, bearer};

const NEW: &str =
    r#"{"name":"gpu.seconds","kind":"counter","unit":"second","description":"Seconds of GPU time"}"#;

#[tokio::test]
async fn a_type_is_registered_once() {
    let api = Harness::new();
    let created = api.post("/v1/usage/types", NEW).await;
    assert_eq!(created.status.as_u16(), 201, "{}", created.text);
    assert_eq!(created.header("location"), "/v1/usage/types/gpu.seconds");
    let expected = json!({
        "name": "gpu.seconds", "kind": "counter", "unit": "second", "description": "Seconds of GPU time",
        "created_at": "2026-01-01T00:00:00.000000Z",
    });
    assert_eq!(created.json(), expected);
    // The same again is no error, and the members may come in any order.
    let again =
        r#"{"unit":"second","description":"Seconds of GPU time","kind":"counter","name":"gpu.seconds"}"#;
    let unchanged = api.post("/v1/usage/types", again).await;
    assert_eq!((unchanged.status.as_u16(), unchanged.json()), (200, expected.clone()));
    assert_eq!(api.get("/v1/usage/types/gpu.seconds").await.json(), expected);
    let names: Vec<_> = api.rows("/v1/usage/types").await.iter().map(|row| row["name"].clone()).collect();
    assert_eq!(names, ["bytes", "gpu.seconds", "level", "tokens"]);
}

#[tokio::test]
async fn other_content_is_a_conflict_that_changes_nothing() {
    let api = Harness::new();
    api.post("/v1/usage/types", NEW).await;
    for (body, places) in [
        (NEW.replace("counter", "gauge"), vec!["/kind:differs"]),
        (NEW.replace("\"second\"", "\"hour\""), vec!["/unit:differs"]),
        (NEW.replace("Seconds of", "Hours of"), vec!["/description:differs"]),
        (
            r#"{"name":"gpu.seconds","kind":"gauge","unit":"hour"}"#.to_owned(),
            vec!["/description:differs", "/kind:differs", "/unit:differs"],
        ),
    ] {
        assert_eq!(api.post("/v1/usage/types", &body).await.problem(409, "conflict"), places);
    }
    assert_eq!(api.get("/v1/usage/types/gpu.seconds").await.json()["unit"], "second");
}

#[tokio::test]
async fn a_body_is_judged_strictly_and_wholly() {
    let api = Harness::new();
    for (body, faults) in [
        ("{}", vec!["/kind:missing", "/name:missing", "/unit:missing"]),
        (
            r#"{"name":"A","kind":"timer","unit":"","extra":1}"#,
            vec!["/extra:unknown_member", "/kind:unknown_value", "/name:invalid", "/unit:invalid"],
        ),
        (r#"{"name":5,"kind":"gauge","unit":["x"]}"#, vec!["/name:wrong_type", "/unit:wrong_type"]),
        (r#"{"name":"a","name":"b","kind":"gauge","unit":"x"}"#, vec!["/name:repeated"]),
        ("not json", vec![":malformed"]),
        ("[]", vec![":malformed"]),
        ("", vec![":malformed"]),
    ] {
        assert_eq!(api.post("/v1/usage/types", body).await.problem(400, "invalid-body"), faults, "{body}");
    }
    let answer = api.post("/v1/usage/types", r#"{"name":"a","kind":"gauge","units":"x"}"#).await;
    assert!(answer.text.contains("did you mean `unit`?"), "{}", answer.text);
    let answer = api.post("/v1/usage/types?dry_run=1", NEW).await;
    assert_eq!(answer.problem(400, "invalid-parameter"), ["dry_run:unknown_parameter"]);
}

#[tokio::test]
async fn bodies_have_a_type_and_a_bound() {
    let api = Harness::new();
    let send = |content_type: Option<&str>, body: String| {
        let mut request =
            Request::post("/v1/usage/types").header("authorization", bearer(api.tenant, Scopes::all()));
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        api.send(request.body(Body::from(body)).unwrap())
    };
    send(None, NEW.to_owned()).await.problem(415, "unsupported-media-type");
    send(Some("text/plain"), NEW.to_owned()).await.problem(415, "unsupported-media-type");
    let large = format!(r#"{{"name":"{}"}}"#, "a".repeat(70_000));
    send(Some("application/json"), large).await.problem(413, "payload-too-large");
}

#[tokio::test]
async fn an_unknown_type_names_the_nearest() {
    let api = Harness::new();
    let answer = api.get("/v1/usage/types/token").await;
    assert_eq!(answer.problem(404, "unknown-metric"), ["name:unknown_metric"]);
    assert!(answer.detail().contains("did you mean `tokens`?"), "{}", answer.detail());
}
