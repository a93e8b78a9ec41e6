//! A database of its own for each test.

use std::future::Future;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use time::OffsetDateTime;
use time::macros::datetime;
use usage_limits::{Allowance, Counter, Period};
use uuid::Uuid;

/// For what a busy machine takes long to do.
pub const WITHIN: Duration = Duration::from_secs(120);
pub const NOW: OffsetDateTime = datetime!(2026-11-30 12:00 UTC);
pub const MONTH: Period = Period::CalendarMonthUtc;

pub fn allowance() -> Allowance {
    Allowance::new("notifications_usage").unwrap()
}

/// The mails of an account in November 2026.
pub fn mails(subject: &str) -> Counter<'_> {
    Counter { subject, meter: "mail_sent", period: &MONTH, now: NOW }
}

/// Runs a test on a new database of the run's server and drops it afterwards, also when the test panics.
pub async fn with_database<F, T>(test: F)
where
    F: FnOnce(PgPool) -> T,
    T: Future<Output = ()> + Send + 'static,
{
    let server: PgConnectOptions = usage_devstack::testing::control_database_url().parse().unwrap();
    let name = format!("limits_{}", Uuid::new_v4().simple());
    let mut connection = PgConnection::connect_with(&server).await.unwrap();
    run(&mut connection, &format!("CREATE DATABASE {name} TEMPLATE template0")).await;
    let result = tokio::spawn(test(pool(server.database(&name), 8))).await;
    run(&mut connection, &format!("DROP DATABASE {name} WITH (FORCE)")).await;
    if let Err(error) = result {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// Connects when first asked.
pub fn pool(options: PgConnectOptions, connections: u32) -> PgPool {
    PgPoolOptions::new().max_connections(connections).acquire_timeout(WITHIN).connect_lazy_with(options)
}

/// One or more statements.
pub async fn run(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(connection)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// The same on any connection of the pool.
pub async fn run_on(pool: &PgPool, sql: &str) {
    run(&mut pool.acquire().await.unwrap(), sql).await;
}

/// The one number that a query gives.
pub async fn number(pool: &PgPool, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_one(pool)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// The total of a counter.
pub async fn used(pool: &PgPool, counter: Counter<'_>) -> i64 {
    allowance().read(&mut pool.acquire().await.unwrap(), counter).await.unwrap()
}

/// The SQLSTATE of what a statement is refused with, with its message.
pub async fn refusal(pool: &PgPool, sql: &str) -> (String, String) {
    let error = sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.expect_err(sql);
    let error = error.into_database_error().unwrap();
    (error.code().unwrap().into_owned(), error.message().to_owned())
}

/// Waits until a query gives the number.
pub async fn until(pool: &PgPool, sql: &str, wanted: i64) {
    let deadline = Instant::now() + WITHIN;
    while number(pool, sql).await != wanted {
        assert!(Instant::now() < deadline, "{sql} does not become {wanted}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
