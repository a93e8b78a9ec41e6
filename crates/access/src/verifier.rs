//! Verifies tokens.

use std::path::Path;

use usage_service::{CancellationToken, clock};

use crate::claims::{self, Expected};
use crate::jws::Signed;
use crate::keyring::{ASKED_EVERY, Keyring};
use crate::source::{KeysUrl, Source};
use crate::{KeyError, SecurityContext};

/// Why a token was refused. For the log: the caller learns only that it was.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("not a token")]
    Malformed,
    #[error("the token's algorithm is not EdDSA, ES256 or RS256, or not that of its key")]
    Algorithm,
    #[error("the token's header asks for something that is not understood")]
    Critical,
    #[error("the token is not one of access")]
    Type,
    #[error("a name in the token's header or claims comes twice")]
    Twice,
    #[error("the token was signed with an unknown key")]
    UnknownKey,
    /// Says nothing about the token.
    #[error("the keys of tokens have not been read yet")]
    NoKeys,
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
    #[error("the token names two tenants")]
    TwoTenants,
}

/// Verifies tokens with public keys that are kept current.
pub struct TokenVerifier {
    pub(crate) keys: Keyring,
    expected: Expected,
}

impl std::fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Expected { issuer, audience } = &self.expected;
        f.debug_struct("TokenVerifier")
            .field("issuer", issuer)
            .field("audience", audience)
            .finish_non_exhaustive()
    }
}

impl TokenVerifier {
    /// With the keys of a file: a JWKS (tokens then name one of its keys by `kid`) or one public key in PEM.
    ///
    /// # Errors
    /// [`KeyError`] names the file and what is wrong with it.
    pub fn from_file(
        path: &Path,
        issuer: impl Into<String>,
        audience: impl Into<String>,
    ) -> Result<Self, KeyError> {
        Ok(Self::new(Keyring::from_file(path)?, issuer, audience))
    }

    /// With the keys of a JWKS behind a URL. Nothing is read yet: see [`Self::keep_fresh`] and [`Self::ready`].
    pub fn from_url(url: KeysUrl, issuer: impl Into<String>, audience: impl Into<String>) -> Self {
        Self::new(Keyring::new(Source::Url(url), ASKED_EVERY), issuer, audience)
    }

    pub(crate) fn new(keys: Keyring, issuer: impl Into<String>, audience: impl Into<String>) -> Self {
        Self { keys, expected: Expected { issuer: issuer.into(), audience: audience.into() } }
    }

    /// Verifies a token (without `Bearer`) with the keys known now and gives what it says.
    ///
    /// # Errors
    /// Any doubt; see [`TokenError`].
    pub fn verify(&self, token: &str) -> Result<SecurityContext, TokenError> {
        self.check(&Signed::parse(token)?, now())
    }

    /// As [`Self::verify`], but a key that is not known is looked for first: at most one reading in 10 s, which all who wait share.
    ///
    /// # Errors
    /// Any doubt; see [`TokenError`].
    pub async fn authenticate(&self, token: &str) -> Result<SecurityContext, TokenError> {
        let signed = Signed::parse(token)?;
        match (self.check(&signed, now()), &signed.key_id) {
            (Err(TokenError::UnknownKey | TokenError::NoKeys), Some(id)) => {
                self.keys.look_for(id).await;
                self.check(&signed, now())
            }
            (outcome, _) => outcome,
        }
    }

    /// Keeps the keys current until `shutdown`: a file every 5 s, a URL as often as [`KeysUrl::new`] was told, sooner after a failure.
    /// What can't be read or makes no sense leaves the keys as they were.
    pub async fn keep_fresh(&self, shutdown: CancellationToken) {
        self.keys.keep_fresh(shutdown).await;
    }

    /// Whether tokens can be verified: the keys have been read once, however old they are now.
    ///
    /// # Errors
    /// Why not, in a sentence.
    pub fn ready(&self) -> Result<(), String> {
        self.keys.ready()
    }

    /// `now` is in seconds since 1970.
    pub(crate) fn check(&self, signed: &Signed<'_>, now: u64) -> Result<SecurityContext, TokenError> {
        let keys = self.keys.keys().ok_or(TokenError::NoKeys)?;
        let key = keys.find(signed.key_id.as_deref()).ok_or(TokenError::UnknownKey)?;
        if signed.algorithm != key.algorithm {
            return Err(TokenError::Algorithm);
        }
        if !key.has_signed(signed.message.as_bytes(), &signed.signature) {
            return Err(TokenError::Signature);
        }
        claims::check(&signed.claims()?, &self.expected, now)
    }
}

fn now() -> u64 {
    u64::try_from(clock::now_micros() / 1_000_000).unwrap_or_default()
}
