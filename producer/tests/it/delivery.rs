//! What is committed arrives, once, signed, on its partition.

use std::time::Duration;

use tokio::time::Instant;
use usage_producer::NewRecord;
use usage_schemas::partition::partition_of;
use usage_schemas::{Quantity, Timestamp};
use usage_service::clock;
use uuid::Uuid;

use crate::support::{BY_THE_FLOOR, Running, SOURCE, Source, Topic, caller, collector, config, until};

#[tokio::test]
async fn committed_records_arrive_signed_on_the_tenants_partition() {
    let (source, topic) = (Source::new().await, Topic::new(12).await);
    let relay = Running::start(config(&source, &topic));
    let tenants: Vec<Uuid> = (0..20).map(|_| Uuid::new_v4()).collect();
    for tenant in &tenants {
        source.emit(*tenant, "k").await;
    }
    source.emptied().await;
    assert_eq!(topic.distinct().await, tenants.len());
    for received in topic.read().await {
        assert!(tenants.contains(&received.record.tenant_id));
        assert_eq!(received.key, received.record.tenant_id.to_string());
        assert_eq!(received.partition, partition_of(received.record.tenant_id, 12));
        assert_eq!(received.record.source, SOURCE);
    }
    relay.stop().await;
}

/// The same record by `emit` and by `usage_emit`: the same id, and the same bytes after the relay.
#[tokio::test]
async fn sql_and_rust_make_the_same_message() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let mut config = config(&source, &topic);
    config.relay.default_source = Some("llm-gateway".into());
    let (tenant, resource) = (Uuid::new_v4(), Uuid::new_v4());
    let ctx = caller(tenant);
    let at = Timestamp::from_micros(clock::now_micros() - 1_234_567);
    let metadata = r#"{ "model" : "x-1", "n":1.50, "odd": "\u0000 \ud800 é ü", "n":2 }"#;
    let collector = collector();
    let mut ids = Vec::new();
    for (value, key) in
        [("1.50", "k"), ("0", "ü-\u{1F600}\"\\\n"), ("99999999999999999999.999999999999999999", "big")]
    {
        let record = NewRecord::counter(tenant, "llm.tokens", Quantity::parse(value).unwrap(), key)
            .at(at)
            .with_resource(resource, "model")
            .with_metadata(metadata);
        let auth = collector.authorize_emit(&ctx, "llm.tokens").await.unwrap();
        let mut tx = source.pool.begin().await.unwrap();
        let by_rust = collector.emit(&mut tx, &ctx, record, &auth).await.unwrap();
        let by_sql: Uuid = sqlx::query_scalar(
            "SELECT usage_emit($1, 'llm.tokens', $2::numeric, $3, to_timestamp(0) + $4 * interval '1 microsecond', \
             'counter', $5, 'model', $6, $7, $8::json)",
        )
        .bind(tenant)
        .bind(value)
        .bind(key)
        .bind(at.micros())
        .bind(resource)
        .bind(ctx.subject_id)
        .bind(ctx.subject_type.as_deref())
        .bind(metadata)
        .fetch_one(&mut *tx)
        .await
        .unwrap();
        tx.commit().await.unwrap();
        assert_eq!(by_rust, by_sql);
        ids.push(by_rust);
    }
    let relay = Running::start(config);
    source.emptied().await;
    let received = topic.read().await;
    assert_eq!(topic.distinct().await, ids.len());
    for id in ids {
        let copies: Vec<_> = received.iter().filter(|received| received.record.record_id == id).collect();
        let [first, others @ ..] = &copies[..] else { panic!("no copy of {id}") };
        assert!(!others.is_empty(), "two copies of {id}");
        for other in others {
            assert_eq!(first.value, other.value);
            assert_eq!(first.headers, other.headers);
        }
        assert_eq!(first.record.metadata.as_deref(), Some(metadata));
    }
    relay.stop().await;
}

/// Problem 53: transaction A draws the lower id and commits after B was delivered. A cursor on ids would have passed it.
#[tokio::test]
async fn problem_53_late_commit() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let by_the_floor = Instant::now() + BY_THE_FLOOR;
    let relay = Running::start(config(&source, &topic));
    // One tenant, so one outbox partition, whose floor is what matters.
    let tenant = Uuid::new_v4();
    let mut late = source.pool.begin().await.unwrap();
    sqlx::query("SELECT usage_emit($1, 'llm.tokens', 1, 'late')")
        .bind(tenant)
        .execute(&mut *late)
        .await
        .unwrap();
    for round in 0..5 {
        source.emit(tenant, &format!("early-{round}")).await;
        source.emptied().await;
        // Two looks for the floor happen at least.
        tokio::time::sleep(Duration::from_millis(450)).await;
    }
    assert_eq!(topic.distinct().await, 5);
    late.commit().await.unwrap();
    // By the floor, not by the look from 0 that comes every minute.
    tokio::time::timeout_at(by_the_floor, source.emptied()).await.unwrap();
    let keys = topic.keys().await;
    assert_eq!(keys, ["early-0", "early-1", "early-2", "early-3", "early-4", "late"]);
    relay.stop().await;
}

/// Many writers, one in eight rolled back, some late: what was committed is in Kafka, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_the_committed_records_arrive() {
    let (source, topic) = (Source::new().await, Topic::new(6).await);
    let mut config = config(&source, &topic);
    config.relay.batch_rows = 7;
    let relay = Running::start(config);
    let writers = (0..8_u64).map(|writer| {
        let pool = source.pool.clone();
        tokio::spawn(async move {
            let mut committed = Vec::new();
            for number in 0..25_u64 {
                let mut tx = pool.begin().await.unwrap();
                let key = format!("{writer}-{number}");
                sqlx::query("SELECT usage_emit($1, 'llm.tokens', 1, $2)")
                    .bind(Uuid::from_u64_pair(writer + 1, number % 5))
                    .bind(&key)
                    .execute(&mut *tx)
                    .await
                    .unwrap();
                if number % 5 == writer % 5 {
                    tokio::time::sleep(Duration::from_millis(30 * writer)).await;
                }
                if (writer + number) % 8 == 0 {
                    tx.rollback().await.unwrap();
                } else {
                    tx.commit().await.unwrap();
                    committed.push(key);
                }
            }
            committed
        })
    });
    let mut committed = Vec::new();
    for writer in writers.collect::<Vec<_>>() {
        committed.extend(writer.await.unwrap());
    }
    committed.sort();
    source.emptied().await;
    relay.stop().await;
    let set_aside =
        (source.count("usage_outbox_dead_letters").await, source.count("usage_outbox_waiting").await);
    assert_eq!(set_aside, (0, 0));
    assert_eq!(topic.keys().await, committed);
}

#[tokio::test]
async fn a_wake_up_spares_the_wait_for_the_next_poll() {
    let (source, topic) = (Source::new().await, Topic::new(1).await);
    let mut config = config(&source, &topic);
    // Without a wake-up the row would lie for much longer than the test may take.
    (config.relay.poll_min, config.relay.poll_max) = (Duration::from_secs(600), Duration::from_secs(600));
    let relay = Running::start(config);
    until("all partitions are held", async || (relay.status.borrow().partitions.len() == 4).then_some(()))
        .await;
    let collector = collector();
    let ctx = caller(Uuid::new_v4());
    let auth = collector.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let record = NewRecord::counter(ctx.tenant_id, "llm.tokens", Quantity::parse("1").unwrap(), "k");
    let mut tx = source.pool.begin().await.unwrap();
    collector.emit(&mut tx, &ctx, record, &auth).await.unwrap();
    tx.commit().await.unwrap();
    until("the row is delivered", async || {
        relay.waker.wake();
        (source.count("usage_outbox").await == 0).then_some(())
    })
    .await;
    assert_eq!(topic.keys().await, ["k"]);
    relay.stop().await;
}
