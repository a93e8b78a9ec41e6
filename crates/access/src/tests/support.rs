//! Keys of all three algorithms, and tokens that are put together by hand.

use std::path::PathBuf;
use std::sync::OnceLock;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, Header, encode};
use serde_json::{Value, json};
use usage_service::clock;

use crate::keys::PrivateKey;
use crate::{KeyFiles, TokenSigner, TokenVerifier, generate_key_pair};

pub const ISSUER: &str = "issuer";
pub const AUDIENCE: &str = "audience";
pub const TENANT: &str = "0b4c9e2e-3d6f-4c53-8a3f-0f1a2b3c4d5e";
pub const SUBJECT: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

enum Pair {
    Ed(Ed25519KeyPair),
    Ec(EcdsaKeyPair),
    /// One for all: they take long to make.
    Rsa(&'static RsaKeyPair),
}

/// A key pair of an issuer.
pub struct TestKey {
    pub id: String,
    pair: Pair,
}

impl TestKey {
    pub fn ed(id: &str) -> Self {
        Self { id: id.into(), pair: Pair::Ed(Ed25519KeyPair::generate().unwrap()) }
    }

    pub fn ec(id: &str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        Self { id: id.into(), pair: Pair::Ec(pair) }
    }

    pub fn rsa(id: &str) -> Self {
        static PAIR: OnceLock<RsaKeyPair> = OnceLock::new();
        let pair = PAIR.get_or_init(|| RsaKeyPair::generate(KeySize::Rsa2048).unwrap());
        Self { id: id.into(), pair: Pair::Rsa(pair) }
    }

    /// One of each algorithm.
    pub fn all() -> [Self; 3] {
        [Self::ed("ed"), Self::ec("ec"), Self::rsa("rsa")]
    }

    pub fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::Ed(_) => "EdDSA",
            Pair::Ec(_) => "ES256",
            Pair::Rsa(_) => "RS256",
        }
    }

    /// The public half.
    pub fn jwk(&self) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let mut jwk = match &self.pair {
            Pair::Ed(pair) => json!({"kty": "OKP", "crv": "Ed25519", "x": text(pair.public_key().as_ref())}),
            Pair::Ec(pair) => {
                let point = pair.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "x": text(&point[1..33]), "y": text(&point[33..])})
            }
            Pair::Rsa(pair) => {
                let key = pair.public_key();
                let (n, e) = (key.modulus(), key.exponent());
                json!({
                    "kty": "RSA",
                    "n": text(n.big_endian_without_leading_zero()),
                    "e": text(e.big_endian_without_leading_zero()),
                })
            }
        };
        jwk["kid"] = json!(self.id);
        jwk["alg"] = json!(self.algorithm());
        jwk
    }

    /// The public half as the bytes that a forger would take for a secret.
    pub fn public_bytes(&self) -> Vec<u8> {
        match &self.pair {
            Pair::Ed(pair) => pair.public_key().as_ref().to_vec(),
            Pair::Ec(pair) => pair.public_key().as_ref().to_vec(),
            Pair::Rsa(pair) => pair.public_key().as_ref().to_vec(),
        }
    }

    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Ed(pair) => pair.sign(message).as_ref().to_vec(),
            Pair::Ec(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                signature
            }
        }
    }

    pub fn header(&self) -> Value {
        json!({"typ": "JWT", "alg": self.algorithm(), "kid": self.id})
    }

    /// A token that is in order but for what `payload` says.
    pub fn token(&self, payload: &Value) -> String {
        self.token_of(&self.header().to_string(), &payload.to_string())
    }

    /// Exactly this header and payload, under a right signature.
    pub fn token_of(&self, header: &str, payload: &str) -> String {
        let message = unsigned(header, payload);
        let signature = URL_SAFE_NO_PAD.encode(self.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }
}

/// Header and payload as they are signed.
pub fn unsigned(header: &str, payload: &str) -> String {
    format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload))
}

/// A key set.
pub fn jwks<'a>(keys: impl IntoIterator<Item = &'a TestKey>) -> String {
    json!({"keys": keys.into_iter().map(TestKey::jwk).collect::<Vec<_>>()}).to_string()
}

pub fn now() -> i64 {
    clock::now_micros() / 1_000_000
}

/// A payload that is in order.
pub fn payload() -> Value {
    json!({
        "iss": ISSUER, "aud": AUDIENCE, "exp": now() + 600, "nbf": now() - 5, "iat": now() - 5, "jti": "t-1",
        "tenant_id": TENANT, "sub": SUBJECT, "subject_type": "user", "scope": "usage:read openid usage:types",
    })
}

pub fn with(change: impl FnOnce(&mut Value)) -> Value {
    let mut payload = payload();
    change(&mut payload);
    payload
}

/// A directory with a key pair.
pub struct Keys {
    pub dir: tempfile::TempDir,
    pub files: KeyFiles,
}

impl Keys {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = generate_key_pair(dir.path()).unwrap();
        Self { dir, files }
    }

    pub fn verifier(&self) -> TokenVerifier {
        TokenVerifier::from_file(&self.files.jwks, ISSUER, AUDIENCE).unwrap()
    }

    pub fn signer(&self) -> TokenSigner {
        TokenSigner::from_file(&self.files.signing, ISSUER, AUDIENCE).unwrap()
    }

    pub fn header(&self) -> Header {
        Header { kid: Some(self.files.key_id.clone()), ..Header::new(Algorithm::EdDSA) }
    }

    /// Signs any payload with the right key.
    pub fn sign(&self, payload: &Value) -> String {
        self.sign_with(&self.header(), payload)
    }

    pub fn sign_with(&self, header: &Header, payload: &Value) -> String {
        encode(header, payload, &PrivateKey::read(&self.files.signing).unwrap().key).unwrap()
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub fn jwks(&self) -> Value {
        serde_json::from_slice(&std::fs::read(&self.files.jwks).unwrap()).unwrap()
    }
}
