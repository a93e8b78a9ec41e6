//! Transactions of sqlx.

use std::error::Error;

use sqlx::{AssertSqlSafe, PgConnection, Postgres, Transaction};
use uuid::Uuid;

use crate::client::{OutboxRow, OutboxTable, OutboxTransaction};

impl OutboxTransaction for PgConnection {
    async fn insert(
        &mut self,
        table: &OutboxTable,
        source: &str,
        payload_type: &str,
        rows: &[OutboxRow],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        if let [row] = rows {
            sqlx::query(AssertSqlSafe(table.insert_one().clone()))
                .bind(row.tenant_id)
                .bind(payload_type)
                .bind(source)
                .bind(row.traceparent())
                .bind(row.payload())
                .execute(self)
                .await?;
            return Ok(());
        }
        let tenants: Vec<Uuid> = rows.iter().map(|row| row.tenant_id).collect();
        let traceparents: Vec<Option<&str>> = rows.iter().map(OutboxRow::traceparent).collect();
        let payloads: Vec<&[u8]> = rows.iter().map(OutboxRow::payload).collect();
        sqlx::query(AssertSqlSafe(table.insert_many().clone()))
            .bind(tenants)
            .bind(payload_type)
            .bind(source)
            .bind(traceparents)
            .bind(payloads)
            .execute(self)
            .await?;
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
