//! Usage types over HTTP.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use serde_json::json;
use usage_access::Scopes;
use usage_control::testing::with_database;
use usage_devstack::testing::control_database_url;

use crate::memory::Memory;
use crate::support::{Harness, Setup, bearer, router};

const NEW: &str =
    r#"{"name":"gpu.seconds","kind":"counter","unit":"second","description":"Seconds of GPU time"}"#;

#[tokio::test]
async fn a_type_is_registered_once() {
    let api = Harness::new();
    let created = api.post("/v1/usage/types", NEW).await;
    assert_eq!(created.status.as_u16(), 201, "{}", created.text);
    assert_eq!(created.header("location"), "/v1/usage/types/gpu.seconds");
    let version = json!({
        "version": 1, "valid_from": null, "kind": "counter", "unit": "second", "description": "Seconds of GPU time",
        "rules": {}, "created_at": "2026-01-01T00:00:00.000000Z",
    });
    let mut expected = version.clone();
    expected["name"] = json!("gpu.seconds");
    expected["versions"] = json!([version]);
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
            NEW.replace('}', r#","rules":{"max":"5","integer":true}}"#),
            vec!["/rules/integer:differs", "/rules/max:differs"],
        ),
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

/// Version 2, from the year 2027 on (the harness lives on the first day of 2026).
const SECOND: &str = r#"{"name":"gpu.seconds","kind":"counter","unit":"second","version":2,"valid_from":"2027-01-01T01:00:00+01:00",
    "rules":{"max":"86400.0","resource_types":["gpu"],"metadata":{"required":["model"]}}}"#;

#[tokio::test]
async fn a_type_has_versions_newest_first() {
    let api = Harness::new();
    api.post("/v1/usage/types", NEW).await;
    let created = api.post("/v1/usage/types", SECOND).await;
    assert_eq!(created.status.as_u16(), 201, "{}", created.text);
    assert_eq!(created.header("location"), "/v1/usage/types/gpu.seconds");
    let found = created.json();
    assert_eq!(found["version"], 2);
    assert_eq!(found["valid_from"], "2027-01-01T00:00:00.000000Z");
    let rules = json!({"max": "86400", "resource_types": ["gpu"], "metadata": {"required": ["model"]}});
    assert_eq!(found["rules"], rules);
    let versions: Vec<_> =
        found["versions"].as_array().unwrap().iter().map(|one| one["version"].clone()).collect();
    assert_eq!(versions, [2, 1]);
    assert_eq!(api.get("/v1/usage/types/gpu.seconds").await.json(), found);
    assert!(api.rows("/v1/usage/types").await.contains(&found));
    // Each of them again is no error, also the older one.
    for body in [SECOND, NEW] {
        let again = api.post("/v1/usage/types", body).await;
        assert_eq!((again.status.as_u16(), again.json()), (200, found.clone()));
    }
    let other = SECOND.replace("86400.0", "3600").replace("T01:00", "T02:00");
    let answer = api.post("/v1/usage/types", &other).await;
    assert_eq!(answer.problem(409, "conflict"), ["/rules/max:differs", "/valid_from:differs"]);
    assert!(answer.detail().contains("the next version is 3"), "{}", answer.detail());
}

#[tokio::test]
async fn a_version_that_cannot_follow_is_a_conflict_that_changes_nothing() {
    let api = Harness::new();
    let post = async |body: String, expected: &[&str]| {
        let answer = api.post("/v1/usage/types", &body).await;
        assert_eq!(answer.problem(409, "conflict"), expected, "{body}");
    };
    post(SECOND.to_owned(), &["/version:cannot_follow"]).await;
    api.post("/v1/usage/types", NEW).await;
    post(SECOND.replace("\"version\":2", "\"version\":3"), &["/version:cannot_follow"]).await;
    post(SECOND.replace("counter", "gauge"), &["/kind:cannot_follow"]).await;
    post(SECOND.replace("\"second\"", "\"hour\""), &["/unit:cannot_follow"]).await;
    // It demands more, and begins before everybody can have heard of it.
    post(SECOND.replace("2027-01-01T01:00:00+01:00", "2026-01-01T00:05:00Z"), &["/valid_from:cannot_follow"])
        .await;
    assert_eq!(api.get("/v1/usage/types/gpu.seconds").await.json()["version"], 1);
}

#[tokio::test]
async fn who_has_the_types_already_is_spared_them() {
    let api = Harness::new();
    let ask = async |path: &str, tag: Option<&str>| {
        let mut request = Request::get(path).header("authorization", bearer(api.tenant, Scopes::all()));
        if let Some(tag) = tag {
            request = request.header("if-none-match", tag);
        }
        api.send(request.body(Body::empty()).unwrap()).await
    };
    for path in ["/v1/usage/types", "/v1/usage/types/tokens"] {
        let first = ask(path, None).await;
        let tag = first.header("etag").to_owned();
        assert!(tag.starts_with('"') && first.status == 200, "{tag}");
        let second = ask(path, Some(&tag)).await;
        assert_eq!(
            (second.status.as_u16(), second.text.as_str(), second.header("etag")),
            (304, "", tag.as_str())
        );
        assert_eq!(ask(path, Some("\"other\"")).await.text, first.text);
        let next =
            r#"{"name":"tokens","kind":"counter","unit":"token","version":VERSION,"valid_from":"FROM"}"#;
        let (version, from) =
            if path.ends_with("tokens") { ("3", "2026-02-01") } else { ("2", "2026-01-01") };
        let next = next.replace("VERSION", version).replace("FROM", &format!("{from}T00:00:00Z"));
        assert_eq!(api.post("/v1/usage/types", &next).await.status, 201);
        let third = ask(path, Some(&tag)).await;
        assert_eq!(third.status, 200);
        assert_ne!(third.header("etag"), tag);
    }
    // A tag is no way past the checks.
    let request = Request::get("/v1/usage/types").header("if-none-match", "*").body(Body::empty()).unwrap();
    api.send(request).await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn rules_are_judged_strictly() {
    let api = Harness::new();
    for (rules, faults) in [
        (r#"{"mim":"1"}"#, vec!["/rules/mim:unknown_member"]),
        (r#"{"min":1}"#, vec!["/rules/min:wrong_type"]),
        (r#"{"min":"1.0000000000000000001"}"#, vec!["/rules/min:invalid"]),
        (r#"{"min":"2","max":"1"}"#, vec!["/rules/max:invalid"]),
        (r#"{"min":"1","min":"2"}"#, vec![":malformed"]),
        (r#"{"metadata":{"requird":["a"]}}"#, vec!["/rules/metadata/requird:invalid"]),
        (
            r##"{"metadata":{"properties":{"a":{"$ref":"#"}}}}"##,
            vec!["/rules/metadata/properties/a/$ref:invalid"],
        ),
    ] {
        let body = format!(r#"{{"name":"a","kind":"gauge","unit":"x","rules":{rules}}}"#);
        assert_eq!(api.post("/v1/usage/types", &body).await.problem(400, "invalid-body"), faults, "{body}");
    }
    api.get("/v1/usage/types/a").await.problem(404, "unknown-metric");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_bodies_for_one_version_at_once_one_is_created_and_one_is_a_conflict() {
    with_database(&control_database_url(), |database| async move {
        let control = database.control().await;
        control.migrate().await.unwrap();
        // Two instances over one database.
        let mut api = Harness::new();
        api.router = router(Setup::default(), Arc::new(Memory::default()), Arc::new(control.clone()));
        let mut other = api.stranger();
        other.router = router(Setup::default(), Arc::new(Memory::default()), Arc::new(control));
        for round in 0..10 {
            let body = |max: &str| {
                format!(r#"{{"name":"t{round}","kind":"counter","unit":"x","rules":{{"max":"{max}"}}}}"#)
            };
            let (low, high) = (body("1"), body("2"));
            let (one, two) =
                tokio::join!(api.post("/v1/usage/types", &low), other.post("/v1/usage/types", &high));
            let mut answers = [one, two];
            answers.sort_by_key(|answer| answer.status);
            assert_eq!(answers[0].status.as_u16(), 201, "{}", answers[0].text);
            assert_eq!(answers[1].problem(409, "conflict"), ["/rules/max:differs"]);
        }
    })
    .await;
}
