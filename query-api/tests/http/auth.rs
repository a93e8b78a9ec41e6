//! Tokens that must not be taken; `door` has what the good ones may.

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::get;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use usage_access::{Claims, DEFAULT_AUDIENCE, DEFAULT_ISSUER, KeysUrl, Scopes, TokenSigner, TokenVerifier};
use usage_query_api::server::Server;
use usage_query_api::tls::Certificate;
use usage_service::CancellationToken;
use uuid::Uuid;

use crate::support::{Answer, Harness, Setup, bearer, config, keys, token};

const TOTAL: &str = "/v1/usage/aggregated?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z&metric=tokens";

async fn ask(api: &Harness, authorization: &str) -> Answer {
    let request = Request::get(TOTAL).header("authorization", authorization);
    api.send(request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn without_a_token_nothing_is_told() {
    let api = Harness::new();
    // Also when the parameters are wrong.
    for path in [TOTAL, "/v1/usage/aggregated?nonsense=1"] {
        let answer = api.send(Request::get(path).body(Body::empty()).unwrap()).await;
        assert_eq!(answer.problem(401, "unauthenticated"), [] as [String; 0]);
        assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"usage\"");
    }
    assert_eq!((api.memory.calls(), api.registry.calls()), (0, 0));
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
    for (why, authorization) in [
        ("altered", altered),
        ("unknown key", stranger),
        ("issuer", with("somebody", DEFAULT_AUDIENCE, api.tenant)),
        ("audience", with(DEFAULT_ISSUER, "somebody", api.tenant)),
        ("nil tenant", with(DEFAULT_ISSUER, DEFAULT_AUDIENCE, Uuid::nil())),
        ("no algorithm", unsigned.to_owned()),
        ("not a token", "Bearer abc".to_owned()),
    ] {
        let answer = ask(&api, &authorization).await;
        answer.problem(401, "unauthenticated");
        assert!(answer.header("www-authenticate").contains("error=\"invalid_token\""), "{why}");
        // Why it was refused is for the log.
        assert_eq!(answer.detail(), "the token is not valid, or no longer", "{why}");
    }
    assert_eq!(ask(&api, &good).await.status.as_u16(), 200);
}

/// While nobody knows whose tokens are right, that is no fault of theirs; what is no token is 401 as ever.
#[tokio::test]
async fn without_the_issuers_keys_nobody_is_judged() {
    let nobody = KeysUrl::new(
        "http://127.0.0.1:1/keys",
        false,
        &usage_service::transport::TlsFiles::default(),
        std::time::Duration::from_secs(300),
    )
    .unwrap();
    let verifier = TokenVerifier::from_url(nobody, DEFAULT_ISSUER, DEFAULT_AUDIENCE);
    let api = Harness::with(Setup { verifier, ..Setup::default() });
    let answer = ask(&api, &bearer(api.tenant, Scopes::all())).await;
    answer.problem(503, "unavailable");
    assert_eq!(answer.header("retry-after"), "5");
    ask(&api, "Bearer abc").await.problem(401, "unauthenticated");
    ask(&api, "Basic abc").await.problem(401, "unauthenticated");
    assert_eq!(api.memory.calls(), 0);
    let health = Request::get("/health/ready").body(Body::empty()).unwrap();
    let answer = api.send(health).await;
    assert_eq!(answer.status.as_u16(), 503);
    assert!(answer.json()["failing"]["token_keys"].is_string(), "{}", answer.text);
}

/// Writes the certificate of an authority of one's own, and one for `host` with its key.
fn issue(dir: &Path, host: &str) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new([host.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    std::fs::write(dir.join("ca.pem"), authority.pem()).unwrap();
    std::fs::write(dir.join("issuer.pem"), certificate.pem()).unwrap();
    std::fs::write(dir.join("issuer.key"), key.serialize_pem()).unwrap();
}

/// From the settings to the answer: an issuer with a certificate that only `auth.ca_file` vouches for.
#[tokio::test]
async fn an_issuer_behind_tls_is_trusted_by_the_authority_that_the_settings_name() {
    let (dir, strangers) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    issue(dir.path(), "127.0.0.1");
    issue(strangers.path(), "127.0.0.1");
    let certificate =
        Certificate::read(dir.path().join("issuer.pem"), dir.path().join("issuer.key")).unwrap();
    let router = Router::new().route("/keys", get(|| async { std::fs::read(&keys().jwks).unwrap() }));
    let server = Server::bind("127.0.0.1:0", Some(Arc::new(certificate)), router).await.unwrap();
    let url = format!("auth.jwks_url=https://{}/keys", server.address().unwrap());
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server.run(stop.clone()));

    let asked = async |ca_file: Option<&Path>| {
        let ca_file = ca_file.map(|path| format!("auth.ca_file={}", path.display()));
        let settings: Vec<&str> = std::iter::once(url.as_str()).chain(ca_file.as_deref()).collect();
        let mut config = config(&settings);
        config.auth.key_file = None;
        let verifier = config.auth.verifier().unwrap();
        let api = Harness::with(Setup { verifier, ..Setup::default() });
        (ask(&api, &bearer(api.tenant, Scopes::all())).await, api.memory.calls())
    };
    let (answer, calls) = asked(Some(&dir.path().join("ca.pem"))).await;
    assert_eq!((answer.status.as_u16(), calls), (200, 1), "{}", answer.text);
    for ca_file in [None, Some(strangers.path().join("ca.pem"))] {
        let (answer, calls) = asked(ca_file.as_deref()).await;
        answer.problem(503, "unavailable");
        assert_eq!(calls, 0, "{ca_file:?}");
    }
    stop.cancel();
    serving.await.unwrap().unwrap();
}
