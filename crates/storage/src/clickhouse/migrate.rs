//! Numbered migrations with checksums.
//!
//! ClickHouse has no lock that several starting processes could share, so none is needed: every statement may be run again
//! without effect (`IF NOT EXISTS`), a migration's row is written after its statements, and the rows are read back. Two
//! processes that run the same migration at once leave two equal rows; two that disagree about it both see two checksums
//! and both refuse to work.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::client::{Client, identifier, literal};
use super::rowbinary::RowReader;
use crate::StorageError;

/// A numbered file of statements that end with `;` at the end of a line.
struct Migration {
    version: u32,
    name: &'static str,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "fences",
        sql: include_str!("../../migrations/clickhouse/0001_fences.sql"),
    },
    Migration {
        version: 2,
        name: "records",
        sql: include_str!("../../migrations/clickhouse/0002_records.sql"),
    },
    Migration {
        version: 3,
        name: "rollups",
        sql: include_str!("../../migrations/clickhouse/0003_rollups.sql"),
    },
];

const DDL_TIMEOUT: Duration = Duration::from_secs(60);

/// Code 57, TABLE_ALREADY_EXISTS: two processes made the same table in the same moment.
const ALREADY_EXISTS: u32 = 57;

impl Migration {
    fn checksum(&self) -> String {
        let mut hex = String::with_capacity(64);
        for byte in Sha256::digest(self.sql.as_bytes()) {
            write!(hex, "{byte:02x}").expect("writing to a String");
        }
        hex
    }

    fn statements(&self) -> impl Iterator<Item = &'static str> {
        self.sql.split(";\n").map(str::trim).filter(|statement| !statement.is_empty())
    }
}

/// Brings the schema up to date.
pub(crate) async fn migrate(client: &Client, database: &str) -> Result<(), StorageError> {
    let client = client.clone().with_timeout(DDL_TIMEOUT);
    client
        .clone()
        .with_database("default")
        .execute(&format!("CREATE DATABASE IF NOT EXISTS {}", identifier(database)))
        .await?;
    execute(
        &client,
        "CREATE TABLE IF NOT EXISTS usage_migrations (version UInt32, name String, checksum String, \
         applied_at DateTime64(6, 'UTC') DEFAULT now64(6)) ENGINE = MergeTree ORDER BY version \
         SETTINGS fsync_after_insert = 1, fsync_part_directory = 1",
    )
    .await?;
    let applied = applied(&client).await?;
    compare(&applied)?;
    for migration in MIGRATIONS.iter().filter(|migration| !applied.contains_key(&migration.version)) {
        tracing::info!(version = migration.version, name = migration.name, database, "migrating storage");
        for statement in migration.statements() {
            execute(&client, statement).await?;
        }
        let insert = format!(
            "INSERT INTO usage_migrations (version, name, checksum) SETTINGS async_insert = 0 VALUES ({}, {}, {})",
            migration.version,
            literal(migration.name),
            literal(&migration.checksum())
        );
        client.execute(&insert).await?;
    }
    verify(&client).await
}

/// Fails unless exactly the migrations of this program are applied.
pub(crate) async fn verify(client: &Client) -> Result<(), StorageError> {
    let applied = applied(client).await?;
    compare(&applied)?;
    match MIGRATIONS.iter().find(|migration| !applied.contains_key(&migration.version)) {
        Some(missing) => Err(StorageError::Schema(format!(
            "migration {} ({}) is not applied",
            missing.version, missing.name
        ))),
        None => Ok(()),
    }
}

async fn execute(client: &Client, statement: &str) -> Result<(), StorageError> {
    match client.execute(statement).await {
        Err(super::client::CallError::Exception { code: ALREADY_EXISTS, .. }) => Ok(()),
        result => Ok(result?),
    }
}

/// Checksums by version; several processes may have written the same row.
async fn applied(client: &Client) -> Result<BTreeMap<u32, Vec<String>>, StorageError> {
    let bytes = client.fetch("SELECT DISTINCT version, checksum FROM usage_migrations").await?;
    let mut rows = RowReader::new(&bytes);
    let mut applied = BTreeMap::<u32, Vec<String>>::new();
    while !rows.is_empty() {
        let version = rows.u32()?;
        applied.entry(version).or_default().push(rows.str()?.to_owned());
    }
    Ok(applied)
}

fn compare(applied: &BTreeMap<u32, Vec<String>>) -> Result<(), StorageError> {
    for (version, checksums) in applied {
        let Some(migration) = MIGRATIONS.iter().find(|migration| migration.version == *version) else {
            return Err(StorageError::Schema(format!("migration {version} is newer than this program")));
        };
        if checksums.iter().any(|checksum| *checksum != migration.checksum()) {
            return Err(StorageError::Schema(format!(
                "migration {version} ({}) was changed after it was applied",
                migration.name
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_count_up_and_statements_may_run_again() {
        for (i, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(migration.version as usize, i + 1);
            assert!(migration.sql.ends_with(";\n"), "{}", migration.name);
            for statement in migration.statements() {
                assert!(
                    statement.contains("IF NOT EXISTS") || statement.contains("IF EXISTS"),
                    "{statement}"
                );
            }
        }
    }

    #[test]
    fn a_changed_or_newer_migration_is_refused() {
        let right = MIGRATIONS[0].checksum();
        assert!(compare(&BTreeMap::from([(1, vec![right.clone()])])).is_ok());
        assert!(compare(&BTreeMap::from([(1, vec!["0".repeat(64)])])).is_err());
        assert!(compare(&BTreeMap::from([(1, vec![right.clone(), "0".repeat(64)])])).is_err());
        assert!(compare(&BTreeMap::from([(9999, vec![right])])).is_err());
    }
}
