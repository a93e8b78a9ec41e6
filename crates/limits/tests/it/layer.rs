//! The tower layer in front of a handler.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use axum::routing::get;
use sha2::{Digest as _, Sha256};
use sqlx::PgPool;
use tower::ServiceExt as _;
use usage_limits::http::{MissingKey, RATE_LIMIT, RATE_LIMIT_POLICY, RateLimitLayer};
use usage_limits::{Quota, RateLimits, Rule};

use crate::support::{number, run_on, with_database};

const HOUR: Duration = Duration::from_secs(3_600);
const COUNTED: &str = "SELECT sum(count)::bigint FROM rate_limits";

async fn limits(pool: &PgPool) -> RateLimits {
    let limits = RateLimits::new(pool.clone(), "rate_limits")
        .unwrap()
        .with_timeout(Duration::from_secs(120))
        // The clock stands still: no window ends during a test.
        .with_clock("timestamptz '2026-11-30 12:10Z'");
    run_on(pool, &limits.migration_sql()).await;
    limits
}

fn header(
    name: &'static str,
) -> impl Fn(&axum::http::request::Parts) -> Option<String> + Send + Sync + 'static {
    move |head| Some(head.headers.get(name)?.to_str().ok()?.to_owned())
}

/// How much later than the reset of an hour a subject is told to come back: by its hash, up to a minute.
fn later(subject: &str) -> u64 {
    let digest = Sha256::digest(subject);
    (u64::from(u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])) * 61) >> 32
}

/// A handler that counts its calls, behind the layer.
fn app(layer: RateLimitLayer) -> (Router, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let handler = move || async move {
        counted.fetch_add(1, Ordering::Relaxed);
        "done"
    };
    (Router::new().route("/", get(handler)).layer(layer), calls)
}

async fn ask(router: &Router, headers: &[(&str, &str)]) -> Response<Body> {
    let mut request = Request::get("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

#[tokio::test]
async fn all_rules_must_allow_and_callers_see_their_policies() {
    with_database(|pool| async move {
        let limits = limits(&pool).await;
        let tenant = limits.limiter(Rule::new("tenant", &[Quota::new(3, HOUR)]).unwrap());
        let token = limits.limiter(Rule::new("token", &[Quota::new(2, HOUR)]).unwrap());
        let layer = RateLimitLayer::new().rule(tenant, MissingKey::Skip, header("tenant")).rule(
            token,
            MissingKey::Skip,
            header("token"),
        );
        let (router, calls) = app(layer);

        let first = ask(&router, &[("tenant", "a"), ("token", "x")]).await;
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(first.headers()[RATE_LIMIT_POLICY], "\"tenant\";q=3;w=3600, \"token\";q=2;w=3600");
        let (tenant, token) = (3_000 + later("a"), 3_000 + later("x"));
        let told = |left: u32, of_token: u32| {
            format!("\"tenant\";r={left};t={tenant}, \"token\";r={of_token};t={token}")
        };
        assert_eq!(first.headers()[RATE_LIMIT], told(2, 1));
        assert_eq!(ask(&router, &[("tenant", "a"), ("token", "x")]).await.status(), StatusCode::OK);
        let refused = ask(&router, &[("tenant", "a"), ("token", "x")]).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()["retry-after"], token.to_string());
        assert_eq!(refused.headers()[RATE_LIMIT], told(0, 0));
        // Another token of the same tenant: the tenant's three are used. Another tenant has its own.
        assert_eq!(ask(&router, &[("tenant", "a"), ("token", "y")]).await.status(), 429);
        assert_eq!(ask(&router, &[("tenant", "b"), ("token", "y")]).await.status(), StatusCode::OK);
        assert_eq!(calls.load(Ordering::Relaxed), 3);
    })
    .await;
}

#[tokio::test]
async fn whoever_was_refused_costs_no_statement_until_the_reset() {
    with_database(|pool| async move {
        let limits = limits(&pool).await;
        let limiter =
            |name: &str, limit| limits.limiter(Rule::new(name, &[Quota::new(limit, HOUR)]).unwrap());
        let layer = RateLimitLayer::new().rule(limiter("token", 5), MissingKey::Skip, header("token")).rule(
            limiter("tenant", 1),
            MissingKey::Skip,
            header("tenant"),
        );
        let (router, calls) = app(layer);
        let flood = [("tenant", "a"), ("token", "x")];
        assert_eq!(ask(&router, &flood).await.status(), StatusCode::OK);
        assert_eq!(ask(&router, &flood).await.status(), 429);
        assert_eq!(number(&pool, COUNTED).await, 3, "the token counts both, the tenant the first");
        // Without its table any question would let the request through.
        run_on(&pool, "ALTER TABLE rate_limits RENAME TO elsewhere").await;
        for _ in 0..20 {
            let refused = ask(&router, &flood).await;
            assert_eq!(refused.status(), 429);
            let wait: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
            assert!((1..=3_000 + later("a")).contains(&wait), "{wait}");
            assert!(refused.headers().contains_key(RATE_LIMIT_POLICY));
            let left = refused.headers()[RATE_LIMIT].to_str().unwrap();
            assert!(left.starts_with("\"tenant\";r=0;t="), "{left}");
        }
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        // Others, and what the rules can't say at present, are asked about.
        assert_eq!(ask(&router, &[("tenant", "b"), ("token", "x")]).await.status(), StatusCode::OK);
        run_on(&pool, "ALTER TABLE elsewhere RENAME TO rate_limits").await;
        assert_eq!(number(&pool, COUNTED).await, 3, "nothing was counted meanwhile");
    })
    .await;
}

/// Those who are refused until the same moment are told to come back in different ones, and each always in the same.
#[tokio::test]
async fn callers_that_wait_for_the_same_reset_come_back_one_after_the_other() {
    with_database(|pool| async move {
        let limits = limits(&pool).await;
        let limiter = limits.limiter(Rule::new("token", &[Quota::new(1, HOUR)]).unwrap());
        let (router, _) = app(RateLimitLayer::new().rule(limiter, MissingKey::Skip, header("token")));
        let mut told = std::collections::BTreeSet::new();
        for caller in 0..40 {
            let token = format!("caller-{caller}");
            let headers = [("token", token.as_str())];
            assert_eq!(ask(&router, &headers).await.status(), StatusCode::OK);
            let refused = ask(&router, &headers).await;
            let wait: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
            assert_eq!(wait, 3_000 + later(&token));
            told.insert(wait);
        }
        assert!(told.len() > 20 && told.iter().all(|wait| (3_000..=3_060).contains(wait)), "{told:?}");
    })
    .await;
}

#[tokio::test]
async fn every_decision_is_told_with_its_rule() {
    with_database(|pool| async move {
        let limits = limits(&pool).await;
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let observed = |layer: RateLimitLayer| {
            let seen = seen.clone();
            layer.observe_with(move |rule, decision| {
                let word = if decision.allowed { "allowed" } else { "refused" };
                seen.lock().unwrap().push(format!("{} {word} {:?}", rule.name(), decision.reason));
            })
        };
        let rule = |name: &str| Rule::new(name, &[Quota::new(1, HOUR)]).unwrap();
        let (counted, _) = app(observed(RateLimitLayer::new().rule(
            limits.limiter(rule("token")),
            MissingKey::Share,
            |_| None,
        )));
        for _ in 0..3 {
            ask(&counted, &[]).await;
        }
        run_on(&pool, "DROP TABLE rate_limits").await;
        let layer = RateLimitLayer::new()
            .rule(limits.limiter(rule("open")), MissingKey::Share, |_| None)
            .rule(limits.limiter(rule("closed").fail_closed()), MissingKey::Share, |_| None);
        ask(&app(observed(layer)).0, &[]).await;
        let expected = [
            "token allowed Allowed",
            "token refused Exceeded",
            // Out of memory, without a question.
            "token refused Exceeded",
            "open allowed Degraded",
            "closed refused Degraded",
        ];
        assert_eq!(*seen.lock().unwrap(), expected);
    })
    .await;
}

#[tokio::test]
async fn a_request_without_a_key_is_not_limited_or_shares_one_limit() {
    with_database(|pool| async move {
        let limits = limits(&pool).await;
        let limiter = |name: &str| limits.limiter(Rule::new(name, &[Quota::new(1, HOUR)]).unwrap());
        let (free, _) = app(RateLimitLayer::new().rule(limiter("skip"), MissingKey::Skip, header("token")));
        for _ in 0..3 {
            let response = ask(&free, &[("token", "")]).await;
            assert_eq!(response.status(), StatusCode::OK);
            assert!(!response.headers().contains_key(RATE_LIMIT));
        }
        let (shared, _) =
            app(RateLimitLayer::new().rule(limiter("share"), MissingKey::Share, header("token")));
        assert_eq!(ask(&shared, &[]).await.status(), StatusCode::OK);
        assert_eq!(ask(&shared, &[("token", "")]).await.status(), 429);
        assert_eq!(ask(&shared, &[("token", "a")]).await.status(), StatusCode::OK);
    })
    .await;
}

#[tokio::test]
async fn without_the_database_a_rule_fails_open_or_closed_and_refusals_may_be_the_apps_own() {
    with_database(|pool| async move {
        let limits = limits(&pool).await;
        run_on(&pool, "DROP TABLE rate_limits").await;
        let rule = || Rule::new("token", &[Quota::new(1, HOUR)]).unwrap();
        let (open, calls) =
            app(RateLimitLayer::new().rule(limits.limiter(rule()), MissingKey::Share, |_| None));
        let response = ask(&open, &[]).await;
        assert_eq!((response.status(), calls.load(Ordering::Relaxed)), (StatusCode::OK, 1));
        assert!(!response.headers().contains_key(RATE_LIMIT), "nothing is known");

        let closed =
            RateLimitLayer::new().rule(limits.limiter(rule().fail_closed()), MissingKey::Share, |_| None);
        let (plain, calls) = app(closed.clone());
        let response = ask(&plain, &[]).await;
        assert_eq!((response.status(), calls.load(Ordering::Relaxed)), (StatusCode::SERVICE_UNAVAILABLE, 0));
        let (own, _) = app(closed.refuse_with(|decision| {
            let mut response = Response::new(Body::from(format!("{:?}", decision.reason)));
            *response.status_mut() = StatusCode::IM_A_TEAPOT;
            response
        }));
        assert_eq!(ask(&own, &[]).await.status(), StatusCode::IM_A_TEAPOT);
    })
    .await;
}
