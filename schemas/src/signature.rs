//! Signatures of messages: lower-case hex HMAC-SHA-256 over key id, message key and value, each after its length as u32
//! big-endian.

use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Length of a signature in hex digits.
const HEX_DIGITS: usize = 64;

/// A source's signing key with its id; the keyed state is set up once. Cheap to clone.
#[derive(Clone)]
pub struct SigningKey {
    key_id: Arc<str>,
    /// Has the key and the key id in it already.
    state: Hmac<Sha256>,
}

impl SigningKey {
    /// Sets up the keyed state. Any length of key works; 32 random bytes are right.
    pub fn new(key_id: &str, key: &[u8]) -> Self {
        let mut state = Hmac::new_from_slice(key).expect("HMAC takes keys of any length");
        part(&mut state, key_id.as_bytes());
        Self { key_id: key_id.into(), state }
    }

    /// What the header `usage-key-id` says.
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// The header `usage-signature` of a message.
    pub fn sign(&self, message_key: &[u8], value: &[u8]) -> String {
        let tag = self.mac(message_key, value).finalize().into_bytes();
        let mut hex = String::with_capacity(HEX_DIGITS);
        for byte in tag {
            hex.push(char::from(HEX[usize::from(byte >> 4)]));
            hex.push(char::from(HEX[usize::from(byte & 15)]));
        }
        hex
    }

    /// Constant-time; false for anything that is not 64 lower-case hex digits.
    pub fn verify(&self, message_key: &[u8], value: &[u8], signature: &[u8]) -> bool {
        match unhex(signature) {
            Some(tag) => self.mac(message_key, value).verify_slice(&tag).is_ok(),
            None => false,
        }
    }

    fn mac(&self, message_key: &[u8], value: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.state.clone();
        part(&mut mac, message_key);
        part(&mut mac, value);
        mac
    }
}

/// Shows the id only: the state is a secret.
impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

fn part(mac: &mut Hmac<Sha256>, bytes: &[u8]) {
    mac.update(&(bytes.len() as u32).to_be_bytes());
    mac.update(bytes);
}

fn unhex(text: &[u8]) -> Option<[u8; HEX_DIGITS / 2]> {
    if text.len() != HEX_DIGITS {
        return None;
    }
    let mut bytes = [0; HEX_DIGITS / 2];
    for (byte, pair) in bytes.iter_mut().zip(text.as_chunks::<2>().0) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
