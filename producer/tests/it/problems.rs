//! Public problems of other systems, as their rows in the list of problems give them.

use std::collections::BTreeSet;

use usage_producer::NewRecord;
use usage_schemas::{Quantity, names};
use uuid::Uuid;

use crate::support::{Running, Source, Topic, caller, collector, config, until};

/// An agent that tries again after it lost the answer: the same work under the same key is the same record, whatever became of the first.
#[tokio::test]
async fn problem_33_a_retry_under_its_key_is_the_same_record() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let collector = collector();
    let ctx = caller(Uuid::new_v4());
    let auth = collector.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    for committed in [false, true, true] {
        let record =
            NewRecord::counter(ctx.tenant_id, "llm.tokens", Quantity::parse("17").unwrap(), "work-1");
        let mut tx = source.pool.begin().await.unwrap();
        collector.emit(&mut tx, &ctx, record, &auth).await.unwrap();
        if committed {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
    }
    let relay = Running::start(config(&source, &topic));
    source.emptied().await;
    relay.stop().await;
    let received = topic.read().await;
    let ids: BTreeSet<Uuid> = received.iter().map(|received| received.record.record_id).collect();
    assert!(received.len() >= 2 && ids.len() == 1, "{ids:?}");
    assert_eq!(ids.first(), Some(&usage_schemas::ids::record_id(ctx.tenant_id, "work-1")));
}

/// Escapes that jsonb refuses, inside the business transaction: they are kept byte for byte and stop nothing.
#[tokio::test]
async fn problem_77_escapes_that_jsonb_refuses_commit_and_arrive() {
    const METADATA: &str = r#"{"nul":"x\u0000y","alone":"\ud800","pair":"\ud83d\ude00"}"#;
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    sqlx::raw_sql("CREATE TABLE business (n int)").execute(&source.pool).await.unwrap();
    let mut tx = source.pool.begin().await.unwrap();
    sqlx::raw_sql("INSERT INTO business VALUES (1)").execute(&mut *tx).await.unwrap();
    sqlx::query("SELECT usage_emit($1, 'llm.tokens', 1, 'k', metadata => $2::text::json)")
        .bind(Uuid::new_v4())
        .bind(METADATA)
        .execute(&mut *tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let relay = Running::start(config(&source, &topic));
    source.emptied().await;
    relay.stop().await;
    assert_eq!(source.count("business").await, 1);
    assert_eq!(topic.read().await[0].record.metadata.as_deref(), Some(METADATA));
    assert_eq!(source.count("usage_outbox_dead_letters").await, 0);
}

/// A source whose clock is two hours ahead: newer brokers refuse times from the future, which would hold up the row's whole batch. The topic has
/// the broker's own time, so its record arrives, as do the others; the consumer says what is wrong with it.
#[tokio::test]
async fn problem_86_a_record_from_the_future_holds_nobody_up() {
    let source = Source::new().await;
    let topic = Topic::with(1, &[("message.timestamp.after.max.ms", "60000")]).await;
    let tenant = Uuid::new_v4();
    source.emit(tenant, "future").await;
    let moved = sqlx::query(
        "UPDATE usage_outbox SET emitted_at = emitted_at + interval '2 hours', payload = convert_to(jsonb_set( \
         convert_from(payload, 'UTF8')::jsonb, '{timestamp}', \
         to_jsonb(to_char((clock_timestamp() + interval '2 hours') AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')))::text, 'UTF8')",
    )
    .execute(&source.pool)
    .await
    .unwrap();
    assert_eq!(moved.rows_affected(), 1);
    source.emit(tenant, "now").await;
    let relay = Running::start(config(&source, &topic));
    source.emptied().await;
    relay.stop().await;
    assert_eq!(topic.keys().await, ["future", "now"]);
    assert_eq!(source.count("usage_outbox_dead_letters").await, 0);
}

/// Emitters, relays, truncation and an operator's retries at once: nobody is the victim of a deadlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_89_cleaning_up_under_load_makes_no_deadlock() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let relays: Vec<Running> = (0..2).map(|_| Running::start(config(&source, &topic))).collect();
    let emitters: Vec<_> = (0..4)
        .map(|number| {
            let pool = source.pool.clone();
            tokio::spawn(async move {
                for round in 0..150 {
                    // Into all leaves in turn, as emitters do that take their time, so that leaves are emptied and truncated beside them.
                    let mut tx = pool.begin().await.unwrap();
                    for row in 0..2 {
                        sqlx::query(
                            "WITH emitted AS (SELECT usage_record_id($1, $2) AS id) \
                             INSERT INTO usage_outbox (segment, part, tenant_id, payload_type, payload) \
                             SELECT $3, usage_outbox_part($1), $1, $4, convert_to(json_build_object('record_id', id, \
                             'tenant_id', $1, 'metric', 'm', 'kind', 'counter', 'value', '1', \
                             'timestamp', '2026-01-02T03:04:05Z', 'idempotency_key', $2)::text, 'UTF8') FROM emitted",
                        )
                        .bind(Uuid::from_u64_pair(9, (number + round) % 7))
                        .bind(format!("{number}-{round}-{row}"))
                        .bind(i16::try_from((round + row) % 4).unwrap())
                        .bind(names::PAYLOAD_RECORD_JSON)
                        .execute(&mut *tx)
                        .await
                        .unwrap();
                    }
                    tx.commit().await.unwrap();
                }
            })
        })
        .collect();
    for emitter in emitters {
        emitter.await.unwrap();
    }
    source.emptied().await;
    for relay in relays {
        relay.stop().await;
    }
    assert_eq!(topic.keys().await.len(), 1_200);
    let deadlocks: i64 =
        sqlx::query_scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
            .fetch_one(&source.pool)
            .await
            .unwrap();
    assert_eq!(deadlocks, 0);
}

/// Nothing of a relay is left in a session, which a pooler would keep or hand to somebody else: no session lock, and no open transaction.
#[tokio::test]
async fn problem_108_a_relay_leaves_nothing_in_a_session() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let relay = Running::start(config(&source, &topic));
    until("all partitions are held", async || (relay.status.borrow().partitions.len() == 4).then_some(()))
        .await;
    source.emit(Uuid::new_v4(), "k").await;
    source.emptied().await;
    let sessions = "pg_stat_activity WHERE datname = current_database() AND application_name = 'usage-relay'";
    assert!(source.count(sessions).await >= 5);
    let locks = format!("pg_locks WHERE locktype = 'advisory' AND pid IN (SELECT pid FROM {sessions})");
    assert_eq!(source.count(&locks).await, 0);
    let idle = format!(
        "{sessions} AND state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '5 seconds'"
    );
    assert_eq!(source.count(&idle).await, 0);
    relay.stop().await;
}

/// Pages of large rows end by their bytes; all of them arrive.
#[tokio::test]
async fn pages_of_large_rows_end_by_their_bytes() {
    let (source, topic) = (Source::new().await, Topic::new(1).await);
    sqlx::raw_sql("CREATE OR REPLACE FUNCTION usage_emit_metadata_bytes() RETURNS integer LANGUAGE sql IMMUTABLE RETURN 1000000")
        .execute(&source.pool)
        .await
        .unwrap();
    // 50 MB in one outbox partition: three pages and a rest.
    sqlx::query(
        "SELECT usage_emit($1, 'llm.tokens', 1, 'k' || n, metadata => json_build_object('a', repeat(md5(n::text), 25000))) \
         FROM generate_series(1, 62) AS n",
    )
    .bind(Uuid::new_v4())
    .execute(&source.pool)
    .await
    .unwrap();
    let relay = Running::start(config(&source, &topic));
    source.emptied().await;
    relay.stop().await;
    assert_eq!(topic.keys().await.len(), 62);
    assert_eq!(source.count("usage_outbox_dead_letters").await, 0);
}
