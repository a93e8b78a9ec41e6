//! The one INSERT of an emit.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use sqlx::{AssertSqlSafe, PgConnection, Postgres, Transaction};
use uuid::Uuid;

use crate::outbox;

/// A checked record, ready to be written: what `emit` inserts.
#[derive(Debug, Clone)]
pub struct OutboxRow {
    pub(crate) tenant_id: Uuid,
    pub(crate) traceparent: Option<String>,
    pub(crate) payload: Vec<u8>,
}

/// The texts of the INSERTs, with the outbox's schema.
#[derive(Debug, Clone)]
pub struct OutboxTable {
    one: Arc<str>,
    many: Arc<str>,
}

impl OutboxTable {
    pub(crate) fn new(schema: Option<&str>) -> Self {
        let schema = outbox::schema_prefix(schema);
        let one = format!(
            "INSERT INTO {schema}usage_outbox (part, tenant_id, payload_type, source, traceparent, payload) \
             VALUES ({schema}usage_outbox_part($1), $1, $2, $3, $4, $5)"
        );
        let many = format!(
            "INSERT INTO {schema}usage_outbox (part, tenant_id, payload_type, source, traceparent, payload) \
             SELECT {schema}usage_outbox_part(r.tenant_id), r.tenant_id, $2, $3, r.traceparent, r.payload \
             FROM unnest($1::uuid[], $4::text[], $5::bytea[]) AS r (tenant_id, traceparent, payload)"
        );
        Self { one: one.into(), many: many.into() }
    }
}

/// A transaction of the source's database that `emit` can write into.
///
/// It is a trait so that another Postgres client can be used without another `emit`. Pass a transaction that is open: on a connection
/// without one the row commits on its own, whatever becomes of the operation that it belongs to.
pub trait OutboxTransaction: Send {
    /// Writes the rows of one emit, all of `source` and `payload_type`, by one statement.
    fn insert(
        &mut self,
        table: &OutboxTable,
        source: &str,
        payload_type: &str,
        rows: &[OutboxRow],
    ) -> impl Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send;
}

impl OutboxTransaction for PgConnection {
    async fn insert(
        &mut self,
        table: &OutboxTable,
        source: &str,
        payload_type: &str,
        rows: &[OutboxRow],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        match rows {
            [] => {}
            [row] => {
                sqlx::query(AssertSqlSafe(table.one.clone()))
                    .bind(row.tenant_id)
                    .bind(payload_type)
                    .bind(source)
                    .bind(row.traceparent.as_deref())
                    .bind(&row.payload[..])
                    .execute(self)
                    .await?;
            }
            rows => {
                let tenants: Vec<Uuid> = rows.iter().map(|row| row.tenant_id).collect();
                let traceparents: Vec<Option<&str>> =
                    rows.iter().map(|row| row.traceparent.as_deref()).collect();
                let payloads: Vec<&[u8]> = rows.iter().map(|row| &row.payload[..]).collect();
                sqlx::query(AssertSqlSafe(table.many.clone()))
                    .bind(tenants)
                    .bind(payload_type)
                    .bind(source)
                    .bind(traceparents)
                    .bind(payloads)
                    .execute(self)
                    .await?;
            }
        }
        Ok(())
    }
}

impl OutboxTransaction for Transaction<'_, Postgres> {
    async fn insert(
        &mut self,
        table: &OutboxTable,
        source: &str,
        payload_type: &str,
        rows: &[OutboxRow],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        PgConnection::insert(self, table, source, payload_type, rows).await
    }
}
