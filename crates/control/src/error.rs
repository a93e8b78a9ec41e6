//! What can go wrong with the control database.

use std::path::PathBuf;
use std::time::Duration;

use sqlx::migrate::MigrateError;
use usage_service::postgres::{lacks_tables, may_pass};
use usage_service::transport::AddressError;

/// A Display never repeats its source.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("the control database's url")]
    Address(#[from] AddressError),
    #[error("the control database failed")]
    Database(#[source] sqlx::Error),
    /// No migration has run, only those of an older version, or the address is another database's.
    #[error("the control database lacks what this version needs: run `usagectl control migrate`")]
    NotMigrated(#[source] sqlx::Error),
    #[error("the control database gave no answer within {0:?}")]
    Timeout(Duration),
    #[error("the control database could not be migrated")]
    Migrate(#[source] Box<MigrateError>),
    #[error("{field}: {detail}")]
    Invalid { field: &'static str, detail: String },
    #[error("key {key_id} of source {source_name} is another key already; take a new id")]
    KeyTaken { source_name: String, key_id: String },
    #[error("source {source_name} has no key {key_id}")]
    NoSourceKey { source_name: String, key_id: String },
    #[error(
        "setting `control_database.master_key` (or `control_database.master_key_file`) is missing: source keys are sealed under it"
    )]
    NoMasterKey,
    #[error("{setting}: {} can't be read", path.display())]
    MasterKeyFile {
        setting: &'static str,
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error(
        "key {key_id} of source {source_name} is sealed under master key {sealed_under}, and the one in \
         `control_database.master_key` is {have}"
    )]
    OtherMasterKey { source_name: String, key_id: String, sealed_under: String, have: String },
    #[error("key {key_id} of source {source_name} does not open under its master key: its row was changed")]
    BrokenSeal { source_name: String, key_id: String },
    #[error(
        "key {key_id} of source {source_name} lies in the clear: run `usagectl control migrate` with \
         `control_database.master_key`"
    )]
    ClearKey { source_name: String, key_id: String },
    #[error("a source key could not be sealed")]
    Seal,
    #[error("the control database has {recorded} as the topic's partition count, not {asked}")]
    OtherPartitionCount { recorded: i32, asked: i32 },
    #[error("the control database has no partition count yet: run usagectl topics create")]
    NoPartitionCount,
    #[error("the topic has {recorded} partitions, and Kafka can't take any away: {asked} is too few")]
    Shrinks { recorded: i32, asked: i32 },
    #[error(
        "growing to {begun} partitions was begun: finish it with `usagectl topics grow --partitions {begun}`"
    )]
    OtherGrowth { begun: i32, asked: i32 },
    #[error("the topic is not growing to {0} partitions")]
    NotGrowing(i32),
    #[error(
        "the control database belongs to `consumer.group` {group} and `kafka.records_topic` {topic}: their progress is \
         not that of any other"
    )]
    OtherWorkers { group: String, topic: String },
    #[error("partition {0} has no progress row: it was not taken over")]
    NoProgress(i32),
    #[error("there is no {}source {source_name}", outbox.map_or_else(String::new, |outbox| format!("outbox {outbox} of ")))]
    NoSource { source_name: String, outbox: Option<uuid::Uuid> },
    #[error("partition {0} comes twice in one call")]
    PartitionTwice(i32),
    #[error("the control database holds a value that this program does not know: {0}")]
    Unknown(String),
}

impl ControlError {
    /// True when the same call may succeed later: the server is away, busy, in failover or another transaction was in the way.
    /// After a true the call may have been carried out all the same.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Database(error) => may_pass(error),
            Self::Timeout(_) => true,
            Self::Migrate(error) => match &**error {
                MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => may_pass(error),
                _ => false,
            },
            _ => false,
        }
    }

    /// True when the configured master keys are not those that the database's keys need: no wait helps, only another configuration.
    pub fn is_about_master_keys(&self) -> bool {
        matches!(self, Self::NoMasterKey | Self::MasterKeyFile { .. } | Self::OtherMasterKey { .. })
    }

    /// A field that breaks its bound.
    pub(crate) fn invalid(field: &'static str, detail: impl Into<String>) -> Self {
        Self::Invalid { field, detail: detail.into() }
    }
}

impl From<sqlx::Error> for ControlError {
    fn from(error: sqlx::Error) -> Self {
        if lacks_tables(&error) { Self::NotMigrated(error) } else { Self::Database(error) }
    }
}

impl From<MigrateError> for ControlError {
    fn from(error: MigrateError) -> Self {
        Self::Migrate(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_what_happens_on_the_way() {
        let broken = sqlx::Error::Io(std::io::ErrorKind::ConnectionRefused.into());
        assert!(ControlError::Database(broken).may_pass());
        assert!(ControlError::Timeout(Duration::from_secs(1)).may_pass());
        assert!(!ControlError::Database(sqlx::Error::RowNotFound).may_pass());
        assert!(!ControlError::NoPartitionCount.may_pass());
        let away = MigrateError::Execute(sqlx::Error::Io(std::io::ErrorKind::BrokenPipe.into()));
        assert!(ControlError::from(away).may_pass());
        assert!(!ControlError::from(MigrateError::VersionMismatch(1)).may_pass());
    }
}
