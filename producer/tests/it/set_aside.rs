//! Rows that can't be sent, ever or yet, hold nobody up.

use sqlx::Row as _;
use usage_schemas::names;
use uuid::Uuid;

use crate::support::{Running, SOURCE, Source, Topic, config, key_of, until};

/// Writes a row past `usage_emit`.
async fn insert(source: &Source, tenant: Uuid, payload_type: &str, name: Option<&str>, payload: &[u8]) {
    sqlx::query(
        "INSERT INTO usage_outbox (part, tenant_id, payload_type, source, payload) VALUES (usage_outbox_part($1), $1, $2, $3, $4)",
    )
    .bind(tenant)
    .bind(payload_type)
    .bind(name)
    .bind(payload)
    .execute(&source.pool)
    .await
    .unwrap();
}

async fn dead_letters(source: &Source) -> Vec<(String, String)> {
    sqlx::query_as("SELECT reason, error FROM usage_outbox_dead_letters ORDER BY dead_letter_id")
        .fetch_all(&source.pool)
        .await
        .unwrap()
}

/// The broker refuses whole batches. All rows but the one that is too large by itself arrive.
#[tokio::test]
async fn a_row_that_is_too_large_becomes_a_dead_letter_and_the_others_go_on() {
    let source = Source::new().await;
    let topic = Topic::with(1, &[("max.message.bytes", "4000")]).await;
    let mut config = config(&source, &topic);
    config.relay.compression = "none".into();
    let tenant = Uuid::new_v4();
    let mut keys = Vec::new();
    for number in 0..60 {
        keys.push(format!("k{number:02}"));
        source.emit(tenant, &keys[number]).await;
    }
    sqlx::query("SELECT usage_emit($1, 'llm.tokens', 1, 'large', metadata => json_build_object('a', repeat('x', 8000)))")
        .bind(tenant)
        .execute(&source.pool)
        .await
        .unwrap();
    for number in 60..90 {
        keys.push(format!("k{number:02}"));
        source.emit(tenant, &keys[number]).await;
    }
    let relay = Running::start(config);
    source.emptied().await;
    relay.stop().await;
    assert_eq!(topic.keys().await, keys);
    let row = sqlx::query("SELECT * FROM usage_outbox_dead_letters").fetch_one(&source.pool).await.unwrap();
    assert_eq!(row.get::<String, _>("reason"), "too_large");
    assert_eq!(row.get::<Uuid, _>("tenant_id"), tenant);
    assert_eq!(row.get::<String, _>("payload_type"), names::PAYLOAD_RECORD_JSON);
    let payload = String::from_utf8(row.get("payload")).unwrap();
    assert!(payload.contains("\"large\"") && payload.len() > 8000, "the payload is kept as it was");
}

#[tokio::test]
async fn rows_that_no_relay_can_send_become_dead_letters() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let mut config = config(&source, &topic);
    config.relay.max_message_bytes = 20_000;
    let tenant = Uuid::new_v4();
    // Larger than the client's bound, and so large that it is not even read.
    insert(&source, tenant, names::PAYLOAD_RECORD, Some(SOURCE), &[7; 30_000]).await;
    insert(&source, tenant, names::PAYLOAD_RECORD, Some(SOURCE), &vec![7; 3_000_000]).await;
    insert(&source, tenant, names::PAYLOAD_RECORD_JSON, None, b"{\"metric\":1}").await;
    insert(&source, tenant, "usage-collector.record.v9", None, b"x").await;
    source.emit(tenant, "good").await;
    let relay = Running::start(config);
    source.emptied().await;
    relay.stop().await;
    assert_eq!(topic.keys().await, ["good"]);
    let mut reasons: Vec<String> =
        dead_letters(&source).await.into_iter().map(|(reason, _)| reason).collect();
    reasons.sort();
    assert_eq!(reasons, ["not_encodable", "too_large", "too_large", "unknown_payload_type"]);
}

/// Thousands of rows that can't be sent in front of one that can.
#[tokio::test]
async fn rows_of_a_source_without_a_key_wait_and_come_back() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let mut config = config(&source, &topic);
    config.relay.batch_rows = 100;
    let tenant = Uuid::new_v4();
    sqlx::query("SELECT usage_emit($1, 'llm.tokens', 1, 'w' || n) FROM generate_series(1, 1500) AS n")
        .bind(tenant)
        .execute(&source.pool)
        .await
        .unwrap();
    sqlx::query("UPDATE usage_outbox SET source = 'vm-manager'").execute(&source.pool).await.unwrap();
    source.emit(tenant, "good").await;
    let relay = Running::start(config.clone());
    source.emptied().await;
    assert_eq!(topic.keys().await, ["good"]);
    assert_eq!(source.count("usage_outbox_waiting").await, 1_500);
    relay.stop().await;

    // Started with the missing key, it finds them by itself; their time is still that of the emit.
    let emitted = "SELECT max(emitted_at)::text FROM usage_outbox_waiting";
    let newest: String = sqlx::query_scalar(emitted).fetch_one(&source.pool).await.unwrap();
    config.relay.sources.push(key_of("vm-manager"));
    let relay = Running::start(config);
    until("nothing waits", async || (source.count("usage_outbox_waiting").await == 0).then_some(())).await;
    source.emptied().await;
    relay.stop().await;
    let received = topic.read().await;
    assert_eq!(received.len(), 1_501);
    assert_eq!(received.iter().filter(|received| received.record.source == "vm-manager").count(), 1_500);
    let now: bool = sqlx::query_scalar("SELECT $1::timestamptz < clock_timestamp()")
        .bind(&newest)
        .fetch_one(&source.pool)
        .await
        .unwrap();
    assert!(now && dead_letters(&source).await.is_empty());
}

#[tokio::test]
async fn without_a_default_source_rows_of_usage_emit_wait() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let mut config = config(&source, &topic);
    config.relay.default_source = None;
    source.emit(Uuid::new_v4(), "k").await;
    let relay = Running::start(config);
    until("it waits", async || (source.count("usage_outbox_waiting").await == 1).then_some(())).await;
    relay.stop().await;
    assert_eq!((source.count("usage_outbox").await, topic.read().await.len()), (0, 0));
}
