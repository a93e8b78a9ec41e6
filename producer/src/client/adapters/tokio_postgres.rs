//! Transactions of tokio-postgres.

use std::error::Error;

use tokio_postgres::Transaction;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::client::{OutboxRow, OutboxTable, OutboxTransaction};

impl OutboxTransaction for Transaction<'_> {
    async fn insert(
        &mut self,
        table: &OutboxTable,
        source: &str,
        payload_type: &str,
        rows: &[OutboxRow],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        // With the types, so that nothing is prepared beforehand: one round trip, also behind a pooler of transactions.
        if let [row] = rows {
            self.execute_typed(
                table.insert_one(),
                &[
                    (&row.tenant_id, Type::UUID),
                    (&payload_type, Type::TEXT),
                    (&source, Type::TEXT),
                    (&row.traceparent(), Type::TEXT),
                    (&row.payload(), Type::BYTEA),
                ],
            )
            .await?;
            return Ok(());
        }
        let tenants: Vec<Uuid> = rows.iter().map(|row| row.tenant_id).collect();
        let traceparents: Vec<Option<&str>> = rows.iter().map(OutboxRow::traceparent).collect();
        let payloads: Vec<&[u8]> = rows.iter().map(OutboxRow::payload).collect();
        self.execute_typed(
            table.insert_many(),
            &[
                (&tenants, Type::UUID_ARRAY),
                (&payload_type, Type::TEXT),
                (&source, Type::TEXT),
                (&traceparents, Type::TEXT_ARRAY),
                (&payloads, Type::BYTEA_ARRAY),
            ],
        )
        .await?;
        Ok(())
    }
}
