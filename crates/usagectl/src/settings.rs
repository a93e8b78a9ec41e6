//! What usagectl can be told. Each command needs only its own sections.

use std::path::PathBuf;

use serde::Deserialize;
use usage_access::{DEFAULT_AUDIENCE, DEFAULT_ISSUER};
use usage_service::config::{CLICKHOUSE, CONTROL_DATABASE, KAFKA, MASTER_KEY, SOURCE_DATABASE, Setting};
use usage_service::settings;

pub(crate) const SETTINGS: &[Setting] = settings![
    KAFKA,
    CLICKHOUSE,
    CONTROL_DATABASE,
    MASTER_KEY,
    SOURCE_DATABASE,
    &[
        Setting::text("token.key_file", "Private key that signs tokens (PKCS#8 in PEM).")
            .default("target/stack/keys/signing.pem"),
        Setting::text("token.issuer", "Issuer that tokens name.").default(DEFAULT_ISSUER),
        Setting::text("token.audience", "Audience that tokens name.").default(DEFAULT_AUDIENCE),
    ],
];

/// `[token]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenConfig {
    pub key_file: PathBuf,
    pub issuer: String,
    pub audience: String,
}

#[cfg(test)]
mod tests;
