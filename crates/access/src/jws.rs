//! A token taken apart: JWS in its compact form (RFC 7515), without any of its options.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde::Deserializer as _;
use serde::de::{Error as _, MapAccess, Visitor};
use serde_json::Value;

use crate::TokenError;

/// Longest token that is looked at, in bytes.
const TOKEN_BYTES: usize = 16 << 10;
/// Longest `kid` in bytes.
const KEY_ID_BYTES: usize = 255;
/// What `typ` may say. A token for something else, like a logout, must not pass for one of access.
const TYPES: [&str; 2] = ["jwt", "at+jwt"];
/// Parameters of the header that change what a token means.
const OPTIONS: [&str; 4] = ["crit", "enc", "zip", "b64"];

/// A token whose signature was not looked at.
pub(crate) struct Signed<'a> {
    pub algorithm: Algorithm,
    pub key_id: Option<String>,
    /// What was signed.
    pub message: &'a str,
    pub signature: Vec<u8>,
    payload: &'a str,
}

impl<'a> Signed<'a> {
    pub fn parse(token: &'a str) -> Result<Self, TokenError> {
        if token.len() > TOKEN_BYTES {
            return Err(TokenError::Malformed);
        }
        let (message, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, payload) = message.split_once('.').ok_or(TokenError::Malformed)?;
        if payload.contains('.') {
            return Err(TokenError::Malformed);
        }
        let header = object(&decode(header)?)?;
        let algorithm = algorithm(header.get("alg"))?;
        if OPTIONS.iter().any(|name| header.contains_key(*name)) {
            return Err(TokenError::Critical);
        }
        if !header.get("typ").is_none_or(is_access) {
            return Err(TokenError::Type);
        }
        let key_id = match header.get("kid") {
            None => None,
            Some(Value::String(id)) if (1..=KEY_ID_BYTES).contains(&id.len()) => Some(id.clone()),
            Some(_) => return Err(TokenError::UnknownKey),
        };
        Ok(Self { algorithm, key_id, message, signature: decode(signature)?, payload })
    }

    /// The claims, to be trusted only once the signature was found right.
    pub fn claims(&self) -> Result<Object, TokenError> {
        object(&decode(self.payload)?)
    }
}

/// Only these three: no `none`, nothing with a shared secret.
fn algorithm(name: Option<&Value>) -> Result<Algorithm, TokenError> {
    match name.and_then(Value::as_str) {
        Some("EdDSA") => Ok(Algorithm::EdDSA),
        Some("ES256") => Ok(Algorithm::ES256),
        Some("RS256") => Ok(Algorithm::RS256),
        _ => Err(TokenError::Algorithm),
    }
}

fn is_access(name: &Value) -> bool {
    let Some(name) = name.as_str().map(str::to_ascii_lowercase) else { return false };
    TYPES.contains(&name.strip_prefix("application/").unwrap_or(&name))
}

fn decode(part: &str) -> Result<Vec<u8>, TokenError> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Malformed)
}

/// Names and values of a JSON object.
pub(crate) type Object = BTreeMap<String, Value>;

/// Reads an object in which every name comes once: of two values nobody could say which one the issuer meant.
fn object(text: &[u8]) -> Result<Object, TokenError> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let object = json.deserialize_map(Unique).map_err(|error| {
        if error.to_string().starts_with(TWICE) { TokenError::Twice } else { TokenError::Malformed }
    })?;
    json.end().map_err(|_| TokenError::Malformed)?;
    Ok(object)
}

const TWICE: &str = "a name comes twice";

struct Unique;

impl<'de> Visitor<'de> for Unique {
    type Value = Object;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut object = Object::new();
        while let Some((name, value)) = map.next_entry()? {
            if object.insert(name, value).is_some() {
                return Err(A::Error::custom(TWICE));
            }
        }
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_each_name_once() {
        assert_eq!(object(br#"{"a": 1, "b": {"a": 2}}"#).unwrap().len(), 2);
        // Written in another way it is the same name.
        for text in [r#"{"a":1,"a":1}"#, r#"{"a":1,"b":2,"\u0061":3}"#] {
            assert!(matches!(object(text.as_bytes()), Err(TokenError::Twice)), "{text}");
        }
        for text in ["", "[]", "1", "null", "{} {}", "{", "\"a\"", r#"{"a":}"#] {
            assert!(matches!(object(text.as_bytes()), Err(TokenError::Malformed)), "{text}");
        }
    }

    #[test]
    fn types_are_those_of_access_tokens() {
        for (name, access) in [
            ("JWT", true),
            ("at+jwt", true),
            ("application/at+JWT", true),
            ("logout+jwt", false),
            ("dpop+jwt", false),
            ("", false),
        ] {
            assert_eq!(is_access(&name.into()), access, "{name}");
        }
        assert!(!is_access(&Value::Null));
    }
}
