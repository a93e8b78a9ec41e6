//! Counts in the shared windows without deciding: for those who decide elsewhere and tell afterwards what they let through.

use std::time::Duration;

use sqlx::postgres::PgArguments;
use sqlx::{Arguments as _, Row as _};

use super::rule::{InvalidRule, Quota, Rule};
use super::{InvalidRequest, RateLimits, sql};
use crate::retry::{self, Sql};

/// One fixed window's counters, added to without a limit. Cheap to clone.
///
/// A [`super::RateLimiter`] of the same name and one window of the same length counts in the same rows.
#[derive(Debug, Clone)]
pub struct Tally {
    limits: RateLimits,
    name: String,
    quota: Quota,
    add: Sql,
    read: Sql,
}

/// The window that the database's clock is in, as a statement saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tallied {
    /// Units of all instances in it. Stops at `i32::MAX`.
    pub count: i32,
    /// Its start, in microseconds since the Unix epoch, on the database's clock.
    pub start_micros: i64,
    /// How long ago that was when the statement read the clock.
    pub elapsed: Duration,
}

/// Units could not be counted, or not be asked for.
#[derive(Debug, thiserror::Error)]
pub enum TallyError {
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// Nothing is known about whether they were counted.
    #[error("the counter could not be reached")]
    Database(#[from] sqlx::Error),
    /// The same: the statement was given up and may still arrive.
    #[error("the counter did not answer in time")]
    Timeout,
}

impl RateLimits {
    /// Counters of fixed windows of `quota.length`, without a limit of their own: the quota's is the caller's business. The name is their
    /// scope.
    ///
    /// # Errors
    /// What [`Rule::new`] says of name and quota.
    pub fn tally(&self, name: &str, quota: Quota) -> Result<Tally, InvalidRule> {
        let rule = Rule::new(name, &[quota])?;
        let (add, read) = sql::tally(&self.table, &quota, self.clock);
        Ok(Tally { limits: self.clone(), name: rule.name().to_owned(), quota, add, read })
    }
}

impl Tally {
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Adds units of `subject` to the window that the database's clock is in, whatever is in there, and tells what is in there then.
    ///
    /// # Errors
    /// Units below 1, an empty subject; the database, or no answer within the timeout of [`RateLimits::with_timeout`].
    pub async fn add(&self, subject: &str, units: i32) -> Result<Tallied, TallyError> {
        if units < 1 {
            return Err(InvalidRequest::Cost(units).into());
        }
        self.ask(&self.add, subject, Some(units)).await
    }

    /// What is in the window that the database's clock is in. Writes nothing.
    ///
    /// # Errors
    /// The same.
    pub async fn read(&self, subject: &str) -> Result<Tallied, TallyError> {
        self.ask(&self.read, subject, None).await
    }

    async fn ask(&self, sql: &Sql, subject: &str, units: Option<i32>) -> Result<Tallied, TallyError> {
        if subject.is_empty() {
            return Err(InvalidRequest::Subject.into());
        }
        let mut arguments = PgArguments::default();
        let bucket = self.limits.hashing.bucket(&self.name, self.quota.seconds(), subject);
        arguments.add(bucket).map_err(sqlx::Error::Encode)?;
        if let Some(units) = units {
            arguments.add(units).map_err(sqlx::Error::Encode)?;
        }
        let asked =
            tokio::time::timeout(self.limits.timeout, retry::alone(&self.limits.pool, sql, arguments)).await;
        let row = asked.map_err(|_| TallyError::Timeout)??.ok_or(sqlx::Error::RowNotFound)?;
        let elapsed: i64 = row.try_get("elapsed")?;
        Ok(Tallied {
            count: row.try_get("count")?,
            start_micros: row.try_get("start_micros")?,
            elapsed: Duration::from_micros(u64::try_from(elapsed).unwrap_or(0)),
        })
    }
}
