//! The callers of one process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::future::join_all;
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use time::macros::datetime;
use usage_limits::{Allowance, AllowanceError, Consumption, Counter, Period, Quota, RateLimits, Rule};

use crate::redis::Client;

pub const CALLERS: u64 = 500;
pub const SPENDS: u64 = 10;
/// Of each process: together they stay below the server's 200.
const CONNECTIONS: u32 = 50;
const PERIOD: Period = Period::CalendarMonthUtc;

/// What the callers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    Alone,
    WithWork,
    Rate,
    Naive,
    Redis,
}

impl Variant {
    pub const OF_POSTGRES: [Self; 4] = [Self::Alone, Self::WithWork, Self::Rate, Self::Naive];

    pub fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::WithWork => "with-work",
            Self::Rate => "rate",
            Self::Naive => "naive",
            Self::Redis => "redis",
        }
    }

    pub fn named(name: &str) -> Result<Self> {
        let all = Self::OF_POSTGRES.into_iter().chain([Self::Redis]);
        all.into_iter().find(|variant| variant.name() == name).context("no such variant")
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Alone => "allowance, consume",
            Self::WithWork => "allowance, with an INSERT",
            Self::Rate => "rate limit, check",
            Self::Naive => "SELECT, then UPDATE",
            Self::Redis => "Redis, INCR + EXPIRE",
        }
    }

    pub fn is_exact(self) -> bool {
        self != Self::Naive
    }
}

#[tokio::main(flavor = "current_thread")]
pub async fn prepare(variant: Variant, url: &str) -> Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    let sql = match variant {
        Variant::Alone => allowance()?.migration_sql(),
        Variant::WithWork => {
            "TRUNCATE spent; CREATE TABLE work (id bigint GENERATED ALWAYS AS IDENTITY)".to_owned()
        }
        Variant::Rate => limits(PgPool::connect_lazy(url)?)?.migration_sql(),
        Variant::Naive | Variant::Redis => {
            "CREATE TABLE naive (used bigint); INSERT INTO naive VALUES (0)".to_owned()
        }
    };
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
    Ok(())
}

/// What the table says afterwards.
#[tokio::main(flavor = "current_thread")]
pub async fn counted(variant: Variant, url: &str) -> Result<i64> {
    let sql = match variant {
        Variant::Alone | Variant::WithWork => "SELECT sum(used)::bigint FROM spent",
        Variant::Rate => "SELECT sum(count)::bigint FROM rate_limits",
        Variant::Naive | Variant::Redis => "SELECT used FROM naive",
    };
    Ok(sqlx::query_scalar(sql).fetch_one(&mut PgConnection::connect(url).await?).await?)
}

#[derive(Clone)]
enum Target {
    Postgres(PgPool),
    Redis(Arc<Client>),
}

/// Calls, and prints a line for each call.
#[tokio::main]
pub async fn run(variant: Variant, target: &str) -> Result<()> {
    let target = match variant {
        Variant::Redis => Target::Redis(Arc::new(Client::connect(target, CONNECTIONS).await?)),
        _ => Target::Postgres(connected(target).await?),
    };
    let callers = (0..CALLERS).map(|caller| {
        let target = target.clone();
        tokio::spawn(async move {
            let mut calls = Vec::new();
            for _ in 0..SPENDS {
                let started = Instant::now();
                let admitted = call(variant, &target, caller).await?;
                calls.push((admitted, started.elapsed()));
            }
            anyhow::Ok(calls)
        })
    });
    for calls in join_all(callers).await {
        for (admitted, took) in calls?? {
            println!("{} {}", u8::from(admitted), took.as_micros());
        }
    }
    Ok(())
}

async fn connected(url: &str) -> Result<PgPool> {
    let options = PgPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(Duration::from_secs(300));
    let pool = options.connect(url).await?;
    let all = join_all((0..CONNECTIONS).map(|_| pool.acquire())).await;
    anyhow::ensure!(all.iter().all(std::result::Result::is_ok), "the connections are not there");
    Ok(pool)
}

async fn call(variant: Variant, target: &Target, caller: u64) -> Result<bool> {
    let pool = match target {
        Target::Redis(client) => return Ok(client.count(caller).await? <= crate::LIMIT),
        Target::Postgres(pool) => pool,
    };
    let now = datetime!(2026-11-30 12:00 UTC);
    let counter = Counter { subject: "everybody", meter: "calls", period: &PERIOD, now };
    match variant {
        Variant::Alone => {
            let outcome = allowance()?.consume(pool, counter, 1, Some(crate::LIMIT)).await?;
            Ok(matches!(outcome, Consumption::Consumed(_)))
        }
        Variant::WithWork => {
            let mut tx = pool.begin().await?;
            sqlx::query("INSERT INTO work DEFAULT VALUES").execute(&mut *tx).await?;
            match allowance()?.consume_in(&mut tx, counter, 1, Some(crate::LIMIT)).await {
                Ok(_) => tx.commit().await.map(|()| true).map_err(Into::into),
                Err(AllowanceError::Exhausted(_)) => tx.rollback().await.map(|()| false).map_err(Into::into),
                Err(error) => Err(error.into()),
            }
        }
        Variant::Rate => {
            let year = Duration::from_secs(366 * 86_400);
            let rule = Rule::new("bench", &[Quota::new(i32::try_from(crate::LIMIT)?, year)])?.fail_closed();
            let limits = limits(pool.clone())?.with_timeout(Duration::from_secs(300));
            Ok(limits.limiter(rule).check("everybody", 1).await?.allowed)
        }
        Variant::Naive | Variant::Redis => {
            let mut tx = pool.begin().await?;
            let used: i64 = sqlx::query_scalar("SELECT used FROM naive").fetch_one(&mut *tx).await?;
            if used < crate::LIMIT {
                sqlx::query("UPDATE naive SET used = $1").bind(used + 1).execute(&mut *tx).await?;
            }
            tx.commit().await?;
            Ok(used < crate::LIMIT)
        }
    }
}

fn allowance() -> Result<Allowance> {
    Ok(Allowance::new("spent")?)
}

fn limits(pool: PgPool) -> Result<RateLimits> {
    Ok(RateLimits::new(pool, "rate_limits")?)
}

/// Of ascending numbers.
pub fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let at = (sorted.len() * percent).div_ceil(100);
    sorted.get(at.saturating_sub(1)).copied().unwrap_or_default()
}
