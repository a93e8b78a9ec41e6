//! Tokens that must be taken and tokens that must be refused, and keys that come and go.

mod algorithms;
pub(crate) mod authority;
mod issuer;
mod key_files;
mod rotation;
mod support;
mod tls;
mod tokens;
