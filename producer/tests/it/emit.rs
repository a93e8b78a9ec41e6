//! Emitting in the caller's transaction.

use sqlx::{Connection, Row as _};
use usage_access::SecurityContext;
use usage_producer::{EmitError, NewRecord};
use usage_schemas::codec::Decoder;
use usage_schemas::{Quantity, Timestamp, json, names};
use uuid::Uuid;

use crate::support::{Source, caller, collector, trusting};

fn record(tenant: Uuid, key: &str) -> NewRecord {
    NewRecord::counter(tenant, "llm.tokens", Quantity::parse("17").unwrap(), key)
}

#[tokio::test]
async fn a_rollback_leaves_nothing_and_a_commit_leaves_one_row() {
    let source = Source::new().await;
    let collector = collector();
    let ctx = caller(Uuid::new_v4());
    let auth = collector.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let mut tx = source.pool.begin().await.unwrap();
    collector.emit(&mut tx, &ctx, record(ctx.tenant_id, "k"), &auth).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(source.count("usage_outbox").await, 0);

    let mut tx = source.pool.begin().await.unwrap();
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let traced = record(ctx.tenant_id, "k").with_traceparent(traceparent);
    let id = collector.emit(&mut *tx, &ctx, traced, &auth).await.unwrap();
    assert_eq!(source.count("usage_outbox").await, 0, "nobody sees it before the commit");
    tx.commit().await.unwrap();
    let row = sqlx::query("SELECT * FROM usage_outbox").fetch_one(&source.pool).await.unwrap();
    assert_eq!(row.get::<Uuid, _>("tenant_id"), ctx.tenant_id);
    assert_eq!(row.get::<String, _>("source"), "llm-gateway");
    assert_eq!(row.get::<String, _>("payload_type"), names::PAYLOAD_RECORD);
    assert_eq!(row.get::<String, _>("traceparent"), traceparent);
    let payload: Vec<u8> = row.get("payload");
    let decoder = Decoder::new();
    let written = decoder.decode(&payload).unwrap();
    assert_eq!(
        (written.record_id, written.tenant_id, written.subject_id),
        (id, ctx.tenant_id, ctx.subject_id)
    );
}

#[tokio::test]
async fn a_batch_is_one_statement_in_the_order_of_its_records() {
    let source = Source::new().await;
    let collector = collector();
    let ctx = caller(Uuid::new_v4());
    let auth = collector.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let batch: Vec<NewRecord> = (0..500).map(|number| record(ctx.tenant_id, &format!("k{number}"))).collect();
    let mut tx = source.pool.begin().await.unwrap();
    let ids = collector.emit_batch(&mut tx, &ctx, batch, &auth).await.unwrap();
    assert!(collector.emit_batch(&mut tx, &ctx, Vec::new(), &auth).await.unwrap().is_empty());
    tx.commit().await.unwrap();
    let rows: Vec<(Vec<u8>, Option<String>)> =
        sqlx::query_as("SELECT payload, traceparent FROM usage_outbox ORDER BY id")
            .fetch_all(&source.pool)
            .await
            .unwrap();
    let decoder = Decoder::new();
    let written: Vec<Uuid> =
        rows.iter().map(|(payload, _)| decoder.decode(payload).unwrap().record_id).collect();
    assert_eq!(written, ids);
    assert!(rows.iter().all(|(_, traceparent)| traceparent.is_none()));
}

#[tokio::test]
async fn a_failed_check_spares_the_transaction() {
    let source = Source::new().await;
    let collector = collector();
    let ctx = caller(Uuid::new_v4());
    let auth = collector.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let mut tx = source.pool.begin().await.unwrap();
    let foreign = collector.emit(&mut tx, &ctx, record(Uuid::new_v4(), "k"), &auth).await.unwrap_err();
    assert!(matches!(foreign, EmitError::ConstraintViolation { field: "tenant_id", .. }));
    collector.emit(&mut tx, &ctx, record(ctx.tenant_id, "k"), &auth).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(source.count("usage_outbox").await, 1);
}

/// A time in microseconds is the same through both doors, so a repeat through the other one is the same record.
#[tokio::test]
async fn both_doors_keep_the_same_microseconds() {
    let source = Source::new().await;
    let collector = collector();
    let ctx = SecurityContext { subject_id: None, subject_type: None, ..caller(Uuid::new_v4()) };
    let auth = collector.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let mut tx = source.pool.begin().await.unwrap();
    for at in ["2026-01-02T03:04:05.000001Z", "2026-01-02T03:04:05.999999+05:45", "2025-12-31T23:59:59.1Z"] {
        let by_rust = record(ctx.tenant_id, at).at(Timestamp::parse(at).unwrap());
        collector.emit(&mut tx, &ctx, by_rust, &auth).await.unwrap();
        sqlx::query("SELECT usage_emit($1, 'llm.tokens', 17, $2, $2::text::timestamptz)")
            .bind(ctx.tenant_id)
            .bind(at)
            .execute(&mut *tx)
            .await
            .unwrap();
    }
    let payloads: Vec<Vec<u8>> =
        sqlx::query_scalar("SELECT payload FROM usage_outbox ORDER BY id").fetch_all(&mut *tx).await.unwrap();
    let decoder = Decoder::new();
    for pair in payloads.chunks(2) {
        let by_sql = json::decode(&pair[1], "llm-gateway").unwrap();
        assert_eq!(decoder.decode(&pair[0]).unwrap().to_owned(), by_sql);
    }
    assert_eq!(payloads.len(), 6);
}

/// What the README shows is compiled: each line of its Rust is a line of the example, in the same order.
#[test]
fn the_readme_shows_lines_of_the_example() {
    let readme = include_str!("../../../README.md");
    let example = include_str!("../../examples/emit.rs");
    let shown = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let code = |line: &str| line.split(" // ").next().unwrap().trim().to_owned();
    let mut lines = example.lines().map(code);
    let shown: Vec<String> =
        shown.lines().map(code).filter(|line| !line.is_empty() && !line.starts_with("//")).collect();
    assert!(shown.len() > 10);
    for line in shown {
        assert!(lines.any(|found| found == line), "not in the example, or not in this order: {line}");
    }
}

/// Its metric is one that the stack registers; any other would become a dead letter of the consumer.
#[test]
fn the_example_emits_a_registered_metric() {
    let example = include_str!("../../examples/emit.rs");
    let stack = include_str!("../../../deploy/init.sh");
    let metrics: Vec<&str> = example.split('"').filter(|text| text.starts_with("llm.")).collect();
    assert_eq!(metrics.len(), 2, "it authorizes one metric and emits it");
    for metric in metrics {
        assert!(stack.contains(&format!("types add {metric} ")), "{metric}");
    }
}

#[tokio::test]
async fn an_outbox_in_another_schema_is_found_by_its_name() {
    let source = Source::empty().await;
    let mut connection = source.pool.acquire().await.unwrap();
    sqlx::raw_sql("CREATE SCHEMA \"Usage \"\"x\"; SET search_path = \"Usage \"\"x\"")
        .execute(&mut *connection)
        .await
        .unwrap();
    for file in [
        include_str!("../../migrations/0001_outbox.sql"),
        include_str!("../../migrations/0002_usage_emit.sql"),
    ] {
        sqlx::raw_sql(file).execute(&mut *connection).await.unwrap();
    }
    sqlx::raw_sql("SET search_path = public").execute(&mut *connection).await.unwrap();
    let collector = trusting().schema("Usage \"x").build().unwrap().for_module("llm-gateway");
    let ctx = caller(Uuid::new_v4());
    let auth = collector.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    let by_rust = collector.emit(&mut tx, &ctx, record(ctx.tenant_id, "k"), &auth).await.unwrap();
    let by_sql: Uuid = sqlx::query_scalar("SELECT \"Usage \"\"x\".usage_emit($1, 'llm.tokens', 17, 'k')")
        .bind(ctx.tenant_id)
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    assert_eq!(by_rust, by_sql);
    assert_eq!(source.count("\"Usage \"\"x\".usage_outbox").await, 2);
}

#[tokio::test]
async fn without_an_outbox_the_error_is_the_databases() {
    let source = Source::empty().await;
    let collector = collector();
    let ctx = caller(Uuid::new_v4());
    let auth = collector.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let mut tx = source.pool.begin().await.unwrap();
    let error = collector.emit(&mut tx, &ctx, record(ctx.tenant_id, "k"), &auth).await.unwrap_err();
    assert!(matches!(error, EmitError::Database(_)));
    assert_eq!(
        error.to_string(),
        "cannot write the outbox row",
        "the cause is a source, not part of the text"
    );
}
