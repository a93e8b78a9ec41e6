//! Files with keys.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::Header;
use serde_json::json;

use super::support::{AUDIENCE, ISSUER, Keys, TENANT, TestKey, jwks, payload};
use crate::*;

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

#[test]
fn one_rsa_key_in_pem_is_taken_if_it_is_long_enough() {
    let (keys, rsa) = (Keys::new(), TestKey::rsa("any"));
    let public = pem(&keys, "rsa.pem", "RSA PUBLIC KEY", &rsa.public_bytes());
    let verifier = TokenVerifier::from_file(&public, ISSUER, AUDIENCE).unwrap();
    verifier.verify(&rsa.token(&payload())).unwrap();
    assert!(matches!(verifier.verify(&keys.sign(&payload())), Err(TokenError::Algorithm)));
    // 1024 bits: a sequence of the modulus and 65537.
    let mut short = vec![0x30, 0x81, 0x89, 0x02, 0x81, 0x81, 0x00];
    short.extend([0xff; 128]);
    short.extend([0x02, 0x03, 0x01, 0x00, 0x01]);
    let short = pem(&keys, "short.pem", "RSA PUBLIC KEY", &short);
    let error = TokenVerifier::from_file(&short, ISSUER, AUDIENCE).unwrap_err().to_string();
    assert!(error.contains("short.pem: an RSA key of less than 2048 bits"), "{error}");
}

#[test]
fn files_are_read_within_bounds() {
    let (keys, key) = (Keys::new(), TestKey::ed("key"));
    let path = keys.write("large.json", format!("{}{}", jwks([&key]), " ".repeat(300_000)));
    let error = TokenVerifier::from_file(&path, ISSUER, AUDIENCE).unwrap_err().to_string();
    assert!(error.contains("large.json has more than 262144 bytes"), "{error}");
}
