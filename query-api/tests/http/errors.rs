//! Everything that goes wrong is a problem.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Request;
use serde_json::Value;
use usage_access::Scopes;
use usage_query_api::store::Bounds;
use usage_service::breaker::BreakerConfig;

use crate::memory::Mood;
use crate::support::{Harness, Setup, bearer};

const TOTAL: &str = "/v1/usage/aggregated?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z&metric=tokens";

fn request(api: &Harness, method: &str, path: &str) -> axum::http::request::Builder {
    Request::builder().method(method).uri(path).header("authorization", bearer(api.tenant, Scopes::all()))
}

#[tokio::test]
async fn all_faults_of_a_request_come_in_one_answer() {
    let api = Harness::new();
    let answer = api
        .get("/v1/usage/aggregated?start_time=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00+01:00&windowSize=DAY&subject_id=1&fill=yes&fill=no&limit=9")
        .await;
    assert_eq!(
        answer.problem(400, "invalid-parameter"),
        [
            "fill:repeated",
            "fill:unknown_value",
            "from:missing",
            "limit:unknown_parameter",
            "metric:needs_group_by",
            "start_time:unknown_parameter",
            "subject_id:invalid_uuid",
            "to:space_in_time",
            "windowSize:unknown_parameter",
        ]
    );
    assert!(
        answer.text.contains("did you mean `from`?") && answer.text.contains("did you mean `window_size`?")
    );
    assert_eq!(api.memory.calls(), 0);
}

#[tokio::test]
async fn a_wrong_path_or_method_is_a_problem() {
    let api = Harness::new();
    for path in ["/", "/v1/usage", "/v1/usage/agregated", "/v2/usage/raw", "/v1/usage/raw/", "/metrics"] {
        let answer = api.get(path).await;
        answer.problem(404, "not-found");
    }
    assert!(api.get("/v1/usage/agregated").await.detail().contains("/v1/usage/aggregated"));
    for (method, path, allow) in [
        ("POST", TOTAL, "GET,HEAD"),
        ("DELETE", "/v1/usage/types", "GET,HEAD,POST"),
        ("PUT", "/v1/usage/metadata/watermarks", "GET,HEAD"),
    ] {
        let answer = api.send(request(&api, method, path).body(Body::empty()).unwrap()).await;
        answer.problem(405, "method-not-allowed");
        let mut allowed: Vec<_> = answer.header("allow").split(',').collect();
        allowed.sort_unstable();
        assert_eq!(allowed.join(","), allow, "{method} {path}");
    }
}

#[tokio::test]
async fn unavailable_media_types_are_refused_before_storage_is_asked() {
    let api = Harness::new();
    for (path, accept) in [
        (TOTAL, "application/xml"),
        (TOTAL, "application/x-ndjson"),
        ("/v1/usage/metadata/watermarks", "text/csv"),
        ("/v1/usage/types", "text/html"),
        ("/v1/usage/records/018f3c5e-0000-7000-8000-000000000001", "text/csv"),
    ] {
        api.get_as(path, accept).await.problem(406, "not-acceptable");
    }
    assert_eq!(api.memory.calls(), 0);
}

#[tokio::test]
async fn storage_that_hangs_is_a_timeout() {
    let bounds = Bounds { timeout: Duration::from_millis(30), ..Bounds::default() };
    let api = Harness::with(Setup { bounds, ..Setup::default() });
    api.memory.set_mood(Mood::Hangs);
    let started = Instant::now();
    for path in [
        TOTAL,
        "/v1/usage/raw?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z",
        "/v1/usage/records/018f3c5e-0000-7000-8000-000000000001",
        "/v1/usage/metadata/watermarks",
    ] {
        api.get(path).await.problem(504, "timeout");
    }
    assert!(started.elapsed() < Bounds::default().timeout, "not by the timeout that is usual");
}

#[tokio::test]
async fn storage_that_is_away_says_when_to_come_back() {
    let api = Harness::new();
    api.memory.set_mood(Mood::AwayAfter(0));
    let answer = api.get(TOTAL).await;
    answer.problem(503, "unavailable");
    assert_eq!(answer.header("retry-after"), "5");
    api.memory.set_mood(Mood::Well);
    assert_eq!(api.get(TOTAL).await.status.as_u16(), 200);
}

#[tokio::test]
async fn what_broke_inside_stays_inside() {
    let api = Harness::new();
    api.memory.set_mood(Mood::Broken);
    let answer = api.get(TOTAL).await;
    answer.problem(500, "internal");
    assert!(!answer.text.contains("secret"), "{}", answer.text);
    api.memory.set_mood(Mood::Panics);
    let answer = api.get(TOTAL).await;
    answer.problem(500, "internal");
    assert!(!answer.text.contains("bug"), "{}", answer.text);
    api.memory.set_mood(Mood::Well);
    assert_eq!(api.get(TOTAL).await.status.as_u16(), 200, "the process goes on");
}

#[tokio::test]
async fn the_control_database_may_be_away() {
    let api = Harness::with(Setup { cache: Duration::ZERO, ..Setup::default() });
    api.registry.set_away(true);
    let answer = api.get(TOTAL).await;
    answer.problem(503, "unavailable");
    assert_eq!(answer.header("retry-after"), "5");
    api.get("/v1/usage/types").await.problem(503, "unavailable");
    api.post("/v1/usage/types", r#"{"name":"a","kind":"gauge","unit":"b"}"#)
        .await
        .problem(503, "unavailable");
}

#[tokio::test]
async fn too_many_questions_at_once_are_turned_away() {
    let (timeout, turn_within) = (Duration::from_secs(5), Duration::from_millis(100));
    let bounds = Bounds { concurrent: 1, timeout, turn_within, ..Bounds::default() };
    let api = Harness::with(Setup { bounds, ..Setup::default() });
    api.memory.set_mood(Mood::Hangs);
    // Both wait: one for storage until its timeout, the other for its turn.
    let (first, second) = tokio::join!(api.get(TOTAL), api.get(TOTAL));
    let mut statuses = [first.status.as_u16(), second.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [503, 504]);
}

#[tokio::test]
async fn request_and_trace_ids_come_back() {
    let api = Harness::new();
    let ask = |headers: &[(&str, &str)]| {
        let mut request = request(&api, "GET", "/v1/usage/nothing");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        api.send(request.body(Body::empty()).unwrap())
    };
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let answer = ask(&[("x-request-id", "order-42"), ("traceparent", &parent)]).await;
    assert_eq!((answer.header("x-request-id"), answer.header("trace-id")), ("order-42", trace));
    assert_eq!(answer.json()["trace_id"], trace);
    // An id that is not safe to log is replaced, and every request has one.
    let answer = ask(&[("x-request-id", "a b\"c")]).await;
    assert_eq!(answer.header("x-request-id"), answer.header("trace-id"));
    assert_eq!(answer.header("trace-id").len(), 32);
}

#[tokio::test]
async fn answers_may_not_be_cached_or_sniffed() {
    let api = Harness::new();
    for path in [TOTAL, "/v1/usage/nothing", "/health/live"] {
        let answer = api.get(path).await;
        assert_eq!(answer.header("cache-control"), "no-store", "{path}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert!(answer.header("vary").contains("authorization"), "{path}");
    }
}

#[tokio::test]
async fn health_needs_no_token_and_tells_what_is_away() {
    let api = Harness::new();
    let ask = |path: &'static str| api.send(Request::get(path).body(Body::empty()).unwrap());
    assert_eq!(ask("/health/live").await.status.as_u16(), 200);
    assert_eq!(ask("/health/ready").await.status.as_u16(), 200);
    let away = Harness::new();
    away.registry.set_away(true);
    let answer = away.send(Request::get("/health/ready").body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status.as_u16(), 503);
    assert!(answer.json()["failing"]["control_database"].is_string(), "{}", answer.text);
}

#[tokio::test]
async fn head_is_answered_without_a_body() {
    let api = Harness::new();
    let answer = api.send(request(&api, "HEAD", TOTAL).body(Body::empty()).unwrap()).await;
    assert_eq!((answer.status.as_u16(), answer.text.as_str()), (200, ""));
}

/// Every kind of nonsense in every parameter is judged, never an error of the service.
#[tokio::test]
async fn nonsense_is_the_callers_fault() {
    let api = Harness::new();
    let nonsense = [
        "",
        "%",
        "%00",
        "%ff",
        "a%20b",
        "%F0%9F%92%A9",
        "NULL",
        "-1",
        "1e400",
        "NaN",
        "[]",
        "%27%22%3C",
        "../../etc",
    ];
    let names = [
        "from",
        "to",
        "metric",
        "aggregation",
        "window_size",
        "window_time_zone",
        "group_by",
        "source",
        "subject_id",
        "fill",
        "cursor",
    ];
    for path in ["aggregated", "raw"] {
        for name in names {
            for value in nonsense {
                let fixed: Vec<_> =
                    [("from", "2026-01-01T00:00:00Z"), ("to", "2026-01-02T00:00:00Z"), ("metric", "tokens")]
                        .into_iter()
                        .filter(|(fixed, _)| *fixed != name)
                        .map(|(name, value)| format!("{name}={value}"))
                        .collect();
                let answer = api.get(&format!("/v1/usage/{path}?{}&{name}={value}", fixed.join("&"))).await;
                assert!(
                    matches!(answer.status.as_u16(), 400 | 404),
                    "{path} {name}={value}: {}",
                    answer.status
                );
                assert_ne!(answer.json()["detail"], Value::Null, "{path} {name}={value}");
            }
        }
    }
}

/// 5 failures in a row, then 503 at once with the time to come back, and the way back by one probe.
#[tokio::test]
async fn an_open_circuit_is_told_at_once_and_closes_by_itself() {
    let half_open_after = Duration::from_secs(6);
    let breaker = BreakerConfig { half_open_after, ..BreakerConfig::default() };
    let api = Harness::with(Setup { bounds: Bounds { breaker, ..Bounds::default() }, ..Setup::default() });
    api.memory.set_mood(Mood::AwayAfter(0));
    let begun = Instant::now();
    for _ in 0..5 {
        assert_eq!(api.get(TOTAL).await.header("retry-after"), "5");
    }
    let asked = api.memory.calls();
    for path in [TOTAL, "/v1/usage/metadata/watermarks"] {
        let answer = api.get(path).await;
        answer.problem(503, "unavailable");
        let seconds: u64 = answer.header("retry-after").parse().unwrap();
        let left = half_open_after.saturating_sub(begun.elapsed()).as_secs();
        assert!(
            (left + 1..=half_open_after.as_secs()).contains(&seconds),
            "{seconds}, rounded up from {left}"
        );
        assert!(answer.detail().contains("not asked"), "{}", answer.detail());
    }
    assert_eq!(api.memory.calls(), asked, "storage is left alone");
    api.memory.set_mood(Mood::Well);
    let closed = tokio::time::timeout(Duration::from_secs(60), async {
        while api.get(TOTAL).await.status.as_u16() != 200 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    closed.await.expect("the circuit closes after its interval");
}
