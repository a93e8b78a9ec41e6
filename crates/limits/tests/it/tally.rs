//! Counting without a limit, on a clock that the test turns.

use std::time::Duration;

use futures::future::join_all;
use sqlx::PgPool;
use usage_limits::{InvalidRequest, InvalidRule, Quota, RateLimits, Rule, Tallied, Tally, TallyError};

use crate::support::{number, run_on, with_database};

const MINUTE: Duration = Duration::from_secs(60);
/// 2026-11-30 12:00 UTC, on the edge of a minute.
const NOON: i64 = 1_796_040_000_000_000;

async fn limits(pool: &PgPool) -> RateLimits {
    let limits = RateLimits::new(pool.clone(), "rate_limits")
        .unwrap()
        .with_timeout(Duration::from_secs(120))
        .with_clock("(SELECT at FROM test_clock)");
    run_on(pool, &limits.migration_sql()).await;
    run_on(
        pool,
        "CREATE TABLE test_clock (at timestamptz); INSERT INTO test_clock VALUES ('2026-11-30 12:00:10Z')",
    )
    .await;
    limits
}

async fn tally(pool: &PgPool) -> Tally {
    limits(pool).await.tally("emit", Quota::new(10, MINUTE)).unwrap()
}

fn seen(count: i32, start_micros: i64, elapsed: u64) -> Tallied {
    Tallied { count, start_micros, elapsed: Duration::from_secs(elapsed) }
}

#[tokio::test]
async fn units_are_added_beyond_any_limit_and_a_new_window_begins_at_nothing() {
    with_database(|pool| async move {
        let tally = tally(&pool).await;
        assert_eq!(tally.read("a").await.unwrap(), seen(0, NOON, 10));
        assert_eq!(number(&pool, "SELECT count(*) FROM rate_limits").await, 0, "a look writes nothing");
        assert_eq!(tally.add("a", 8).await.unwrap(), seen(8, NOON, 10));
        assert_eq!(tally.add("a", 8).await.unwrap(), seen(16, NOON, 10));
        assert_eq!(tally.add("b", 1).await.unwrap(), seen(1, NOON, 10));
        run_on(&pool, "UPDATE test_clock SET at = at + interval '49.5 seconds'").await;
        assert_eq!(tally.read("a").await.unwrap().elapsed, Duration::from_millis(59_500));
        run_on(&pool, "UPDATE test_clock SET at = at + interval '0.5 seconds'").await;
        assert_eq!(tally.read("a").await.unwrap(), seen(0, NOON + 60_000_000, 0));
        assert_eq!(tally.add("a", 1).await.unwrap(), seen(1, NOON + 60_000_000, 0));
        assert_eq!(number(&pool, "SELECT sum(count)::bigint FROM rate_limits").await, 18);
    })
    .await;
}

#[tokio::test]
async fn adders_at_once_lose_nothing_in_any_isolation_level() {
    with_database(|pool| async move {
        let tally = tally(&pool).await;
        run_on(
            &pool,
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation TO serializable', current_database()); END $$",
        )
        .await;
        let adders = join_all((0..16).map(|_| {
            let tally = tally.clone();
            tokio::spawn(async move {
                for _ in 0..5 {
                    tally.add("a", 2).await.unwrap();
                }
            })
        }))
        .await;
        assert!(adders.iter().all(Result::is_ok));
        assert_eq!(tally.read("a").await.unwrap().count, 160);
    })
    .await;
}

#[tokio::test]
async fn a_limiter_of_the_same_name_and_window_counts_in_the_same_row() {
    with_database(|pool| async move {
        let limits = limits(&pool).await;
        let quota = Quota::new(10, MINUTE);
        let tally = limits.tally("emit", quota).unwrap();
        let limiter = limits.limiter(Rule::new("emit", &[quota]).unwrap());
        assert_eq!(limiter.check("a", 3).await.unwrap().remaining, Some(7));
        assert_eq!(tally.add("a", 7).await.unwrap().count, 10);
        assert!(!limiter.check("a", 1).await.unwrap().allowed);
    })
    .await;
}

#[tokio::test]
async fn a_total_that_does_not_fit_stays_at_the_greatest_number() {
    with_database(|pool| async move {
        let tally = tally(&pool).await;
        assert_eq!(tally.add("a", i32::MAX).await.unwrap().count, i32::MAX);
        assert_eq!(tally.add("a", i32::MAX).await.unwrap().count, i32::MAX);
    })
    .await;
}

#[tokio::test]
async fn what_cant_be_counted_is_an_error_and_never_a_count() {
    with_database(|pool| async move {
        let tally = tally(&pool).await;
        for units in [0, -1, i32::MIN] {
            let error = tally.add("a", units).await.unwrap_err();
            assert!(matches!(error, TallyError::Invalid(InvalidRequest::Cost(found)) if found == units));
        }
        assert!(matches!(tally.add("", 1).await, Err(TallyError::Invalid(InvalidRequest::Subject))));
        let limits = RateLimits::new(pool.clone(), "elsewhere").unwrap();
        let none = Quota::new(0, MINUTE);
        assert_eq!(limits.tally("emit", none).err(), Some(InvalidRule::Limit(0)));
        let away = limits.tally("emit", Quota::new(1, MINUTE)).unwrap();
        assert!(matches!(away.add("a", 1).await, Err(TallyError::Database(_))));
        assert_eq!(number(&pool, "SELECT count(*) FROM rate_limits").await, 0);
        let mut elsewhere = pool.begin().await.unwrap();
        sqlx::query("LOCK TABLE rate_limits IN ACCESS EXCLUSIVE MODE")
            .execute(&mut *elsewhere)
            .await
            .unwrap();
        let slow = RateLimits::new(pool.clone(), "rate_limits").unwrap();
        let slow = slow.with_timeout(Duration::from_millis(20));
        let slow = slow.tally("emit", Quota::new(1, MINUTE)).unwrap();
        assert!(matches!(slow.add("a", 1).await, Err(TallyError::Timeout)));
        elsewhere.rollback().await.unwrap();
    })
    .await;
}
