//! Signatures of messages: lower-case hex HMAC-SHA-256 over key id, message key and value, each after its length as u32
//! big-endian.

/// A source's signing key with its id; the keyed state is set up once.
#[derive(Clone)]
pub struct SigningKey;

impl SigningKey {
    pub fn new(_key_id: &str, _key: &[u8]) -> Self {
        unimplemented!()
    }

    pub fn key_id(&self) -> &str {
        unimplemented!()
    }

    pub fn sign(&self, _message_key: &[u8], _value: &[u8]) -> String {
        unimplemented!()
    }

    /// Constant-time; false for anything that is not 64 lower-case hex digits.
    pub fn verify(&self, _message_key: &[u8], _value: &[u8], _signature: &[u8]) -> bool {
        unimplemented!()
    }
}
