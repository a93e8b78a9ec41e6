//! The public keys that verify tokens: a JWKS, or one key in PEM.

use std::collections::BTreeMap;

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    RsaSubjectPublicKey,
};
use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, KeyOperations, PublicKeyUse,
};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};

use crate::KeyError;

/// Shortest modulus of an RSA key, in bytes.
const RSA_BYTES: usize = 256;

/// A public key with the only algorithm it is used for: what a token says about its algorithm never decides (a public RSA key
/// taken as an HMAC secret is the classic forgery). Parsed once, when it was read.
#[derive(Clone)]
pub(crate) struct PublicKey {
    pub algorithm: Algorithm,
    key: ParsedPublicKey,
}

impl PublicKey {
    fn new(algorithm: Algorithm, key: &DecodingKey) -> Result<Self, &'static str> {
        let key = match (algorithm, key.kind()) {
            (Algorithm::EdDSA, DecodingKeyKind::SecretOrDer(bytes)) => ParsedPublicKey::new(&ED25519, bytes),
            (Algorithm::ES256, DecodingKeyKind::SecretOrDer(bytes)) => {
                ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, bytes)
            }
            (Algorithm::RS256, DecodingKeyKind::SecretOrDer(der)) => return Self::rsa(der),
            (Algorithm::RS256, DecodingKeyKind::RsaModulusExponent { n, e }) => {
                let der = RsaPublicKeyComponents { n, e }.as_der().map_err(|_| "not an RSA key")?;
                return Self::rsa(der.as_ref());
            }
            _ => return Err("not a key for EdDSA, ES256 or RS256"),
        };
        Ok(Self { algorithm, key: key.map_err(|_| "not a point of its curve")? })
    }

    fn rsa(der: &[u8]) -> Result<Self, &'static str> {
        let key = RsaSubjectPublicKey::from_der(der).map_err(|_| "not an RSA key")?;
        if key.modulus_len() < RSA_BYTES {
            return Err("an RSA key of less than 2048 bits");
        }
        let key = ParsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key).map_err(|_| "not an RSA key")?;
        Ok(Self { algorithm: Algorithm::RS256, key })
    }

    pub fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        self.key.verify_sig(message, signature).is_ok()
    }
}

/// The keys of a file or an answer.
pub(crate) enum PublicKeys {
    /// A PEM file: one key without an id.
    One(PublicKey),
    /// A JWKS: keys by id. Empty where nobody may sign any more.
    ById(BTreeMap<String, PublicKey>),
}

impl PublicKeys {
    /// Reads a JWKS or a public key in PEM; `origin` says in errors where it is from.
    pub fn parse(origin: &str, text: &[u8]) -> Result<Self, KeyError> {
        if text.trim_ascii_start().starts_with(b"{") {
            Self::parse_jwks(origin, text)
        } else {
            Self::parse_pem(origin, text)
        }
    }

    /// Reads a JWKS. Keys for other purposes are left out; one that is broken refuses the whole set.
    pub fn parse_jwks(origin: &str, text: &[u8]) -> Result<Self, KeyError> {
        let set: JwkSet = serde_json::from_slice(text)
            .map_err(|source| KeyError::NotJwks { origin: origin.into(), source })?;
        let mut keys = BTreeMap::new();
        for jwk in &set.keys {
            if matches!(jwk.algorithm, AlgorithmParameters::OctetKey(_)) {
                return Err(bad(origin, "holds a symmetric key, which must not lie among public keys"));
            }
            let Some(algorithm) = algorithm_of(jwk) else { continue };
            let Some(id) = jwk.common.key_id.clone().filter(|id| !id.is_empty()) else {
                return Err(bad(origin, "a key has no kid"));
            };
            let key = DecodingKey::from_jwk(jwk).map_err(|_| "not base64url");
            let key = key
                .and_then(|key| PublicKey::new(algorithm, &key))
                .map_err(|detail| bad(origin, &format!("key {id}: {detail}")))?;
            if keys.insert(id.clone(), key).is_some() {
                return Err(bad(origin, &format!("key {id} comes twice")));
            }
        }
        Ok(Self::ById(keys))
    }

    fn parse_pem(origin: &str, text: &[u8]) -> Result<Self, KeyError> {
        if !text.windows(11).any(|window| window == b"PUBLIC KEY-") {
            return Err(bad(origin, "expected a JWKS or a PEM file with a PUBLIC KEY"));
        }
        let found = [
            (Algorithm::EdDSA, DecodingKey::from_ed_pem(text)),
            (Algorithm::ES256, DecodingKey::from_ec_pem(text)),
            (Algorithm::RS256, DecodingKey::from_rsa_pem(text)),
        ];
        let usable = found.into_iter().find_map(|(algorithm, key)| Some((algorithm, key.ok()?)));
        let (algorithm, key) = usable.ok_or_else(|| KeyError::NoKey { origin: origin.into() })?;
        let key = PublicKey::new(algorithm, &key).map_err(|detail| bad(origin, detail))?;
        Ok(Self::One(key))
    }

    pub fn find(&self, id: Option<&str>) -> Option<&PublicKey> {
        match (self, id) {
            (Self::One(key), _) => Some(key),
            (Self::ById(keys), Some(id)) => keys.get(id),
            (Self::ById(_), None) => None,
        }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, Self::ById(keys) if keys.is_empty())
    }

    /// The ids, for the log.
    pub fn ids(&self) -> Vec<&str> {
        match self {
            Self::One(_) => Vec::new(),
            Self::ById(keys) => keys.keys().map(String::as_str).collect(),
        }
    }
}

/// The algorithm that the key is for; none for keys of other purposes, which a set may hold too.
fn algorithm_of(jwk: &Jwk) -> Option<Algorithm> {
    let signs = matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature));
    let verifies =
        jwk.common.key_operations.as_ref().is_none_or(|allowed| allowed.contains(&KeyOperations::Verify));
    let (algorithm, named) = match &jwk.algorithm {
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            (Algorithm::EdDSA, KeyAlgorithm::EdDSA)
        }
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
        _ => return None,
    };
    let fits = jwk.common.key_algorithm.is_none_or(|given| given == named);
    (signs && verifies && fits).then_some(algorithm)
}

fn bad(origin: &str, detail: &str) -> KeyError {
    KeyError::BadKey { origin: origin.into(), detail: detail.into() }
}
