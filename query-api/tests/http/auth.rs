//! Who may ask.

use axum::body::Body;
use axum::http::Request;
use usage_access::{Claims, DEFAULT_AUDIENCE, DEFAULT_ISSUER, Scope, Scopes, TokenSigner};
use uuid::Uuid;

use crate::support::{Answer, Harness, bearer, keys, only, token};

/// One request for every path that needs a token.
const ALL: [(&str, &str, Scope); 7] = [
    (
        "GET",
        "/v1/usage/aggregated?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z&metric=tokens",
        Scope::Read,
    ),
    ("GET", "/v1/usage/raw?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z", Scope::Read),
    ("GET", "/v1/usage/records/018f3c5e-0000-7000-8000-000000000001", Scope::Read),
    ("GET", "/v1/usage/metadata/watermarks", Scope::Read),
    ("GET", "/v1/usage/types", Scope::Read),
    ("GET", "/v1/usage/types/tokens", Scope::Read),
    ("POST", "/v1/usage/types", Scope::Types),
];

async fn ask(api: &Harness, method: &str, path: &str, authorization: Option<&str>) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    if let Some(value) = authorization {
        request = request.header("authorization", value);
    }
    let body = r#"{"name":"requests","kind":"counter","unit":"request"}"#;
    api.send(request.body(Body::from(body)).unwrap()).await
}

#[tokio::test]
async fn without_a_token_nothing_is_told() {
    let api = Harness::new();
    for (method, path, _) in ALL {
        let answer = ask(&api, method, path, None).await;
        answer.problem(401, "unauthenticated");
        assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"usage\"");
        // Also when the parameters are wrong.
        ask(&api, method, &format!("{path}&nonsense=1"), None).await;
    }
    assert_eq!(api.memory.calls(), 0);
}

#[tokio::test]
async fn forged_and_foreign_tokens_are_refused() {
    let api = Harness::new();
    let good = bearer(api.tenant, Scopes::all());
    let directory = tempfile::tempdir().unwrap();
    let strangers = usage_access::generate_key_pair(directory.path()).unwrap();
    let stranger = format!("Bearer {}", token(&strangers.signing, api.tenant, Scopes::all()));
    let with = |issuer: &str, audience: &str, tenant_id: Uuid| {
        let signer = TokenSigner::from_file(&keys().signing, issuer, audience).unwrap();
        let ttl = std::time::Duration::from_secs(60);
        let claims = Claims { tenant_id, subject_id: None, subject_type: None, scopes: Scopes::all(), ttl };
        format!("Bearer {}", signer.sign(&claims).unwrap())
    };
    let mut altered = good.clone();
    let last = altered.pop().unwrap();
    altered.push(if last == 'A' { 'Q' } else { 'A' });
    let unsigned =
        "Bearer eyJhbGciOiJub25lIn0.eyJ0ZW5hbnRfaWQiOiIwMThmM2M1ZS0wMDAwLTcwMDAtODAwMC0wMDAwMDAwMDAwMDEifQ.";
    let (method, path, _) = ALL[0];
    for (why, authorization) in [
        ("altered", altered),
        ("unknown key", stranger),
        ("issuer", with("somebody", DEFAULT_AUDIENCE, api.tenant)),
        ("audience", with(DEFAULT_ISSUER, "somebody", api.tenant)),
        ("nil tenant", with(DEFAULT_ISSUER, DEFAULT_AUDIENCE, Uuid::nil())),
        ("no algorithm", unsigned.to_owned()),
        ("not a token", "Bearer abc".to_owned()),
    ] {
        let answer = ask(&api, method, path, Some(&authorization)).await;
        answer.problem(401, "unauthenticated");
        assert!(answer.header("www-authenticate").contains("error=\"invalid_token\""), "{why}");
        // Why it was refused is for the log.
        assert_eq!(answer.detail(), "the token is not valid, or no longer", "{why}");
    }
    assert_eq!(ask(&api, method, path, Some(&good)).await.status.as_u16(), 200);
}

#[tokio::test]
async fn each_action_needs_its_scope() {
    for (method, path, scope) in ALL {
        for held in Scope::ALL {
            let api = Harness::new();
            let answer = ask(&api, method, path, Some(&bearer(api.tenant, only(held)))).await;
            if held == scope {
                assert_ne!(answer.status.as_u16(), 403, "{method} {path} with {held}: {}", answer.text);
                continue;
            }
            answer.problem(403, "forbidden");
            assert!(
                answer.detail().contains(scope.as_str()) && answer.detail().contains("was refused"),
                "{}",
                answer.detail()
            );
            assert!(answer.header("www-authenticate").contains("insufficient_scope"));
            assert_eq!(api.memory.calls(), 0);
        }
        let api = Harness::new();
        ask(&api, method, path, Some(&bearer(api.tenant, Scopes::NONE))).await.problem(403, "forbidden");
    }
}
