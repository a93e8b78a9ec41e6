//! Keys that come, go, and can't be read.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use usage_service::transport::TlsFiles;
use usage_service::{CancellationToken, error_chain};

use super::issuer::{Issuer, Mood};
use super::support::{AUDIENCE, ISSUER, Keys, TestKey, jwks, payload};
use crate::keyring::{ASKED_EVERY, Keyring};
use crate::source::Source;
use crate::*;

const NEVER: Duration = Duration::from_secs(86_400);

/// A verifier that reads for unknown keys once in `asked_every`, and by itself never.
fn over(issuer: &Issuer, asked_every: Duration) -> TokenVerifier {
    let source = Source::Url(KeysUrl::new(&issuer.url, false, &TlsFiles::default(), NEVER).unwrap());
    TokenVerifier::new(Keyring::new(source, asked_every), ISSUER, AUDIENCE)
}

/// The same, which has read the keys once.
async fn read(issuer: &Issuer, asked_every: Duration) -> Arc<TokenVerifier> {
    let verifier = over(issuer, asked_every);
    verifier.keys.refresh().await;
    verifier.ready().unwrap();
    Arc::new(verifier)
}

fn is_unknown(outcome: &Result<SecurityContext, TokenError>) -> bool {
    matches!(outcome, Err(TokenError::UnknownKey))
}

/// Keys rotate without a restart, a thousand invented key ids cost one fetch, and an issuer that is away changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn problem_102_rotated_keys_are_known_at_once_and_forged_ids_cost_one_fetch() {
    assert_eq!(ASKED_EVERY, Duration::from_secs(10));
    let [first, second, third] = [TestKey::ed("2026-01"), TestKey::ec("2026-02"), TestKey::rsa("2026-03")];
    let issuer = Issuer::start(Mood::Says(jwks([&first]))).await;
    let verifier = read(&issuer, NEVER).await;
    assert_eq!(issuer.asked(), 1);

    let forgers: Vec<_> = (0..1_000)
        .map(|number| {
            let verifier = verifier.clone();
            let token = TestKey::ed(&format!("forged-{number}")).token(&payload());
            tokio::spawn(async move { verifier.authenticate(&token).await })
        })
        .collect();
    for forger in forgers {
        assert!(is_unknown(&forger.await.unwrap()));
    }
    assert_eq!(issuer.asked(), 2, "exactly one fetch for all of them");
    verifier.authenticate(&first.token(&payload())).await.unwrap();

    // Rotation: the new key is fetched for when it is first seen; the old one goes with the set that lacks it.
    let verifier = read(&issuer, Duration::ZERO).await;
    issuer.set(Mood::Says(jwks([&first, &second])));
    verifier.authenticate(&second.token(&payload())).await.unwrap();
    verifier.authenticate(&first.token(&payload())).await.unwrap();
    issuer.set(Mood::Says(jwks([&second, &third])));
    verifier.authenticate(&third.token(&payload())).await.unwrap();
    assert!(is_unknown(&verifier.authenticate(&first.token(&payload())).await));

    // The issuer is away: what was known stays known.
    issuer.set(Mood::Status(503));
    assert!(is_unknown(&verifier.authenticate(&TestKey::ed("2026-04").token(&payload())).await));
    verifier.authenticate(&third.token(&payload())).await.unwrap();
    verifier.ready().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_who_wait_for_a_new_key_share_one_fetch() {
    let [old, new] = [TestKey::ed("old"), TestKey::ed("new")];
    let issuer = Issuer::start(Mood::Says(jwks([&old]))).await;
    let verifier = read(&issuer, NEVER).await;
    issuer.set(Mood::Waits(jwks([&old, &new])));
    let callers: Vec<_> = (0..50)
        .map(|_| {
            let (verifier, token) = (verifier.clone(), new.token(&payload()));
            tokio::spawn(async move { verifier.authenticate(&token).await })
        })
        .collect();
    issuer.asked_until(2).await;
    // Those who know the old key don't wait.
    verifier.authenticate(&old.token(&payload())).await.unwrap();
    issuer.release();
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
    assert_eq!(issuer.asked(), 2);
}

/// A stranger who hangs up must not use up the one fetch of the next 10 s.
#[tokio::test]
async fn a_caller_that_goes_away_does_not_end_the_fetch() {
    let [old, new] = [TestKey::ed("old"), TestKey::ed("new")];
    let issuer = Issuer::start(Mood::Says(jwks([&old]))).await;
    let verifier = read(&issuer, NEVER).await;
    issuer.set(Mood::Waits(jwks([&new])));
    let forged = TestKey::ed("forged").token(&payload());
    tokio::select! {
        _ = verifier.authenticate(&forged) => panic!("the issuer has not answered"),
        () = issuer.asked_until(2) => {}
    }
    issuer.release();
    verifier.authenticate(&new.token(&payload())).await.unwrap();
    assert_eq!(issuer.asked(), 2);
}

/// The reading that is under way began before the key was published: one more is made.
#[tokio::test]
async fn a_key_published_during_a_regular_reading_is_found() {
    let [old, new] = [TestKey::ed("old"), TestKey::ed("new")];
    let issuer = Issuer::start(Mood::Waits(jwks([&old]))).await;
    let verifier = Arc::new(over(&issuer, NEVER));
    let (refreshing, asking) = (verifier.clone(), verifier.clone());
    let refresh = tokio::spawn(async move { refreshing.keys.refresh().await });
    issuer.asked_until(1).await;
    issuer.set(Mood::Says(jwks([&old, &new])));
    let token = new.token(&payload());
    let asked = tokio::spawn(async move { asking.authenticate(&token).await });
    tokio::task::yield_now().await;
    issuer.release();
    refresh.await.unwrap();
    asked.await.unwrap().unwrap();
    assert_eq!(issuer.asked(), 2);
}

#[tokio::test]
async fn what_no_key_can_help_causes_no_fetch() {
    let key = TestKey::ed("known");
    let issuer = Issuer::start(Mood::Says(jwks([&key]))).await;
    let verifier = read(&issuer, Duration::ZERO).await;
    let claims = payload().to_string();
    let stranger = TestKey::ed("known");
    for token in [
        key.token_of(&json!({"alg": "none", "kid": "new"}).to_string(), &claims),
        key.token_of(&json!({"alg": "HS256", "kid": "new"}).to_string(), &claims),
        key.token_of(&json!({"alg": "EdDSA"}).to_string(), &claims),
        key.token_of(&json!({"alg": "EdDSA", "kid": ""}).to_string(), &claims),
        key.token_of(&json!({"alg": "EdDSA", "kid": "x".repeat(300)}).to_string(), &claims),
        key.token_of(&json!({"alg": "EdDSA", "kid": "new", "crit": ["x"]}).to_string(), &claims),
        key.token_of(&json!({"alg": "ES256", "kid": "known"}).to_string(), &claims),
        stranger.token(&payload()),
        "new".to_owned(),
        String::new(),
    ] {
        verifier.authenticate(&token).await.unwrap_err();
    }
    assert_eq!(issuer.asked(), 1);
}

#[tokio::test]
async fn an_issuer_that_is_down_or_talks_nonsense_changes_nothing() {
    let key = TestKey::ed("good");
    let good = jwks([&key]);
    let issuer = Issuer::start(Mood::Says(good.clone())).await;
    let verifier = read(&issuer, Duration::ZERO).await;
    let token = key.token(&payload());
    let other = Issuer::start(Mood::Says(jwks([&TestKey::ed("other")]))).await;
    let says = |text: &str| Mood::Says(text.to_owned());
    let mut broken = TestKey::rsa("short").jwk();
    broken["n"] = json!("wPYy");
    let off_curve =
        json!({"kty": "EC", "crv": "P-256", "x": "A".repeat(43), "y": "B".repeat(43), "kid": "off"});
    let with = |jwk: serde_json::Value| Mood::Says(json!({"keys": [key.jwk(), jwk]}).to_string());
    for (why, mood) in [
        ("status 500", Mood::Status(500)),
        ("status 404", Mood::Status(404)),
        ("no content", Mood::Status(204)),
        ("nothing", says("")),
        ("a page", says("<html>Sign in</html>")),
        ("half a set", says(&good[..good.len() / 2])),
        ("no set", says("{}")),
        ("a list", says("[]")),
        ("a PEM", says("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")),
        ("too much", Mood::Says(format!("{good}{}", " ".repeat(300_000)))),
        ("another place", Mood::Redirects(other.url.clone())),
        ("a secret among the keys", with(json!({"kty": "oct", "k": "AAAA", "kid": "s"}))),
        ("a short RSA key", with(broken)),
        ("a point off its curve", with(off_curve)),
        ("a key without an id", with(json!({"kty": "OKP", "crv": "Ed25519", "x": key.jwk()["x"]}))),
        ("an id that comes twice", with(key.jwk())),
        ("no answer", Mood::Hangs),
    ] {
        issuer.set(mood);
        let before = issuer.asked();
        verifier.keys.refresh().await;
        assert_eq!(issuer.asked(), before + 1, "{why}");
        verifier.authenticate(&token).await.unwrap_or_else(|error| panic!("{why}: {error}"));
        verifier.ready().unwrap();
        assert!(verifier.keys.fault().is_some(), "{why} is seen");
    }
    assert_eq!(other.asked(), 0, "redirects are not followed");
    issuer.set(Mood::Says(good));
    verifier.keys.refresh().await;
    assert_eq!(verifier.keys.fault(), None);
}

#[tokio::test]
async fn a_process_that_never_read_the_keys_is_not_ready_and_refuses_nobody_for_good() {
    let key = TestKey::ec("key");
    let issuer = Issuer::start(Mood::Status(503)).await;
    let verifier = Arc::new(over(&issuer, NEVER));
    let token = key.token(&payload());
    assert!(matches!(verifier.verify(&token), Err(TokenError::NoKeys)));
    assert!(verifier.ready().unwrap_err().contains("not read yet"));
    verifier.keys.refresh().await;
    let reason = verifier.ready().unwrap_err();
    assert!(reason.contains("/keys answered with status 503"), "{reason}");
    assert!(matches!(verifier.authenticate(&token).await, Err(TokenError::NoKeys)));
    assert_eq!(issuer.asked(), 2, "who asks has the keys read too");

    // The task that keeps them tries again by itself.
    issuer.set(Mood::Says(jwks([&key])));
    let shutdown = CancellationToken::new();
    let keeping = tokio::spawn({
        let (verifier, shutdown) = (verifier.clone(), shutdown.clone());
        async move { verifier.keep_fresh(shutdown).await }
    });
    issuer.asked_until(3).await;
    verifier.keys.refresh().await;
    verifier.ready().unwrap();
    verifier.verify(&token).unwrap();
    shutdown.cancel();
    keeping.await.unwrap();
}

#[tokio::test]
async fn a_withdrawn_key_goes_with_the_next_regular_reading() {
    let [old, new] = [TestKey::ed("old"), TestKey::ed("new")];
    let issuer = Issuer::start(Mood::Says(jwks([&old]))).await;
    let url = KeysUrl::new(&issuer.url, false, &TlsFiles::default(), Duration::from_millis(10)).unwrap();
    let verifier = Arc::new(TokenVerifier::from_url(url, ISSUER, AUDIENCE));
    let shutdown = CancellationToken::new();
    let keeping = tokio::spawn({
        let (verifier, shutdown) = (verifier.clone(), shutdown.clone());
        async move { verifier.keep_fresh(shutdown).await }
    });
    issuer.asked_until(2).await;
    verifier.verify(&old.token(&payload())).unwrap();
    issuer.set(Mood::Says(jwks([&new])));
    // The one under way may have been answered before; the one after it was not, and the third begins when that has ended.
    issuer.asked_until(issuer.asked() + 3).await;
    assert!(is_unknown(&verifier.verify(&old.token(&payload()))));
    verifier.verify(&new.token(&payload())).unwrap();
    shutdown.cancel();
    keeping.await.unwrap();
}

/// A set without keys is an order to take no token any more, not an accident.
#[tokio::test]
async fn an_empty_set_takes_all_keys_away() {
    let key = TestKey::ed("key");
    let issuer = Issuer::start(Mood::Says(jwks([&key]))).await;
    let verifier = read(&issuer, NEVER).await;
    issuer.set(Mood::Says(jwks([])));
    verifier.keys.refresh().await;
    assert!(is_unknown(&verifier.verify(&key.token(&payload()))));
    assert!(verifier.ready().unwrap_err().contains("no key"));
    issuer.set(Mood::Says(jwks([&key])));
    verifier.keys.refresh().await;
    verifier.verify(&key.token(&payload())).unwrap();
    verifier.ready().unwrap();
}

#[tokio::test]
async fn a_file_rotates_without_a_restart() {
    let [old, new] = [TestKey::ed("old"), TestKey::rsa("new")];
    let dir = Keys::new();
    let path = dir.write("set.json", jwks([&old]));
    let verifier = TokenVerifier::from_file(&path, ISSUER, AUDIENCE).unwrap();
    // An unknown key has the file read at once.
    dir.write("set.json", jwks([&old, &new]));
    assert!(is_unknown(&verifier.verify(&new.token(&payload()))));
    verifier.authenticate(&new.token(&payload())).await.unwrap();
    // Half a file, no file, another kind of file: the keys stay.
    for text in [Some("{\"keys\": ["), Some(""), Some("garbage"), None] {
        match text {
            Some(text) => drop(dir.write("set.json", text)),
            None => std::fs::remove_file(&path).unwrap(),
        }
        verifier.keys.refresh().await;
        assert!(verifier.keys.fault().is_some(), "{text:?}");
        verifier.verify(&old.token(&payload())).unwrap();
    }
    dir.write("set.json", jwks([&new]));
    verifier.keys.refresh().await;
    assert!(is_unknown(&verifier.verify(&old.token(&payload()))));
    verifier.verify(&new.token(&payload())).unwrap();
}

#[test]
fn addresses_that_cant_be_trusted_are_refused_and_not_shown() {
    let build = |url: &str, allow_plaintext| {
        KeysUrl::new(url, allow_plaintext, &TlsFiles::default(), NEVER).map(drop)
    };
    for url in [
        "https://issuer.example.com/keys",
        "https://10.0.0.7:8443/keys",
        "http://127.0.0.1:8080/keys",
        "http://[::1]:8080/keys",
        "http://localhost/keys",
    ] {
        build(url, false).unwrap_or_else(|error| panic!("{url}: {error}"));
    }
    for (url, part) in [
        ("http://issuer.example.com/keys", "plaintext"),
        ("http://127.0.0.1.example.com/keys", "plaintext"),
        ("http://localhost.example.com/keys", "plaintext"),
        ("http://10.0.0.7/keys", "plaintext"),
        ("ftp://127.0.0.1/keys", "not an address"),
        ("file:///etc/keys.json", "not an address"),
        ("https://user:hunter2@issuer.example.com/keys", "user or a password"),
        ("https://issuer.example.com/keys?token=hunter2", "query"),
        ("/etc/keys.json", "not an address"),
        ("", "not an address"),
    ] {
        let error = build(url, false).unwrap_err().to_string();
        assert!(error.contains(part) && !error.contains("hunter2"), "{url}: {error}");
    }
    build("http://issuer.example.com/keys", true).unwrap();
    let dir = Keys::new();
    let garbage = dir.write("ca.pem", "garbage");
    for path in [garbage, dir.dir.path().join("absent.pem")] {
        let files = TlsFiles { ca_file: Some(path.clone()), ..TlsFiles::default() };
        let error = KeysUrl::new("https://127.0.0.1/", false, &files, NEVER).map(drop).unwrap_err();
        assert!(error_chain(&error).contains(&path.display().to_string()), "{error:?}");
    }
}
