//! Under which name a subject is counted: never its own.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

/// How subjects become names of buckets.
#[derive(Clone, Default)]
pub struct Hashing(Option<Hmac<Sha256>>);

impl Hashing {
    /// With a key, nobody who reads the table can try out which subject a bucket belongs to.
    pub fn keyed(key: &[u8]) -> Self {
        // HMAC takes keys of any length.
        Self(Hmac::new_from_slice(key).ok())
    }

    /// `scope:seconds:hash`.
    pub fn bucket(&self, scope: &str, seconds: i64, subject: &str) -> String {
        format!("{scope}:{seconds}:{}", self.hex(subject))
    }

    pub fn digest(&self, subject: &str) -> [u8; 32] {
        match &self.0 {
            Some(keyed) => keyed.clone().chain_update(subject).finalize().into_bytes().into(),
            None => Sha256::digest(subject).into(),
        }
    }

    fn hex(&self, subject: &str) -> String {
        self.digest(subject).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl std::fmt::Debug for Hashing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Hashing(keyed)" } else { "Hashing(plain)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_has_the_scope_the_window_and_the_hash() {
        // SHA-256 of "abc" from FIPS 180-2, HMAC from RFC 4231, test case 2.
        assert_eq!(
            Hashing::default().bucket("api", 60, "abc"),
            "api:60:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            Hashing::keyed(b"Jefe").bucket("api", 1, "what do ya want for nothing?"),
            "api:1:5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }

    #[test]
    fn the_key_is_not_shown() {
        assert_eq!(format!("{:?}", Hashing::keyed(b"Jefe")), "Hashing(keyed)");
    }
}
