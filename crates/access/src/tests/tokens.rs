//! Tokens of one key: what they must say.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use uuid::Uuid;

use super::support::{AUDIENCE, ISSUER, Keys, SUBJECT, TENANT, now, payload, with};
use crate::*;

#[test]
fn a_signed_token_gives_its_context() {
    let keys = Keys::new();
    let claims = Claims {
        tenant_id: TENANT.parse().unwrap(),
        subject_id: Some(SUBJECT.parse().unwrap()),
        subject_type: Some("service-account".into()),
        scopes: [Scope::Read, Scope::Admin].into_iter().collect(),
        ttl: Duration::from_secs(60),
    };
    let token = keys.signer().sign(&claims).unwrap();
    let context = keys.verifier().verify(&token).unwrap();
    assert_eq!((context.tenant_id, context.subject_id), (claims.tenant_id, claims.subject_id));
    assert_eq!((context.scopes, &context.subject_type), (claims.scopes, &claims.subject_type));
    assert!(context.has(Scope::Admin) && !context.has(Scope::Emit));
    let other = keys.verifier().verify(&keys.signer().sign(&claims).unwrap()).unwrap();
    assert_ne!(context.token_id, other.token_id);
}

#[test]
fn the_least_token_has_tenant_issuer_audience_and_expiry() {
    let keys = Keys::new();
    let least = json!({"iss": ISSUER, "aud": ["other", AUDIENCE], "exp": now() + 5, "tenant_id": TENANT});
    let context = keys.verifier().verify(&keys.sign(&least)).unwrap();
    assert_eq!(context, SecurityContext::for_tenant(TENANT.parse().unwrap(), Scopes::NONE));
}

#[test]
fn clocks_may_differ_by_a_minute() {
    let keys = Keys::new();
    let verifier = keys.verifier();
    let times = |exp: i64, nbf: i64| {
        let payload = with(|payload| {
            payload["exp"] = json!(now() + exp);
            payload["nbf"] = json!(now() + nbf);
        });
        verifier.verify(&keys.sign(&payload)).map(|_| ())
    };
    times(-50, -600).unwrap();
    times(600, 50).unwrap();
    assert!(matches!(times(-70, -600), Err(TokenError::Expired)));
    assert!(matches!(times(600, 70), Err(TokenError::NotYetValid)));
}

/// What a refused payload is refused for.
#[track_caller]
fn refused(change: impl FnOnce(&mut Value)) -> String {
    let keys = Keys::new();
    let token = keys.sign(&with(change));
    keys.verifier().verify(&token).expect_err("the token must be refused").to_string()
}

#[test]
fn claims_that_are_missing_or_wrong_are_refused() {
    let missing = ["iss", "aud", "exp", "tenant_id"];
    for claim in missing {
        let error = refused(|payload| drop(payload.as_object_mut().unwrap().remove(claim)));
        assert!(error.contains(claim), "{claim}: {error}");
    }
    let nil = Uuid::nil().to_string();
    let braces = format!("{{{TENANT}}}");
    let simple = TENANT.replace('-', "");
    let long = "x".repeat(256);
    for (claim, values) in [
        (
            "tenant_id",
            vec![
                json!(""),
                json!(nil),
                json!("acme"),
                json!(braces),
                json!(simple),
                json!([TENANT]),
                json!(7),
            ],
        ),
        ("sub", vec![json!("alice"), json!(nil), json!([SUBJECT]), json!({})]),
        ("subject_type", vec![json!("User Account"), json!(""), json!(1)]),
        ("scope", vec![json!(["usage:read"]), json!(1)]),
        ("jti", vec![json!(""), json!(long), json!(1)]),
        ("exp", vec![json!("soon"), json!(-1), Value::Null]),
        ("nbf", vec![json!("now"), json!(-5)]),
    ] {
        for value in values {
            let error = refused(|payload| payload[claim] = value.clone());
            assert!(!error.is_empty(), "{claim} = {value}");
        }
    }
    assert!(refused(|payload| payload["tenant_id"] = json!(nil)).contains("tenant_id"));
    assert!(refused(|payload| payload["sub"] = json!("alice")).contains("sub"));
}

#[test]
fn foreign_issuers_and_audiences_are_refused() {
    let foreign = |claim: &'static str, value: Value| refused(move |payload| payload[claim] = value);
    assert!(foreign("iss", json!("another")).contains("another issuer"));
    assert!(foreign("aud", json!("another")).contains("another audience"));
    assert!(foreign("aud", json!([])).contains("audience"));
    // A list of issuers is not one issuer, even if ours is among them.
    assert!(foreign("iss", json!([ISSUER, "another"])).contains("iss"));
}

#[test]
fn a_changed_byte_breaks_the_signature() {
    let keys = Keys::new();
    let verifier = keys.verifier();
    let token = keys.sign(&payload());
    verifier.verify(&token).unwrap();
    let parts: Vec<&str> = token.split('.').collect();
    let claims = with(|payload| payload["tenant_id"] = json!(Uuid::new_v4()));
    let forged = URL_SAFE_NO_PAD.encode(claims.to_string());
    let error = verifier.verify(&format!("{}.{forged}.{}", parts[0], parts[2])).unwrap_err();
    assert!(matches!(error, TokenError::Signature), "{error}");
    let unsigned = format!("{}.{}.", parts[0], parts[1]);
    assert!(verifier.verify(&unsigned).is_err());
    for cut in [0, 1, 10, token.len() - 1] {
        assert!(verifier.verify(&token[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn keys_of_others_are_refused() {
    let (keys, others) = (Keys::new(), Keys::new());
    let verifier = keys.verifier();
    assert!(matches!(verifier.verify(&others.sign(&payload())), Err(TokenError::UnknownKey)));
    // Another's key under our id.
    let header = keys.header();
    assert!(matches!(verifier.verify(&others.sign_with(&header, &payload())), Err(TokenError::Signature)));
    let no_id = Header { kid: None, ..header };
    assert!(matches!(verifier.verify(&keys.sign_with(&no_id, &payload())), Err(TokenError::UnknownKey)));
}

#[test]
fn the_token_does_not_choose_its_algorithm() {
    let keys = Keys::new();
    let verifier = keys.verifier();
    let jwk = keys.jwks()["keys"][0].clone();
    let public = URL_SAFE_NO_PAD.decode(jwk["x"].as_str().unwrap()).unwrap();
    // The classic forgery: the public key, which anyone has, taken as the secret of an HMAC.
    for secret in [public.clone(), std::fs::read(&keys.files.jwks).unwrap()] {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let header = Header { kid: Some(keys.files.key_id.clone()), ..Header::new(algorithm) };
            let token = encode(&header, &payload(), &EncodingKey::from_secret(&secret).unwrap()).unwrap();
            assert!(matches!(verifier.verify(&token), Err(TokenError::Algorithm)), "{algorithm:?}");
        }
    }
    for name in ["none", "None", "NONE", "nOnE", "", "HS256", "ES256K", "EdDSA2"] {
        let header = json!({"typ": "JWT", "alg": name, "kid": keys.files.key_id}).to_string();
        let body = URL_SAFE_NO_PAD.encode(payload().to_string());
        for signature in ["", "AAAA"] {
            let token = format!("{}.{body}.{signature}", URL_SAFE_NO_PAD.encode(&header));
            assert!(matches!(verifier.verify(&token), Err(TokenError::Algorithm)), "{name}");
        }
    }
    // A header that brings its own key: it must be ours by id, or nothing.
    let others = Keys::new();
    let embedded: Header =
        serde_json::from_value(json!({"alg": "EdDSA", "kid": "mine", "jwk": others.jwks()["keys"][0]}))
            .unwrap();
    assert!(matches!(verifier.verify(&others.sign_with(&embedded, &payload())), Err(TokenError::UnknownKey)));
}

#[test]
fn headers_that_ask_for_more_are_refused() {
    let keys = Keys::new();
    let header = Header { crit: Some(vec!["exp".into()]), ..keys.header() };
    assert!(matches!(
        keys.verifier().verify(&keys.sign_with(&header, &payload())),
        Err(TokenError::Critical)
    ));
}

#[test]
fn noise_is_refused() {
    let keys = Keys::new();
    let verifier = keys.verifier();
    let token = keys.sign(&payload());
    let long = "a".repeat(20_000);
    for text in [
        "",
        ".",
        "..",
        "...",
        "a.b.c",
        "Bearer x.y.z",
        "\u{0}.\u{0}.\u{0}",
        &format!("{token}.x"),
        &format!("Bearer {token}"),
        &long,
    ] {
        assert!(verifier.verify(text).is_err(), "{text}");
    }
}
