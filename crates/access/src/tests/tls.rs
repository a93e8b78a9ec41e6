//! An issuer's keys by HTTPS: whoever can answer in its place can sign any token.

use std::time::Duration;

use usage_service::transport::TlsFiles;

use super::authority::Authority;
use super::issuer::{Issuer, Mood};
use super::support::{AUDIENCE, ISSUER, TENANT, TestKey, jwks, payload};
use crate::*;

const NEVER: Duration = Duration::from_secs(86_400);

fn over(url: &str, files: &TlsFiles) -> TokenVerifier {
    TokenVerifier::from_url(KeysUrl::new(url, false, files, NEVER).unwrap(), ISSUER, AUDIENCE)
}

/// Why the keys can't be read by this address; no token is taken meanwhile.
async fn refused(url: &str, files: &TlsFiles, token: &str) -> String {
    let verifier = over(url, files);
    verifier.keys.refresh().await;
    assert!(matches!(verifier.authenticate(token).await, Err(TokenError::NoKeys)), "{url}");
    verifier.ready().unwrap_err()
}

#[tokio::test]
async fn keys_are_taken_from_who_proves_to_be_the_issuer_and_from_nobody_else() {
    let (authority, other) = (Authority::new(), Authority::new());
    let [first, second] = [TestKey::ed("first"), TestKey::ec("second")];
    let issuer = Issuer::start_tls(&authority, "127.0.0.1", Mood::Says(jwks([&first]))).await;
    assert!(issuer.url.starts_with("https://"), "{}", issuer.url);

    let verifier = over(&issuer.url, &authority.files());
    let context = verifier.authenticate(&first.token(&payload())).await.unwrap();
    assert_eq!(context.tenant_id.to_string(), TENANT);
    issuer.set(Mood::Says(jwks([&first, &second])));
    verifier.keys.refresh().await;
    verifier.verify(&second.token(&payload())).unwrap();
    assert_eq!(issuer.asked(), 2);

    // The authorities of the system don't know this one, and another one of one's own does not either.
    let token = first.token(&payload());
    for files in [TlsFiles::default(), other.files()] {
        let why = refused(&issuer.url, &files, &token).await;
        assert!(why.contains("/keys can't be reached") && why.contains("certificate"), "{why}");
    }
    assert_eq!(issuer.asked(), 2, "nothing was asked of who is not trusted");
}

#[tokio::test]
async fn keys_of_an_answer_that_may_be_anybodys_are_not_taken() {
    let authority = Authority::new();
    let key = TestKey::ed("key");
    let (says, token) = (Mood::Says(jwks([&key])), key.token(&payload()));
    let elsewhere = Issuer::start_tls(&authority, "issuer.example", says.clone()).await;
    let why = refused(&elsewhere.url, &authority.files(), &token).await;
    assert!(why.contains("certificate"), "{why}");
    let plain = Issuer::start(says.clone()).await;
    refused(&plain.url.replace("http://", "https://"), &authority.files(), &token).await;
    assert_eq!((elsewhere.asked(), plain.asked()), (0, 0));
    // Who was asked by TLS may not send the question on to where there is none.
    let sends_on = Issuer::start_tls(&authority, "127.0.0.1", Mood::Redirects(plain.url.clone())).await;
    let why = refused(&sends_on.url, &authority.files(), &token).await;
    assert!(why.contains("status 302"), "{why}");
    assert_eq!(plain.asked(), 0);
}
