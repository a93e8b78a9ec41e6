//! Who gets in: every endpoint of the router, with every kind of token, under every kind of policy.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use serde_json::json;
use usage_access::policy::{Action, Constraints};
use usage_access::{Claims, DEFAULT_AUDIENCE, DEFAULT_ISSUER, Scope, Scopes, TokenSigner};
use usage_query_api::app::{ENDPOINTS, Endpoint};
use uuid::Uuid;

use crate::memory::record;
use crate::policy::{Question, Says};
use crate::support::{Answer, Harness, bearer, keys, only, token};

const OWN: Uuid = Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0001);
const OTHER: Uuid = Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0002);
const RECORD: Uuid = Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0003);
const TYPE: &str = r#"{"name":"requests","kind":"counter","unit":"request"}"#;

/// A good request of an endpoint, and how it is answered once the token is good.
struct Row {
    endpoint: &'static str,
    /// A request of the tenant `OWN` about the metric `tokens`, but for the registered type.
    uri: &'static str,
    scope: Scope,
    /// Permitted without bounds.
    permitted: u16,
    /// Permitted, the token is another tenant's.
    foreign: u16,
    /// Permitted for the metric `tokens` only.
    limited: u16,
    /// Permitted for the metric `bytes` only.
    elsewhere: u16,
}

const fn row(endpoint: &'static str, uri: &'static str, scope: Scope, statuses: [u16; 4]) -> Row {
    let [permitted, foreign, limited, elsewhere] = statuses;
    Row { endpoint, uri, scope, permitted, foreign, limited, elsewhere }
}

const ROWS: &[Row] = &[
    row(
        "GET /v1/usage/aggregated",
        "/v1/usage/aggregated?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z&metric=tokens",
        Scope::Read,
        [200, 200, 200, 403],
    ),
    row(
        "GET /v1/usage/raw",
        "/v1/usage/raw?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z&metric=tokens",
        Scope::Read,
        [200, 200, 200, 403],
    ),
    row(
        "GET /v1/usage/records/{id}",
        "/v1/usage/records/01980000-0000-7000-8000-000000000003",
        Scope::Read,
        [200, 404, 200, 404],
    ),
    row(
        "GET /v1/usage/metadata/watermarks",
        "/v1/usage/metadata/watermarks",
        Scope::Read,
        [200, 200, 200, 200],
    ),
    row("GET /v1/usage/types", "/v1/usage/types", Scope::Read, [200, 200, 200, 200]),
    row("GET /v1/usage/types/{name}", "/v1/usage/types/tokens", Scope::Read, [200, 200, 200, 403]),
    row("POST /v1/usage/types", "/v1/usage/types", Scope::Types, [201, 201, 403, 403]),
    // There is no table of allowances here: what is permitted is told so.
    row(
        "GET /v1/usage/allowances/{subject}",
        "/v1/usage/allowances/01980000-0000-7000-8000-000000000001",
        Scope::Read,
        [404, 404, 404, 404],
    ),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    None,
    Garbage,
    Expired,
    OtherIssuer,
    OtherAudience,
    UnknownKey,
    NoScope,
    WrongScopes,
    RightScope,
    ForeignTenant,
}

impl Token {
    const ALL: [Self; 10] = [
        Self::None,
        Self::Garbage,
        Self::Expired,
        Self::OtherIssuer,
        Self::OtherAudience,
        Self::UnknownKey,
        Self::NoScope,
        Self::WrongScopes,
        Self::RightScope,
        Self::ForeignTenant,
    ];

    fn authorization(self, scope: Scope) -> Option<String> {
        let others = Scope::ALL.into_iter().filter(|other| *other != scope).collect();
        Some(match self {
            Self::None => return None,
            Self::Garbage => "Bearer abc.def.ghi".to_owned(),
            Self::Expired => format!("Bearer {}", expired(scope)),
            Self::OtherIssuer => signed("somebody", DEFAULT_AUDIENCE),
            Self::OtherAudience => signed(DEFAULT_ISSUER, "somebody"),
            Self::UnknownKey => {
                let directory = tempfile::tempdir().unwrap();
                let strangers = usage_access::generate_key_pair(directory.path()).unwrap();
                format!("Bearer {}", token(&strangers.signing, OWN, Scopes::all()))
            }
            Self::NoScope => bearer(OWN, Scopes::NONE),
            Self::WrongScopes => bearer(OWN, others),
            Self::RightScope => bearer(OWN, only(scope)),
            Self::ForeignTenant => bearer(OTHER, only(scope)),
        })
    }

    fn is_good(self) -> bool {
        matches!(self, Self::NoScope | Self::WrongScopes | Self::RightScope | Self::ForeignTenant)
    }
}

fn signed(issuer: &str, audience: &str) -> String {
    let signer = TokenSigner::from_file(&keys().signing, issuer, audience).unwrap();
    let ttl = Duration::from_secs(600);
    let claims = Claims { tenant_id: OWN, subject_id: None, subject_type: None, scopes: Scopes::all(), ttl };
    format!("Bearer {}", signer.sign(&claims).unwrap())
}

/// A token that was good until two minutes ago: longer than clocks may differ.
fn expired(scope: Scope) -> String {
    let now = usage_service::clock::now_micros() / 1_000_000;
    let header = jsonwebtoken::Header {
        kid: Some(keys().key_id.clone()),
        ..jsonwebtoken::Header::new(jsonwebtoken::Algorithm::EdDSA)
    };
    let claims = json!({
        "iss": DEFAULT_ISSUER, "aud": DEFAULT_AUDIENCE, "iat": now - 600, "nbf": now - 600, "exp": now - 120,
        "tenant_id": OWN, "scope": scope.as_str(),
    });
    let pem = std::fs::read(&keys().signing).unwrap();
    let key = jsonwebtoken::EncodingKey::from_ed_pem(&pem).unwrap();
    jsonwebtoken::encode(&header, &claims, &key).unwrap()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Shipped,
    Permit,
    Deny,
    Limited,
    Elsewhere,
    OtherTenants,
    NothingLeft,
    Unavailable,
    Invalid,
}

impl Policy {
    const ALL: [Self; 9] = [
        Self::Shipped,
        Self::Permit,
        Self::Deny,
        Self::Limited,
        Self::Elsewhere,
        Self::OtherTenants,
        Self::NothingLeft,
        Self::Unavailable,
        Self::Invalid,
    ];

    fn says(self) -> Says {
        let none = Constraints::default();
        match self {
            Self::Shipped => Says::Shipped,
            Self::Permit => Says::Permit(none),
            Self::Deny => Says::Deny,
            Self::Limited => Says::limited(&["tokens"], &[]),
            Self::Elsewhere => Says::limited(&["bytes"], &[]),
            Self::OtherTenants => {
                Says::Permit(Constraints { tenants: Some([Uuid::from_u128(9)].into()), ..none })
            }
            Self::NothingLeft => Says::Permit(Constraints { metrics: Some(BTreeSet::new()), ..none }),
            Self::Unavailable => Says::Unavailable,
            Self::Invalid => Says::Invalid,
        }
    }
}

fn expected(row: &Row, token: Token, policy: Policy) -> u16 {
    let permitted = if token == Token::ForeignTenant { row.foreign } else { row.permitted };
    match policy {
        _ if !token.is_good() => 401,
        Policy::Shipped if matches!(token, Token::NoScope | Token::WrongScopes) => 403,
        Policy::Deny | Policy::OtherTenants | Policy::NothingLeft | Policy::Invalid => 403,
        Policy::Unavailable => 503,
        _ if permitted == 404 => 404,
        Policy::Shipped | Policy::Permit => permitted,
        Policy::Limited => row.limited,
        Policy::Elsewhere => row.elsewhere,
    }
}

/// The endpoint and its row; a new endpoint without one fails.
fn endpoints() -> Vec<(&'static Endpoint, &'static Row)> {
    let row = |endpoint: &Endpoint| {
        let name = format!("{} {}", endpoint.method, endpoint.path);
        ROWS.iter().find(|row| row.endpoint == name).unwrap_or_else(|| panic!("{name} has no row here"))
    };
    let found: Vec<_> = ENDPOINTS.iter().map(|endpoint| (endpoint, row(endpoint))).collect();
    assert_eq!(found.len(), ROWS.len(), "each row has its endpoint");
    found
}

fn harness(policy: Policy) -> Harness {
    let mut api = Harness::new();
    api.tenant = OWN;
    let mut sample = record(OWN, "tokens", "42.5", "2026-01-01T01:00:00Z");
    sample.record_id = RECORD;
    api.memory.add(sample);
    api.policy.says(policy.says());
    api
}

async fn ask(api: &Harness, method: &str, uri: &str, accept: &str, authorization: Option<&str>) -> Answer {
    let mut request = Request::builder().method(method).uri(uri).header("accept", accept);
    if let Some(value) = authorization {
        request = request.header("authorization", value);
    }
    let body = if method == "POST" { Body::from(TYPE) } else { Body::empty() };
    let content_type = if method == "POST" { "application/json" } else { "" };
    api.send(request.header("content-type", content_type).body(body).unwrap()).await
}

/// Checks that nobody behind the door was asked anything.
#[track_caller]
fn untouched(api: &Harness, why: &str) {
    assert_eq!((api.memory.calls(), api.registry.calls()), (0, 0), "{why}");
}

#[tokio::test]
async fn every_endpoint_answers_every_token_under_every_policy_as_the_table_says() {
    for (endpoint, row) in endpoints() {
        for token in Token::ALL {
            let authorization = token.authorization(row.scope);
            for policy in Policy::ALL {
                let api = harness(policy);
                let answer =
                    ask(&api, endpoint.method, row.uri, "application/json", authorization.as_deref()).await;
                let cell = format!("{} with {token:?} under {policy:?}: {}", row.endpoint, answer.text);
                let status = expected(row, token, policy);
                assert_eq!(answer.status.as_u16(), status, "{cell}");
                assert!(!answer.text.contains("secret"), "{cell}");

                let asked = api.policy.asked();
                match status {
                    401 => {
                        answer.problem(401, "unauthenticated");
                        assert!(
                            answer.header("www-authenticate").starts_with("Bearer realm=\"usage\""),
                            "{cell}"
                        );
                        assert_eq!(asked, [], "{cell}");
                    }
                    403 => {
                        assert_eq!(answer.problem(403, "forbidden"), [] as [String; 0]);
                        let action = endpoint.action.as_str();
                        assert_eq!(answer.detail(), format!("the action `{action}` was refused"), "{cell}");
                    }
                    503 => {
                        answer.problem(503, "unavailable");
                        assert_eq!(answer.header("retry-after"), "5", "{cell}");
                    }
                    _ => {}
                }
                if matches!(status, 401 | 403 | 503) {
                    untouched(&api, &cell);
                }
                if status != 401 {
                    let [Question { action, tenant_id, .. }] = &asked[..] else {
                        panic!("asked once: {cell}")
                    };
                    let tenant = if token == Token::ForeignTenant { OTHER } else { OWN };
                    assert_eq!((*action, *tenant_id), (endpoint.action, Some(tenant)), "{cell}");
                }
                if token == Token::ForeignTenant {
                    assert!(!answer.text.contains("42.5"), "{cell}");
                }
            }
        }
    }
}

/// Who is refused learns nothing of what else is wrong with a request, nor of what there is.
#[tokio::test]
async fn a_refusal_reads_the_same_whatever_else_is_wrong() {
    let said = |answer: &Answer| {
        let mut json = answer.json();
        json.as_object_mut().unwrap().remove("trace_id");
        (answer.status.as_u16(), json)
    };
    let authorization = bearer(OWN, Scopes::all());
    for (endpoint, row) in endpoints() {
        let api = harness(Policy::Deny);
        let good = ask(&api, endpoint.method, row.uri, "application/json", Some(&authorization)).await;
        assert_eq!(good.status.as_u16(), 403);
        let path = row.uri.split_once('?').map_or(row.uri, |(path, _)| path);
        let strange =
            endpoint.path.replace("{id}", "no-id").replace("{name}", "nothing").replace("{subject}", "%00");
        for (uri, accept) in [
            (row.uri, "application/xml"),
            (&format!("{path}?nonsense=1&from=x&metric=a&metric=%00&cursor=abc"), "application/json"),
            (&format!("{path}?metric=nothing"), "application/json"),
            (&strange, "text/csv"),
        ] {
            let answer = ask(&api, endpoint.method, uri, accept, Some(&authorization)).await;
            assert_eq!(said(&answer), said(&good), "{uri}");
        }
        if endpoint.method == "POST" {
            for body in ["", "not json", "{}", &"x".repeat(70_000)] {
                let request = Request::post(row.uri).header("authorization", &authorization);
                let answer = api.send(request.body(Body::from(body.to_owned())).unwrap()).await;
                assert_eq!(said(&answer), said(&good), "{} bytes", body.len());
            }
        }
        untouched(&api, row.endpoint);
    }
}

/// The decision is about what a request names, as far as it names one thing.
#[tokio::test]
async fn the_decision_point_is_told_what_is_asked_for() {
    let api = harness(Policy::Shipped);
    const RANGE: &str = "from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z";
    for (uri, metric, source) in [
        (format!("aggregated?{RANGE}&metric=tokens&source=gateway"), Some("tokens"), Some("gateway")),
        (format!("aggregated?{RANGE}&metric=tokens&metric=bytes&aggregation=count"), None, None),
        (format!("aggregated?{RANGE}&group_by=metric&source=gateway"), None, Some("gateway")),
        (format!("raw?{RANGE}&metric=tokens"), Some("tokens"), None),
        (format!("raw?{RANGE}&metric=x%27%29+OR+1%3D1+--"), None, None),
        (format!("raw?{RANGE}&metric=tokens&nonsense=1"), None, None),
        ("types/tokens".to_owned(), Some("tokens"), None),
        ("types/a%20b".to_owned(), None, None),
        ("types".to_owned(), None, None),
        ("metadata/watermarks".to_owned(), None, None),
    ] {
        api.get(&format!("/v1/usage/{uri}")).await;
        let asked: Vec<_> =
            api.policy.asked().into_iter().map(|asked| (asked.metric, asked.source)).collect();
        assert_eq!(asked, [(metric.map(str::to_owned), source.map(str::to_owned))], "{uri}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_point_that_hangs_is_one_that_does_not_answer() {
    let api = harness(Policy::Permit);
    api.policy.says(Says::Hangs);
    for (endpoint, row) in endpoints() {
        let authorization = bearer(OWN, Scopes::all());
        let answer = ask(&api, endpoint.method, row.uri, "application/json", Some(&authorization)).await;
        answer.problem(503, "unavailable");
    }
    untouched(&api, "hangs");
}

#[tokio::test]
async fn readiness_names_its_components_and_fails_without_decisions() {
    let ready = async |api: &Harness| {
        let answer = api.send(Request::get("/health/ready").body(Body::empty()).unwrap()).await;
        (answer.status.as_u16(), answer.json(), answer.text)
    };
    let (status, json, _) = ready(&harness(Policy::Deny)).await;
    assert_eq!(status, 200, "{json}");
    assert_eq!(
        json["checks"],
        json!(["control_database", "policy", "storage", "token_keys", "types_registry"])
    );
    for policy in [Policy::Unavailable, Policy::Invalid] {
        let (status, json, text) = ready(&harness(policy)).await;
        assert_eq!((status, &json["failing"]), (503, &json!({"policy": "it can't decide at present"})));
        assert!(!text.contains("secret"), "{text}");
    }
    let api = harness(Policy::Permit);
    api.registry.set_away(true);
    let (status, json, _) = ready(&api).await;
    let failing: Vec<&str> = json["failing"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!((status, failing), (503, vec!["control_database", "types_registry"]), "{json}");
}

/// What scopes allow, without any other policy.
#[tokio::test]
async fn each_endpoint_needs_its_scope() {
    for (endpoint, row) in endpoints() {
        for held in Scope::ALL {
            let api = harness(Policy::Shipped);
            let authorization = bearer(OWN, only(held));
            let answer = ask(&api, endpoint.method, row.uri, "application/json", Some(&authorization)).await;
            assert_eq!(
                answer.status.as_u16() == 403,
                held != row.scope,
                "{} {held}: {}",
                row.endpoint,
                answer.text
            );
        }
        let reads = matches!(endpoint.action, Action::Read | Action::ReadTypes | Action::ReadAllowances);
        assert_eq!(reads, endpoint.method == "GET", "{}", row.endpoint);
    }
}
