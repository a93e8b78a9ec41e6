//! Rows that can't be sent, ever or yet, hold nobody up.

use std::collections::BTreeMap;

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
    source.emit(tenant, "good").await;
    let relay = Running::start(config);
    source.emptied().await;
    relay.stop().await;
    assert_eq!(topic.keys().await, ["good"]);
    let mut reasons: Vec<String> =
        dead_letters(&source).await.into_iter().map(|(reason, _)| reason).collect();
    reasons.sort();
    assert_eq!(reasons, ["not_encodable", "too_large", "too_large"]);
}

/// A newer emitter's rows: this relay can't send them, but another one can.
#[tokio::test]
async fn rows_of_a_payload_type_that_is_not_known_yet_wait_and_come_back() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let tenant = Uuid::new_v4();
    source.emit(tenant, "newer").await;
    let newer = format!("usage-collector.record.v9+{}", noise(6_000));
    sqlx::query("UPDATE usage_outbox SET payload_type = $1")
        .bind(&newer)
        .execute(&source.pool)
        .await
        .unwrap();
    source.emit(tenant, "good").await;
    // Twice: an old relay that starts again does not take them for its own.
    for key in ["first", "second"] {
        let relay = Running::start(config(&source, &topic));
        source.emit(tenant, key).await;
        source.emptied().await;
        relay.stop().await;
        let kept: Vec<String> = sqlx::query_scalar("SELECT payload_type FROM usage_outbox_waiting")
            .fetch_all(&source.pool)
            .await
            .unwrap();
        assert_eq!(kept, std::slice::from_ref(&newer));
    }
    assert!(dead_letters(&source).await.is_empty());

    // To a relay that knows the type the row is what this is to ours.
    sqlx::query("UPDATE usage_outbox_waiting SET payload_type = $1")
        .bind(names::PAYLOAD_RECORD_JSON)
        .execute(&source.pool)
        .await
        .unwrap();
    let relay = Running::start(config(&source, &topic));
    until("nothing waits", async || (source.count("usage_outbox_waiting").await == 0).then_some(())).await;
    source.emptied().await;
    relay.stop().await;
    assert_eq!(topic.keys().await, ["first", "good", "newer", "second"]);
}

/// Text that Postgres can't compress to what an index entry takes.
fn noise(bytes: usize) -> String {
    std::iter::repeat_with(|| Uuid::new_v4().simple().to_string())
        .flat_map(|id| id.into_bytes())
        .take(bytes)
        .map(char::from)
        .collect()
}

/// What the row says must not be what stops its partition: errors that quote U+0000, names of any length.
#[tokio::test]
async fn odd_texts_in_rows_hold_nobody_up() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let tenant = Uuid::new_v4();
    insert(&source, tenant, names::PAYLOAD_RECORD_JSON, None, b"{\"x\\u0000\":1}").await;
    let name = noise(30_000);
    insert(&source, tenant, names::PAYLOAD_RECORD, Some(&name), b"x").await;
    source.emit(tenant, "good").await;
    let relay = Running::start(config(&source, &topic));
    source.emptied().await;
    relay.stop().await;
    assert_eq!(topic.keys().await, ["good"]);
    let dead = dead_letters(&source).await;
    assert!(dead.len() == 1 && dead[0].0 == "not_encodable" && dead[0].1.contains("x\\u{0}"), "{dead:?}");
    assert_eq!(source.count("usage_outbox_waiting").await, 1);
}

/// The operator's own constraints on the tables refuse an error's text, a dead letter and a waiting row. Each stays or goes for itself.
#[tokio::test]
async fn rows_that_the_database_refuses_to_move_stay_and_the_others_go_on() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    sqlx::raw_sql(
        "ALTER TABLE usage_outbox_dead_letters ADD CHECK (error NOT LIKE '%quoted%'), ADD CHECK (octet_length(payload) <> 5); \
         ALTER TABLE usage_outbox_waiting ADD CHECK (source <> 'refused')",
    )
    .execute(&source.pool)
    .await
    .unwrap();
    let tenant = Uuid::new_v4();
    for (name, payload) in [
        (None, &b"{\"quoted\":1}"[..]),
        (None, b"{stay"),
        (None, b"{\"plain\":1}"),
        (Some("refused"), b"x"),
        (Some("unknown"), b"x"),
    ] {
        insert(&source, tenant, names::PAYLOAD_RECORD_JSON, name, payload).await;
    }
    source.emit(tenant, "good").await;
    let relay = Running::start(config(&source, &topic));
    let left = async || (source.count("usage_outbox").await == 2).then_some(());
    until("the others have gone", left).await;
    // The relay goes on with what comes later, over the same connections.
    let scanners = "SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND application_name = 'usage-relay'";
    let before: String = sqlx::query_scalar(scanners).fetch_one(&source.pool).await.unwrap();
    source.emit(tenant, "later").await;
    until("the later one has gone", left).await;
    let after: String = sqlx::query_scalar(scanners).fetch_one(&source.pool).await.unwrap();
    assert_eq!(before, after);
    relay.stop().await;
    assert_eq!(topic.keys().await, ["good", "later"]);
    let stayed: Vec<Vec<u8>> = sqlx::query_scalar("SELECT payload FROM usage_outbox ORDER BY id")
        .fetch_all(&source.pool)
        .await
        .unwrap();
    assert_eq!(stayed, [&b"{stay"[..], b"x"]);
    // In order of the leaves, which change with the minute.
    let mut errors: Vec<String> = dead_letters(&source).await.into_iter().map(|(_, error)| error).collect();
    errors.sort_by_key(|error| error.contains("plain"));
    assert_eq!(errors.len(), 2);
    assert!(errors[0].contains("the database refused") && errors[1].contains("plain"), "{errors:?}");
    assert_eq!(source.count("usage_outbox_waiting").await, 1);
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
    let mut sources: BTreeMap<Uuid, String> = BTreeMap::new();
    sources.extend(received.into_iter().map(|received| (received.record.record_id, received.record.source)));
    assert_eq!(sources.len(), 1_501);
    assert_eq!(sources.values().filter(|source| *source == "vm-manager").count(), 1_500);
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
