//! `usagectl keys generate` and `usagectl token`.

use std::path::Path;

use usage_access::{Claims, JWKS_FILE, KeyError, SIGNING_FILE, Scopes, TokenSigner, generate_key_pair};
use usage_service::config::Resolved;
use usage_service::error_chain;

use crate::WrongInput;
use crate::arguments::Token;
use crate::settings::TokenConfig;

/// Makes a key pair. One that is there stays: tokens may have been signed with it.
pub(super) fn generate(dir: &Path) -> anyhow::Result<()> {
    match generate_key_pair(dir) {
        Ok(files) => {
            println!("{}\n{}\nkid {}", files.signing.display(), files.jwks.display(), files.key_id);
            Ok(())
        }
        Err(KeyError::Exists { .. }) if dir.join(SIGNING_FILE).exists() && dir.join(JWKS_FILE).exists() => {
            println!("{} has keys already; they stay", dir.display());
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Prints a token and nothing else.
pub(super) fn token(config: &Resolved, options: Token) -> anyhow::Result<()> {
    let token: TokenConfig = config.section("token")?;
    let given = if options.key.is_some() { "--key" } else { "token.key_file (or --key)" };
    let key = options.key.unwrap_or(token.key_file);
    let signer = TokenSigner::from_file(&key, token.issuer, token.audience)
        .map_err(|error| WrongInput { argument: given, detail: error_chain(&error) })?;
    let claims = Claims {
        tenant_id: options.tenant,
        subject_id: options.subject,
        subject_type: options.subject_type,
        scopes: options.scope.unwrap_or_else(Scopes::all),
        ttl: options.ttl,
    };
    println!("{}", signer.sign(&claims)?);
    Ok(())
}
