//! Durable counters of what was spent in a period, spent in the transaction of the work they pay for.

mod error;
mod sql;

use sqlx::postgres::PgArguments;
use sqlx::{Arguments as _, PgConnection, PgPool, Row as _};
use time::OffsetDateTime;

pub use error::{AllowanceError, Exhausted, InvalidField};

use crate::identifier::{InvalidName, TableName};
use crate::period::{OutOfCalendar, Period, Window};
use crate::retry::{self, safe};
use sql::Statements;

/// Rows that one statement of a purge deletes.
const PURGE_BATCH: i64 = 5_000;
const NOT_NULL_VIOLATION: &str = "23502";

/// One table of counters. Holds no connection and no state: cheap to clone.
#[derive(Debug, Clone)]
pub struct Allowance {
    table: TableName,
    statements: Statements,
}

/// Which counter, and of which of its periods.
#[derive(Debug, Clone, Copy)]
pub struct Counter<'a> {
    /// Who the allowance belongs to: an account, a tenant.
    pub subject: &'a str,
    /// What is counted, like `mail_sent`.
    pub meter: &'a str,
    pub period: &'a Period,
    /// An instant of the period that is meant. A refund takes the instant of its spending, or it lands in another period.
    pub now: OffsetDateTime,
}

/// Spent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumed {
    pub amount: i64,
    /// The period's total with this amount.
    pub used: i64,
    pub limit: Option<i64>,
    pub period_end: OffsetDateTime,
}

impl Consumed {
    /// What is left of the limit.
    pub fn remaining(&self) -> Option<i64> {
        Some(self.limit?.saturating_sub(self.used).max(0))
    }

    /// Whether this spending reached or passed `threshold`. Spendings lie end to end, so in each period exactly one of them
    /// does (unless a refund leads back below): whoever warns at 80 % needs no memory of having warned.
    pub fn crossed(&self, threshold: i64) -> bool {
        self.used - self.amount < threshold && threshold <= self.used
    }
}

/// The outcome of a spending on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Consumption {
    Consumed(Consumed),
    Exhausted(Exhausted),
}

/// What was spent in one period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeriodUse {
    pub window: Window,
    pub used: i64,
}

impl Allowance {
    /// Counters in `table`, or in `schema.table`.
    ///
    /// # Errors
    /// The name is not a plain lower-case one of at most 48 bytes.
    pub fn new(table: &str) -> Result<Self, InvalidName> {
        let table = TableName::parse(table)?;
        Ok(Self { statements: Statements::new(&table), table })
    }

    /// The table, its index and the SQL functions, for the caller's own migrations. May run again.
    pub fn migration_sql(&self) -> String {
        sql::migration(&self.table)
    }

    /// The spending as plain SQL for any driver: $1 subject text, $2 meter text, $3 period_start timestamptz, $4 amount bigint,
    /// $5 limit bigint or NULL; it returns the total. It **fails** when the allowance does not carry the amount: SQLSTATE 23502
    /// on column `used` of the allowance's table means exhausted. $3 is the `start` of [`Period::window_at`].
    pub fn consume_sql(&self) -> &str {
        &self.statements.spend_or_fail
    }

    /// A refund as plain SQL: $1 subject, $2 meter, $3 period_start, $4 amount; it returns the total, or no row for none.
    pub fn refund_sql(&self) -> &str {
        &self.statements.refund
    }

    /// Spends in the caller's transaction, and **fails** that transaction when the allowance does not carry the amount: even a
    /// caller who looks at no result can't commit the work without the spending. `limit` `None` counts without bound.
    ///
    /// The counter's row stays locked until the transaction ends: spend last, or where the work is short.
    ///
    /// # Errors
    /// [`AllowanceError::Exhausted`]; an argument that can't be meant; what the database says, serialization failures among it.
    pub async fn consume_in(
        &self,
        connection: &mut PgConnection,
        counter: Counter<'_>,
        amount: i64,
        limit: Option<i64>,
    ) -> Result<Consumed, AllowanceError> {
        let window = checked(counter, amount, limit)?;
        let arguments = spending(counter, window, amount, limit)?;
        match retry::fetch(connection, &self.statements.spend_or_fail, arguments).await {
            Ok(Some(row)) => {
                Ok(Consumed { amount, used: row.try_get("used")?, limit, period_end: window.end })
            }
            Ok(None) => Err(AllowanceError::Database(sqlx::Error::RowNotFound)),
            Err(error) if self.means_exhausted(&error) => {
                Err(AllowanceError::Exhausted(exhausted(counter, window, limit, None)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Spends in one statement of its own, for work that can't join a transaction. Serialization failures and deadlocks are
    /// dealt with here.
    ///
    /// # Errors
    /// An argument that can't be meant, or the database. After a lost connection the outcome is unknown.
    pub async fn consume(
        &self,
        pool: &PgPool,
        counter: Counter<'_>,
        amount: i64,
        limit: Option<i64>,
    ) -> Result<Consumption, AllowanceError> {
        let window = checked(counter, amount, limit)?;
        let arguments = spending(counter, window, amount, limit)?;
        if let Some(row) = retry::alone(pool, &self.statements.spend, arguments).await? {
            let used = row.try_get("used")?;
            return Ok(Consumption::Consumed(Consumed { amount, used, limit, period_end: window.end }));
        }
        let used = self.read(&mut *pool.acquire().await?, counter).await?;
        Ok(Consumption::Exhausted(exhausted(counter, window, limit, Some(used))))
    }

    /// Gives an amount back, in the caller's transaction or without one, and returns the total, which never goes below zero.
    ///
    /// # Errors
    /// An argument that can't be meant, or the database.
    pub async fn refund(
        &self,
        connection: &mut PgConnection,
        counter: Counter<'_>,
        amount: i64,
    ) -> Result<i64, AllowanceError> {
        let window = checked(counter, amount, None)?;
        let mut arguments = key(counter, window)?;
        add(&mut arguments, amount)?;
        let row = retry::fetch(connection, &self.statements.refund, arguments).await?;
        Ok(row.map_or(Ok(0), |row| row.try_get("used"))?)
    }

    /// The period's total; 0 when nothing was spent.
    ///
    /// # Errors
    /// An argument that can't be meant, or the database.
    pub async fn read(
        &self,
        connection: &mut PgConnection,
        counter: Counter<'_>,
    ) -> Result<i64, AllowanceError> {
        Ok(self.history(connection, counter, 1).await?.first().map_or(0, |current| current.used))
    }

    /// The last `periods` periods up to the one of `now`, newest first, zeros for those without a row. Dates that clocks
    /// skipped are no periods.
    ///
    /// # Errors
    /// An argument that can't be meant, periods before the year 1, or the database.
    pub async fn history(
        &self,
        connection: &mut PgConnection,
        counter: Counter<'_>,
        periods: u32,
    ) -> Result<Vec<PeriodUse>, AllowanceError> {
        checked(counter, 1, None)?;
        let windows = last_windows(counter.period, counter.now, periods)?;
        let starts: Vec<OffsetDateTime> = windows.iter().map(|window| window.start).collect();
        let rows: Vec<(OffsetDateTime, i64)> = sqlx::query_as(safe(&self.statements.read))
            .bind(counter.subject)
            .bind(counter.meter)
            .bind(starts)
            .fetch_all(connection)
            .await?;
        let used = |window: &Window| {
            rows.iter().find(|(start, _)| *start == window.start).map_or(0, |(_, used)| *used)
        };
        Ok(windows.iter().map(|window| PeriodUse { window: *window, used: used(window) }).collect())
    }

    /// Deletes the meter's counters, of all subjects, that are older than the `keep_periods` newest periods up to the one of
    /// `now`, in batches that wait for nobody; returns how many. Where each subject has its own anchor, take the longest cycle
    /// and keep one more.
    ///
    /// # Errors
    /// `keep_periods` is 0, which would delete what is being spent; periods before the year 1; the database.
    pub async fn purge(
        &self,
        pool: &PgPool,
        meter: &str,
        period: &Period,
        now: OffsetDateTime,
        keep_periods: u32,
    ) -> Result<u64, AllowanceError> {
        named("meter", meter)?;
        let oldest = last_windows(period, now, keep_periods)?
            .pop()
            .ok_or(InvalidField { field: "keep_periods", fault: "must be at least 1" })?;
        let mut deleted = 0;
        loop {
            let batch = sqlx::query(safe(&self.statements.purge))
                .bind(meter)
                .bind(oldest.start)
                .bind(PURGE_BATCH)
                .execute(pool)
                .await?
                .rows_affected();
            deleted += batch;
            if batch == 0 {
                return Ok(deleted);
            }
        }
    }

    /// Whether an error that [`Allowance::consume_sql`] met, alone or in a batch, says that the allowance is exhausted.
    pub fn means_exhausted(&self, error: &sqlx::Error) -> bool {
        let Some(error) = error.as_database_error() else { return false };
        let Some(error) = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() else { return false };
        error.code() == NOT_NULL_VIOLATION
            && error.column() == Some("used")
            && self.table.is(error.schema(), error.table())
    }
}

/// The newest first, without empty ones.
fn last_windows(period: &Period, now: OffsetDateTime, count: u32) -> Result<Vec<Window>, OutOfCalendar> {
    let mut windows = Vec::new();
    let mut index = period.index_at(now)?;
    while windows.len() < count as usize {
        let window = period.window_for(index)?;
        if !window.is_empty() {
            windows.push(window);
        }
        index -= 1;
    }
    Ok(windows)
}

fn checked(counter: Counter<'_>, amount: i64, limit: Option<i64>) -> Result<Window, AllowanceError> {
    named("subject", counter.subject)?;
    named("meter", counter.meter)?;
    if amount < 1 {
        return Err(InvalidField { field: "amount", fault: "must be at least 1" }.into());
    }
    if limit.is_some_and(|limit| limit < 0) {
        return Err(InvalidField { field: "limit", fault: "must not be negative" }.into());
    }
    Ok(counter.period.window_at(counter.now)?)
}

fn named(field: &'static str, text: &str) -> Result<(), InvalidField> {
    if text.is_empty() {
        return Err(InvalidField { field, fault: "must not be empty" });
    }
    if text.contains('\0') {
        return Err(InvalidField { field, fault: "must not hold a zero character" });
    }
    Ok(())
}

fn exhausted(counter: Counter<'_>, window: Window, limit: Option<i64>, used: Option<i64>) -> Exhausted {
    // A counter without a limit ends where bigint does.
    let limit = limit.unwrap_or(i64::MAX);
    Exhausted { meter: counter.meter.to_owned(), limit, used, period_end: window.end }
}

fn key(counter: Counter<'_>, window: Window) -> Result<PgArguments, sqlx::Error> {
    let mut arguments = PgArguments::default();
    add(&mut arguments, counter.subject)?;
    add(&mut arguments, counter.meter)?;
    add(&mut arguments, window.start)?;
    Ok(arguments)
}

fn spending(
    counter: Counter<'_>,
    window: Window,
    amount: i64,
    limit: Option<i64>,
) -> Result<PgArguments, sqlx::Error> {
    let mut arguments = key(counter, window)?;
    add(&mut arguments, amount)?;
    add(&mut arguments, limit)?;
    Ok(arguments)
}

fn add<'a, T>(arguments: &mut PgArguments, value: T) -> Result<(), sqlx::Error>
where
    T: sqlx::Encode<'a, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + 'a,
{
    arguments.add(value).map_err(sqlx::Error::Encode)
}
