//! Tokens that must be taken and tokens that must be refused.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use usage_service::clock;
use uuid::Uuid;

use crate::keys::PrivateKey;
use crate::*;

const ISSUER: &str = "issuer";
const AUDIENCE: &str = "audience";
const TENANT: &str = "0b4c9e2e-3d6f-4c53-8a3f-0f1a2b3c4d5e";
const SUBJECT: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

/// A directory with a key pair.
struct Keys {
    dir: tempfile::TempDir,
    files: KeyFiles,
}

impl Keys {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = generate_key_pair(dir.path()).unwrap();
        Self { dir, files }
    }

    fn verifier(&self) -> TokenVerifier {
        TokenVerifier::from_file(&self.files.jwks, ISSUER, AUDIENCE).unwrap()
    }

    fn signer(&self) -> TokenSigner {
        TokenSigner::from_file(&self.files.signing, ISSUER, AUDIENCE).unwrap()
    }

    fn header(&self) -> Header {
        Header { kid: Some(self.files.key_id.clone()), ..Header::new(Algorithm::EdDSA) }
    }

    /// Signs any payload with the right key.
    fn sign(&self, payload: &Value) -> String {
        self.sign_with(&self.header(), payload)
    }

    fn sign_with(&self, header: &Header, payload: &Value) -> String {
        encode(header, payload, &PrivateKey::read(&self.files.signing).unwrap().key).unwrap()
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn jwks(&self) -> Value {
        serde_json::from_slice(&std::fs::read(&self.files.jwks).unwrap()).unwrap()
    }
}

fn now() -> i64 {
    clock::now_micros() / 1_000_000
}

/// A payload that is in order.
fn payload() -> Value {
    json!({
        "iss": ISSUER, "aud": AUDIENCE, "exp": now() + 600, "nbf": now() - 5, "iat": now() - 5, "jti": "t-1",
        "tenant_id": TENANT, "sub": SUBJECT, "subject_type": "user", "scope": "usage:read openid usage:types",
    })
}

fn with(change: impl FnOnce(&mut Value)) -> Value {
    let mut payload = payload();
    change(&mut payload);
    payload
}

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
fn a_claim_that_comes_twice_is_refused() {
    let keys = Keys::new();
    let other = Uuid::new_v4();
    let text = serde_json::to_string(&payload()).unwrap();
    let doubled = text.replacen('{', &format!("{{\"tenant_id\":\"{other}\","), 1);
    let error = keys.verifier().verify(&sign_text(&keys, &doubled)).unwrap_err();
    assert!(matches!(error, TokenError::Claim("tenant_id")), "{error}");
}

/// A token with exactly this payload and a right signature.
fn sign_text(keys: &Keys, payload: &str) -> String {
    let header = serde_json::to_string(&keys.header()).unwrap();
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
    let key = PrivateKey::read(&keys.files.signing).unwrap();
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key.key, Algorithm::EdDSA).unwrap();
    format!("{message}.{signature}")
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

#[test]
fn es256_with_a_pem_key_works() {
    let keys = Keys::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
    let private = pem(&keys, "ec.pem", "PRIVATE KEY", pkcs8.as_ref());
    // SubjectPublicKeyInfo of P-256: a fixed head and the uncompressed point.
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref()).unwrap();
    let mut spki =
        vec![0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08];
    spki.extend([0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00]);
    spki.extend(aws_lc_rs::signature::KeyPair::public_key(&pair).as_ref());
    let public = pem(&keys, "ec.pub.pem", "PUBLIC KEY", &spki);

    let claims = Claims {
        tenant_id: TENANT.parse().unwrap(),
        subject_id: None,
        subject_type: None,
        scopes: Scopes::all(),
        ttl: Duration::from_secs(60),
    };
    let token = TokenSigner::from_file(&private, ISSUER, AUDIENCE).unwrap().sign(&claims).unwrap();
    let verifier = TokenVerifier::from_file(&public, ISSUER, AUDIENCE).unwrap();
    assert_eq!(verifier.verify(&token).unwrap().scopes, Scopes::all());
    // A key without an id takes tokens whatever id they name, but not of another algorithm or key.
    assert!(matches!(verifier.verify(&keys.sign(&payload())), Err(TokenError::Algorithm)));
    assert!(matches!(keys.verifier().verify(&token), Err(TokenError::UnknownKey)));
}

fn pem(keys: &Keys, name: &str, tag: &str, der: &[u8]) -> PathBuf {
    keys.write(name, format!("-----BEGIN {tag}-----\n{}\n-----END {tag}-----\n", STANDARD.encode(der)))
}

#[test]
fn a_set_may_hold_several_keys_and_keys_for_other_purposes() {
    let (first, second) = (Keys::new(), Keys::new());
    let encryption = json!({"kty": "OKP", "crv": "Ed25519", "x": second.jwks()["keys"][0]["x"], "kid": "enc", "use": "enc"});
    let unknown = json!({"kty": "AKP", "alg": "ML-DSA-44", "kid": "pq", "pub": "AAAA"});
    let set = json!({"keys": [first.jwks()["keys"][0], second.jwks()["keys"][0], encryption, unknown]});
    let path = first.write("both.json", set.to_string());
    let verifier = TokenVerifier::from_file(&path, ISSUER, AUDIENCE).unwrap();
    verifier.verify(&first.sign(&payload())).unwrap();
    verifier.verify(&second.sign(&payload())).unwrap();
    let header = Header { kid: Some("enc".into()), ..second.header() };
    assert!(matches!(verifier.verify(&second.sign_with(&header, &payload())), Err(TokenError::UnknownKey)));
}

#[test]
fn key_files_that_are_not_in_order_are_named() {
    let keys = Keys::new();
    let own = keys.jwks()["keys"][0].clone();
    let mut nameless = own.clone();
    nameless.as_object_mut().unwrap().remove("kid");
    let symmetric = json!({"kty": "oct", "k": "AAAA", "kid": "s"});
    let p384 = json!({"kty": "EC", "crv": "P-384", "x": "AA", "y": "AA", "kid": "p"});
    let mut mislabelled = own.clone();
    mislabelled["alg"] = json!("HS256");
    for (text, part) in [
        (json!({"keys": []}).to_string(), "no key"),
        (json!({"keys": [own, own]}).to_string(), "twice"),
        (json!({"keys": [own, nameless]}).to_string(), "no kid"),
        (json!({"keys": [own, symmetric]}).to_string(), "symmetric"),
        (json!({"keys": [p384]}).to_string(), "no key"),
        (json!({"keys": [mislabelled]}).to_string(), "no key"),
        ("{".into(), "JSON Web Key Set"),
        ("ssh-ed25519 AAAA".into(), "PUBLIC KEY"),
        (std::fs::read_to_string(&keys.files.signing).unwrap(), "PUBLIC KEY"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n".into(), "no key"),
    ] {
        let path = keys.write("bad.json", text);
        let error = TokenVerifier::from_file(&path, ISSUER, AUDIENCE).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("bad.json"), "{part:?} is not in {error:?}");
    }
    let absent = Path::new("/nonexistent/jwks.json");
    assert!(matches!(TokenVerifier::from_file(absent, ISSUER, AUDIENCE), Err(KeyError::File { .. })));
    let error = TokenSigner::from_file(&keys.files.jwks, ISSUER, AUDIENCE).unwrap_err();
    assert!(error.to_string().contains("PRIVATE KEY"), "{error}");
}

#[test]
fn generated_keys_belong_to_their_owner_and_are_never_overwritten() {
    use std::os::unix::fs::PermissionsExt as _;
    let keys = Keys::new();
    let mode = std::fs::metadata(&keys.files.signing).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let before = std::fs::read(&keys.files.signing).unwrap();
    assert!(matches!(generate_key_pair(keys.dir.path()), Err(KeyError::Exists { .. })));
    assert_eq!(std::fs::read(&keys.files.signing).unwrap(), before);
    let jwk = &keys.jwks()["keys"][0];
    assert_eq!(
        (jwk["kty"].as_str(), jwk["crv"].as_str(), jwk["alg"].as_str()),
        (Some("OKP"), Some("Ed25519"), Some("EdDSA"))
    );
    assert_eq!(jwk["kid"].as_str(), Some(keys.files.key_id.as_str()));
    assert!(jwk.get("d").is_none(), "the private half is in the public file");
}

#[test]
fn secrets_stay_out_of_debug_output() {
    let keys = Keys::new();
    let text = format!("{:?} {:?}", keys.signer(), keys.verifier());
    assert!(text.contains(&keys.files.key_id) && text.contains(AUDIENCE), "{text}");
    assert!(text.len() < 200, "{text}");
}
