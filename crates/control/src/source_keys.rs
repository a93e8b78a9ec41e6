//! The keys with which sources sign. In the database they lie sealed under a master key (see [`crate::MasterKeys`]).

use aws_lc_rs::constant_time::verify_slices_are_equal;
use secrecy::{ExposeSecret, SecretSlice};
use sqlx::{FromRow, PgConnection};
use time::OffsetDateTime;
use usage_service::clock;

use crate::master_key::Sealed;
use crate::{Control, ControlError, MasterKeys};

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

/// What may be shown of a signing key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceKeyInfo {
    pub source: String,
    pub key_id: String,
    /// Microseconds since the Unix epoch, by the broker's clock; inclusive.
    pub valid_from: i64,
    /// Exclusive; `None` is for ever.
    pub valid_until: Option<i64>,
    /// Microseconds since the Unix epoch, by the database's clock.
    pub created_at: i64,
    /// Id of the master key under which it is sealed; `None` for one that still lies in the clear.
    pub master_key_id: Option<String>,
}

/// What became of a key that was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    Created,
    /// The key was there; its validity is now the one given.
    Updated,
}

/// What a revocation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revoked {
    /// It ends at this time, microseconds since the Unix epoch.
    Ends(i64),
    /// It had ended before, at this time: nothing was changed.
    HadEnded(i64),
    /// It would end before it begins, so it was taken away.
    Removed,
}

/// What sealing anew did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rewrapped {
    pub rewrapped: u64,
    /// Sealed under the present master key already.
    pub kept: u64,
}

#[derive(FromRow)]
struct Row {
    source: String,
    key_id: String,
    sealed: Option<Vec<u8>>,
    master_key_id: Option<String>,
    valid_from: OffsetDateTime,
    valid_until: Option<OffsetDateTime>,
    created_at: OffsetDateTime,
}

/// `key` is read by [`Control::migrate`] alone, to seal it.
const COLUMNS: &str = "source, key_id, sealed, master_key_id, valid_from, valid_until, created_at";

impl Row {
    fn open(self, masters: &MasterKeys) -> Result<SourceKey, ControlError> {
        let (Some(bytes), Some(master_key_id)) = (self.sealed, self.master_key_id) else {
            return Err(ControlError::ClearKey { source_name: self.source, key_id: self.key_id });
        };
        let key = masters.open(&self.source, &self.key_id, Sealed { master_key_id, bytes })?;
        Ok(SourceKey {
            source: self.source,
            key_id: self.key_id,
            key,
            valid_from: clock::to_micros(self.valid_from),
            valid_until: self.valid_until.map(clock::to_micros),
        })
    }
}

impl From<Row> for SourceKeyInfo {
    fn from(row: Row) -> Self {
        Self {
            source: row.source,
            key_id: row.key_id,
            valid_from: clock::to_micros(row.valid_from),
            valid_until: row.valid_until.map(clock::to_micros),
            created_at: clock::to_micros(row.created_at),
            master_key_id: row.master_key_id,
        }
    }
}

impl SourceKey {
    fn validate(&self) -> Result<(), ControlError> {
        crate::sources::check_name(&self.source)?;
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
    /// [`ControlError::KeyTaken`] when the id names another key; [`ControlError::Invalid`]; [`ControlError::OtherMasterKey`] when keys are
    /// there that the master keys don't open; what the database says.
    pub async fn put_source_key(&self, key: &SourceKey) -> Result<Placed, ControlError> {
        key.validate()?;
        let masters = self.master_keys()?;
        let sealed = masters.seal(&key.source, &key.key_id, &key.key)?;
        self.within(async {
            let mut transaction = self.pool.begin().await?;
            must_be_ours(&mut transaction, masters).await?;
            let insert = sqlx::query(
                "INSERT INTO source_keys (source, key_id, sealed, master_key_id, valid_from, valid_until)
                 VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
            );
            let inserted = insert
                .bind(&key.source)
                .bind(&key.key_id)
                .bind(&sealed.bytes)
                .bind(&sealed.master_key_id)
                .bind(clock::from_micros(key.valid_from))
                .bind(key.valid_until.map(clock::from_micros))
                .execute(&mut *transaction)
                .await?;
            if inserted.rows_affected() > 0 {
                transaction.commit().await?;
                return Ok(Placed::Created);
            }
            // Sealed twice a key does not look the same, so it is opened to be compared.
            let found = locked(&mut transaction, &key.source, &key.key_id).await?.open(masters)?;
            let same = verify_slices_are_equal(found.key.expose_secret(), key.key.expose_secret()).is_ok();
            if !same {
                return Err(ControlError::KeyTaken {
                    source_name: key.source.clone(),
                    key_id: key.key_id.clone(),
                });
            }
            let (from, until) = (Some(key.valid_from), key.valid_until);
            set_validity(&mut transaction, &key.source, &key.key_id, from, until).await?;
            transaction.commit().await?;
            Ok(Placed::Updated)
        })
        .await
    }

    /// All keys, also those whose validity has ended, ascending by source and key id. One that can't be opened fails them all: a key
    /// that is silently missing would turn its source's records into dead letters.
    ///
    /// # Errors
    /// What the master keys and the database say.
    pub async fn source_keys(&self) -> Result<Vec<SourceKey>, ControlError> {
        let masters = self.master_keys()?;
        self.within(async { self.key_rows().await?.into_iter().map(|row| row.open(masters)).collect() }).await
    }

    /// What may be shown of all keys, ascending by source and key id; needs no master key.
    ///
    /// # Errors
    /// What the database says.
    pub async fn source_key_infos(&self) -> Result<Vec<SourceKeyInfo>, ControlError> {
        self.within(async { Ok(self.key_rows().await?.into_iter().map(SourceKeyInfo::from).collect()) }).await
    }

    async fn key_rows(&self) -> Result<Vec<Row>, ControlError> {
        let select = format!("SELECT {COLUMNS} FROM source_keys ORDER BY source, key_id");
        Ok(sqlx::query_as(sqlx::AssertSqlSafe(select)).fetch_all(&self.pool).await?)
    }

    /// One key, whatever its validity.
    ///
    /// # Errors
    /// What the master keys and the database say.
    pub async fn source_key(&self, source: &str, key_id: &str) -> Result<Option<SourceKey>, ControlError> {
        let masters = self.master_keys()?;
        self.within(async {
            let select = format!("SELECT {COLUMNS} FROM source_keys WHERE source = $1 AND key_id = $2");
            let select = sqlx::query_as::<_, Row>(sqlx::AssertSqlSafe(select)).bind(source).bind(key_id);
            select.fetch_optional(&self.pool).await?.map(|row| row.open(masters)).transpose()
        })
        .await
    }

    /// Ends a key's validity at `at` (microseconds since the Unix epoch, by the broker's clock); never prolongs it.
    ///
    /// # Errors
    /// [`ControlError::NoSourceKey`]; [`ControlError::ClearKey`]; what the database says.
    pub async fn revoke_source_key(
        &self,
        source: &str,
        key_id: &str,
        at: i64,
    ) -> Result<Revoked, ControlError> {
        self.within(async {
            let mut transaction = self.pool.begin().await?;
            let row = locked(&mut transaction, source, key_id).await?;
            let ends = row.valid_until.map(clock::to_micros).filter(|until| *until <= at);
            if let Some(until) = ends {
                return Ok(Revoked::HadEnded(until));
            }
            if at <= clock::to_micros(row.valid_from) {
                let delete = sqlx::query("DELETE FROM source_keys WHERE source = $1 AND key_id = $2");
                delete.bind(source).bind(key_id).execute(&mut *transaction).await?;
                transaction.commit().await?;
                return Ok(Revoked::Removed);
            }
            row.must_be_sealed()?;
            set_validity(&mut transaction, source, key_id, None, Some(at)).await?;
            transaction.commit().await?;
            Ok(Revoked::Ends(at))
        })
        .await
    }

    /// Makes a revoked key valid without end again; false if it had no end.
    ///
    /// # Errors
    /// As [`Control::revoke_source_key`].
    pub async fn restore_source_key(&self, source: &str, key_id: &str) -> Result<bool, ControlError> {
        self.within(async {
            let mut transaction = self.pool.begin().await?;
            let row = locked(&mut transaction, source, key_id).await?;
            row.must_be_sealed()?;
            set_validity(&mut transaction, source, key_id, None, None).await?;
            transaction.commit().await?;
            Ok(row.valid_until.is_some())
        })
        .await
    }

    /// Seals under the present master key whatever is sealed under the other one, all or nothing.
    ///
    /// # Errors
    /// What the master keys and the database say.
    pub async fn rewrap_source_keys(&self) -> Result<Rewrapped, ControlError> {
        let masters = self.master_keys()?;
        self.within(async {
            let mut transaction = self.pool.begin().await?;
            let select = format!("SELECT {COLUMNS} FROM source_keys ORDER BY source, key_id FOR UPDATE");
            let rows: Vec<Row> =
                sqlx::query_as(sqlx::AssertSqlSafe(select)).fetch_all(&mut *transaction).await?;
            let mut done = Rewrapped::default();
            for row in rows {
                if row.master_key_id.as_deref() == Some(masters.current_id()) {
                    done.kept += 1;
                    continue;
                }
                let key = row.open(masters)?;
                seal(&mut transaction, masters, &key.source, &key.key_id, &key.key).await?;
                done.rewrapped += 1;
            }
            transaction.commit().await?;
            Ok(done)
        })
        .await
    }

    /// Seals the keys that an older version put into the database in the clear. Afterwards no row has one, which the database checks.
    pub(crate) async fn seal_clear_keys(&self, connection: &mut PgConnection) -> Result<(), ControlError> {
        let mut transaction = sqlx::Connection::begin(connection).await?;
        let rows: Vec<(String, String, Vec<u8>)> = sqlx::query_as(
            "SELECT source, key_id, key FROM source_keys WHERE key IS NOT NULL ORDER BY source, key_id FOR UPDATE",
        )
        .fetch_all(&mut *transaction)
        .await?;
        if !rows.is_empty() {
            let masters = self.master_keys()?;
            for (source, key_id, key) in rows {
                seal(&mut transaction, masters, &source, &key_id, &SecretSlice::from(key)).await?;
            }
        }
        sqlx::query("ALTER TABLE source_keys VALIDATE CONSTRAINT source_keys_sealed")
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }
}

impl Row {
    /// The database refuses to change a row that has a key in the clear; this says why.
    fn must_be_sealed(&self) -> Result<(), ControlError> {
        match self.sealed {
            Some(_) => Ok(()),
            None => {
                Err(ControlError::ClearKey { source_name: self.source.clone(), key_id: self.key_id.clone() })
            }
        }
    }
}

/// Refuses to add a key beside others that do not open with the same master keys: no consumer could read them all.
async fn must_be_ours(connection: &mut PgConnection, masters: &MasterKeys) -> Result<(), ControlError> {
    let select = format!(
        "SELECT {COLUMNS} FROM source_keys WHERE master_key_id <> ALL($1) ORDER BY source, key_id LIMIT 1"
    );
    let select = sqlx::query_as::<_, Row>(sqlx::AssertSqlSafe(select)).bind(masters.ids());
    match select.fetch_optional(connection).await? {
        Some(foreign) => foreign.open(masters).map(drop),
        None => Ok(()),
    }
}

async fn locked(connection: &mut PgConnection, source: &str, key_id: &str) -> Result<Row, ControlError> {
    let select = format!("SELECT {COLUMNS} FROM source_keys WHERE source = $1 AND key_id = $2 FOR UPDATE");
    let select = sqlx::query_as::<_, Row>(sqlx::AssertSqlSafe(select)).bind(source).bind(key_id);
    select
        .fetch_optional(connection)
        .await?
        .ok_or_else(|| ControlError::NoSourceKey { source_name: source.into(), key_id: key_id.into() })
}

/// `valid_from` stays as it is if it is `None`; the end is always set.
async fn set_validity(
    connection: &mut PgConnection,
    source: &str,
    key_id: &str,
    valid_from: Option<i64>,
    valid_until: Option<i64>,
) -> Result<(), ControlError> {
    let update = sqlx::query(
        "UPDATE source_keys SET valid_from = coalesce($3, valid_from), valid_until = $4
         WHERE source = $1 AND key_id = $2",
    );
    let update = update.bind(source).bind(key_id).bind(valid_from.map(clock::from_micros));
    update.bind(valid_until.map(clock::from_micros)).execute(connection).await?;
    Ok(())
}

async fn seal(
    connection: &mut PgConnection,
    masters: &MasterKeys,
    source: &str,
    key_id: &str,
    key: &SecretSlice<u8>,
) -> Result<(), ControlError> {
    let sealed = masters.seal(source, key_id, key)?;
    let update = sqlx::query(
        "UPDATE source_keys SET key = NULL, sealed = $3, master_key_id = $4 WHERE source = $1 AND key_id = $2",
    );
    let update = update.bind(source).bind(key_id).bind(sealed.bytes).bind(sealed.master_key_id);
    update.execute(connection).await?;
    Ok(())
}
