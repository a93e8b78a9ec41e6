//! Verifies tokens.

use std::path::Path;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use serde::Deserialize;
use uuid::Uuid;

use crate::keys::{PublicKey, PublicKeys};
use crate::{KeyError, Scopes, SecurityContext};

/// How far the clocks of issuer and verifier may differ, in seconds.
const LEEWAY_SECONDS: u64 = 60;
/// Longest token that is looked at, in bytes.
const TOKEN_BYTES: usize = 16 << 10;
/// Longest `jti` in bytes; it comes into logs.
const TOKEN_ID_BYTES: usize = 255;

/// Why a token was refused. For the log: the caller learns only that it was.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("not a token")]
    Malformed,
    #[error("the token's algorithm is not EdDSA, ES256 or RS256")]
    Algorithm,
    #[error("the token's header asks for something that is not understood")]
    Critical,
    #[error("the token was signed with an unknown key")]
    UnknownKey,
    #[error("the token's signature is wrong")]
    Signature,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYetValid,
    #[error("the token is from another issuer")]
    Issuer,
    #[error("the token is for another audience")]
    Audience,
    #[error("the claim {0} is missing or not valid")]
    Claim(&'static str),
}

/// Verifies tokens with the public keys of a file.
pub struct TokenVerifier {
    keys: PublicKeys,
    issuer: String,
    audience: String,
}

impl std::fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { issuer, audience, .. } = self;
        f.debug_struct("TokenVerifier")
            .field("issuer", issuer)
            .field("audience", audience)
            .finish_non_exhaustive()
    }
}

/// Every claim that is looked at. serde refuses a claim that comes twice, and a list where one value belongs.
#[derive(Deserialize)]
struct Payload {
    #[serde(rename = "iss")]
    _issuer: String,
    #[serde(rename = "exp")]
    _expires: u64,
    #[serde(default, rename = "nbf")]
    _not_before: Option<u64>,
    tenant_id: Option<String>,
    sub: Option<String>,
    subject_type: Option<String>,
    scope: Option<String>,
    jti: Option<String>,
}

impl TokenVerifier {
    /// Reads a JWKS (tokens then name one of its keys by `kid`) or one public key in PEM.
    ///
    /// # Errors
    /// [`KeyError`] names the file and what is wrong with it.
    pub fn from_file(
        path: &Path,
        issuer: impl Into<String>,
        audience: impl Into<String>,
    ) -> Result<Self, KeyError> {
        Ok(Self { keys: PublicKeys::read(path)?, issuer: issuer.into(), audience: audience.into() })
    }

    /// Verifies a token (without `Bearer`) and gives what it says.
    ///
    /// # Errors
    /// Any doubt; see [`TokenError`].
    pub fn verify(&self, token: &str) -> Result<SecurityContext, TokenError> {
        if token.len() > TOKEN_BYTES {
            return Err(TokenError::Malformed);
        }
        let header = decode_header(token).map_err(|error| header_error(token, &error))?;
        if header.crit.is_some() || header.enc.is_some() || header.zip.is_some() {
            return Err(TokenError::Critical);
        }
        let key = self.key(header.kid.as_deref())?;
        if header.alg != key.algorithm {
            return Err(TokenError::Algorithm);
        }
        let mut validation = Validation::new(key.algorithm);
        validation.leeway = LEEWAY_SECONDS;
        validation.validate_nbf = true;
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[&self.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        let payload: Payload =
            decode(token, &key.key, &validation).map_err(|error| sort(error.into_kind()))?.claims;
        context(payload)
    }

    fn key(&self, id: Option<&str>) -> Result<&PublicKey, TokenError> {
        match (&self.keys, id) {
            (PublicKeys::One(key), _) => Ok(key),
            (PublicKeys::ById(keys), Some(id)) => keys.get(id).ok_or(TokenError::UnknownKey),
            (PublicKeys::ById(_), None) => Err(TokenError::UnknownKey),
        }
    }
}

fn context(payload: Payload) -> Result<SecurityContext, TokenError> {
    let tenant = payload.tenant_id.as_deref().ok_or(TokenError::Claim("tenant_id"))?;
    let tenant_id = identity(tenant).ok_or(TokenError::Claim("tenant_id"))?;
    let subject_id = match payload.sub.as_deref() {
        None => None,
        Some(text) => Some(identity(text).ok_or(TokenError::Claim("sub"))?),
    };
    if let Some(text) = &payload.subject_type {
        usage_schemas::validate::name("subject_type", text).map_err(|_| TokenError::Claim("subject_type"))?;
    }
    if payload.jti.as_deref().is_some_and(|id| id.is_empty() || id.len() > TOKEN_ID_BYTES) {
        return Err(TokenError::Claim("jti"));
    }
    Ok(SecurityContext {
        tenant_id,
        subject_id,
        subject_type: payload.subject_type,
        scopes: payload.scope.as_deref().map_or(Scopes::NONE, Scopes::parse_claim),
        token_id: payload.jti,
    })
}

/// A UUID in its usual form with hyphens, not the nil one. Other spellings are doubts.
fn identity(text: &str) -> Option<Uuid> {
    let usual = text.len() == 36;
    Uuid::try_parse(text).ok().filter(|id| usual && !id.is_nil())
}

/// A header that does not parse: most often an algorithm that is not known at all, like `none`.
fn header_error(token: &str, error: &jsonwebtoken::errors::Error) -> TokenError {
    match error.kind() {
        ErrorKind::Json(_) if token.bytes().filter(|byte| *byte == b'.').count() == 2 => {
            TokenError::Algorithm
        }
        _ => TokenError::Malformed,
    }
}

fn sort(kind: ErrorKind) -> TokenError {
    match kind {
        ErrorKind::InvalidSignature => TokenError::Signature,
        ErrorKind::ExpiredSignature => TokenError::Expired,
        ErrorKind::ImmatureSignature => TokenError::NotYetValid,
        ErrorKind::InvalidIssuer => TokenError::Issuer,
        ErrorKind::InvalidAudience => TokenError::Audience,
        ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => TokenError::Algorithm,
        ErrorKind::MissingRequiredClaim(name) | ErrorKind::InvalidClaimFormat(name) => TokenError::Claim(
            ["exp", "iss", "aud", "nbf"].into_iter().find(|known| *known == name).unwrap_or("unknown"),
        ),
        ErrorKind::Json(error) => TokenError::Claim(claim_in(&error.to_string())),
        _ => TokenError::Malformed,
    }
}

/// The claim that serde's message names, if it does.
fn claim_in(message: &str) -> &'static str {
    const CLAIMS: [&str; 8] = ["iss", "exp", "nbf", "tenant_id", "sub", "subject_type", "scope", "jti"];
    CLAIMS.into_iter().find(|claim| message.contains(&format!("`{claim}`"))).unwrap_or("unknown")
}
