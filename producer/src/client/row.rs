//! The one INSERT of an emit, whichever client of Postgres sends it.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use uuid::Uuid;

use crate::outbox;

/// A checked record, ready to be written: what `emit` inserts.
#[derive(Clone)]
pub struct OutboxRow {
    pub(crate) tenant_id: Uuid,
    pub(crate) traceparent: Option<String>,
    pub(crate) payload: Vec<u8>,
}

impl OutboxRow {
    pub fn tenant_id(&self) -> Uuid {
        self.tenant_id
    }

    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    /// The encoded record.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }
}

impl std::fmt::Debug for OutboxRow {
    /// Without the payload, which has values and subjects.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutboxRow")
            .field("tenant_id", &self.tenant_id)
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
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

    /// One row: $1 `uuid` tenant, $2 `text` payload type, $3 `text` source, $4 `text` traceparent or NULL, $5 `bytea` payload.
    pub fn insert_one(&self) -> &Arc<str> {
        &self.one
    }

    /// Several rows: the same with arrays in $1, $4 and $5, in the order of the rows.
    pub fn insert_many(&self) -> &Arc<str> {
        &self.many
    }
}

/// A transaction of the source's database that `emit` can write into: of sqlx (feature `sqlx`, the default) or of tokio-postgres (feature
/// `tokio-postgres`), or of any other client by implementing this.
///
/// Pass a transaction that is open: on a connection without one the row commits on its own, whatever becomes of the operation that it
/// belongs to.
pub trait OutboxTransaction: Send {
    /// Writes the rows of one emit (never none), all of `source` and `payload_type`, by one statement.
    fn insert(
        &mut self,
        table: &OutboxTable,
        source: &str,
        payload_type: &str,
        rows: &[OutboxRow],
    ) -> impl Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send;
}
