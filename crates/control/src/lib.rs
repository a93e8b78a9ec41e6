//! The control database: usage types, source keys, quotas, partition counts, and the progress of the consumer and of the sources.
//!
//! Everything is read from and written to the primary: a connection to a server in recovery is refused. Each call ends within
//! [`CALL_WITHIN`]; [`ControlError::may_pass`] tells what is worth another try.

mod completeness;
mod error;
mod gaps;
mod growing;
mod master_key;
mod partitions;
mod progress;
mod quota_counters;
mod quotas;
mod retired;
mod source_keys;
mod sources;
#[cfg(feature = "testing")]
pub mod testing;
mod topic_id;
mod types;
mod workers;

use std::future::Future;
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Connection};
use usage_service::config::DatabaseConfig;

pub use completeness::{Completeness, Forward, SourceComplete};
pub use error::ControlError;
pub use gaps::{Gap, Gaps};
pub use growing::READERS_RELOAD_WITHIN;
pub use master_key::MasterKeys;
pub use partitions::Partitions;
pub use progress::{Advance, Progress};
pub use quota_counters::{QuotaCounts, QuotaKey, QuotaUse};
pub use quotas::{LONGEST_WINDOW, Quota, QuotaRule, QuotaScope, Quotas};
pub use retired::OutboxProgress;
pub use source_keys::{Placed, Revoked, Rewrapped, SourceKey, SourceKeyInfo};
pub use sources::{Attribution, Source};
pub use types::{LEAD, NewUsageType, Registration, TypeFault};

/// How long one call may take, with the wait for a connection, as this process sees it (a frozen server answers nothing).
pub const CALL_WITHIN: Duration = Duration::from_secs(10);
/// How long the server lets one statement run.
const STATEMENT_WITHIN: Duration = Duration::from_secs(5);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long a migration may take, with the wait for other processes that migrate.
const MIGRATE_WITHIN: Duration = Duration::from_secs(120);
const CONNECTIONS: u32 = 8;

static MIGRATOR: Migrator = sqlx::migrate!();

/// Access to the control database. Clones share the connections.
#[derive(Clone)]
pub struct Control {
    pool: PgPool,
    options: PgConnectOptions,
    bounded: PgConnectOptions,
    master_keys: Option<MasterKeys>,
}

impl std::fmt::Debug for Control {
    /// Without the password, which the options would show.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control")
            .field("host", &self.options.get_host())
            .field("port", &self.options.get_port())
            .field("database", &self.options.get_database())
            .finish_non_exhaustive()
    }
}

impl Control {
    /// Connects and looks that the server answers and is the primary.
    ///
    /// # Errors
    /// [`ControlError::Address`] for what is no address or would be used in plaintext; what may pass when the server is away.
    pub async fn connect(database: &DatabaseConfig) -> Result<Self, ControlError> {
        let control = Self::connect_lazy(database)?;
        // Not by way of the pool: that tries a refused connection again until its time is over, and then knows no reason.
        let look = async {
            let mut connection = control.options.connect().await?;
            refuse_standby(&mut connection).await?;
            connection.close().await?;
            Ok::<(), ControlError>(())
        };
        tokio::time::timeout(CONNECT_WITHIN, look)
            .await
            .map_err(|_| ControlError::Timeout(CONNECT_WITHIN))??;
        Ok(control)
    }

    /// The database's clock, in microseconds since the Unix epoch: of the clocks at hand the one that all share.
    ///
    /// # Errors
    /// What the database says.
    pub async fn now(&self) -> Result<i64, ControlError> {
        let now = async { Ok(sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(&self.pool).await?) };
        self.within(now).await.map(usage_service::clock::to_micros)
    }

    /// Like [`Control::connect`], but connects when the first call is made: for processes that start while the server is away.
    ///
    /// # Errors
    /// [`ControlError::Address`].
    pub fn connect_lazy(database: &DatabaseConfig) -> Result<Self, ControlError> {
        let options = database.options()?.application_name("usage-control");
        let bounded = options.clone().options([
            ("statement_timeout", STATEMENT_WITHIN.as_millis().to_string()),
            ("lock_timeout", STATEMENT_WITHIN.as_millis().to_string()),
            ("idle_in_transaction_session_timeout", CALL_WITHIN.as_millis().to_string()),
        ]);
        let pool = pool(bounded.clone(), CONNECTIONS);
        Ok(Self { pool, options, bounded, master_keys: None })
    }

    /// With the master keys under which source keys are sealed: without them no source key is read or written.
    pub fn with_master_keys(self, master_keys: MasterKeys) -> Self {
        Self { master_keys: Some(master_keys), ..self }
    }

    fn master_keys(&self) -> Result<&MasterKeys, ControlError> {
        self.master_keys.as_ref().ok_or(ControlError::NoMasterKey)
    }

    /// Further connections to the same database, for statements that must not wait for those of this type's calls, nor keep them
    /// waiting. Connects when first asked.
    pub fn another_pool(&self, connections: u32) -> PgPool {
        pool(self.bounded.clone(), connections)
    }

    /// Brings the schema up to date, and seals source keys that an older version left in the clear. Several processes may call it at
    /// once: one migrates, the others wait.
    ///
    /// # Errors
    /// A changed or unknown migration is final. [`ControlError::NoMasterKey`] if keys lie in the clear and there is none to seal them.
    pub async fn migrate(&self) -> Result<(), ControlError> {
        let work = async {
            // A connection of its own: waiting for the lock must not end at the statement timeout.
            let mut connection = self.options.connect().await?;
            refuse_standby(&mut connection).await?;
            // Not `run`: its future is not `Send` as the compiler sees it, so that no task could call this.
            MIGRATOR.run_direct(None, &mut connection, false).await?;
            self.seal_clear_keys(&mut connection).await?;
            connection.close().await?;
            Ok(())
        };
        tokio::time::timeout(MIGRATE_WITHIN, work).await.map_err(|_| ControlError::Timeout(MIGRATE_WITHIN))?
    }

    /// One cheap round trip to the primary.
    ///
    /// # Errors
    /// What the server or the way to it says.
    pub async fn ping(&self) -> Result<(), ControlError> {
        self.within(async {
            sqlx::query("SELECT 1").execute(&self.pool).await?;
            Ok(())
        })
        .await
    }

    /// Ends all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// The connections, for tables that other crates bring (limits).
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, ControlError>>,
    ) -> Result<T, ControlError> {
        tokio::time::timeout(CALL_WITHIN, work).await.map_err(|_| ControlError::Timeout(CALL_WITHIN))?
    }
}

fn pool(options: PgConnectOptions, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(CONNECT_WITHIN)
        .after_connect(|connection, _| Box::pin(refuse_standby(connection)))
        .connect_lazy_with(options)
}

/// A standby answers with what was true a moment ago, which is wrong for cuts, counts and keys.
async fn refuse_standby(connection: &mut sqlx::PgConnection) -> Result<(), sqlx::Error> {
    let standby: bool = sqlx::query_scalar("SELECT pg_is_in_recovery()").fetch_one(connection).await?;
    if standby { Err(sqlx::Error::Io(std::io::Error::other("the server is a standby"))) } else { Ok(()) }
}
