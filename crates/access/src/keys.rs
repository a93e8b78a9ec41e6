//! Key files: the private key that signs tokens, and a new pair of both.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::Ed25519KeyPair;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::jwk::{Jwk, JwkSet, PublicKeyUse, ThumbprintHash};
use jsonwebtoken::{Algorithm, EncodingKey};
use usage_service::transport::{AddressError, TlsError};

/// Name of the private key that [`generate_key_pair`] writes.
pub const SIGNING_FILE: &str = "signing.pem";
/// Name of the public keys that [`generate_key_pair`] writes.
pub const JWKS_FILE: &str = "jwks.json";

/// Why keys could not be used or made. `origin` is the file or the address they are from.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("can't read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("can't write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{origin} is not a JSON Web Key Set")]
    NotJwks {
        origin: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("{origin} has no key for EdDSA, ES256 or RS256")]
    NoKey { origin: String },
    #[error("{origin}: {detail}")]
    BadKey { origin: String, detail: String },
    #[error("{origin} has more than {} bytes", crate::source::MOST_BYTES)]
    TooLarge { origin: String },
    #[error("{origin} did not answer within {:?}", crate::source::READ_WITHIN)]
    Timeout { origin: String },
    #[error("{origin} can't be reached")]
    Unreachable {
        origin: String,
        #[source]
        source: reqwest::Error,
    },
    #[error("{origin} answered with status {status}")]
    Status { origin: String, status: u16 },
    #[error("the address of the key set {0}")]
    Address(#[from] AddressError),
    #[error("TLS to the key set can't be used")]
    Tls(#[source] TlsError),
    #[error("no client for HTTPS could be made")]
    Client(#[source] reqwest::Error),
    #[error("{} is there already", path.display())]
    Exists { path: PathBuf },
    #[error("no key could be made")]
    Generate,
    #[error("the key can't sign")]
    Sign(#[source] jsonwebtoken::errors::Error),
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
        let (algorithm, key) = usable.ok_or_else(|| KeyError::BadKey {
            origin: path.display().to_string(),
            detail: "expected a PEM file with a PRIVATE KEY".into(),
        })?;
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
    std::fs::create_dir_all(dir).map_err(|source| KeyError::Write { path: dir.into(), source })?;
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
        .map_err(|source| KeyError::Write { path: path.into(), source })
}
