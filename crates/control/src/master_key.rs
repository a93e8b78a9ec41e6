//! Master keys: a source's signing key lies in the database only sealed under one.
//!
//! AES-256-GCM with a random nonce; the associated data are source and key id, so that a sealed key moved to another row does not
//! open there. A master key has an id that follows from its bytes: whoever reads a row knows which key he lacks, and nobody can
//! give two keys one id.

use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::hmac;
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use usage_service::config::DatabaseConfig;

use crate::ControlError;

const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 16;
/// First byte of everything sealed, so that another way of sealing can be told from this one.
const VERSION: u8 = 1;

const SETTING: &str = "control_database.master_key";
const FILE_SETTING: &str = "control_database.master_key_file";
const OTHER_SETTING: &str = "control_database.other_master_key";
const OTHER_FILE_SETTING: &str = "control_database.other_master_key_file";

struct MasterKey {
    id: String,
    key: RandomizedNonceKey,
}

/// The master key under which keys are sealed, and perhaps another one with which they are opened too. Clones share them.
#[derive(Clone)]
pub struct MasterKeys {
    current: Arc<MasterKey>,
    other: Option<Arc<MasterKey>>,
}

impl std::fmt::Debug for MasterKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let other = self.other.as_ref().map(|key| &key.id);
        f.debug_struct("MasterKeys").field("current", &self.current.id).field("other", &other).finish()
    }
}

/// A source key as it lies in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub master_key_id: String,
    pub bytes: Vec<u8>,
}

impl MasterKeys {
    /// Master keys out of 64 hex digits each.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] names the setting, and never repeats the digits.
    pub fn new(current: &SecretString, other: Option<&SecretString>) -> Result<Self, ControlError> {
        let current = Arc::new(MasterKey::parse(SETTING, current)?);
        let other = other.map(|key| MasterKey::parse(OTHER_SETTING, key)).transpose()?.map(Arc::new);
        Ok(Self { current, other })
    }

    /// Those that the configuration names, in itself or as files; `None` if it names none.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] names the setting; [`ControlError::MasterKeyFile`].
    pub fn configured(config: &DatabaseConfig) -> Result<Option<Self>, ControlError> {
        let current =
            text((SETTING, config.master_key.as_ref()), (FILE_SETTING, config.master_key_file.as_deref()))?;
        let other = text(
            (OTHER_SETTING, config.other_master_key.as_ref()),
            (OTHER_FILE_SETTING, config.other_master_key_file.as_deref()),
        )?;
        match current {
            Some(current) => Self::new(&current, other.as_ref()).map(Some),
            None if other.is_some() => {
                Err(ControlError::invalid(OTHER_SETTING, format!("only beside {SETTING}")))
            }
            None => Ok(None),
        }
    }

    /// Id of the key under which is sealed: 16 hex digits.
    pub fn current_id(&self) -> &str {
        &self.current.id
    }

    /// Ids of all keys with which is opened.
    pub(crate) fn ids(&self) -> Vec<String> {
        std::iter::once(&self.current).chain(&self.other).map(|key| key.id.clone()).collect()
    }

    pub(crate) fn seal(
        &self,
        source: &str,
        key_id: &str,
        key: &SecretSlice<u8>,
    ) -> Result<Sealed, ControlError> {
        let key = key.expose_secret();
        // Room for the tag: growing would leave a copy of the key behind.
        let mut text = Vec::with_capacity(key.len() + TAG_BYTES);
        text.extend_from_slice(key);
        let nonce = self
            .current
            .key
            .seal_in_place_append_tag(Aad::from(associated(source, key_id)), &mut text)
            .map_err(|_| ControlError::Seal)?;
        let mut bytes = Vec::with_capacity(1 + NONCE_LEN + text.len());
        bytes.push(VERSION);
        bytes.extend_from_slice(nonce.as_ref());
        bytes.extend_from_slice(&text);
        Ok(Sealed { master_key_id: self.current.id.clone(), bytes })
    }

    pub(crate) fn open(
        &self,
        source: &str,
        key_id: &str,
        sealed: Sealed,
    ) -> Result<SecretSlice<u8>, ControlError> {
        let Sealed { master_key_id, bytes } = sealed;
        let keys = std::iter::once(&self.current).chain(&self.other);
        let Some(master) = keys.into_iter().find(|key| key.id == master_key_id) else {
            return Err(ControlError::OtherMasterKey {
                source_name: source.into(),
                key_id: key_id.into(),
                sealed_under: master_key_id,
                have: self.current.id.clone(),
            });
        };
        let broken = || ControlError::BrokenSeal { source_name: source.into(), key_id: key_id.into() };
        let (version, rest) = bytes.split_first().ok_or_else(broken)?;
        let (nonce, text) = rest.split_at_checked(NONCE_LEN).ok_or_else(broken)?;
        if *version != VERSION {
            return Err(broken());
        }
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| broken())?;
        let mut text = text.to_vec();
        let opened = master
            .key
            .open_in_place(nonce, Aad::from(associated(source, key_id)), &mut text)
            .map_err(|_| broken())?;
        let key = SecretSlice::from(opened.to_vec());
        opened.fill(0);
        Ok(key)
    }
}

impl MasterKey {
    fn parse(setting: &'static str, text: &SecretString) -> Result<Self, ControlError> {
        let wrong = || ControlError::invalid(setting, format!("expected {KEY_BYTES} bytes in hex"));
        let digits = text.expose_secret().trim().as_bytes();
        if digits.len() != 2 * KEY_BYTES {
            return Err(wrong());
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
        let bytes: Option<Vec<u8>> = digits.chunks_exact(2).map(byte).collect();
        let bytes = SecretSlice::from(bytes.ok_or_else(wrong)?);
        let bytes = bytes.expose_secret();
        let key = RandomizedNonceKey::new(&AES_256_GCM, bytes).map_err(|_| ControlError::Seal)?;
        Ok(Self { id: id_of(bytes), key })
    }
}

/// Says nothing about the key: it is the output of a keyed function of 32 random bytes.
fn id_of(key: &[u8]) -> String {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), b"id of a usage collector's master key");
    tag.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Each part after its length, so that no two pairs read the same.
fn associated(source: &str, key_id: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + source.len() + key_id.len());
    for part in [source, key_id] {
        bytes.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    bytes
}

/// A key's digits: given, or in a file.
fn text(
    given: (&'static str, Option<&SecretString>),
    file: (&'static str, Option<&Path>),
) -> Result<Option<SecretString>, ControlError> {
    match (given, file) {
        ((_, Some(_)), (file_setting, Some(_))) => {
            Err(ControlError::invalid(file_setting, format!("not together with {}", given.0)))
        }
        ((_, Some(text)), _) => Ok(Some(text.clone())),
        (_, (setting, Some(path))) => match std::fs::read_to_string(path) {
            Ok(text) => Ok(Some(SecretString::from(text))),
            Err(error) => Err(ControlError::MasterKeyFile { setting, path: path.into(), error }),
        },
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests;
