//! What one caller may cost the others.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use futures::future::join_all;
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;
use usage_access::Scopes;
use usage_query_api::state::Limits;
use usage_query_api::store::Bounds;
use usage_schemas::Kind;

use crate::memory::Mood;
use crate::support::{Harness, Setup, bearer};

const TOTAL: &str = "/v1/usage/aggregated?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z&metric=tokens";
const LONG: Duration = Duration::from_secs(600);

/// Longer than one timeout of the control database, far shorter than one for each request.
const TIMEOUT: Duration = Duration::from_secs(3);
const SOON: Duration = Duration::from_secs(45);

#[tokio::test]
async fn a_frozen_control_database_costs_all_who_wait_one_timeout() {
    let api = Harness::with(Setup { timeout: TIMEOUT, cache: LONG, ..Setup::default() });
    api.registry.freeze();
    let answers = tokio::time::timeout(SOON, join_all((0..20).map(|_| api.get(TOTAL)))).await.unwrap();
    for answer in answers {
        answer.problem(503, "unavailable");
    }
    assert_eq!(api.registry.reads(), 1);
    // A failure is not remembered beyond those who waited.
    api.get("/v1/usage/types").await.problem(503, "unavailable");
    assert_eq!(api.registry.reads(), 2);
}

#[tokio::test]
async fn frozen_partition_counts_cost_all_who_wait_one_timeout() {
    let api = Harness::with(Setup { timeout: TIMEOUT, cache: LONG, ..Setup::default() });
    assert_eq!(api.get("/v1/usage/types").await.status.as_u16(), 200);
    api.registry.freeze();
    // CSV has no `complete_until`: the counts are the first thing it needs.
    let asked = (0..20).map(|_| api.get_as(TOTAL, "text/csv"));
    let answers = tokio::time::timeout(SOON, join_all(asked)).await.unwrap();
    for answer in answers {
        answer.problem(503, "unavailable");
    }
    assert_eq!((api.registry.reads(), api.registry.count_reads()), (1, 1));
    let answers = tokio::time::timeout(SOON, join_all((0..20).map(|_| api.get(TOTAL)))).await.unwrap();
    for answer in answers {
        answer.problem(503, "unavailable");
    }
    assert_eq!(api.registry.completeness_reads(), 1);
}

#[tokio::test]
async fn slow_questions_of_one_tenant_leave_turns_for_another() {
    let bounds = Bounds {
        timeout: LONG,
        concurrent: 8,
        concurrent_per_tenant: 2,
        turn_within: LONG,
        ..Bounds::default()
    };
    let noisy = Harness::with(Setup { bounds, cache: LONG, ..Setup::default() });
    let quiet = noisy.stranger();
    // What the control database says is known now: from here on a question goes straight to its turn.
    assert_eq!(quiet.get(TOTAL).await.status.as_u16(), 200);
    noisy.memory.set_mood(Mood::HangsFor(noisy.tenant));
    let (slow, ()) = tokio::join!(join_all((0..8).map(|_| noisy.get(TOTAL))), async {
        noisy.memory.asked(1 + 2).await;
        let answer = quiet.get(TOTAL).await;
        assert_eq!(answer.status.as_u16(), 200, "{}", answer.text);
        assert_eq!(noisy.memory.calls(), 1 + 2 + 1, "two at a time");
        noisy.memory.set_mood(Mood::Well);
    });
    assert!(slow.iter().all(|answer| answer.status.as_u16() == 200), "the others had their turns after that");
}

/// One tenant's question holds the only turn while another's stream goes on to its next page.
async fn stream_meets_a_full_house(path: &str, accept: &str, lines: usize) {
    let bounds = Bounds {
        timeout: LONG,
        concurrent: 1,
        turn_within: Duration::from_millis(20),
        stream_turn_within: LONG,
        ..Bounds::default()
    };
    let limits = Limits { aggregated_rows: 10, ..Limits::default() };
    let api = Harness::with(Setup { bounds, limits, cache: LONG, ..Setup::default() });
    for at in 0..1_100 {
        api.add("tokens", "1", &format!("2026-01-01T{:02}:{:02}:00Z", at / 60, at % 60));
    }
    let request = Request::get(path)
        .header("host", "api.example")
        .header("accept", accept)
        .header("authorization", bearer(api.tenant, Scopes::all()))
        .body(Body::empty());
    let response = api.router.clone().oneshot(request.unwrap()).await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    let (slow, late) = (api.stranger(), api.stranger());
    // What the control database says is known now: from here on a question goes straight to its turn.
    assert_eq!(late.get(TOTAL).await.status.as_u16(), 200);
    let asked = api.memory.calls();
    api.memory.set_mood(Mood::HangsFor(slow.tenant));
    let (_, body, ()) = tokio::join!(slow.get(TOTAL), response.into_body().collect(), async {
        api.memory.asked(asked + 1).await;
        // Came after the stream and is turned away: so the stream has waited longer than that.
        late.get(TOTAL).await.problem(503, "unavailable");
        api.memory.set_mood(Mood::Well);
    });
    let text = String::from_utf8(body.unwrap().to_bytes().to_vec()).unwrap();
    assert_eq!(text.lines().count(), lines);
}

#[tokio::test]
async fn a_stream_under_way_waits_longer_for_its_turn() {
    let range = "from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z&metric=tokens";
    stream_meets_a_full_house(&format!("/v1/usage/raw?{range}"), "application/x-ndjson", 1_100).await;
    stream_meets_a_full_house(&format!("/v1/usage/aggregated?{range}&window_size=HOUR"), "text/csv", 20)
        .await;
}

#[tokio::test]
async fn a_zone_as_long_as_a_request_is_compared_with_nothing() {
    let api = Harness::new();
    let answer = api.get(&format!("{TOTAL}&window_time_zone={}", "Europe/".repeat(9_000))).await;
    assert_eq!(answer.problem(400, "invalid-parameter"), ["window_time_zone:unknown_zone"]);
    assert_eq!(answer.detail(), "`window_time_zone`: not an IANA time zone");
}

#[tokio::test]
async fn of_many_unknown_metrics_a_few_have_a_hint() {
    let api = Harness::new();
    for at in 0..300 {
        api.registry.put(&format!("a{at:0>120}"), Kind::Counter, "x");
    }
    let metrics: String = (0..100).map(|at| format!("&metric=b{at:0>60}")).collect();
    let path = "/v1/usage/raw?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z";
    let answer = api.get(&format!("{path}{metrics}")).await;
    assert_eq!(answer.problem(404, "unknown-metric").len(), 100);
    let errors = answer.json()["errors"].to_string();
    assert_eq!(errors.matches("did you mean").count(), 3);
}

#[tokio::test]
async fn a_query_of_very_many_strangers_has_a_short_answer() {
    let api = Harness::new();
    for (query, faults) in [("a&".repeat(32_000), 1), ("a&".repeat(1_000), 51)] {
        for path in ["raw", "aggregated", "types"] {
            let answer = api.get(&format!("/v1/usage/{path}?{query}")).await;
            assert_eq!(answer.problem(400, "invalid-parameter").len(), faults, "{path}");
            assert!(answer.text.len() < 20_000, "{path}: {} bytes", answer.text.len());
        }
    }
    let answer = api.get(&format!("/v1/usage/raw?{}", "a&".repeat(1_000))).await;
    assert_eq!(answer.detail(), "more than 50 parameters are not valid");
}
