//! Emitting through the transactions of tokio-postgres.

use sqlx::Row as _;
use tokio_postgres::{Client, NoTls};
use usage_access::SecurityContext;
use usage_producer::{EmitError, NewRecord};
use usage_schemas::codec::Decoder;
use usage_schemas::{Quantity, names};
use uuid::Uuid;

use crate::support::{Source, caller, collector, trusting};

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

async fn connect(source: &Source) -> Client {
    let (client, connection) = tokio_postgres::connect(&source.url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn record(ctx: &SecurityContext, key: &str) -> NewRecord {
    NewRecord::counter(ctx.tenant_id, "llm.tokens", Quantity::parse("17").unwrap(), key)
}

#[tokio::test]
async fn a_rollback_leaves_nothing_and_a_commit_leaves_one_row() {
    let source = Source::new().await;
    let (mut client, collector) = (connect(&source).await, collector());
    let ctx = caller(Uuid::new_v4());
    let auth = collector.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let mut tx = client.transaction().await.unwrap();
    collector.emit(&mut tx, &ctx, record(&ctx, "k"), &auth).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(source.count("usage_outbox").await, 0);

    let mut tx = client.transaction().await.unwrap();
    let traced = record(&ctx, "k").with_traceparent(TRACEPARENT);
    let id = collector.emit(&mut tx, &ctx, traced, &auth).await.unwrap();
    let by_sql: Uuid =
        tx.query_one("SELECT usage_emit($1, 'llm.tokens', 17, 'k')", &[&ctx.tenant_id]).await.unwrap().get(0);
    assert_eq!(id, by_sql);
    assert_eq!(source.count("usage_outbox").await, 0, "nobody sees it before the commit");
    tx.commit().await.unwrap();
    let rows = sqlx::query("SELECT * FROM usage_outbox ORDER BY id").fetch_all(&source.pool).await.unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].get::<i16, _>("part"), rows[1].get::<i16, _>("part"));
    assert_eq!(rows[0].get::<Uuid, _>("tenant_id"), ctx.tenant_id);
    assert_eq!(rows[0].get::<String, _>("source"), "llm-gateway");
    assert_eq!(rows[0].get::<String, _>("payload_type"), names::PAYLOAD_RECORD);
    assert_eq!(rows[0].get::<String, _>("traceparent"), TRACEPARENT);
    let payload: Vec<u8> = rows[0].get("payload");
    let decoder = Decoder::new();
    let written = decoder.decode(&payload).unwrap();
    assert_eq!((written.record_id, written.subject_id), (id, ctx.subject_id));
}

#[tokio::test]
async fn a_batch_is_one_statement_in_the_order_of_its_records() {
    let source = Source::new().await;
    let (mut client, collector) = (connect(&source).await, collector());
    let ctx = caller(Uuid::new_v4());
    let auth = collector.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let mut batch: Vec<NewRecord> = (0..500).map(|number| record(&ctx, &format!("k{number}"))).collect();
    batch[7] = record(&ctx, "k7").with_traceparent(TRACEPARENT);
    let mut tx = client.transaction().await.unwrap();
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
    let traced: Vec<usize> = (0..rows.len()).filter(|number| rows[*number].1.is_some()).collect();
    assert_eq!(traced, [7]);
}

#[tokio::test]
async fn a_failed_check_spares_the_transaction_and_a_failed_insert_is_the_databases() {
    let source = Source::new().await;
    let (mut client, collector) = (connect(&source).await, collector());
    let ctx = caller(Uuid::new_v4());
    let auth = collector.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let mut tx = client.transaction().await.unwrap();
    let foreign = NewRecord { tenant_id: Uuid::new_v4(), ..record(&ctx, "k") };
    let error = collector.emit(&mut tx, &ctx, foreign, &auth).await.unwrap_err();
    assert!(matches!(error, EmitError::ConstraintViolation { field: "tenant_id", .. }));
    collector.emit(&mut tx, &ctx, record(&ctx, "k"), &auth).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(source.count("usage_outbox").await, 1);

    let elsewhere = trusting().schema("elsewhere").build().unwrap().for_module("llm-gateway");
    let auth = elsewhere.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let mut tx = client.transaction().await.unwrap();
    let error = elsewhere.emit(&mut tx, &ctx, record(&ctx, "k2"), &auth).await.unwrap_err();
    let EmitError::Database(cause) = &error else { panic!("{error}") };
    let cause = cause.downcast_ref::<tokio_postgres::Error>().unwrap();
    assert_eq!(cause.code().unwrap().code(), "42P01", "no such table");
    tx.rollback().await.unwrap();
    assert_eq!(source.count("usage_outbox").await, 1);
}

/// Savepoints are transactions of both clients too.
#[tokio::test]
async fn a_savepoint_that_is_rolled_back_takes_its_record_along() {
    let source = Source::new().await;
    let (mut client, collector) = (connect(&source).await, collector());
    let ctx = caller(Uuid::new_v4());
    let auth = collector.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let mut tx = client.transaction().await.unwrap();
    collector.emit(&mut tx, &ctx, record(&ctx, "kept"), &auth).await.unwrap();
    let mut inner = tx.transaction().await.unwrap();
    collector.emit(&mut inner, &ctx, record(&ctx, "gone"), &auth).await.unwrap();
    inner.rollback().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(source.count("usage_outbox").await, 1);
}
