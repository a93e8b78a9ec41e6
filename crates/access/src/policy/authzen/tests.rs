mod tls;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use serde_json::{Value, json};

use super::*;
use crate::Scope;
use crate::policy::Constraints;

const OWN: Uuid = Uuid::from_u128(0xa0);
const OTHER: Uuid = Uuid::from_u128(0xb0);

/// A decision point on this machine.
struct Fake {
    url: String,
    /// Head and body of each question.
    asked: Arc<Mutex<Vec<(http::request::Parts, Value)>>>,
}

impl Fake {
    /// Answers every question with this.
    async fn answering(status: u16, body: impl Into<String>) -> Self {
        let body = body.into();
        Self::serve(move || Some(Response::builder().status(status).body(Body::from(body.clone())).unwrap()))
            .await
    }

    /// Answers with what `answer` makes; with none, never.
    async fn serve(answer: impl Fn() -> Option<Response> + Clone + Send + Sync + 'static) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        let handler = move |request: Request| async move {
            let (head, body) = request.into_parts();
            let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
            seen.lock().unwrap().push((head, serde_json::from_slice(&body).unwrap()));
            match answer() {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(handler);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, asked }
    }

    fn point(&self) -> AuthZen {
        AuthZen::new(&config(&self.url)).unwrap()
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

fn config(url: &str) -> AuthZenConfig {
    AuthZenConfig {
        url: url.to_owned(),
        token: None,
        allow_plaintext: false,
        files: TlsFiles::default(),
        timeout: Duration::from_secs(30),
    }
}

fn caller() -> SecurityContext {
    SecurityContext::for_tenant(OWN, Scopes::NONE.with(Scope::Read).with(Scope::Admin))
}

fn ask(context: &SecurityContext) -> PolicyRequest<'_> {
    PolicyRequest {
        principal: Principal::Caller(context),
        action: Action::Read,
        tenant_id: None,
        metric: None,
        source: None,
    }
}

async fn decide(status: u16, body: impl Into<String>) -> Result<Decision, PolicyError> {
    Fake::answering(status, body).await.point().decide(&ask(&caller())).await
}

#[tokio::test]
async fn a_permission_comes_with_its_constraints() {
    let answer = json!({"decision": true, "context": {
        "id": "7", "reason_admin": {"en": "because"}, "reason_user": {"en": "yes"},
        "constraints": {"tenants": [OWN, OTHER], "metrics": ["calls"], "sources": ["mail", "llm"], "elevated": true},
    }});
    let expected = Constraints {
        tenants: Some(BTreeSet::from([OWN, OTHER])),
        metrics: Some(BTreeSet::from(["calls".into()])),
        sources: Some(BTreeSet::from(["mail".into(), "llm".into()])),
        elevated: true,
    };
    assert_eq!(decide(200, answer.to_string()).await.unwrap(), Decision::Permit(expected));
    for unbounded in [json!({"decision": true}), json!({"decision": true, "context": {"constraints": {}}})] {
        let decision = decide(200, unbounded.to_string()).await.unwrap();
        assert_eq!(decision, Decision::Permit(Constraints::default()));
    }
}

#[tokio::test]
async fn a_denial_is_one_whatever_else_it_says() {
    for body in [
        json!({"decision": false}),
        json!({"decision": false, "context": {"constraints": {"metrics": ["calls"]}, "unknown": 1}, "more": []}),
    ] {
        assert_eq!(decide(200, body.to_string()).await.unwrap(), Decision::Deny);
    }
}

#[tokio::test]
async fn a_permission_that_holds_not_what_was_asked_for_is_a_denial() {
    let fake =
        Fake::answering(200, r#"{"decision": true, "context": {"constraints": {"metrics": ["calls"]}}}"#)
            .await;
    let (point, context) = (fake.point(), caller());
    for (metric, permitted) in [(None, true), (Some("calls"), true), (Some("tokens"), false)] {
        let decision = point.decide(&PolicyRequest { metric, ..ask(&context) }).await.unwrap();
        assert_eq!(matches!(decision, Decision::Permit(_)), permitted, "{metric:?}");
    }
    // Nor another tenant, of which the answer says nothing.
    let foreign = PolicyRequest { tenant_id: Some(OTHER), ..ask(&context) };
    assert_eq!(point.decide(&foreign).await.unwrap(), Decision::Deny);
}

#[tokio::test]
async fn an_answer_that_is_not_understood_is_no_permission() {
    for body in [
        "",
        "yes",
        "true",
        "null",
        "[]",
        "[true]",
        "{}",
        r#"{"decision": "true"}"#,
        r#"{"decision": 1}"#,
        r#"{"decision": null}"#,
        r#"{"decision": true, "decision": true}"#,
        r#"{"decision": true} {}"#,
        r#"{"decision": true, "constraints": {"metrics": ["calls"]}}"#,
        r#"{"decision": true, "context": null}"#,
        r#"{"decision": true, "context": []}"#,
        r#"{"decision": true, "context": [{}]}"#,
        r#"{"decision": true, "context": {"obligations": []}}"#,
        r#"{"decision": true, "context": {"constraints": null}}"#,
        r#"{"decision": true, "context": {"constraints": []}}"#,
        r#"{"decision": true, "context": {"constraints": [["00000000-0000-0000-0000-0000000000a0"]]}}"#,
        r#"{"decision": true, "context": {"constraints": {"metric": ["calls"]}}}"#,
        r#"{"decision": true, "context": {"constraints": {"metrics": ["calls"], "metrics": []}}}"#,
        r#"{"decision": true, "context": {"constraints": {"metrics": null}}}"#,
        r#"{"decision": true, "context": {"constraints": {"metrics": "calls"}}}"#,
        r#"{"decision": true, "context": {"constraints": {"metrics": ["Calls"]}}}"#,
        r#"{"decision": true, "context": {"constraints": {"sources": ["*"]}}}"#,
        r#"{"decision": true, "context": {"constraints": {"tenants": ["mine"]}}}"#,
        r#"{"decision": true, "context": {"constraints": {"tenants": ["00000000-0000-0000-0000-000000000000"]}}}"#,
        r#"{"decision": true, "context": {"constraints": {"elevated": "yes"}}}"#,
        r#"{"decision": true, "context": {"constraints": {"resources": ["a"]}}}"#,
    ] {
        let error = decide(200, body).await.unwrap_err();
        assert!(matches!(error, PolicyError::InvalidAnswer { .. }), "{body}: {error:?}");
        assert!(!error.to_string().contains("calls"), "{error}");
    }
}

#[tokio::test]
async fn another_status_than_200_is_no_permission_whatever_the_body_says() {
    for (status, passing) in [
        (201, false),
        (204, false),
        (302, false),
        (400, false),
        (401, false),
        (403, false),
        (404, false),
        (429, true),
        (500, true),
        (503, true),
    ] {
        let body = if status == 204 { "" } else { r#"{"decision": true}"# };
        let error = decide(status, body).await.unwrap_err();
        assert_eq!(matches!(error, PolicyError::Unavailable(_)), passing, "{status}: {error:?}");
        assert!(usage_service::error_chain(&error).contains(&status.to_string()), "{error:?}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let there = Fake::answering(200, r#"{"decision": true}"#).await;
    let location = there.url.clone();
    let here = Fake::serve(move || {
        Some(Response::builder().status(307).header("location", &location).body(Body::empty()).unwrap())
    })
    .await;
    assert!(here.point().decide(&ask(&caller())).await.is_err());
    assert_eq!((here.asked(), there.asked()), (1, 0));
}

#[tokio::test]
async fn no_answer_in_time_is_no_permission() {
    let fake = Fake::serve(|| None).await;
    let quick = AuthZenConfig { timeout: Duration::from_millis(50), ..config(&fake.url) };
    let error = AuthZen::new(&quick).unwrap().decide(&ask(&caller())).await.unwrap_err();
    assert!(usage_service::error_chain(&error).contains("in time"), "{error:?}");
}

#[tokio::test]
async fn an_answer_that_never_ends_is_no_permission() {
    // It begins well, and then comes nothing: the time is for the whole.
    let fake = Fake::serve(|| {
        let begun = futures::stream::iter([Ok::<_, std::io::Error>(r#"{"decision": true"#)]);
        let body = futures::StreamExt::chain(begun, futures::stream::pending());
        Some(Response::new(Body::from_stream(body)))
    })
    .await;
    let quick = AuthZenConfig { timeout: Duration::from_millis(300), ..config(&fake.url) };
    let error = AuthZen::new(&quick).unwrap().decide(&ask(&caller())).await.unwrap_err();
    assert!(usage_service::error_chain(&error).contains("in time"), "{error:?}");
}

#[tokio::test]
async fn an_answer_that_is_too_long_is_no_permission() {
    let long = format!(r#"{{"decision": true{}}}"#, " ".repeat(ANSWER_BYTES));
    let error = decide(200, long).await.unwrap_err();
    assert!(error.to_string().contains("bytes"), "{error}");
    let fits = format!(r#"{{"decision": true{}}}"#, " ".repeat(ANSWER_BYTES - 18));
    assert!(matches!(decide(200, fits).await.unwrap(), Decision::Permit(_)));
}

#[tokio::test]
async fn no_connection_is_no_permission() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let point = AuthZen::new(&config(&url)).unwrap();
    assert!(matches!(point.decide(&ask(&caller())).await, Err(PolicyError::Unavailable(_))));
    assert!(point.ready().await.is_err());
}

#[tokio::test]
async fn the_question_says_who_wants_what_and_with_which_token() {
    let fake = Fake::answering(200, r#"{"decision": false}"#).await;
    let point =
        AuthZen::new(&AuthZenConfig { token: Some("t0p".into()), ..config(&format!("{}/pdp/", fake.url)) })
            .unwrap();
    let subject = Uuid::from_u128(0xc0);
    let context =
        SecurityContext { subject_id: Some(subject), subject_type: Some("user".into()), ..caller() };
    let request = PolicyRequest { metric: Some("calls"), source: Some("mail"), ..ask(&context) };
    let trace = TraceId::random();
    trace.scope(point.decide(&request)).await.unwrap();
    let source = Principal::Source { name: "mail", home_tenant: None, any_tenant: true };
    let behalf = PolicyRequest {
        principal: source,
        action: Action::EmitOnBehalf,
        tenant_id: Some(OTHER),
        ..ask(&context)
    };
    point.decide(&behalf).await.unwrap();
    let asked = fake.asked.lock().unwrap();
    let (head, body) = &asked[0];
    assert_eq!((head.method.as_str(), head.uri.path()), ("POST", "/pdp/access/v1/evaluation"));
    assert_eq!(head.headers["authorization"], "Bearer t0p");
    assert_eq!(head.headers["content-type"], "application/json");
    assert_eq!(head.headers["x-request-id"], trace.to_string().as_str());
    let expected = json!({
        "subject": {"type": "caller", "id": format!("{OWN}/{subject}"), "properties": {
            "tenant_id": OWN, "subject_id": subject, "subject_type": "user", "scopes": ["usage:read", "usage:admin"],
        }},
        "action": {"name": "read"},
        "resource": {"type": "tenant", "id": OWN, "properties": {"named": false, "metric": "calls", "source": "mail"}},
    });
    assert_eq!(body, &expected);
    let expected = json!({
        "subject": {"type": "source", "id": "mail", "properties": {"any_tenant": true}},
        "action": {"name": "emit_on_behalf"},
        "resource": {"type": "tenant", "id": OTHER, "properties": {"named": true}},
    });
    assert_eq!(asked[1].1, expected);
}

#[tokio::test]
async fn a_source_of_nobody_that_names_no_tenant_is_not_even_asked_for() {
    let fake = Fake::answering(200, r#"{"decision": true}"#).await;
    let context = caller();
    let source = Principal::Source { name: "mail", home_tenant: None, any_tenant: true };
    assert!(fake.point().decide(&PolicyRequest { principal: source, ..ask(&context) }).await.is_err());
    assert_eq!(fake.asked(), 0);
}

#[tokio::test]
async fn ready_is_a_point_that_answers_anything_that_is_understood() {
    for (status, body, ready) in [
        (200, r#"{"decision": false}"#, true),
        (200, r#"{"decision": true}"#, true),
        (200, "ok", false),
        (401, "", false),
        (503, r#"{"decision": false}"#, false),
    ] {
        let fake = Fake::answering(status, body).await;
        assert_eq!(fake.point().ready().await.is_ok(), ready, "{status} {body}");
    }
}

#[test]
fn an_address_is_https_or_on_this_machine() {
    for (url, expected) in [
        ("https://pdp.example", "https://pdp.example/access/v1/evaluation"),
        ("https://pdp.example:8443/a/b/", "https://pdp.example:8443/a/b/access/v1/evaluation"),
        ("http://127.0.0.1:8181", "http://127.0.0.1:8181/access/v1/evaluation"),
        ("http://[::1]:8181", "http://[::1]:8181/access/v1/evaluation"),
        ("http://localhost", "http://localhost/access/v1/evaluation"),
    ] {
        assert_eq!(endpoint(url, false).unwrap().as_str(), expected);
    }
    for url in [
        "",
        "pdp.example",
        "ftp://127.0.0.1",
        "http://pdp.example",
        "http://10.0.0.1",
        "http://127.0.0.1.example",
        "http://localhost.example",
        "https://user:secret@pdp.example",
        "https://pdp.example/?a=b",
        "https://pdp.example/#a",
    ] {
        let error = endpoint(url, false).unwrap_err();
        assert!(!error.contains("secret"), "{url}: {error}");
    }
}

#[test]
fn the_token_is_in_no_debug_output_and_a_broken_one_in_no_error() {
    let config = |token: &str| AuthZenConfig { token: Some(token.into()), ..config("https://pdp.example") };
    let point = AuthZen::new(&config("t0p-secret")).unwrap();
    assert!(!format!("{point:?} {:?}", config("t0p-secret")).contains("t0p-secret"));
    let error = AuthZen::new(&config("t0p-\nsecret")).unwrap_err();
    assert!(error.contains("policy.token") && !error.contains("secret"), "{error}");
}

#[test]
fn a_file_of_authorities_that_can_not_be_used_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for path in [file.path().to_owned(), "/nowhere/ca.pem".into()] {
        let config = AuthZenConfig {
            files: TlsFiles { ca_file: Some(path.clone()), ..TlsFiles::default() },
            ..config("https://pdp.example")
        };
        let error = AuthZen::new(&config).unwrap_err();
        assert!(error.contains("policy.ca_file") && error.contains(&path.display().to_string()), "{error}");
    }
}
