//! Reads single arguments. clap puts the argument's name before the messages.

use std::time::Duration;

use secrecy::SecretSlice;
use usage_access::{Scope, Scopes};
use usage_schemas::{Reason, Rules, Timestamp, strict_json};
use uuid::Uuid;

pub(crate) fn name(text: &str) -> Result<String, String> {
    usage_schemas::validate::name("name", text).map(|()| text.to_owned()).map_err(|invalid| invalid.detail)
}

pub(crate) fn uuid(text: &str) -> Result<Uuid, String> {
    let id = Uuid::try_parse(text).map_err(|_| "expected a UUID".to_string())?;
    if id.is_nil() { Err("the nil UUID names nobody".into()) } else { Ok(id) }
}

/// Unlike a verifier, which leaves words of other services out: here a misspelt word is a mistake.
pub(crate) fn scopes(text: &str) -> Result<Scopes, String> {
    let mut scopes = Scopes::NONE;
    for word in text.split_whitespace() {
        let scope = Scope::parse(word).ok_or_else(|| {
            let nearest =
                Scope::ALL.into_iter().min_by_key(|scope| strsim::damerau_levenshtein(scope.as_str(), word));
            format!("unknown scope {word}: did you mean {}?", nearest.unwrap_or(Scope::Read))
        })?;
        scopes = scopes.with(scope);
    }
    Ok(scopes)
}

pub(crate) fn reason(word: &str) -> Result<Reason, String> {
    Reason::parse(word).ok_or_else(|| {
        let distance = |reason: &&Reason| strsim::damerau_levenshtein(reason.as_str(), word);
        let nearest = Reason::ALL.iter().min_by_key(distance);
        nearest.map_or_else(String::new, |nearest| format!("no such reason: did you mean {nearest}?"))
    })
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime_serde::re::humantime::parse_duration(text)
        .map_err(|error| format!("expected a duration like 15m or 1h: {error}"))
}

pub(crate) fn ttl(text: &str) -> Result<Duration, String> {
    let ttl = duration(text)?;
    if ttl < Duration::from_secs(1) { Err("expected at least 1s".into()) } else { Ok(ttl) }
}

/// The length of a quota's window, in seconds.
pub(crate) fn window(text: &str) -> Result<i32, String> {
    let window = duration(text)?;
    let seconds = i32::try_from(window.as_secs()).unwrap_or(i32::MAX);
    if window.subsec_nanos() > 0 || seconds == 0 {
        Err("expected whole seconds, at least 1s".into())
    } else if seconds > usage_control::LONGEST_WINDOW {
        Err("expected at most 31 days".into())
    } else {
        Ok(seconds)
    }
}

/// RFC 3339 as microseconds since the Unix epoch.
pub(crate) fn time(text: &str) -> Result<i64, String> {
    Timestamp::parse(text)
        .map(Timestamp::micros)
        .map_err(|error| format!("{error}, e.g. 2026-01-31T00:00:00Z"))
}

pub(crate) fn timestamp(text: &str) -> Result<Timestamp, String> {
    time(text).map(Timestamp::from_micros)
}

/// The rules of a usage type, or `@` and a file that has them.
pub(crate) fn rules(text: &str) -> Result<Rules, String> {
    let json = match text.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?,
        None => text.to_owned(),
    };
    // A member that stands twice would be lost silently.
    strict_json::parse(&json).map_err(|error| error.to_string())?;
    Rules::from_text(&json).map_err(|error| match wrong_member(&json) {
        Some(member) => format!("{member}: {error}"),
        None => error.to_string(),
    })
}

/// The first member that is not taken by itself, where serde tells a place only.
fn wrong_member(json: &str) -> Option<String> {
    let members: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json).ok()?;
    members.into_iter().find_map(|(name, value)| {
        let alone = serde_json::Map::from_iter([(name.clone(), value)]);
        Rules::from_text(&serde_json::Value::Object(alone).to_string()).is_err().then_some(name)
    })
}

/// A key in hex, at least 16 bytes. The message never repeats the text.
pub(crate) fn hex(text: &str) -> Result<SecretSlice<u8>, String> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err("expected an even number of hex digits".into());
    }
    let digit = |byte: u8| {
        char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok()).unwrap_or_default()
    };
    let key: Vec<u8> = digits.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect();
    if key.len() < 16 { Err("expected at least 16 bytes".into()) } else { Ok(key.into()) }
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn hex_goes_both_ways() {
        let text = "00ff10a5deadbeef0123456789ABCDEF";
        let key = hex(text).unwrap();
        assert_eq!(key.expose_secret()[..5], [0, 255, 16, 165, 222]);
        assert_eq!(to_hex(key.expose_secret()), text.to_lowercase());
    }

    #[test]
    fn scopes_are_read_as_words() {
        assert_eq!(scopes("usage:types  usage:read").unwrap().to_string(), "usage:read usage:types");
        assert!(scopes("").unwrap().is_empty());
        assert!(scopes("usage:read admin").is_err());
    }

    #[test]
    fn times_are_microseconds() {
        assert_eq!(time("1970-01-01T00:00:01.5Z"), Ok(1_500_000));
        assert!(time("1970-01-01").is_err());
    }
}
