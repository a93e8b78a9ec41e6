//! The plugin as a whole: schema, server settings, and the two sides.

use std::sync::Arc;

use async_trait::async_trait;

use super::ClickHouseConfig;
use super::client::{CallError, Client, Profile};
use super::maintenance::ClickHouseMaintenance;
use super::rowbinary::RowReader;
use super::writer::ClickHouseWriter;
use super::{ClickHouseReader, migrate};
use crate::{Maintenance, Reader, Storage, StorageError, Writer};

/// Longest `http_receive_timeout` of the server's default profile, in seconds: a takeover waits that long for an insert whose
/// client froze half-way.
const LONGEST_RECEIVE_TIMEOUT: u64 = 10;

/// One ClickHouse server and one database on it.
#[derive(Clone)]
pub struct ClickHouseStorage {
    config: ClickHouseConfig,
    writer: Arc<ClickHouseWriter>,
    reader: Arc<ClickHouseReader>,
}

impl ClickHouseStorage {
    /// Makes the clients; nothing is sent yet.
    pub fn connect(config: ClickHouseConfig) -> Self {
        let writer = Arc::new(ClickHouseWriter::new(&config));
        let reader = Arc::new(ClickHouseReader::new(&config));
        Self { config, writer, reader }
    }
}

#[async_trait]
impl Storage for ClickHouseStorage {
    async fn migrate(&self) -> Result<(), StorageError> {
        migrate::migrate(&Client::new(&self.config, Profile::Maintenance), &self.config.database).await
    }

    async fn check(&self) -> Result<(), StorageError> {
        let writer = Client::new(&self.config, Profile::Writer);
        migrate::verify(&writer).await?;
        check_receive_timeout(&writer).await?;
        check_profiles(&self.config, &writer).await
    }

    fn writer(&self) -> Arc<dyn Writer> {
        Arc::clone(&self.writer) as Arc<dyn Writer>
    }

    fn reader(&self) -> Arc<dyn Reader> {
        Arc::clone(&self.reader) as Arc<dyn Reader>
    }

    fn maintenance(&self) -> Arc<dyn Maintenance> {
        Arc::new(ClickHouseMaintenance::new(&self.config))
    }
}

/// The setting counts only in the default profile: there the server reads it for a connection that has no user yet.
async fn check_receive_timeout(client: &Client) -> Result<(), StorageError> {
    let sql = "SELECT max(toUInt64OrZero(toString(value))) FROM system.settings_profile_elements \
               WHERE profile_name = 'default' AND setting_name = 'http_receive_timeout'";
    let seconds = match client.fetch(sql).await {
        Ok(bytes) => RowReader::new(&bytes).nullable(RowReader::u64).unwrap_or_default(),
        Err(CallError::Exception { code, message }) => {
            // Without the right to see profiles this can't be told; the value of one's own session is the next best.
            tracing::debug!(code, message, "profiles can't be seen");
            Some(setting(client, "http_receive_timeout").await?)
        }
        Err(error) => return Err(error.into()),
    };
    match seconds {
        Some(seconds) if (1..=LONGEST_RECEIVE_TIMEOUT).contains(&seconds) => Ok(()),
        found => Err(StorageError::Config(format!(
            "http_receive_timeout must be set to 1 to {LONGEST_RECEIVE_TIMEOUT} seconds in the server's default profile (found {found:?})"
        ))),
    }
}

/// Readers must not starve writers, must not write, and must not take the server's memory.
async fn check_profiles(config: &ClickHouseConfig, writer: &Client) -> Result<(), StorageError> {
    let reader = Client::new(config, Profile::Reader);
    let (writing, reading) = (setting(writer, "priority").await?, setting(&reader, "priority").await?);
    if writing == 0 || writing >= reading {
        return Err(StorageError::Config(format!(
            "priority of the writing user ({writing}) must be set, and less than that of the reading user ({reading})"
        )));
    }
    if setting(&reader, "readonly").await? == 0 {
        return Err(StorageError::Config("the reading user's profile must set readonly = 2".into()));
    }
    if setting(&reader, "max_memory_usage").await? == 0 {
        return Err(StorageError::Config("the reading user's profile must set max_memory_usage".into()));
    }
    Ok(())
}

async fn setting(client: &Client, name: &str) -> Result<u64, StorageError> {
    let sql = format!(
        "SELECT toUInt64OrZero(value) FROM system.settings WHERE name = {}",
        super::client::literal(name)
    );
    let bytes = client.fetch(&sql).await?;
    Ok(RowReader::new(&bytes).u64()?)
}
