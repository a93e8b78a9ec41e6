//! Signs tokens, for the local stack and for tests.

use std::path::Path;
use std::time::Duration;

use jsonwebtoken::{Header, encode};
use serde::Serialize;
use usage_service::clock;
use uuid::Uuid;

use crate::keys::PrivateKey;
use crate::{KeyError, Scopes};

/// What a token is to say.
#[derive(Debug, Clone)]
pub struct Claims {
    pub tenant_id: Uuid,
    pub subject_id: Option<Uuid>,
    pub subject_type: Option<String>,
    pub scopes: Scopes,
    /// How long the token is valid from now on; whole seconds.
    pub ttl: Duration,
}

#[derive(Serialize)]
struct Payload<'a> {
    iss: &'a str,
    aud: &'a str,
    exp: u64,
    nbf: u64,
    iat: u64,
    jti: String,
    tenant_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sub: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject_type: Option<&'a str>,
    scope: String,
}

/// Signs tokens with a private key.
pub struct TokenSigner {
    key: PrivateKey,
    issuer: String,
    audience: String,
}

impl std::fmt::Debug for TokenSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenSigner").field("key_id", &self.key.key_id).finish_non_exhaustive()
    }
}

impl TokenSigner {
    /// Reads a private key: PKCS#8 in PEM, Ed25519, P-256 or RSA.
    ///
    /// # Errors
    /// [`KeyError`] names the file and what is wrong with it.
    pub fn from_file(
        path: &Path,
        issuer: impl Into<String>,
        audience: impl Into<String>,
    ) -> Result<Self, KeyError> {
        Ok(Self { key: PrivateKey::read(path)?, issuer: issuer.into(), audience: audience.into() })
    }

    /// A token that is valid from now on for `claims.ttl`, with a new `jti`.
    ///
    /// # Errors
    /// When the key can't sign.
    pub fn sign(&self, claims: &Claims) -> Result<String, KeyError> {
        let now = u64::try_from(clock::now_micros() / 1_000_000).unwrap_or_default();
        let payload = Payload {
            iss: &self.issuer,
            aud: &self.audience,
            exp: now.saturating_add(claims.ttl.as_secs()),
            nbf: now,
            iat: now,
            jti: Uuid::new_v4().to_string(),
            tenant_id: claims.tenant_id.to_string(),
            sub: claims.subject_id.map(|id| id.to_string()),
            subject_type: claims.subject_type.as_deref(),
            scope: claims.scopes.to_string(),
        };
        let header = Header { kid: Some(self.key.key_id.clone()), ..Header::new(self.key.algorithm) };
        encode(&header, &payload, &self.key.key).map_err(KeyError::Sign)
    }
}
