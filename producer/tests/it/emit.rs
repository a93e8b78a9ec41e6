//! Emitting in the caller's transaction.

use sqlx::{Connection, Row as _};
use usage_producer::{EmitError, NewRecord, UsageCollector};
use usage_schemas::codec::Decoder;
use usage_schemas::{Quantity, names};
use uuid::Uuid;

use crate::support::{Source, caller};

fn record(tenant: Uuid, key: &str) -> NewRecord {
    NewRecord::counter(tenant, "llm.tokens", Quantity::parse("17").unwrap(), key)
}

#[tokio::test]
async fn a_rollback_leaves_nothing_and_a_commit_leaves_one_row() {
    let source = Source::new().await;
    let collector = UsageCollector::new().for_module("llm-gateway");
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
    let collector = UsageCollector::new().for_module("llm-gateway");
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
    let collector = UsageCollector::new().for_module("llm-gateway");
    let ctx = caller(Uuid::new_v4());
    let auth = collector.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let mut tx = source.pool.begin().await.unwrap();
    let foreign = collector.emit(&mut tx, &ctx, record(Uuid::new_v4(), "k"), &auth).await.unwrap_err();
    assert!(matches!(foreign, EmitError::ConstraintViolation { field: "tenant_id", .. }));
    collector.emit(&mut tx, &ctx, record(ctx.tenant_id, "k"), &auth).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(source.count("usage_outbox").await, 1);
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
    let collector = UsageCollector::builder().schema("Usage \"x").build().for_module("llm-gateway");
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
    let collector = UsageCollector::new().for_module("llm-gateway");
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
