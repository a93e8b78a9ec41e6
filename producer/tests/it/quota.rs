//! The source's quota, shared by its processes over the real Postgres. A collector of its own is what a process is.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::future::join_all;
use sqlx::AssertSqlSafe;
use usage_limits::{OnError, RateLimits};
use usage_producer::{EmitError, NewRecord, ScopedCollector, SourceQuota};
use usage_schemas::Quantity;
use usage_service::clock;
use uuid::Uuid;

use crate::support::{Source, caller, trusting, until};

const HOUR: Duration = Duration::from_secs(3_600);
const TABLE: &str = "usage_rate_limits";

/// A window that does not end while a test runs.
fn long() -> Duration {
    let now = clock::now_micros() / 1_000_000;
    let ends_late = |seconds: &i64| seconds - now % seconds > 1_000;
    let seconds = [3_600, 5_000].into_iter().find(ends_late).expect("they end at other times");
    Duration::from_secs(seconds.unsigned_abs())
}

/// Its count does not get too old on a busy machine.
fn quota(source: &Source, limit: i32) -> SourceQuota {
    SourceQuota::new(source.pool.clone(), limit, long()).stale_after(HOUR)
}

/// A process of the source.
fn process(quota: SourceQuota) -> ScopedCollector {
    trusting().source_quota(quota).build().unwrap().for_module("llm-gateway")
}

/// Emits one record in a transaction of its own, or says why not.
async fn emit(source: &Source, process: &ScopedCollector) -> Result<(), EmitError> {
    let ctx = caller(Uuid::from_u128(1));
    let auth = process.authorize_emit(&ctx, "llm.tokens").await?;
    let mut tx = source.pool.begin().await.unwrap();
    let key = Uuid::new_v4().to_string();
    let record = NewRecord::counter(ctx.tenant_id, "llm.tokens", Quantity::parse("1").unwrap(), key);
    process.emit(&mut tx, &ctx, record, &auth).await?;
    tx.commit().await.unwrap();
    Ok(())
}

async fn shared(source: &Source) -> i64 {
    sqlx::query_scalar("SELECT COALESCE(sum(count), 0)::bigint FROM usage_rate_limits")
        .fetch_one(&source.pool)
        .await
        .unwrap()
}

fn is_full(result: &Result<(), EmitError>) -> bool {
    matches!(result, Err(EmitError::RateLimitExceeded { .. }))
}

#[tokio::test]
async fn one_process_never_passes_its_limit() {
    let source = Source::new().await;
    let process = process(quota(&source, 5));
    let ctx = caller(Uuid::from_u128(1));
    let auth = process.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    for _ in 0..5 {
        emit(&source, &process).await.unwrap();
    }
    // By an authorization that was given while there was room.
    let mut tx = source.pool.begin().await.unwrap();
    let record = NewRecord::counter(ctx.tenant_id, "llm.tokens", Quantity::parse("1").unwrap(), "sixth");
    let result = process.emit(&mut tx, &ctx, record, &auth).await;
    assert!(matches!(result, Err(EmitError::RateLimitExceeded { .. })));
    tx.commit().await.unwrap();
    let error = emit(&source, &process).await.unwrap_err();
    assert!(
        matches!(error, EmitError::RateLimitExceeded { limit: 5, window, retry_after } if retry_after <= window),
        "{error}"
    );
    assert_eq!(source.count("usage_outbox").await, 5);
    process.flush_quota().await.unwrap();
    assert_eq!(shared(&source).await, 5);
}

#[tokio::test]
async fn what_one_process_admitted_the_others_lack() {
    let source = Source::new().await;
    let (first, second) = (process(quota(&source, 5)), process(quota(&source, 5)));
    for _ in 0..4 {
        emit(&source, &first).await.unwrap();
    }
    first.flush_quota().await.unwrap();
    emit(&source, &second).await.unwrap();
    assert!(is_full(&emit(&source, &second).await));
    // By itself, since the first one's flushes bring back what the second told.
    until("the first process hears of the second", async || {
        is_full(&emit(&source, &first).await).then_some(())
    })
    .await;
    assert!(source.count("usage_outbox").await <= 6);
}

#[tokio::test]
async fn several_processes_pass_the_limit_by_what_they_have_unconfirmed_at_most() {
    const LIMIT: i32 = 300;
    let source = Source::new().await;
    let processes: Vec<ScopedCollector> =
        (0..4).map(|_| process(quota(&source, LIMIT).flush_every(Duration::from_millis(20)))).collect();
    let admitted = join_all(processes.iter().map(async |process| {
        let mut admitted = 0_u64;
        while emit(&source, process).await.is_ok() {
            admitted += 1;
        }
        admitted
    }))
    .await;
    let total: u64 = admitted.iter().sum();
    for process in &processes {
        process.flush_quota().await.unwrap();
    }
    // Nothing is lost on the way: rows, what was told, and what each process counts.
    assert_eq!(u64::try_from(source.count("usage_outbox").await).unwrap(), total);
    assert_eq!(u64::try_from(shared(&source).await).unwrap(), total);
    let unconfirmed: Vec<u64> =
        processes.iter().map(|process| process.quota().unwrap().largest_unconfirmed).collect();
    let beyond: u64 = unconfirmed.iter().sum();
    let limit = u64::try_from(LIMIT).unwrap();
    assert!((limit..=limit + beyond).contains(&total), "{total} of {limit}, unconfirmed {unconfirmed:?}");
    assert!(beyond < 2 * limit, "the count was not shared on the way: {unconfirmed:?}");
    for process in &processes {
        process.flush_quota().await.unwrap();
        assert!(is_full(&emit(&source, process).await));
    }
}

/// The counter is nobody's row: a transaction that emitted and stays open keeps no other from emitting, nor the count from being shared.
#[tokio::test]
async fn no_transaction_waits_for_another_ones_counter() {
    let source = Source::new().await;
    let process = process(quota(&source, 100));
    let ctx = caller(Uuid::from_u128(1));
    let auth = process.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let mut open = source.pool.begin().await.unwrap();
    let record = NewRecord::counter(ctx.tenant_id, "llm.tokens", Quantity::parse("1").unwrap(), "open");
    process.emit(&mut open, &ctx, record, &auth).await.unwrap();
    let locks: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT relation::regclass::text FROM pg_locks WHERE pid = pg_backend_pid() AND relation IS NOT NULL",
    )
    .fetch_all(&mut *open)
    .await
    .unwrap();
    assert!(locks.iter().any(|name| name.starts_with("usage_outbox")), "{locks:?}");
    assert!(!locks.iter().any(|name| name.starts_with(TABLE)), "{locks:?}");
    for _ in 0..20 {
        emit(&source, &process).await.unwrap();
    }
    process.flush_quota().await.unwrap();
    assert_eq!(shared(&source).await, 21, "what is rolled back counts too");
    open.rollback().await.unwrap();
    assert_eq!(source.count("usage_outbox").await, 20);
    assert_eq!(process.quota().unwrap().counted, 21);
}

#[tokio::test]
async fn what_is_refused_takes_nothing_and_a_batch_is_admitted_as_one() {
    let source = Source::new().await;
    let process = process(quota(&source, 3));
    let ctx = caller(Uuid::from_u128(1));
    let auth = process.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let record =
        |key: &str| NewRecord::counter(ctx.tenant_id, "llm.tokens", Quantity::parse("1").unwrap(), key);
    let mut tx = source.pool.begin().await.unwrap();
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(9_000));
    for refused in [
        NewRecord { tenant_id: Uuid::from_u128(2), ..record("a") },
        record("a").with_metadata(large),
        record(""),
    ] {
        process.emit(&mut tx, &ctx, refused, &auth).await.unwrap_err();
    }
    let four = ["a", "b", "c", "d"].map(record).to_vec();
    let error = process.emit_batch(&mut tx, &ctx, four.clone(), &auth).await.unwrap_err();
    let EmitError::InBatch { index: 3, error } = error else { panic!("{error}") };
    assert!(matches!(*error, EmitError::RateLimitExceeded { limit: 3, .. }));
    assert_eq!(process.quota().unwrap().counted, 0);
    process.emit_batch(&mut tx, &ctx, Vec::new(), &auth).await.unwrap();
    process.emit_batch(&mut tx, &ctx, four[..3].to_vec(), &auth).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((source.count("usage_outbox").await, process.quota().unwrap().counted), (3, 3));
}

#[tokio::test]
async fn a_new_window_has_room_again() {
    let source = Source::new().await;
    let window = Duration::from_secs(3);
    let process = process(SourceQuota::new(source.pool.clone(), 2, window).stale_after(HOUR));
    let full = async || {
        let result = emit(&source, &process).await;
        let EmitError::RateLimitExceeded { retry_after, .. } = result.err()? else {
            panic!("refused otherwise")
        };
        Some(retry_after)
    };
    let retry_after = until("the window is full", full).await;
    assert!(retry_after <= window);
    until("the next window", async || emit(&source, &process).await.ok()).await;
}

/// A second after the last authorization has ended nobody asks any more; the next one wakes who does.
#[tokio::test]
async fn while_nobody_emits_the_database_is_not_asked() {
    let source = Source::new().await;
    let quota = quota(&source, 5).flush_every(Duration::from_millis(20));
    let short = trusting().authorization_max_age(Duration::from_millis(1)).source_quota(quota);
    let process = short.build().unwrap().for_module("llm-gateway");
    let ctx = caller(Uuid::from_u128(1));
    process.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let age = || process.quota().and_then(|status| status.age);
    let quiet = Duration::from_millis(1_500);
    until("nobody asks", async || age().filter(|age| *age > quiet)).await;
    process.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    until("somebody asks again", async || age().filter(|age| *age < quiet)).await;
}

#[tokio::test]
async fn modules_have_quotas_of_their_own_and_clients_of_one_module_share_it() {
    let source = Source::new().await;
    let usage = trusting().source_quota(quota(&source, 1)).build().unwrap();
    let (one, same, other) =
        (usage.for_module("llm-gateway"), usage.for_module("llm-gateway"), usage.for_module("billing"));
    emit(&source, &one).await.unwrap();
    assert!(is_full(&emit(&source, &same).await));
    emit(&source, &other).await.unwrap();
}

#[tokio::test]
async fn a_count_that_can_no_longer_be_shared_refuses_or_goes_on_alone() {
    let source = Source::new().await;
    // So long that a busy machine tells the count in time.
    let stale = Duration::from_secs(5);
    let short = |limit| quota(&source, limit).flush_every(Duration::from_millis(50)).stale_after(stale);
    let closed = process(short(1_000_000));
    let open = process(short(1_000_000).on_stale(OnError::Open));
    emit(&source, &closed).await.unwrap();
    emit(&source, &open).await.unwrap();
    let rename = async |from: &str, to: &str| {
        let sql = format!("ALTER TABLE {from} RENAME TO {to}");
        sqlx::query(AssertSqlSafe(sql)).execute(&source.pool).await.unwrap();
    };
    rename(TABLE, "gone").await;
    let unknown = async || match emit(&source, &closed).await {
        Err(EmitError::QuotaUnknown { age }) => age,
        _ => None,
    };
    let age = until("the count is too old", unknown).await;
    assert!(age > stale);
    assert!(open.quota().unwrap().age.is_some_and(|age| age > Duration::ZERO));
    emit(&source, &open).await.unwrap();
    rename("gone", TABLE).await;
    until("the count is shared again", async || emit(&source, &closed).await.ok()).await;
    for process in [&closed, &open] {
        process.flush_quota().await.unwrap();
    }
    // What was admitted meanwhile was told afterwards; nothing was sent twice, since no answer was lost.
    assert_eq!(shared(&source).await, source.count("usage_outbox").await);
}

/// A database that takes connections and never answers costs all callers together one time limit, not one each.
#[tokio::test]
async fn callers_do_not_queue_for_a_count_that_does_not_answer() {
    const CALLERS: u32 = 40;
    /// Of one question to the counters.
    const LIMIT: Duration = Duration::from_millis(500);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("postgres://nobody@{}/nothing?sslmode=disable", silent.local_addr().unwrap());
    let pool = sqlx::PgPool::connect_lazy(&address).unwrap();
    for on_stale in [OnError::Open, OnError::Closed] {
        let process = process(SourceQuota::new(pool.clone(), 5, HOUR).on_stale(on_stale));
        let ctx = caller(Uuid::from_u128(1));
        let begun = Instant::now();
        let answers = join_all((0..CALLERS).map(|_| process.authorize_emit(&ctx, "llm.tokens"))).await;
        let took = begun.elapsed();
        assert!(took < LIMIT * CALLERS / 4, "{took:?}");
        for answer in answers {
            match on_stale {
                OnError::Open => drop(answer.unwrap()),
                OnError::Closed => assert!(matches!(answer.unwrap_err(), EmitError::QuotaUnknown { .. })),
            }
        }
    }
}

#[tokio::test]
async fn the_outbox_may_lie_in_a_schema_of_its_own() {
    let source = Source::empty().await;
    sqlx::raw_sql("CREATE SCHEMA billing").execute(&source.pool).await.unwrap();
    let options = source.pool.connect_options().as_ref().clone().options([("search_path", "billing")]);
    let pool = sqlx::PgPool::connect_with(options).await.unwrap();
    usage_producer::outbox::migrate(&pool).await.unwrap();
    let quota = quota(&source, 1).schema("billing");
    let usage = trusting().schema("billing").source_quota(quota).build().unwrap();
    let process = usage.for_module("llm-gateway");
    emit(&source, &process).await.unwrap();
    process.flush_quota().await.unwrap();
    assert_eq!(source.count("billing.usage_rate_limits").await, 1);
}

#[tokio::test]
async fn the_migration_makes_what_usage_limits_counts_in() {
    let file = include_str!("../../migrations/0004_source_quota.sql");
    let pool = sqlx::PgPool::connect_lazy("postgres://localhost/nothing").unwrap();
    let own = RateLimits::new(pool, TABLE).unwrap().migration_sql();
    assert!(file.contains(own.trim_end()), "{own}");
    let named: BTreeSet<&str> =
        file.split(['"', ' ', '.']).filter(|word| word.starts_with("rate_limits")).collect();
    assert!(named.is_empty(), "{named:?}");
}
