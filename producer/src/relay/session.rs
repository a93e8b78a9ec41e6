//! Connections of the relay to the source's database, and what they are connected to.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use usage_service::config::DatabaseConfig;
use usage_service::error_chain;
use usage_service::postgres::lacks_tables;

use super::RelayError;

/// How long a statement may take before the connection counts as lost. A scan of a large outbox on a loaded server takes a second or two.
pub(crate) const STATEMENT: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(10);

/// One start of one server on one timeline. What was learnt of ids holds for it and for no other: after a restart a prepared
/// transaction has another virtual id, and a promoted standby may hand out ids again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerId {
    started_micros: i64,
    timeline: String,
}

impl std::fmt::Display for ServerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.timeline, self.started_micros)
    }
}

/// The columns that make a [`ServerId`]. The timeline of the log's own position, since that of the last checkpoint lags behind a promotion.
/// A standby has none: there the function raises, and the relay looks for the primary again.
pub(crate) const SERVER_COLUMNS: &str = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, \
     substring(pg_walfile_name(pg_current_wal_lsn()) FOR 8)";

impl ServerId {
    /// The values of [`SERVER_COLUMNS`].
    pub(crate) fn columns(&self) -> (i64, &str) {
        (self.started_micros, &self.timeline)
    }
}

impl From<(i64, String)> for ServerId {
    fn from((started_micros, timeline): (i64, String)) -> Self {
        Self { started_micros, timeline }
    }
}

/// Where and how to connect.
#[derive(Clone)]
pub(crate) struct Database {
    options: PgConnectOptions,
    schema: Option<String>,
}

impl Database {
    pub(crate) fn new(database: &DatabaseConfig, schema: Option<&str>) -> Result<Self, RelayError> {
        let options = database
            .options()
            .map_err(|error| RelayError::Config(format!("source_database.url {error}")))?
            .application_name("usage-relay");
        Ok(Self { options, schema: schema.map(Into::into) })
    }

    /// A connection for leases, locks and housekeeping.
    pub(crate) async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        // Read committed, whatever the database's default is: TRUNCATE of an empty leaf has to look after it has its lock.
        self.open("SET jit = off; SET default_transaction_isolation = 'read committed'").await
    }

    /// A connection that walks the outbox. A leaf that autoanalyze found empty tempts the planner into plans that read the whole leaf, so
    /// only index scans and hash joins are left to it; the costs that this adds would wake JIT.
    pub(crate) async fn connect_scanner(&self) -> Result<PgConnection, sqlx::Error> {
        self.open(
            "SET jit = off; SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_nestloop = off; \
             SET default_transaction_isolation = 'read committed'",
        )
        .await
    }

    async fn open(&self, settings: &'static str) -> Result<PgConnection, sqlx::Error> {
        let connect = async {
            let mut connection = PgConnection::connect_with(&self.options).await?;
            sqlx::raw_sql(settings).execute(&mut connection).await?;
            if let Some(schema) = &self.schema {
                sqlx::query("SELECT set_config('search_path', quote_ident($1), false)")
                    .bind(schema)
                    .execute(&mut connection)
                    .await?;
            }
            Ok(connection)
        };
        tokio::time::timeout(CONNECT, connect).await.unwrap_or_else(|_| Err(late()))
    }
}

/// Runs one statement or transaction with a bound: a server that went away without a word must not hold a lease's owner for ever.
pub(crate) async fn bounded<T>(
    bound: Duration,
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    tokio::time::timeout(bound, work).await.unwrap_or_else(|_| Err(late()))
}

/// What is logged and shown of an error: also what to do, where the outbox is not what this version needs.
pub(crate) fn reason(error: &sqlx::Error) -> String {
    let chain = error_chain(error);
    if lacks_tables(error) {
        return format!(
            "the outbox lacks what this version needs (run `usagectl outbox migrate`), or `source_database` or \
             `relay.schema` names another place: {chain}"
        );
    }
    chain
}

fn late() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "the database did not answer in time"))
}

/// Asks what the connection leads to.
pub(crate) async fn server_id(connection: &mut PgConnection) -> Result<ServerId, sqlx::Error> {
    let sql = sqlx::AssertSqlSafe(format!("SELECT {SERVER_COLUMNS}"));
    let row: (i64, String) = bounded(STATEMENT, sqlx::query_as(sql).fetch_one(connection)).await?;
    Ok(row.into())
}
