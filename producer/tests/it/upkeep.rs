//! The outbox stays small, whatever somebody else's transaction does.

use sqlx::{AssertSqlSafe, PgConnection};

use crate::support::{Running, Source, Topic, config, until};

/// The two leaves that are written neither now nor next, the one that stays so for longer first.
async fn idle_leaves(source: &Source) -> [i16; 2] {
    let current: i16 =
        sqlx::query_scalar("SELECT ((extract(epoch FROM clock_timestamp())::bigint / 60) % 4)::smallint")
            .fetch_one(&source.pool)
            .await
            .unwrap();
    [(current + 3) % 4, (current + 2) % 4]
}

/// Emits into a leaf.
async fn fill(connection: &mut PgConnection, leaf: i16, rows: i32) {
    sqlx::query(
        "WITH tenants AS (SELECT gen_random_uuid() AS id, n FROM generate_series(1, $2) AS n) \
         INSERT INTO usage_outbox (segment, part, tenant_id, payload_type, payload) \
         SELECT $1, usage_outbox_part(id), id, 'usage-collector.record.v1+json', convert_to(json_build_object( \
         'record_id', usage_record_id(id, 'k' || n), 'tenant_id', id, 'metric', 'm', 'kind', 'counter', 'value', '1', \
         'timestamp', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), 'idempotency_key', 'k' || n)::text, 'UTF8') \
         FROM tenants",
    )
    .bind(leaf)
    .bind(rows)
    .execute(connection)
    .await
    .unwrap();
}

async fn size(source: &Source, leaf: i16) -> i64 {
    let sql = format!("SELECT pg_relation_size('usage_outbox_{leaf}')");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&source.pool).await.unwrap()
}

/// A transaction that has written elsewhere and keeps its snapshot: vacuum may not take anything away.
#[tokio::test]
async fn emptied_leaves_are_truncated_under_a_long_transaction() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    sqlx::raw_sql("CREATE TABLE business (n int)").execute(&source.pool).await.unwrap();
    let mut long = source.pool.begin().await.unwrap();
    sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; INSERT INTO business VALUES (1)")
        .execute(&mut *long)
        .await
        .unwrap();
    let [leaf, _] = idle_leaves(&source).await;
    fill(&mut source.pool.acquire().await.unwrap(), leaf, 5_000).await;
    assert!(size(&source, leaf).await > 1_000_000);
    let relay = Running::start(config(&source, &topic));
    source.emptied().await;
    until("the leaf is truncated", async || (size(&source, leaf).await == 0).then_some(())).await;
    long.commit().await.unwrap();
    relay.stop().await;
    assert_eq!(topic.distinct().await, 5_000);
}

/// An emitter that is open in a leaf keeps that leaf; the others are truncated, and its row arrives all the same.
#[tokio::test]
async fn a_leaf_with_an_open_emitter_is_left_alone() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let [other, kept] = idle_leaves(&source).await;
    let mut connection = source.pool.acquire().await.unwrap();
    fill(&mut connection, kept, 100).await;
    let mut open = source.pool.begin().await.unwrap();
    fill(&mut open, kept, 1).await;
    let relay = Running::start(config(&source, &topic));
    // Twice: between the two the relay has tried them all.
    for _ in 0..2 {
        fill(&mut connection, other, 100).await;
        source.emptied().await;
        until("the other leaf is truncated", async || (size(&source, other).await == 0).then_some(())).await;
    }
    assert!(size(&source, kept).await > 0);
    open.commit().await.unwrap();
    source.emptied().await;
    relay.stop().await;
    assert_eq!(topic.distinct().await, 301);
}

/// With the delivered rows still in the table, polls read next to nothing, since they start above the floor.
#[tokio::test]
async fn polls_stay_cheap_under_a_long_transaction() {
    const ROWS: i32 = 4_000;
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    sqlx::raw_sql("CREATE TABLE business (n int)").execute(&source.pool).await.unwrap();
    let mut long = source.pool.begin().await.unwrap();
    sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; INSERT INTO business VALUES (1)")
        .execute(&mut *long)
        .await
        .unwrap();
    // Into the current leaf, which is not truncated for two minutes.
    sqlx::query("SELECT usage_emit(gen_random_uuid(), 'm', 1, 'k' || n) FROM generate_series(1, $1) AS n")
        .bind(ROWS)
        .execute(&source.pool)
        .await
        .unwrap();
    let relay = Running::start(config(&source, &topic));
    source.emptied().await;
    let read = async || -> (i64, i64) {
        sqlx::query_as(
            "SELECT sum(idx_scan)::bigint, sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname LIKE 'usage_outbox__'",
        )
        .fetch_one(&source.pool)
        .await
        .unwrap()
    };
    // Sessions tell their numbers late and seldom: look for a stretch of polls in which little was read.
    let mut before = read().await;
    until("polls that read next to nothing", async || {
        let now = read().await;
        let (scans, rows) = (now.0 - before.0, now.1 - before.1);
        if scans < 400 {
            return None;
        }
        before = now;
        // Without the floor each poll of a partition would read its quarter of the delivered rows, in one of its four leaves.
        (rows < scans * i64::from(ROWS) / 4 / 4 / 20).then_some(())
    })
    .await;
    long.commit().await.unwrap();
    relay.stop().await;
    assert_eq!(topic.distinct().await, usize::try_from(ROWS).unwrap());
}
