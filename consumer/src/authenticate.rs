//! Who made a message: the keys of the sources, and the check of a signature.

use std::collections::HashMap;

use usage_schemas::Reason;
use usage_schemas::signature::SigningKey;

struct Key {
    key: SigningKey,
    /// Microseconds since the Unix epoch; valid in [from, until).
    valid_from: i64,
    valid_until: Option<i64>,
}

/// The signing keys of all sources, as last read from the control database.
#[derive(Default)]
pub struct SourceKeys {
    by_source: HashMap<String, Vec<Key>>,
}

/// What is signed and by whom it says it is.
#[derive(Debug, Clone, Copy)]
pub struct Signed<'a> {
    pub source: &'a str,
    pub key_id: &'a str,
    pub signature: &'a [u8],
    pub message_key: &'a [u8],
    pub value: &'a [u8],
    /// The broker's time of the message, microseconds since the Unix epoch: it judges the key's validity.
    pub at: i64,
}

impl SourceKeys {
    /// Adds a key; validity in microseconds since the Unix epoch.
    pub fn add(&mut self, source: &str, key_id: &str, key: &[u8], valid_from: i64, valid_until: Option<i64>) {
        let key = Key { key: SigningKey::new(key_id, key), valid_from, valid_until };
        self.by_source.entry(source.to_string()).or_default().push(key);
    }

    /// True if any key of the source is known: bounds the values of metric labels.
    pub fn knows(&self, source: &str) -> bool {
        self.by_source.contains_key(source)
    }

    /// Checks the signature; the error says why it is refused.
    pub fn verify(&self, signed: &Signed<'_>) -> Result<(), (Reason, &'static str)> {
        let keys = self.by_source.get(signed.source).map(Vec::as_slice).unwrap_or_default();
        let mut of_id = keys.iter().filter(|key| key.key.key_id() == signed.key_id).peekable();
        if of_id.peek().is_none() {
            return Err((Reason::UnknownSource, "no such key of the source"));
        }
        let is_valid =
            |key: &&Key| key.valid_from <= signed.at && key.valid_until.is_none_or(|until| signed.at < until);
        let Some(key) = of_id.find(is_valid) else {
            return Err((Reason::UnknownSource, "the key was not valid at the broker's time"));
        };
        if key.key.verify(signed.message_key, signed.value, signed.signature) {
            Ok(())
        } else {
            Err((Reason::BadSignature, "the signature does not fit"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> SourceKeys {
        let mut keys = SourceKeys::default();
        keys.add("llm-gateway", "k1", b"first key of the source", 1_000, Some(2_000));
        keys.add("llm-gateway", "k2", b"second key of the source", 1_500, None);
        keys
    }

    fn check(source: &str, key_id: &str, key: &[u8], at: i64) -> Result<(), Reason> {
        let signature = SigningKey::new(key_id, key).sign(b"tenant", b"value");
        let signed = Signed {
            source,
            key_id,
            signature: signature.as_bytes(),
            message_key: b"tenant",
            value: b"value",
            at,
        };
        keys().verify(&signed).map_err(|(reason, _)| reason)
    }

    #[test]
    fn a_key_counts_from_its_begin_to_its_end_by_the_brokers_time() {
        let first = b"first key of the source".as_slice();
        for (at, expected) in [
            (999, Err(Reason::UnknownSource)),
            (1_000, Ok(())),
            (1_999, Ok(())),
            (2_000, Err(Reason::UnknownSource)),
        ] {
            assert_eq!(check("llm-gateway", "k1", first, at), expected, "at {at}");
        }
        assert_eq!(check("llm-gateway", "k2", b"second key of the source", i64::MAX), Ok(()));
    }

    #[test]
    fn a_foreign_key_or_source_is_refused() {
        assert_eq!(check("llm-gateway", "k2", b"first key of the source", 1_700), Err(Reason::BadSignature));
        assert_eq!(check("llm-gateway", "k3", b"first key of the source", 1_700), Err(Reason::UnknownSource));
        assert_eq!(check("mail", "k2", b"second key of the source", 1_700), Err(Reason::UnknownSource));
    }

    #[test]
    fn every_signed_part_counts() {
        let signing = SigningKey::new("k2", b"second key of the source");
        let signature = signing.sign(b"tenant", b"value");
        let signed = |message_key, value, signature| Signed {
            source: "llm-gateway",
            key_id: "k2",
            signature,
            message_key,
            value,
            at: 1_700,
        };
        let good = signature.as_bytes();
        assert!(keys().verify(&signed(b"tenant", b"value", good)).is_ok());
        assert!(keys().verify(&signed(b"tenanu", b"value", good)).is_err());
        assert!(keys().verify(&signed(b"tenant", b"valuf", good)).is_err());
        assert!(keys().verify(&signed(b"tenant", b"value", b"")).is_err());
        assert!(keys().verify(&signed(b"tenant", b"value", signature.to_uppercase().as_bytes())).is_err());
    }
}
