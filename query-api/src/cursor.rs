//! Page positions: opaque, signed, bound to the query and the tenant they were made for.
//!
//! A cursor is base64url of `version (1 byte) ‖ query hash (16) ‖ position as JSON ‖ tag (16)`; the tag is HMAC-SHA-256, cut to
//! 16 bytes, with a key that all instances share.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

const VERSION: u8 = 1;
const HASH: usize = 16;
const TAG: usize = 16;
/// No position is longer: the texts in a key have at most 128 bytes each.
const LONGEST: usize = 2_048;

/// Hash of everything that decides which rows a query has and how they are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryHash([u8; HASH]);

impl QueryHash {
    /// Hashes a canonical form: equal queries must serialise equally.
    pub fn of(route: &'static str, canonical: &impl Serialize) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(route.as_bytes());
        hasher.update([0]);
        // Serialising into memory fails only for types that JSON has no form for; ours have one, and an empty text would only
        // make cursors interchangeable within the route, never a wrong answer for another tenant.
        hasher.update(serde_json::to_vec(canonical).unwrap_or_default());
        let digest = hasher.finalize();
        let mut hash = [0; HASH];
        hash.copy_from_slice(&digest[..HASH]);
        Self(hash)
    }
}

/// Why a cursor is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    #[error("the cursor is damaged or was not made by this service")]
    Invalid,
    #[error("the cursor belongs to another query: repeat the parameters of the query that returned it")]
    OtherQuery,
}

/// Signs and verifies cursors.
#[derive(Clone)]
pub struct Cursors {
    keyed: Hmac<Sha256>,
}

impl Cursors {
    /// `key`: any secret text that all instances share.
    pub fn new(key: &[u8]) -> Self {
        Self { keyed: Hmac::new_from_slice(key).expect("HMAC takes keys of any length") }
    }

    /// The cursor of a position within a query.
    pub fn sign(&self, query: QueryHash, position: &impl Serialize) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&query.0);
        serde_json::to_writer(&mut bytes, position).expect("a position serialises into memory");
        let tag = self.keyed.clone().chain_update(&bytes).finalize().into_bytes();
        bytes.extend_from_slice(&tag[..TAG]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The position that a cursor of this query names.
    ///
    /// # Errors
    /// It was tampered with, was signed with another key, or belongs to another query or tenant.
    pub fn open<P: DeserializeOwned>(&self, query: QueryHash, cursor: &str) -> Result<P, CursorError> {
        if cursor.len() > LONGEST {
            return Err(CursorError::Invalid);
        }
        let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| CursorError::Invalid)?;
        let split =
            bytes.len().checked_sub(TAG).filter(|split| *split > 1 + HASH).ok_or(CursorError::Invalid)?;
        let (signed, tag) = bytes.split_at(split);
        self.keyed
            .clone()
            .chain_update(signed)
            .verify_truncated_left(tag)
            .map_err(|_| CursorError::Invalid)?;
        if signed[0] != VERSION {
            return Err(CursorError::Invalid);
        }
        if signed[1..=HASH] != query.0 {
            return Err(CursorError::OtherQuery);
        }
        serde_json::from_slice(&signed[1 + HASH..]).map_err(|_| CursorError::Invalid)
    }
}

impl std::fmt::Debug for Cursors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cursors")
    }
}

#[cfg(test)]
mod tests {
    use usage_storage::RowKey;

    use super::*;

    fn key() -> RowKey {
        RowKey { window_start: 1_717_000_000_000_001, metric: Some("tokens".to_owned()), ..RowKey::default() }
    }

    #[test]
    fn a_cursor_returns_the_position_to_the_microsecond() {
        let cursors = Cursors::new(b"shared");
        let query = QueryHash::of("aggregated", &("a", 1));
        let cursor = cursors.sign(query, &key());
        assert_eq!(Cursors::new(b"shared").open::<RowKey>(query, &cursor), Ok(key()));
    }

    #[test]
    fn every_altered_character_is_noticed() {
        let cursors = Cursors::new(b"shared");
        let query = QueryHash::of("raw", &"q");
        let cursor = cursors.sign(query, &key());
        for at in 0..cursor.len() {
            let mut altered = cursor.clone().into_bytes();
            altered[at] = if altered[at] == b'A' { b'B' } else { b'A' };
            let altered = String::from_utf8(altered).unwrap();
            assert_eq!(cursors.open::<RowKey>(query, &altered), Err(CursorError::Invalid), "{at}");
        }
        for end in 0..cursor.len() {
            assert_eq!(cursors.open::<RowKey>(query, &cursor[..end]), Err(CursorError::Invalid), "{end}");
        }
        for foreign in ["", "null", "AAAA", "é", &"A".repeat(5_000)] {
            assert_eq!(cursors.open::<RowKey>(query, foreign), Err(CursorError::Invalid), "{foreign}");
        }
    }

    #[test]
    fn another_key_or_query_is_refused() {
        let cursors = Cursors::new(b"shared");
        let query = QueryHash::of("raw", &"q");
        let cursor = cursors.sign(query, &key());
        assert_eq!(Cursors::new(b"other").open::<RowKey>(query, &cursor), Err(CursorError::Invalid));
        assert_eq!(cursors.open::<RowKey>(QueryHash::of("raw", &"r"), &cursor), Err(CursorError::OtherQuery));
        assert_eq!(
            cursors.open::<RowKey>(QueryHash::of("aggregated", &"q"), &cursor),
            Err(CursorError::OtherQuery)
        );
    }
}
