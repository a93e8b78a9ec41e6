//! The keys with which sources sign.

use secrecy::{ExposeSecret, SecretSlice};
use sqlx::FromRow;
use time::OffsetDateTime;
use usage_service::clock;

use crate::{Control, ControlError};

/// Least length of a signing key in bytes: shorter ones can be guessed.
const KEY_BYTES: usize = 16;
/// Greatest length of a key id in bytes; it travels in a header of each message.
const KEY_ID_BYTES: usize = 128;

/// A signing key of a source.
#[derive(Debug, Clone)]
pub struct SourceKey {
    pub source: String,
    pub key_id: String,
    pub key: SecretSlice<u8>,
    /// Microseconds since the Unix epoch, by the broker's clock; inclusive.
    pub valid_from: i64,
    /// Exclusive; `None` is for ever.
    pub valid_until: Option<i64>,
}

/// What became of a key that was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    Created,
    /// The key was there; its validity is now the one given.
    Updated,
}

#[derive(FromRow)]
struct Row {
    source: String,
    key_id: String,
    key: Vec<u8>,
    valid_from: OffsetDateTime,
    valid_until: Option<OffsetDateTime>,
}

impl From<Row> for SourceKey {
    fn from(row: Row) -> Self {
        Self {
            source: row.source,
            key_id: row.key_id,
            key: SecretSlice::from(row.key),
            valid_from: clock::to_micros(row.valid_from),
            valid_until: row.valid_until.map(clock::to_micros),
        }
    }
}

impl SourceKey {
    fn validate(&self) -> Result<(), ControlError> {
        usage_schemas::validate::name("source", &self.source)
            .map_err(|invalid| ControlError::invalid("source", invalid.detail))?;
        let visible = self.key_id.bytes().all(|byte| byte.is_ascii_graphic());
        if self.key_id.is_empty() || self.key_id.len() > KEY_ID_BYTES || !visible {
            let detail = format!("1 to {KEY_ID_BYTES} visible ASCII characters");
            return Err(ControlError::invalid("key_id", detail));
        }
        if self.key.expose_secret().len() < KEY_BYTES {
            return Err(ControlError::invalid("key", format!("at least {KEY_BYTES} bytes")));
        }
        if self.valid_until.is_some_and(|until| until <= self.valid_from) {
            return Err(ControlError::invalid("valid_until", "must be after valid_from"));
        }
        Ok(())
    }

    /// Whether the key may sign a message with this timestamp of the broker (microseconds since the Unix epoch).
    pub fn is_valid_at(&self, micros: i64) -> bool {
        self.valid_from <= micros && self.valid_until.is_none_or(|until| micros < until)
    }
}

impl Control {
    /// Adds a key, or changes the validity of one that is there.
    ///
    /// # Errors
    /// [`ControlError::KeyTaken`] when the id names another key; [`ControlError::Invalid`]; what the database says.
    pub async fn put_source_key(&self, key: &SourceKey) -> Result<Placed, ControlError> {
        key.validate()?;
        self.within(async {
            let created: Option<bool> = sqlx::query_scalar(
                "INSERT INTO source_keys (source, key_id, key, valid_from, valid_until) VALUES ($1, $2, $3, $4, $5)
                 ON CONFLICT (source, key_id) DO UPDATE
                 SET valid_from = excluded.valid_from, valid_until = excluded.valid_until
                 WHERE source_keys.key = excluded.key
                 RETURNING xmax = 0",
            )
            .bind(&key.source)
            .bind(&key.key_id)
            .bind(key.key.expose_secret())
            .bind(clock::from_micros(key.valid_from))
            .bind(key.valid_until.map(clock::from_micros))
            .fetch_optional(&self.pool)
            .await?;
            match created {
                Some(true) => Ok(Placed::Created),
                Some(false) => Ok(Placed::Updated),
                None => {
                    Err(ControlError::KeyTaken { source_name: key.source.clone(), key_id: key.key_id.clone() })
                }
            }
        })
        .await
    }

    /// All keys, also those whose validity has ended, ascending by source and key id.
    ///
    /// # Errors
    /// What the database says.
    pub async fn source_keys(&self) -> Result<Vec<SourceKey>, ControlError> {
        self.within(async {
            let rows: Vec<Row> = sqlx::query_as(
                "SELECT source, key_id, key, valid_from, valid_until FROM source_keys ORDER BY source, key_id",
            )
            .fetch_all(&self.pool)
            .await?;
            Ok(rows.into_iter().map(SourceKey::from).collect())
        })
        .await
    }

    /// One key, whatever its validity.
    ///
    /// # Errors
    /// What the database says.
    pub async fn source_key(&self, source: &str, key_id: &str) -> Result<Option<SourceKey>, ControlError> {
        self.within(async {
            let row: Option<Row> = sqlx::query_as(
                "SELECT source, key_id, key, valid_from, valid_until FROM source_keys
                 WHERE source = $1 AND key_id = $2",
            )
            .bind(source)
            .bind(key_id)
            .fetch_optional(&self.pool)
            .await?;
            Ok(row.map(SourceKey::from))
        })
        .await
    }

    /// The names of all sources that have a key, ascending.
    ///
    /// # Errors
    /// What the database says.
    pub async fn sources(&self) -> Result<Vec<String>, ControlError> {
        self.within(async {
            let names = sqlx::query_scalar("SELECT DISTINCT source FROM source_keys ORDER BY source");
            Ok(names.fetch_all(&self.pool).await?)
        })
        .await
    }
}
