//! Who is asking: tokens, and the security context that a verified one gives.
//!
//! Tenant, subject and scopes come from a verified token, never from a request alone. Any doubt is a refusal; the caller learns
//! only that it was refused, the log learns why.

mod claims;
mod context;
mod jws;
mod keyring;
mod keys;
pub mod policy;
mod public_keys;
mod signer;
mod source;
mod verifier;

#[cfg(test)]
mod tests;

pub use context::{Scope, Scopes, SecurityContext};
pub use keys::{JWKS_FILE, KeyError, KeyFiles, SIGNING_FILE, generate_key_pair};
pub use signer::{Claims, TokenSigner};
pub use source::KeysUrl;
pub use verifier::{TokenError, TokenVerifier};

/// Issuer of the local stack's tokens, and the default of every process.
pub const DEFAULT_ISSUER: &str = "usage-collector";
/// Audience of the local stack's tokens, and the default of every process.
pub const DEFAULT_AUDIENCE: &str = "usage-collector";
