//! An app that sends mails for accounts: an allowance per month, spent in the transaction of the mail, and a rate limit in front.
//!
//! ```text
//! DATABASE_URL=postgres://… cargo run -p usage-limits --example mail
//! curl -i -H 'api-key: k1' -X POST --data 'hello' http://127.0.0.1:8025/accounts/a/mails
//! curl -i http://127.0.0.1:8025/accounts/a/usage
//! ```
//! `LISTEN`, `MAILS_PER_MONTH` and `CALLS_PER_SECOND` may be set.

use std::env;
use std::time::Duration;

use anyhow::Context as _;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use time::OffsetDateTime;
use usage_limits::http::{MissingKey, RateLimitLayer, allowance_exhausted};
use usage_limits::{Allowance, AllowanceError, Counter, Period, Quota, RateLimits, Rule};

const PERIOD: Period = Period::CalendarMonthUtc;

#[derive(Clone)]
struct App {
    pool: PgPool,
    allowance: Allowance,
    mails_per_month: i64,
}

impl App {
    fn mails<'a>(account: &'a str, now: OffsetDateTime) -> Counter<'a> {
        Counter { subject: account, meter: "mail_sent", period: &PERIOD, now }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = env::var("DATABASE_URL").context("DATABASE_URL is not set")?;
    let pool = PgPoolOptions::new().max_connections(20).connect(&url).await?;
    let allowance = Allowance::new("mail_usage")?;
    let limits = RateLimits::new(pool.clone(), "mail_rate_limits")?;
    migrate(&pool, &[allowance.migration_sql(), limits.migration_sql()]).await?;

    let per_second = number("CALLS_PER_SECOND", 5)?;
    let bursts = Rule::new("mail.call", &[Quota::new(i32::try_from(per_second)?, Duration::from_secs(1))])?;
    // A key out of the request's own headers is good enough for an example; behind a login it is the verified account.
    let by_key = RateLimitLayer::new().rule(limits.limiter(bursts.sliding()), MissingKey::Share, |head| {
        Some(head.headers.get("api-key")?.to_str().ok()?.to_owned())
    });
    let app = App { pool, allowance, mails_per_month: number("MAILS_PER_MONTH", 1_000)? };
    let router = Router::new()
        .route("/accounts/{account}/mails", post(send))
        .route("/accounts/{account}/usage", get(usage))
        .layer(by_key)
        .with_state(app);

    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:8025".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("listening on {}", listener.local_addr()?);
    Ok(axum::serve(listener, router).await?)
}

async fn migrate(pool: &PgPool, migrations: &[String]) -> anyhow::Result<()> {
    for sql in migrations {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql.as_str())).execute(pool).await?;
    }
    let mails =
        "CREATE TABLE IF NOT EXISTS mails (id bigint GENERATED ALWAYS AS IDENTITY, account text, body text)";
    sqlx::raw_sql(mails).execute(pool).await?;
    Ok(())
}

fn number(variable: &str, default: i64) -> anyhow::Result<i64> {
    match env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("{variable} is no number")),
        Err(_) => Ok(default),
    }
}

async fn send(
    State(app): State<App>,
    Path(account): Path<String>,
    body: String,
) -> Result<Response, Failure> {
    let now = OffsetDateTime::now_utc();
    let mut tx = app.pool.begin().await?;
    let spent =
        app.allowance.consume_in(&mut tx, App::mails(&account, now), 1, Some(app.mails_per_month)).await;
    let spent = match spent {
        Ok(spent) => spent,
        Err(AllowanceError::Exhausted(mut exhausted)) => {
            tx.rollback().await?;
            let mut connection = app.pool.acquire().await?;
            exhausted.used = Some(app.allowance.read(&mut connection, App::mails(&account, now)).await?);
            return Ok(allowance_exhausted(&exhausted, now));
        }
        Err(error) => return Err(error.into()),
    };
    let mail: i64 = sqlx::query_scalar("INSERT INTO mails (account, body) VALUES ($1, $2) RETURNING id")
        .bind(&account)
        .bind(body)
        .fetch_one(&mut *tx)
        .await?;
    tx.commit().await?;
    let answer = serde_json::json!({ "mail": mail, "used": spent.used, "remaining": spent.remaining() });
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

async fn usage(State(app): State<App>, Path(account): Path<String>) -> Result<Response, Failure> {
    let counter = App::mails(&account, OffsetDateTime::now_utc());
    let history = app.allowance.history(&mut *app.pool.acquire().await?, counter, 12).await?;
    let months: Vec<_> = history
        .iter()
        .map(
            |month| serde_json::json!({ "start": month.window.start.date().to_string(), "used": month.used }),
        )
        .collect();
    Ok(Json(serde_json::json!({ "limit": app.mails_per_month, "months": months })).into_response())
}

/// What the caller can't help.
struct Failure(anyhow::Error);

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl axum::response::IntoResponse for Failure {
    fn into_response(self) -> Response {
        tracing::error!(error = format!("{:#}", self.0), "a request failed");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}
