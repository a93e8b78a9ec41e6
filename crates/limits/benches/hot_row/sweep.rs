//! How a sweep of many expired rows goes, and what callers feel of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgPool, PgPoolOptions};
use usage_devstack::Postgres;
use usage_limits::{Quota, RateLimiter, RateLimits, Rule};

use crate::callers::percentile;

const CALLERS: usize = 4;

#[tokio::main]
pub async fn run(rows: u64) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let server = Postgres::start(dir.path())?;
    server.ensure_database("bench")?;
    let pool = PgPoolOptions::new().max_connections(10).connect(&server.url("bench")).await?;
    let limits = RateLimits::new(pool.clone(), "rate_limits")?.with_timeout(Duration::from_secs(60));
    sqlx::raw_sql(AssertSqlSafe(limits.migration_sql())).execute(&pool).await?;
    fill(&pool, rows).await?;
    let live = limits.limiter(Rule::new("live", &[Quota::new(i32::MAX, Duration::from_secs(86_400))])?);

    // As many calls as the sweep will see, roughly: for a moment without it.
    let quiet = calls_during(&live, tokio::time::sleep(Duration::from_secs(10))).await?.1;
    let started = Instant::now();
    let (swept, busy) = calls_during(&live, limits.sweep()).await?;
    let took = started.elapsed();
    println!("swept {} of {rows} rows in {} s", swept?, took.as_secs());
    for (name, latencies) in [("before", quiet), ("during", busy)] {
        println!(
            "callers {name} the sweep: {} calls, p50 {} µs, p99 {} µs, longest {} µs",
            latencies.len(),
            percentile(&latencies, 50),
            percentile(&latencies, 99),
            percentile(&latencies, 100),
        );
    }
    pool.close().await;
    server.stop()
}

async fn fill(pool: &PgPool, rows: u64) -> Result<()> {
    let started = Instant::now();
    let insert = format!(
        "INSERT INTO rate_limits SELECT 'old:60:' || i, timestamptz '2020-01-01 00:00Z' + make_interval(secs => i / 100), 1, \
         timestamptz '2020-01-01 00:01Z' + make_interval(secs => i / 100) FROM generate_series(1, {rows}) i"
    );
    sqlx::raw_sql(AssertSqlSafe(insert)).execute(pool).await?;
    sqlx::raw_sql("VACUUM ANALYZE rate_limits").execute(pool).await?;
    println!("filled in {} s", started.elapsed().as_secs());
    Ok(())
}

/// Callers go on until `work` is done; the latencies of their calls in microseconds, ascending.
async fn calls_during<T>(limiter: &RateLimiter, work: impl Future<Output = T>) -> Result<(T, Vec<u64>)> {
    let done = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (limiter, done) = (limiter.clone(), done.clone());
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    let started = Instant::now();
                    let decision = limiter.check(&caller.to_string(), 1).await?;
                    anyhow::ensure!(decision.allowed, "{decision:?}");
                    latencies.push(u64::try_from(started.elapsed().as_micros())?);
                }
                Ok(latencies)
            })
        })
        .collect();
    let result = work.await;
    done.store(true, Ordering::Relaxed);
    let mut all = Vec::new();
    for caller in callers {
        all.extend(caller.await??);
    }
    all.sort_unstable();
    Ok((result, all))
}
