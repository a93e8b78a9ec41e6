//! Key files: the public keys that verify tokens and the private key that signs them.

use std::collections::HashMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::Ed25519KeyPair;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse, ThumbprintHash,
};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};

/// Name of the private key that [`generate_key_pair`] writes.
pub const SIGNING_FILE: &str = "signing.pem";
/// Name of the public keys that [`generate_key_pair`] writes.
pub const JWKS_FILE: &str = "jwks.json";

/// Why keys could not be used or made.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("can't read or write {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} is not a JSON Web Key Set", path.display())]
    NotJwks {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{} has no key for EdDSA, ES256 or RS256", path.display())]
    NoKey { path: PathBuf },
    #[error("{}: {detail}", path.display())]
    BadKey { path: PathBuf, detail: String },
    #[error("{} is there already", path.display())]
    Exists { path: PathBuf },
    #[error("no key could be made")]
    Generate,
    #[error("the key can't sign")]
    Sign(#[source] jsonwebtoken::errors::Error),
}

/// A public key with the only algorithm it is used for: what a token says about its algorithm never decides (a public RSA key
/// taken as an HMAC secret is the classic forgery).
#[derive(Clone)]
pub(crate) struct PublicKey {
    pub algorithm: Algorithm,
    pub key: DecodingKey,
}

/// The keys of a file.
pub(crate) enum PublicKeys {
    /// A PEM file: one key without an id.
    One(PublicKey),
    /// A JWKS: keys by id.
    ById(HashMap<String, PublicKey>),
}

impl PublicKeys {
    /// Reads a JWKS or a public key in PEM.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let text = std::fs::read(path).map_err(|source| KeyError::File { path: path.into(), source })?;
        if text.trim_ascii_start().starts_with(b"{") {
            Self::jwks(path, &text)
        } else {
            Self::pem(path, &text)
        }
    }

    fn pem(path: &Path, text: &[u8]) -> Result<Self, KeyError> {
        if !text.windows(11).any(|window| window == b"PUBLIC KEY-") {
            return Err(bad(path, "expected a JWKS or a PEM file with a PUBLIC KEY"));
        }
        let found = [
            (Algorithm::EdDSA, DecodingKey::from_ed_pem(text)),
            (Algorithm::ES256, DecodingKey::from_ec_pem(text)),
            (Algorithm::RS256, DecodingKey::from_rsa_pem(text)),
        ];
        let usable =
            found.into_iter().find_map(|(algorithm, key)| Some(PublicKey { algorithm, key: key.ok()? }));
        usable.map(Self::One).ok_or_else(|| KeyError::NoKey { path: path.into() })
    }

    fn jwks(path: &Path, text: &[u8]) -> Result<Self, KeyError> {
        let set: JwkSet =
            serde_json::from_slice(text).map_err(|source| KeyError::NotJwks { path: path.into(), source })?;
        let mut keys = HashMap::new();
        for jwk in &set.keys {
            if matches!(jwk.algorithm, AlgorithmParameters::OctetKey(_)) {
                return Err(bad(path, "holds a symmetric key, which must not lie among public keys"));
            }
            let Some(algorithm) = algorithm_of(jwk) else { continue };
            let Some(id) = jwk.common.key_id.clone().filter(|id| !id.is_empty()) else {
                return Err(bad(path, "a key has no kid"));
            };
            let key = DecodingKey::from_jwk(jwk).map_err(|error| bad(path, &format!("key {id}: {error}")))?;
            if keys.insert(id.clone(), PublicKey { algorithm, key }).is_some() {
                return Err(bad(path, &format!("key {id} comes twice")));
            }
        }
        if keys.is_empty() {
            return Err(KeyError::NoKey { path: path.into() });
        }
        Ok(Self::ById(keys))
    }
}

/// The algorithm that the key is for; none for keys of other purposes, which a set may hold too.
fn algorithm_of(jwk: &Jwk) -> Option<Algorithm> {
    let signs = matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature));
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
    (signs && fits).then_some(algorithm)
}

/// A private key with its algorithm and the id of its public half.
pub(crate) struct PrivateKey {
    pub algorithm: Algorithm,
    pub key: EncodingKey,
    pub key_id: String,
}

impl PrivateKey {
    /// Reads a PKCS#8 key in PEM: Ed25519, P-256 or RSA.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let text = std::fs::read(path).map_err(|source| KeyError::File { path: path.into(), source })?;
        let found = [
            (Algorithm::EdDSA, EncodingKey::from_ed_pem(&text)),
            (Algorithm::ES256, EncodingKey::from_ec_pem(&text)),
            (Algorithm::RS256, EncodingKey::from_rsa_pem(&text)),
        ];
        let usable = found.into_iter().find_map(|(algorithm, key)| Some((algorithm, key.ok()?)));
        let (algorithm, key) = usable.ok_or_else(|| bad(path, "expected a PEM file with a PRIVATE KEY"))?;
        let key_id = public_jwk(&key, algorithm)?.common.key_id.ok_or(KeyError::Generate)?;
        Ok(Self { algorithm, key, key_id })
    }
}

/// The public half of a key; its id is the thumbprint of RFC 7638, so that both files give the same id without a third one.
fn public_jwk(key: &EncodingKey, algorithm: Algorithm) -> Result<Jwk, KeyError> {
    let mut jwk = Jwk::from_encoding_key(key, algorithm).map_err(KeyError::Sign)?;
    jwk.common.key_id = Some(jwk.thumbprint(ThumbprintHash::SHA256).map_err(KeyError::Sign)?);
    jwk.common.public_key_use = Some(PublicKeyUse::Signature);
    Ok(jwk)
}

/// The files of a key pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFiles {
    /// The private key; only its owner may read it.
    pub signing: PathBuf,
    /// The public key as a JWKS.
    pub jwks: PathBuf,
    /// The `kid` of tokens and JWKS.
    pub key_id: String,
}

/// Makes an Ed25519 key pair in `dir` (which is made if it is not there): `signing.pem` and `jwks.json`.
///
/// # Errors
/// [`KeyError::Exists`] rather than overwriting a key that tokens may have been signed with.
pub fn generate_key_pair(dir: &Path) -> Result<KeyFiles, KeyError> {
    let signing = dir.join(SIGNING_FILE);
    let jwks = dir.join(JWKS_FILE);
    for path in [&signing, &jwks] {
        if path.exists() {
            return Err(KeyError::Exists { path: path.clone() });
        }
    }
    std::fs::create_dir_all(dir).map_err(|source| KeyError::File { path: dir.into(), source })?;
    let document = Ed25519KeyPair::generate_pkcs8v1(&SystemRandom::new()).map_err(|_| KeyError::Generate)?;
    let jwk = public_jwk(&EncodingKey::from_ed_der(document.as_ref()), Algorithm::EdDSA)?;
    let key_id = jwk.common.key_id.clone().ok_or(KeyError::Generate)?;
    let set = serde_json::to_vec_pretty(&JwkSet { keys: vec![jwk] }).map_err(|_| KeyError::Generate)?;
    // 48 bytes of DER make one line of 64 characters.
    let pem =
        format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(&document));
    // The public file first: if this ends in between, the next run says which file is in the way, and nothing is lost.
    write_new(&jwks, &set, 0o644)?;
    write_new(&signing, pem.as_bytes(), 0o600)?;
    Ok(KeyFiles { signing, jwks, key_id })
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), KeyError> {
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(bytes))
        .map_err(|source| KeyError::File { path: path.into(), source })
}

fn bad(path: &Path, detail: &str) -> KeyError {
    KeyError::BadKey { path: path.into(), detail: detail.into() }
}
