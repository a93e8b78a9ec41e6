//! The same table of bad tokens for each of the three algorithms.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use uuid::Uuid;

use super::support::{AUDIENCE, ISSUER, Keys, SUBJECT, TENANT, TestKey, jwks, now, payload, unsigned, with};
use crate::jws::Signed;
use crate::*;

/// A verifier that knows one key of each algorithm.
fn verifier(keys: &[TestKey]) -> TokenVerifier {
    let dir = Keys::new();
    TokenVerifier::from_file(&dir.write("all.json", jwks(keys)), ISSUER, AUDIENCE).unwrap()
}

/// The kind of the refusal, as the error's name.
#[track_caller]
fn refusal(verifier: &TokenVerifier, token: &str, why: &str) -> String {
    format!("{:?}", verifier.verify(token).expect_err(why))
}

#[test]
fn each_algorithm_is_taken_under_its_own_key() {
    let keys = TestKey::all();
    let verifier = verifier(&keys);
    for key in &keys {
        let context = verifier.verify(&key.token(&payload())).unwrap();
        assert_eq!(context.tenant_id.to_string(), TENANT);
        assert_eq!(context.subject_id.unwrap().to_string(), SUBJECT);
        assert!(context.has(Scope::Read) && context.has(Scope::Types) && !context.has(Scope::Admin));
    }
}

#[test]
fn claims_that_are_not_in_order_are_refused_in_all_algorithms() {
    let keys = TestKey::all();
    let verifier = verifier(&keys);
    let other = Uuid::new_v4().to_string();
    let nil = Uuid::nil().to_string();
    let set = |name: &'static str, value: Value| with(|payload| payload[name] = value);
    let without = |name: &'static str| with(|payload| drop(payload.as_object_mut().unwrap().remove(name)));
    let cases = [
        ("no tenant", without("tenant_id"), "Claim(\"tenant_id\")"),
        ("null tenant", set("tenant_id", Value::Null), "Claim(\"tenant_id\")"),
        ("tenant is no UUID", set("tenant_id", json!("acme")), "Claim(\"tenant_id\")"),
        ("nil tenant", set("tenant_id", json!(nil)), "Claim(\"tenant_id\")"),
        ("two tenants in a list", set("tenant_id", json!([TENANT, other])), "Claim(\"tenant_id\")"),
        ("one tenant in a list", set("tenant_id", json!([TENANT])), "Claim(\"tenant_id\")"),
        (
            "a tenant in another form",
            set("tenant_id", json!(TENANT.replace('-', ""))),
            "Claim(\"tenant_id\")",
        ),
        ("another tenant in a second claim", set("tenant", json!(other)), "TwoTenants"),
        ("more tenants in a second claim", set("tenants", json!([TENANT, other])), "TwoTenants"),
        ("another spelling of the claim", set("tenantId", json!(other)), "TwoTenants"),
        ("a list under another spelling", set("TENANT_IDS", json!([other])), "TwoTenants"),
        ("a tenant by name", set("tenant", json!("acme")), "TwoTenants"),
        ("expired", set("exp", json!(now() - 3_600)), "Expired"),
        ("no expiry", without("exp"), "Claim(\"exp\")"),
        ("an expiry in text", set("exp", json!("2099-01-01T00:00:00Z")), "Claim(\"exp\")"),
        ("not valid yet", set("nbf", json!(now() + 3_600)), "NotYetValid"),
        ("another issuer", set("iss", json!("somebody")), "Issuer"),
        ("no issuer", without("iss"), "Claim(\"iss\")"),
        ("another audience", set("aud", json!(["somebody"])), "Audience"),
        ("no audience", without("aud"), "Claim(\"aud\")"),
        ("an audience that is no text", set("aud", json!([AUDIENCE, 7])), "Claim(\"aud\")"),
        ("a subject that is no UUID", set("sub", json!("alice")), "Claim(\"sub\")"),
        ("scopes in a list", set("scope", json!(["usage:read"])), "Claim(\"scope\")"),
    ];
    for key in &keys {
        for (why, payload, refused) in &cases {
            assert_eq!(refusal(&verifier, &key.token(payload), why), *refused, "{why} under {}", key.id);
        }
    }
    // The same tenant twice is one.
    for claim in [json!(TENANT), json!([TENANT]), Value::Null] {
        verifier.verify(&keys[0].token(&set("tenant", claim))).unwrap();
    }
    // The directory of an identity provider is not a tenant of ours.
    verifier.verify(&keys[0].token(&set("tid", json!(other)))).unwrap();
}

#[test]
fn names_that_come_twice_are_refused_wherever_they_stand() {
    let keys = TestKey::all();
    let verifier = verifier(&keys);
    let other = Uuid::new_v4();
    for key in &keys {
        let (header, claims) = (key.header().to_string(), payload().to_string());
        for doubled in [
            format!("\"tenant_id\":\"{other}\""),
            format!("\"tenant\\u005fid\":\"{other}\""),
            "\"exp\":9999999999".to_owned(),
            "\"aud\":\"audience\"".to_owned(),
            "\"scope\":\"usage:admin\"".to_owned(),
            "\"roles\":1,\"roles\":2".to_owned(),
        ] {
            for text in [
                claims.replacen('{', &format!("{{{doubled},"), 1),
                format!("{},{doubled}}}", claims.strip_suffix('}').unwrap()),
            ] {
                let token = key.token_of(&header, &text);
                assert_eq!(refusal(&verifier, &token, &doubled), "Twice", "{doubled} under {}", key.id);
            }
        }
        for doubled in ["\"alg\":\"none\"", "\"kid\":\"ed\"", "\"x\":1,\"x\":1"] {
            let text = header.replacen('{', &format!("{{{doubled},"), 1);
            assert_eq!(refusal(&verifier, &key.token_of(&text, &claims), doubled), "Twice", "{doubled}");
        }
        for text in ["[]", "7", "\"x\"", "null", "{", "", "{}x"] {
            assert_eq!(refusal(&verifier, &key.token_of(&header, text), text), "Malformed", "{text:?}");
        }
    }
}

/// Each key with each algorithm but its own, by the right signature of that key.
#[test]
fn the_key_decides_the_algorithm() {
    let keys = TestKey::all();
    let verifier = verifier(&keys);
    let claims = payload().to_string();
    for key in &keys {
        for name in
            ["EdDSA", "ES256", "RS256", "RS384", "RS512", "PS256", "ES384", "ES256K", "HS256", "none", ""]
        {
            if name == key.algorithm() {
                continue;
            }
            let header = json!({"typ": "JWT", "alg": name, "kid": key.id}).to_string();
            let refused = refusal(&verifier, &key.token_of(&header, &claims), name);
            assert_eq!(refused, "Algorithm", "{name} under {}", key.id);
        }
        // The kid of another algorithm's key.
        for other in keys.iter().filter(|other| other.id != key.id) {
            let header = json!({"alg": key.algorithm(), "kid": other.id}).to_string();
            assert_eq!(refusal(&verifier, &key.token_of(&header, &claims), &other.id), "Algorithm");
            // And that key's algorithm, with our signature.
            let header = other.header().to_string();
            assert_eq!(refusal(&verifier, &key.token_of(&header, &claims), &other.id), "Signature");
        }
    }
}

#[test]
fn a_public_key_is_no_secret_to_sign_with() {
    let keys = TestKey::all();
    let verifier = verifier(&keys);
    for key in &keys {
        for name in ["HS256", "HS384", "HS512", key.algorithm()] {
            let header = json!({"alg": name, "kid": key.id}).to_string();
            let message = unsigned(&header, &payload().to_string());
            for secret in [key.public_bytes(), key.jwk().to_string().into_bytes()] {
                let secret = hmac::Key::new(hmac::HMAC_SHA256, &secret);
                let tag = URL_SAFE_NO_PAD.encode(hmac::sign(&secret, message.as_bytes()));
                let expected = if name.starts_with("HS") { "Algorithm" } else { "Signature" };
                assert_eq!(
                    refusal(&verifier, &format!("{message}.{tag}"), name),
                    expected,
                    "{name} {}",
                    key.id
                );
            }
        }
    }
}

#[test]
fn a_signature_is_of_this_key_and_these_bytes() {
    let keys = TestKey::all();
    let verifier = verifier(&keys);
    let strangers = [TestKey::ed("ed"), TestKey::ec("ec")];
    for stranger in &strangers {
        assert_eq!(refusal(&verifier, &stranger.token(&payload()), &stranger.id), "Signature");
    }
    for key in &keys {
        let token = key.token(&payload());
        let (message, signature) = token.rsplit_once('.').unwrap();
        let (header, _) = message.split_once('.').unwrap();
        let other =
            URL_SAFE_NO_PAD.encode(with(|payload| payload["scope"] = json!("usage:admin")).to_string());
        let bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
        let zeros = URL_SAFE_NO_PAD.encode(vec![0; bytes.len()]);
        let short = URL_SAFE_NO_PAD.encode(&bytes[..bytes.len() - 1]);
        let long = URL_SAFE_NO_PAD.encode([&bytes[..], &[0]].concat());
        for (why, forged) in [
            ("other claims", format!("{header}.{other}.{signature}")),
            ("no signature", format!("{message}.")),
            ("zeros", format!("{message}.{zeros}")),
            ("a signature cut off", format!("{message}.{short}")),
            ("a signature with more", format!("{message}.{long}")),
        ] {
            assert_eq!(refusal(&verifier, &forged, why), "Signature", "{why} under {}", key.id);
        }
        for (why, forged) in [
            ("padding", format!("{token}=")),
            ("another alphabet", format!("{message}.+{}", &signature[1..])),
            ("a fourth part", format!("{token}.AAAA")),
            ("two parts", message.to_owned()),
            ("a blank", format!("{message}. {}", &signature[1..])),
        ] {
            assert_eq!(refusal(&verifier, &forged, why), "Malformed", "{why} under {}", key.id);
        }
    }
}

#[test]
fn options_and_other_types_are_refused() {
    let keys = TestKey::all();
    let verifier = verifier(&keys);
    let claims = payload().to_string();
    for key in &keys {
        for (name, value, refused) in [
            ("crit", json!(["exp"]), "Critical"),
            ("crit", json!([]), "Critical"),
            ("b64", json!(false), "Critical"),
            ("zip", json!("DEF"), "Critical"),
            ("enc", json!("A256GCM"), "Critical"),
            ("typ", json!("logout+jwt"), "Type"),
            ("typ", json!(["JWT"]), "Type"),
            ("kid", json!(7), "UnknownKey"),
            ("kid", json!(""), "UnknownKey"),
            ("kid", json!("x".repeat(256)), "UnknownKey"),
            ("kid", json!("../keys"), "UnknownKey"),
            ("kid", json!("' OR 1=1"), "UnknownKey"),
        ] {
            let mut header = key.header();
            header[name] = value.clone();
            let token = key.token_of(&header.to_string(), &claims);
            assert_eq!(refusal(&verifier, &token, name), refused, "{name}: {value} under {}", key.id);
        }
        // A header that brings its own key or says where one lies is signed with ours or with none.
        let stranger = TestKey::ed("mine");
        let header =
            json!({"alg": "EdDSA", "kid": "mine", "jwk": stranger.jwk(), "jku": "https://example.com"});
        let token = stranger.token_of(&header.to_string(), &claims);
        assert_eq!(refusal(&verifier, &token, "jwk"), "UnknownKey");
    }
}

/// A clock that is set forth or back decides by what it shows, with a minute to spare on both sides; nothing is remembered.
#[test]
fn a_minute_is_forgiven_whatever_the_clock_does() {
    let keys = TestKey::all();
    let verifier = verifier(&keys);
    let (begins, expires) = (2_000_000_000, 2_000_003_600);
    for key in &keys {
        let token = key.token(&with(|payload| {
            payload["nbf"] = json!(begins);
            payload["exp"] = json!(expires);
        }));
        let at = |now: u64| match verifier.check(&Signed::parse(&token).unwrap(), now) {
            Ok(_) => "taken",
            Err(TokenError::Expired) => "expired",
            Err(TokenError::NotYetValid) => "early",
            Err(error) => panic!("{error}"),
        };
        for (now, expected) in [
            (begins, "taken"),
            (begins - 60, "taken"),
            (begins - 61, "early"),
            // Steps: an hour back, two hours forth, back again.
            (begins + 1_800 - 3_600, "early"),
            (begins + 1_800 + 7_200, "expired"),
            (begins + 1_800, "taken"),
            (expires + 59, "taken"),
            (expires + 60, "expired"),
            (0, "early"),
            (u64::MAX, "expired"),
        ] {
            assert_eq!(at(now), expected, "at {now} under {}", key.id);
        }
    }
    // The ends of what a number can be.
    let far = keys[0].token(&with(|payload| payload["exp"] = json!(u64::MAX)));
    verifier.verify(&far).unwrap();
    for bad in ["1e400", "-1", "1.5e9", "18446744073709551616"] {
        let text = payload().to_string();
        let text = text.replacen(&format!("\"exp\":{}", payload()["exp"]), &format!("\"exp\":{bad}"), 1);
        assert!(verifier.verify(&keys[0].token_of(&keys[0].header().to_string(), &text)).is_err(), "{bad}");
    }
}
