//! What the claims of a token must be, and the context they give.

use serde_json::Value;
use uuid::Uuid;

use crate::jws::Object;
use crate::{Scopes, SecurityContext, TokenError};

/// How far the clocks of issuer and verifier may differ, in seconds.
const LEEWAY_SECONDS: u64 = 60;
/// Longest `jti` in bytes; it comes into logs.
const TOKEN_ID_BYTES: usize = 255;

const TENANT: &str = "tenant_id";
/// Other ways to write it, in lower case and without what separates words. A token that names another tenant under one of them
/// names two.
const TENANTS: [&str; 4] = ["tenant", "tenants", "tenantid", "tenantids"];

/// Whose tokens are taken.
#[derive(Debug)]
pub(crate) struct Expected {
    pub issuer: String,
    pub audience: String,
}

/// Checks the claims of a token whose signature is right. `now` is in seconds since 1970.
pub(crate) fn check(claims: &Object, expected: &Expected, now: u64) -> Result<SecurityContext, TokenError> {
    if text(claims, "iss")?.ok_or(TokenError::Claim("iss"))? != expected.issuer {
        return Err(TokenError::Issuer);
    }
    if !is_for(claims, &expected.audience)? {
        return Err(TokenError::Audience);
    }
    let expires = seconds(claims, "exp")?.ok_or(TokenError::Claim("exp"))?;
    if expires.saturating_add(LEEWAY_SECONDS) <= now {
        return Err(TokenError::Expired);
    }
    if seconds(claims, "nbf")?.is_some_and(|begins| begins > now.saturating_add(LEEWAY_SECONDS)) {
        return Err(TokenError::NotYetValid);
    }
    context(claims)
}

fn context(claims: &Object) -> Result<SecurityContext, TokenError> {
    let tenant_id = identity(claims, TENANT)?.ok_or(TokenError::Claim(TENANT))?;
    if claims.iter().any(|(name, value)| names_another(name, value, tenant_id)) {
        return Err(TokenError::TwoTenants);
    }
    let subject_type = text(claims, "subject_type")?;
    if let Some(name) = subject_type {
        usage_schemas::validate::name("subject_type", name).map_err(|_| TokenError::Claim("subject_type"))?;
    }
    let token_id = text(claims, "jti")?;
    if token_id.is_some_and(|id| id.is_empty() || id.len() > TOKEN_ID_BYTES) {
        return Err(TokenError::Claim("jti"));
    }
    Ok(SecurityContext {
        tenant_id,
        subject_id: identity(claims, "sub")?,
        subject_type: subject_type.map(str::to_owned),
        scopes: text(claims, "scope")?.map_or(Scopes::NONE, Scopes::parse_claim),
        token_id: token_id.map(str::to_owned),
    })
}

/// Whether a claim says that the token is of another tenant too.
fn names_another(name: &str, value: &Value, tenant_id: Uuid) -> bool {
    let plain: String = name
        .chars()
        .filter(|letter| !"_-".contains(*letter))
        .map(|letter| letter.to_ascii_lowercase())
        .collect();
    if name == TENANT || !TENANTS.contains(&plain.as_str()) {
        return false;
    }
    let is_same = |value: &Value| value.as_str().and_then(parse) == Some(tenant_id);
    match value {
        Value::Null => false,
        Value::Array(values) => !values.iter().all(is_same),
        value => !is_same(value),
    }
}

/// `aud` is one text or a list of them.
fn is_for(claims: &Object, audience: &str) -> Result<bool, TokenError> {
    let wrong = TokenError::Claim("aud");
    match claims.get("aud") {
        Some(Value::String(only)) => Ok(only == audience),
        Some(Value::Array(all)) => {
            let all: Option<Vec<&str>> = all.iter().map(Value::as_str).collect();
            Ok(all.ok_or(wrong)?.contains(&audience))
        }
        _ => Err(wrong),
    }
}

/// A claim of text; null is none.
fn text<'a>(claims: &'a Object, name: &'static str) -> Result<Option<&'a str>, TokenError> {
    match claims.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(TokenError::Claim(name)),
    }
}

/// A time in whole seconds since 1970.
fn seconds(claims: &Object, name: &'static str) -> Result<Option<u64>, TokenError> {
    match claims.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or(TokenError::Claim(name)),
    }
}

fn identity(claims: &Object, name: &'static str) -> Result<Option<Uuid>, TokenError> {
    text(claims, name)?.map(|text| parse(text).ok_or(TokenError::Claim(name))).transpose()
}

/// A UUID in its usual form with hyphens, not the nil one. Other spellings are doubts.
fn parse(text: &str) -> Option<Uuid> {
    let usual = text.len() == 36;
    Uuid::try_parse(text).ok().filter(|id| usual && !id.is_nil())
}
