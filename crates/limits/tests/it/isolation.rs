//! 64 callers and one last unit, in every isolation level, on two major versions.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::Barrier;
use usage_devstack::Postgres;
use usage_limits::{AllowanceError, Consumption, Quota, RateLimits, Reason, Rule};

use crate::support::{allowance, mails, number, pool, run_on, until, used, with_database};

const CALLERS: usize = 64;
const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

async fn server_with(server: &Postgres, level: &str) -> PgPool {
    let name = level.replace(' ', "_");
    server.ensure_database(&name).unwrap();
    let options: PgConnectOptions = server.url(&name).parse().unwrap();
    let pool =
        pool(options.options([("default_transaction_isolation", level)]), u32::try_from(CALLERS).unwrap());
    run_on(&pool, &allowance().migration_sql()).await;
    run_on(&pool, "CREATE TABLE mails (id bigint GENERATED ALWAYS AS IDENTITY, caller bigint)").await;
    // Everybody has a connection before the race begins.
    let connections = join_all((0..CALLERS).map(|_| pool.acquire())).await;
    assert!(connections.iter().all(Result::is_ok));
    pool
}

/// All callers at once, each on its own connection.
async fn race<T: Send + 'static, F>(pool: &PgPool, call: impl Fn(PgPool, usize) -> F) -> Vec<T>
where
    F: Future<Output = T> + Send + 'static,
{
    let start = Arc::new(Barrier::new(CALLERS));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (start, call) = (start.clone(), call(pool.clone(), caller));
            tokio::spawn(async move {
                start.wait().await;
                call.await
            })
        })
        .collect();
    join_all(callers).await.into_iter().map(Result::unwrap).collect()
}

async fn alone(pool: PgPool, subject: String, limit: i64) -> bool {
    match allowance().consume(&pool, mails(&subject), 1, Some(limit)).await.unwrap() {
        Consumption::Consumed(_) => true,
        Consumption::Exhausted(spent) => {
            assert_eq!((spent.limit, spent.used), (limit, Some(limit)));
            false
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Won,
    Exhausted,
    Serialization,
}

/// Spends and works in one transaction, without a second try.
async fn with_work(pool: PgPool, subject: String, caller: usize) -> Outcome {
    let mut tx = pool.begin().await.unwrap();
    let surfaced = |code: Option<String>| match code.as_deref() {
        Some("40001" | "40P01") => Outcome::Serialization,
        other => panic!("{other:?}"),
    };
    match allowance().consume_in(&mut tx, mails(&subject), 1, Some(1)).await {
        Ok(_) => {}
        Err(AllowanceError::Exhausted(_)) => return Outcome::Exhausted,
        Err(error) => return surfaced(error.sqlstate()),
    }
    let work = sqlx::query("INSERT INTO mails (caller) VALUES ($1)").bind(i64::try_from(caller).unwrap());
    work.execute(&mut *tx).await.unwrap();
    match tx.commit().await {
        Ok(()) => Outcome::Won,
        Err(error) => surfaced(error.as_database_error().and_then(|error| Some(error.code()?.into_owned()))),
    }
}

async fn one_wins(server: &Postgres, level: &str) {
    let pool = server_with(server, level).await;
    // A fresh row, then the last of several units.
    for (subject, limit) in [("fresh", 1), ("last", 7)] {
        for _ in 1..limit {
            assert!(alone(pool.clone(), subject.to_owned(), limit).await);
        }
        let won = race(&pool, |pool, _| alone(pool, subject.to_owned(), limit)).await;
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "{level}, {subject}");
        assert_eq!(used(&pool, mails(subject)).await, limit);
    }
    // Everybody gets one where there is enough: none is refused for standing in another's way.
    let all = race(&pool, |pool, _| alone(pool, "enough".to_owned(), 64)).await;
    assert!(all.iter().all(|won| *won), "{level}");
    assert_eq!(used(&pool, mails("enough")).await, 64);

    let outcomes = race(&pool, |pool, caller| with_work(pool, "tx".to_owned(), caller)).await;
    let count = |wanted: Outcome| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    assert_eq!(count(Outcome::Won), 1, "{level}: {outcomes:?}");
    if level == "read committed" {
        assert_eq!(count(Outcome::Exhausted), CALLERS - 1, "{outcomes:?}");
    }
    assert_eq!(used(&pool, mails("tx")).await, 1);
    assert_eq!(number(&pool, "SELECT count(*) FROM mails").await, 1, "{level}");
    filling_up_is_exact(&pool, level).await;
    pool.close().await;
}

/// Rate limits near their capacity, with windows so long that none ends meanwhile. Half of the callers name the windows the
/// other way around; the order of the locks is the same all the same.
async fn filling_up_is_exact(pool: &PgPool, level: &str) {
    let limits = RateLimits::new(pool.clone(), "rate_limits").unwrap().with_timeout(Duration::from_secs(120));
    run_on(pool, &limits.migration_sql()).await;
    let day = |days: u64, limit| Quota::new(limit, Duration::from_secs(days * 86_400));
    for (name, quotas, capacity) in [
        ("one", vec![day(366, 1)], 1),
        ("short", vec![day(300, 40), day(366, 90)], 40),
        ("long", vec![day(300, 90), day(366, 40)], 40),
    ] {
        let rules = [quotas.clone(), quotas.into_iter().rev().collect()]
            .map(|quotas| limits.limiter(Rule::new(name, &quotas).unwrap().fail_closed()));
        let decisions = race(pool, |_, caller| {
            let limiter = rules[caller % 2].clone();
            async move { limiter.check("everybody", 1).await.unwrap() }
        })
        .await;
        assert!(decisions.iter().all(|decision| decision.reason != Reason::Degraded), "{level}");
        assert_eq!(decisions.iter().filter(|decision| decision.allowed).count(), capacity, "{level}, {name}");
        let greatest =
            format!("SELECT max(count)::bigint FROM rate_limits WHERE bucket LIKE '{name}:31622400:%'");
        assert_eq!(number(pool, &greatest).await, i64::try_from(capacity).unwrap(), "{level}, {name}");
    }
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(number(pool, deadlocks).await, 0, "{level}");
}

async fn every_level(server: Postgres, major: Option<i64>) {
    let options: PgConnectOptions = server.url("postgres").parse().unwrap();
    let plain = pool(options, 1);
    let version = number(&plain, "SELECT current_setting('server_version_num')::bigint / 10000").await;
    assert!(major.is_none_or(|major| major == version) && version >= 15, "version {version}");
    plain.close().await;
    for level in LEVELS {
        one_wins(&server, level).await;
    }
    server.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn problems_57_and_60_one_of_64_callers_gets_the_last_unit() {
    let dir = tempfile::tempdir().unwrap();
    every_level(Postgres::start(dir.path()).unwrap(), None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn problems_57_and_60_on_postgres_17_too() {
    let dir = tempfile::tempdir().unwrap();
    every_level(Postgres::start_packaged(dir.path()).unwrap(), Some(17)).await;
}

#[tokio::test]
async fn a_stale_snapshot_is_surfaced_in_a_transaction_and_repeated_alone() {
    with_database(|plain| async move {
        let allowance = allowance();
        run_on(&plain, &allowance.migration_sql()).await;
        for level in &LEVELS[1..] {
            let subject = (*level).to_owned();
            let options = plain.connect_options().as_ref().clone();
            let pool = pool(options.options([("default_transaction_isolation", *level)]), 3);
            assert!(alone(pool.clone(), subject.clone(), 100).await);

            let mut late = pool.begin().await.unwrap();
            sqlx::raw_sql("SELECT FROM notifications_usage").execute(&mut *late).await.unwrap();
            assert!(alone(pool.clone(), subject.clone(), 100).await);
            let error = allowance.consume_in(&mut late, mails(&subject), 1, Some(100)).await.unwrap_err();
            assert_eq!(error.sqlstate().as_deref(), Some("40001"), "{level}: {error:?}");
            late.rollback().await.unwrap();

            // One that waits for the row when it changes: its snapshot is stale, and nobody else can repeat it.
            let mut holder = pool.begin().await.unwrap();
            allowance.consume_in(&mut holder, mails(&subject), 1, Some(100)).await.unwrap();
            let waiting = tokio::spawn(alone(pool.clone(), subject.clone(), 100));
            let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                           AND datname = current_database()";
            until(&plain, blocked, 1).await;
            holder.commit().await.unwrap();
            assert!(waiting.await.unwrap(), "{level}");
            assert_eq!(used(&plain, mails(&subject)).await, 4, "{level}");
            pool.close().await;
        }
    })
    .await;
}
