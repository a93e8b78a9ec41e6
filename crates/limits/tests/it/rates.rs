//! Rate limits on a clock that the test turns.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgPool};
use time::OffsetDateTime;
use time::ext::NumericalDuration as _;
use time::macros::datetime;
use usage_limits::{Decision, InvalidRequest, Quota, RateLimiter, RateLimits, Reason, Rule};

use crate::support::{number, run_on, with_database};

/// On the edge of a minute and of an hour.
const NOON: OffsetDateTime = datetime!(2026-11-30 12:00 UTC);

const fn quota(limit: i32, seconds: u64) -> Quota {
    Quota::new(limit, Duration::from_secs(seconds))
}

fn rule(quotas: &[Quota]) -> Rule {
    Rule::new("api", quotas).unwrap()
}

/// The table, and a clock that stands at noon.
async fn limits(pool: &PgPool) -> RateLimits {
    let limits = RateLimits::new(pool.clone(), "rate_limits")
        .unwrap()
        .with_timeout(Duration::from_secs(120))
        .with_clock("(SELECT at FROM test_clock)");
    run_on(pool, &limits.migration_sql()).await;
    run_on(
        pool,
        "CREATE TABLE test_clock (at timestamptz); INSERT INTO test_clock VALUES ('2026-11-30 12:00Z')",
    )
    .await;
    limits
}

async fn set_clock(pool: &PgPool, after_noon: time::Duration) {
    let at = NOON + after_noon;
    sqlx::query("UPDATE test_clock SET at = $1").bind(at).execute(pool).await.unwrap();
}

async fn ask(limiter: &RateLimiter, cost: i32) -> Decision {
    limiter.check("somebody", cost).await.unwrap()
}

/// How many of `tries` single requests are let through.
async fn admitted(limiter: &RateLimiter, tries: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..tries {
        admitted += usize::from(ask(limiter, 1).await.allowed);
    }
    admitted
}

#[tokio::test]
async fn a_window_lets_its_limit_through_and_the_next_begins_anew() {
    with_database(|pool| async move {
        let limiter = limits(&pool).await.limiter(rule(&[quota(3, 60)]));
        set_clock(&pool, 15_500.milliseconds()).await;
        for left in [2, 1, 0] {
            let decision = ask(&limiter, 1).await;
            assert_eq!((decision.allowed, decision.reason), (true, Reason::Allowed));
            assert_eq!((decision.limit, decision.remaining), (3, Some(left)));
            assert_eq!(decision.reset, Duration::from_millis(44_500));
        }
        let refused = ask(&limiter, 1).await;
        assert_eq!((refused.allowed, refused.reason), (false, Reason::Exceeded));
        assert_eq!((refused.remaining, refused.reset), (Some(0), Duration::from_millis(44_500)));
        set_clock(&pool, 60.seconds()).await;
        assert_eq!(ask(&limiter, 1).await.remaining, Some(2));
        // Somebody else's requests are somebody else's.
        assert_eq!(limiter.check("another", 1).await.unwrap().remaining, Some(2));

        let row = "SELECT count(*) FROM rate_limits WHERE window_start = '2026-11-30 12:00Z' AND count = 3 \
                   AND expires_at = '2026-11-30 12:01Z'";
        assert_eq!(number(&pool, row).await, 1);
    })
    .await;
}

#[tokio::test]
async fn subjects_reach_the_database_as_hashes_only() {
    with_database(|pool| async move {
        let limits = limits(&pool).await;
        let secret = "Bearer very-secret";
        let plain = limits.limiter(rule(&[quota(3, 60)]));
        let keyed = limits.clone().with_key(b"a key of this test").limiter(rule(&[quota(3, 60)]));
        for limiter in [&plain, &keyed] {
            assert!(limiter.check(secret, 1).await.unwrap().allowed);
        }
        let buckets: Vec<String> =
            sqlx::query_scalar("SELECT bucket FROM rate_limits").fetch_all(&pool).await.unwrap();
        assert_eq!(buckets.len(), 2, "the key changes the hash: {buckets:?}");
        for bucket in &buckets {
            let hash = bucket.strip_prefix("api:60:").unwrap();
            assert!(hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{bucket}");
        }
        let seen = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%very-' || 'secret%'";
        assert_eq!(number(&pool, seen).await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_cost_is_taken_whole_or_not_at_all() {
    with_database(|pool| async move {
        let limits = limits(&pool).await;
        let limiter = limits.limiter(rule(&[quota(10, 60)]));
        assert_eq!(ask(&limiter, 7).await.remaining, Some(3));
        let refused = ask(&limiter, 4).await;
        assert_eq!((refused.allowed, refused.remaining), (false, Some(3)));
        assert_eq!(ask(&limiter, 3).await.remaining, Some(0));
        for cost in [11, i32::MAX] {
            assert!(!limiter.check("fresh", cost).await.unwrap().allowed);
        }
        assert_eq!(number(&pool, "SELECT sum(count) FROM rate_limits").await, 10);
        for cost in [0, -1, i32::MIN] {
            assert_eq!(limiter.check("fresh", cost).await.unwrap_err(), InvalidRequest::Cost(cost));
        }
        assert_eq!(limiter.check("", 1).await.unwrap_err(), InvalidRequest::Subject);

        let greatest = limits.limiter(Rule::new("max", &[quota(i32::MAX, 60)]).unwrap());
        assert_eq!(ask(&greatest, i32::MAX).await.remaining, Some(0));
        assert!(!ask(&greatest, 1).await.allowed && !ask(&greatest, i32::MAX).await.allowed);
    })
    .await;
}

#[tokio::test]
async fn every_window_of_a_rule_must_have_room() {
    with_database(|pool| async move {
        let limiter = limits(&pool).await.limiter(rule(&[quota(5, 60), quota(2, 1)]));
        let mut allowed = Vec::new();
        for second in 0_i64..4 {
            set_clock(&pool, second.seconds()).await;
            allowed.push(admitted(&limiter, 3).await);
        }
        assert_eq!(allowed, [2, 2, 1, 0]);
        let refused = ask(&limiter, 1).await;
        assert_eq!((refused.policy.name.as_str(), refused.reset), ("api-60s", Duration::from_secs(57)));
        // What the minute refused was not counted in the second either.
        let seconds = "SELECT sum(count) FROM rate_limits WHERE bucket LIKE 'api:1:%'";
        assert_eq!(number(&pool, seconds).await, 5);
        assert_eq!(number(&pool, "SELECT sum(count) FROM rate_limits WHERE bucket LIKE 'api:60:%'").await, 5);
    })
    .await;
}

#[tokio::test]
async fn refused_requests_write_nothing() {
    with_database(|pool| async move {
        let limiter = limits(&pool).await.limiter(rule(&[quota(2, 1), quota(100, 60)]));
        assert_eq!(admitted(&limiter, 2).await, 2);
        // Version and lock of every row.
        let rows = "SELECT string_agg(bucket || ctid::text || xmin::text || xmax::text || count, ' ' ORDER BY bucket) \
                    FROM rate_limits";
        let state = async || -> String { sqlx::query_scalar(rows).fetch_one(&pool).await.unwrap() };
        let before = state().await;
        assert_eq!(admitted(&limiter, 50).await, 0);
        assert_eq!(state().await, before);
    })
    .await;
}

/// What passes within two seconds around the edge of a minute whose first part was quiet, and within the minute before and
/// after it, for a limit of 100 a minute. The table in README.md has these numbers.
async fn around_the_edge(pool: &PgPool, limiter: &RateLimiter) -> [usize; 4] {
    let mut passed = [0; 4];
    for (at, after_noon) in [59, 60, 90, 119].into_iter().enumerate() {
        set_clock(pool, after_noon.seconds()).await;
        passed[at] = admitted(limiter, 110).await;
    }
    passed
}

#[tokio::test]
async fn a_fixed_window_lets_twice_its_limit_through_at_the_edge_and_a_sliding_one_does_not() {
    with_database(|pool| async move {
        let limits = limits(&pool).await;
        let fixed = limits.limiter(Rule::new("fixed", &[quota(100, 60)]).unwrap());
        let sliding = limits.limiter(Rule::new("sliding", &[quota(100, 60)]).unwrap().sliding());
        let fixed = around_the_edge(&pool, &fixed).await;
        let sliding = around_the_edge(&pool, &sliding).await;
        assert_eq!(fixed, [100, 100, 0, 0]);
        assert_eq!(sliding, [100, 0, 50, 48]);

        let readme = include_str!("../../README.md");
        let row = |name: &str, [before, at, half, last]: [usize; 4]| {
            format!("| {name} | {before} | {at} | {half} | {last} | {} |", before + at)
        };
        for row in [row("fixed", fixed), row("sliding", sliding)] {
            assert!(readme.contains(&row), "README.md has no row {row}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_sliding_window_says_when_the_request_would_fit() {
    with_database(|pool| async move {
        let limiter = limits(&pool).await.limiter(rule(&[quota(10, 60)]).sliding());
        assert_eq!(admitted(&limiter, 11).await, 10);
        set_clock(&pool, 66.seconds()).await;
        // 10 of the minute before, of which 54 of 60 seconds still count: 9.
        assert_eq!(ask(&limiter, 1).await.remaining, Some(0));
        let refused = ask(&limiter, 1).await;
        assert_eq!((refused.allowed, refused.reset), (false, Duration::from_secs(6)));
        set_clock(&pool, 72.seconds() - 1.microseconds()).await;
        assert!(!ask(&limiter, 1).await.allowed);
        set_clock(&pool, 72.seconds()).await;
        assert!(ask(&limiter, 1).await.allowed);
        // Nothing is forgotten too early: a row lives as long as its window is weighed.
        let lives =
            "SELECT count(*) FROM rate_limits WHERE expires_at = window_start + interval '120 seconds'";
        assert_eq!(number(&pool, lives).await, 2);
    })
    .await;
}

#[tokio::test]
async fn problem_90_a_clock_that_steps_back_and_forth_refuses_nobody_for_long() {
    with_database(|pool| async move {
        let limiter = limits(&pool).await.limiter(rule(&[quota(3, 10)]));
        // Even of the one clock that counts, the database's. The process's own clock is asked by nothing in this crate.
        for (after_noon, left) in [(11, 2), (0, 2), (11, 1), (0, 1)] {
            set_clock(&pool, after_noon.seconds()).await;
            let decision = ask(&limiter, 1).await;
            assert_eq!((decision.allowed, decision.remaining), (true, Some(left)), "{after_noon}");
            assert!(decision.reset <= Duration::from_secs(10));
        }
        set_clock(&pool, 11.seconds()).await;
        assert!(ask(&limiter, 1).await.allowed);
        let refused = ask(&limiter, 1).await;
        assert_eq!((refused.allowed, refused.reset), (false, Duration::from_secs(9)));
    })
    .await;
}

#[tokio::test]
async fn problem_108_nothing_is_left_behind_in_a_session() {
    with_database(|pool| async move {
        let limits = limits(&pool).await;
        let limiter = limits.limiter(rule(&[quota(3, 1), quota(9, 60)]).sliding());
        let allowance = crate::support::allowance();
        run_on(&pool, &allowance.migration_sql()).await;
        let settings = "SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings \
                        WHERE source = 'session'";
        let before: Option<String> = sqlx::query_scalar(settings).fetch_one(&pool).await.unwrap();
        let _ = allowance.consume(&pool, crate::support::mails("a"), 1, Some(3)).await.unwrap();
        assert!(ask(&limiter, 1).await.allowed);
        limits.sweep().await.unwrap();
        // A pooler that hands the session to another client after each transaction hands on no lock and no setting.
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
                     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        assert_eq!(number(&pool, locks).await, 0);
        let after: Option<String> = sqlx::query_scalar(settings).fetch_one(&pool).await.unwrap();
        assert_eq!(before, after);
    })
    .await;
}

#[tokio::test]
async fn without_the_database_the_rule_decides() {
    with_database(|pool| async move {
        let limits = limits(&pool).await.with_timeout(Duration::from_millis(100));
        // Somebody holds the table: the answer does not come in time.
        let mut holder = pool.begin().await.unwrap();
        sqlx::raw_sql("LOCK TABLE rate_limits IN ACCESS EXCLUSIVE MODE").execute(&mut *holder).await.unwrap();
        let open = ask(&limits.limiter(rule(&[quota(3, 60)])), 1).await;
        assert_eq!((open.allowed, open.reason, open.remaining), (true, Reason::Degraded, None));
        let closed = ask(&limits.limiter(rule(&[quota(3, 60)]).fail_closed()), 1).await;
        assert_eq!((closed.allowed, closed.reason), (false, Reason::Degraded));
        holder.rollback().await.unwrap();

        run_on(&pool, "DROP TABLE rate_limits").await;
        let patient =
            limits.with_timeout(Duration::from_secs(120)).limiter(rule(&[quota(3, 60)]).fail_closed());
        assert_eq!(ask(&patient, 1).await.reason, Reason::Degraded);
    })
    .await;
}

/// Rows that expired at noon, and one live row for each ten of them.
async fn fill(pool: &PgPool, expired: u32) {
    let insert = format!(
        "INSERT INTO rate_limits SELECT 'old:60:' || i, timestamptz '2026-11-30 11:59Z' - make_interval(secs => i % 5000), 1, \
         timestamptz '2026-11-30 12:00Z' - make_interval(secs => i % 5000) FROM generate_series(1, {expired}) i; \
         INSERT INTO rate_limits SELECT 'live:3600:' || i, timestamptz '2026-11-30 12:00Z', 1, '2026-11-30 13:00Z' \
         FROM generate_series(1, {expired} / 10) i; ANALYZE rate_limits"
    );
    run_on(pool, &insert).await;
}

#[tokio::test]
async fn a_sweep_takes_what_expired_and_waits_for_nobody() {
    with_database(|pool| async move {
        let limits = limits(&pool).await;
        fill(&pool, 25_000).await;
        // Rows are left alone for a minute after they expired.
        set_clock(&pool, -6_000.seconds()).await;
        assert_eq!(limits.sweep().await.unwrap(), 0);
        set_clock(&pool, 61.seconds()).await;
        let mut caller = pool.begin().await.unwrap();
        sqlx::raw_sql("UPDATE rate_limits SET count = 2 WHERE bucket = 'old:60:77'")
            .execute(&mut *caller)
            .await
            .unwrap();
        assert_eq!(limits.sweep().await.unwrap(), 24_999);
        caller.commit().await.unwrap();
        assert_eq!(limits.sweep().await.unwrap(), 1);
        assert_eq!(number(&pool, "SELECT count(*) FROM rate_limits WHERE bucket LIKE 'live%'").await, 2_500);
        assert_eq!(number(&pool, "SELECT count(*) FROM rate_limits").await, 2_500);
    })
    .await;
}

/// A batch of a sweep that has deleted and not yet committed holds nothing that a decision needs.
#[tokio::test]
async fn callers_feel_no_lock_of_a_sweep_that_is_under_way() {
    with_database(|pool| async move {
        let limits = limits(&pool).await;
        let limiter = limits.limiter(rule(&[quota(3, 60)]).sliding());
        assert!(ask(&limiter, 1).await.allowed);
        fill(&pool, 25_000).await;
        // The window of the first request has expired too, but a sliding one may still be weighed.
        set_clock(&pool, 61.seconds()).await;
        let mut sweeping = pool.begin().await.unwrap();
        let sql = AssertSqlSafe(limits.sweep_sql());
        let (gone, _): (i64, Option<OffsetDateTime>) = sqlx::query_as(sql)
            .bind(None::<OffsetDateTime>)
            .bind(10_000_i64)
            .fetch_one(&mut *sweeping)
            .await
            .unwrap();
        assert_eq!(gone, 10_000);
        for left in [1, 0] {
            let decision = ask(&limiter, 1).await;
            assert_eq!((decision.reason, decision.remaining), (Reason::Allowed, Some(left)));
        }
        assert_eq!(ask(&limiter, 1).await.reason, Reason::Exceeded);
        assert_eq!(limiter.check("somebody new", 3).await.unwrap().remaining, Some(0));
        sweeping.commit().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_sweep_searches_the_index_and_never_the_table() {
    with_database(|pool| async move {
        // On the database's clock, as it runs in service.
        let limits = RateLimits::new(pool.clone(), "rate_limits").unwrap();
        run_on(&pool, &limits.migration_sql()).await;
        fill(&pool, 200_000).await;
        for from in [None, Some(datetime!(2020-01-01 00:00 UTC))] {
            let explain = AssertSqlSafe(format!("EXPLAIN {}", limits.sweep_sql()));
            let plan: Vec<String> =
                sqlx::query_scalar(explain).bind(from).bind(10_000_i64).fetch_all(&pool).await.unwrap();
            let plan = plan.join("\n");
            assert!(plan.contains("Index Scan using rate_limits_expires_idx"), "{plan}");
            assert!(plan.contains("Tid Scan on rate_limits"), "{plan}");
            assert!(!plan.contains("Seq Scan") && !plan.contains("Sort"), "{plan}");
        }
    })
    .await;
}
