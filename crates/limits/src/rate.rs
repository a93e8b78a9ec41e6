//! Limits on tries in short windows, counted in one table for all instances.

mod bucket;
mod decision;
mod rule;
mod seldom;
mod sql;
mod tally;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments as _, PgPool, Row as _};
use time::OffsetDateTime;

pub use decision::{Decision, Reason};
pub use rule::{Algorithm, InvalidRule, OnError, Policy, Quota, Rule};
pub use tally::{Tallied, Tally, TallyError};

use crate::identifier::{InvalidName, TableName};
use crate::retry::{self, Sql, safe};
use bucket::Hashing;
use decision::Seen;
use seldom::Seldom;
use sql::{Clock, DATABASE_CLOCK};

const TIMEOUT: Duration = Duration::from_millis(500);
/// Rows that one statement of a sweep deletes.
const SWEEP_BATCH: i64 = 10_000;

/// The table that counts. Clones share the connections.
#[derive(Debug, Clone)]
pub struct RateLimits {
    pool: PgPool,
    table: TableName,
    hashing: Hashing,
    timeout: Duration,
    clock: Clock,
    degraded: Arc<Seldom>,
}

/// A request that can't be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    #[error("cost must be at least 1, not {0}")]
    Cost(i32),
    #[error("subject must not be empty")]
    Subject,
}

impl RateLimits {
    /// Counters in `table`, or in `schema.table`.
    ///
    /// # Errors
    /// The name is not a plain lower-case one of at most 48 bytes.
    pub fn new(pool: PgPool, table: &str) -> Result<Self, InvalidName> {
        let table = TableName::parse(table)?;
        let (hashing, degraded) = (Hashing::default(), Arc::default());
        Ok(Self { pool, table, hashing, timeout: TIMEOUT, clock: DATABASE_CLOCK, degraded })
    }

    /// Hashes subjects with HMAC under this key, so that who reads the table can't try subjects out. All instances need the
    /// same; with another one all counts begin anew.
    #[must_use]
    pub fn with_key(mut self, key: &[u8]) -> Self {
        self.hashing = Hashing::keyed(key);
        self
    }

    /// How long a decision may take, with the wait for a connection, before the rule's [`OnError`] decides. 500 ms by default.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Reads the time from an SQL expression instead of the database's clock.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_clock(mut self, expression: &'static str) -> Self {
        self.clock = Clock { decide: expression, sweep: expression };
        self
    }

    /// The table and its index, for the caller's own migrations. May run again.
    pub fn migration_sql(&self) -> String {
        sql::migration(&self.table)
    }

    /// What decides by this rule.
    pub fn limiter(&self, rule: Rule) -> RateLimiter {
        let sql = sql::decide(&self.table, &rule, self.clock);
        RateLimiter { limits: self.clone(), rule: Arc::new(rule), sql }
    }

    /// Deletes the rows that expired more than a minute ago, in batches by the index on `expires_at`; rows that somebody has
    /// locked are left for the next time. Returns how many went. Call it every few minutes from one instance or from all.
    ///
    /// # Errors
    /// The database, or the way to it; batches before it are done.
    pub async fn sweep(&self) -> Result<u64, sqlx::Error> {
        let sql = sql::sweep(&self.table, self.clock);
        let (mut swept, mut from) = (0, None::<OffsetDateTime>);
        loop {
            let (gone, last): (i64, Option<OffsetDateTime>) =
                sqlx::query_as(safe(&sql)).bind(from).bind(SWEEP_BATCH).fetch_one(&self.pool).await?;
            swept += u64::try_from(gone).unwrap_or(0);
            if gone < SWEEP_BATCH {
                return Ok(swept);
            }
            from = last;
        }
    }

    /// The statement of [`RateLimits::sweep`], to look at its plan.
    pub fn sweep_sql(&self) -> Arc<str> {
        sql::sweep(&self.table, self.clock)
    }
}

/// Decides by one rule. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RateLimiter {
    limits: RateLimits,
    rule: Arc<Rule>,
    sql: Sql,
}

impl RateLimiter {
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Counts a request of `subject` if all windows have room for `cost`. A refused one is counted nowhere, unless others filled
    /// a longer window in the same moment: then the shorter ones have counted it.
    ///
    /// The subject goes to the database only as a hash. If the database fails, or takes longer than the timeout, the rule's
    /// [`OnError`] decides; a statement that was given up may still count.
    ///
    /// # Errors
    /// A cost below 1, or an empty subject.
    pub async fn check(&self, subject: &str, cost: i32) -> Result<Decision, InvalidRequest> {
        if cost < 1 {
            return Err(InvalidRequest::Cost(cost));
        }
        if subject.is_empty() {
            return Err(InvalidRequest::Subject);
        }
        let asked = tokio::time::timeout(self.limits.timeout, self.count(subject, cost)).await;
        let error: &dyn std::fmt::Display = match &asked {
            Ok(Ok(windows)) => return Ok(decision::decide(&self.rule, cost, windows)),
            Ok(Err(error)) => error,
            Err(late) => late,
        };
        let decision = decision::degraded(&self.rule);
        // A flood while the database is away is no flood of lines.
        if let Some(left_out) = self.limits.degraded.may(Instant::now()) {
            tracing::warn!(
                rule = self.rule.name(),
                allowed = decision.allowed,
                left_out,
                error = %error,
                "a rate limit was decided without its database"
            );
        }
        Ok(decision)
    }

    /// Under which hash a subject is counted.
    #[cfg(feature = "http")]
    pub(crate) fn digest(&self, subject: &str) -> [u8; 32] {
        self.limits.hashing.digest(subject)
    }

    async fn count(&self, subject: &str, cost: i32) -> Result<Vec<Seen>, sqlx::Error> {
        let mut arguments = PgArguments::default();
        arguments.add(i64::from(cost)).map_err(sqlx::Error::Encode)?;
        for quota in self.rule.quotas() {
            let bucket = self.limits.hashing.bucket(self.rule.name(), quota.seconds(), subject);
            arguments.add(bucket).map_err(sqlx::Error::Encode)?;
        }
        let row = retry::alone(&self.limits.pool, &self.sql, arguments).await?;
        let row = row.ok_or(sqlx::Error::RowNotFound)?;
        (0..self.rule.quotas().len()).map(|k| seen(&row, k)).collect()
    }
}

fn seen(row: &PgRow, k: usize) -> Result<Seen, sqlx::Error> {
    let column = |name: &str| format!("{name}_{k}");
    Ok(Seen {
        elapsed: row.try_get(column("elapsed").as_str())?,
        count: row.try_get(column("seen").as_str())?,
        previous: row.try_get(column("previous").as_str())?,
        counted: row.try_get(column("counted").as_str())?,
    })
}
