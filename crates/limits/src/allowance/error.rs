//! How spending fails.

use time::OffsetDateTime;

use crate::period::OutOfCalendar;

/// The allowance does not carry the amount; nothing was spent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the allowance of {limit} {meter} is exhausted until {period_end}")]
pub struct Exhausted {
    pub meter: String,
    pub limit: i64,
    /// What was spent in the period. Unknown inside a transaction: Postgres answers nothing more in one that has failed.
    /// [`Allowance::read`](crate::Allowance::read) on another connection, or after the rollback, tells it.
    pub used: Option<i64>,
    /// When the next period starts.
    pub period_end: OffsetDateTime,
}

/// An argument that can't be meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field} {fault}")]
pub struct InvalidField {
    /// The argument's name.
    pub field: &'static str,
    /// What it must be.
    pub fault: &'static str,
}

/// Why nothing was counted.
#[derive(Debug, thiserror::Error)]
pub enum AllowanceError {
    /// Only in a caller's transaction, which has failed and can only be rolled back.
    #[error(transparent)]
    Exhausted(Exhausted),
    #[error(transparent)]
    Invalid(#[from] InvalidField),
    #[error(transparent)]
    OutOfCalendar(#[from] OutOfCalendar),
    /// The database, or the way to it. In a caller's transaction also a serialization failure (40001) or deadlock (40P01), which
    /// only the caller can repeat, because only it knows the work. After a lost connection the outcome is unknown.
    #[error("the allowance's database failed")]
    Database(#[from] sqlx::Error),
}

impl AllowanceError {
    /// The SQLSTATE, if Postgres gave one.
    pub fn sqlstate(&self) -> Option<String> {
        let Self::Database(error) = self else { return None };
        Some(error.as_database_error()?.code()?.into_owned())
    }
}
