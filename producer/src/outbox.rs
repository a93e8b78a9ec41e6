//! The outbox in the source's database: its migrations and its names.

pub mod dead_letters;
mod repair;

use sqlx::{Connection, PgConnection, PgPool};

pub use self::repair::{Repair, RepairError, repair};

/// The migrations: plain SQL that psql runs as well (`producer/migrations`). Each one records its own version.
const MIGRATIONS: &[(i32, &str)] = &[
    (1, include_str!("../migrations/0001_outbox.sql")),
    (2, include_str!("../migrations/0002_usage_emit.sql")),
    (3, include_str!("../migrations/0003_completeness.sql")),
    (4, include_str!("../migrations/0004_source_quota.sql")),
];

/// Number of leaves of the outbox table; a leaf takes all rows of a minute in turn.
pub(crate) const SEGMENTS: i16 = 4;

/// Serialises migrations of several processes: "usageout" in ASCII.
const MIGRATION_LOCK: i64 = 0x7573_6167_656f_7574;

/// The outbox could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error("cannot run outbox migration {version}")]
    Migration {
        version: i32,
        #[source]
        source: sqlx::Error,
    },
    #[error("cannot reach the source database")]
    Database(#[from] sqlx::Error),
}

/// Installs the outbox and `usage_emit` in the first schema of the search path, or brings them up to date.
///
/// Safe when several processes start at once and when psql ran the files before; all in one transaction. The number of outbox partitions
/// of a new outbox is 4, or what `usage_outbox.partitions` is set to (for instance by the connection's options).
pub async fn migrate(pool: &PgPool) -> Result<(), MigrateError> {
    let mut connection = pool.acquire().await?;
    let mut tx = connection.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(MIGRATION_LOCK).execute(&mut *tx).await?;
    let done = applied(&mut tx).await?;
    for (version, sql) in MIGRATIONS.iter().filter(|(version, _)| !done.contains(version)) {
        sqlx::raw_sql(*sql)
            .execute(&mut *tx)
            .await
            .map_err(|source| MigrateError::Migration { version: *version, source })?;
        tracing::info!(version, "installed outbox migration");
    }
    tx.commit().await?;
    Ok(())
}

async fn applied(connection: &mut PgConnection) -> Result<Vec<i32>, sqlx::Error> {
    // Only the schema that the migrations would write into counts, not one further back in the search path.
    let exists: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'usage_outbox_migrations')",
    )
    .fetch_one(&mut *connection)
    .await?;
    if !exists {
        return Ok(Vec::new());
    }
    sqlx::query_scalar("SELECT version FROM usage_outbox_migrations").fetch_all(connection).await
}

/// Quotes a schema name and appends the dot; nothing for the search path's.
pub(crate) fn schema_prefix(schema: Option<&str>) -> String {
    schema.map(|name| format!("\"{}\".", name.replace('"', "\"\""))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_migration_records_its_version_and_they_ascend() {
        for (position, (version, sql)) in MIGRATIONS.iter().enumerate() {
            assert_eq!(usize::try_from(*version).unwrap(), position + 1);
            let record = format!("INSERT INTO usage_outbox_migrations (version) VALUES ({version});");
            assert!(sql.trim_end().ends_with(&record), "migration {version} ends without {record}");
        }
    }

    #[test]
    fn schema_names_are_quoted() {
        assert_eq!(schema_prefix(None), "");
        assert_eq!(schema_prefix(Some("Odd \"s")), "\"Odd \"\"s\".");
    }
}
