//! Emitting: authorize before the transaction, check in memory, write one row inside it.

mod authorization;
mod error;
mod record;
mod row;

use std::sync::Arc;
use std::time::Duration;

use usage_access::{Scope, SecurityContext};
use usage_schemas::codec::Encoder;
use usage_schemas::{Bounds, Kind, Timestamp, UsageRecord, ids, names, validate};
use usage_service::clock;
use uuid::Uuid;

use authorization::Constraints;
pub use authorization::EmitAuthorization;
pub use error::EmitError;
pub use record::NewRecord;
pub use row::{OutboxRow, OutboxTable, OutboxTransaction};

/// How long an authorization serves unless told otherwise.
const MAX_AGE: Duration = Duration::from_secs(30);

/// The way into the usage collector. Cheap to clone; one per process.
#[derive(Clone)]
pub struct UsageCollector {
    settings: Arc<Settings>,
}

struct Settings {
    bounds: Bounds,
    max_age: Duration,
    table: OutboxTable,
    encoder: Encoder,
}

impl UsageCollector {
    /// With the default bounds, for an outbox in the connection's search path.
    pub fn new() -> Self {
        Self::builder().build()
    }

    pub fn builder() -> UsageCollectorBuilder {
        UsageCollectorBuilder { bounds: Bounds::default(), max_age: MAX_AGE, schema: None }
    }

    /// The client of one module; its name becomes the source of every record (1 to 128 of `a-z 0-9 _ . -`, first a letter; another name
    /// is refused at the first `authorize_emit`). Call it once, at start, with a constant.
    pub fn for_module(&self, name: &str) -> ScopedCollector {
        ScopedCollector { module: name.into(), settings: self.settings.clone() }
    }
}

impl Default for UsageCollector {
    fn default() -> Self {
        Self::new()
    }
}

/// Settings of a [`UsageCollector`].
#[derive(Debug, Clone)]
pub struct UsageCollectorBuilder {
    bounds: Bounds,
    max_age: Duration,
    schema: Option<String>,
}

impl UsageCollectorBuilder {
    /// The bounds of a record, 8 KiB of metadata among them.
    #[must_use]
    pub fn bounds(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// How long an authorization serves; 30 s by default.
    #[must_use]
    pub fn authorization_max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self
    }

    /// The schema of the outbox, if it is not in the search path of the connections that emit.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    pub fn build(self) -> UsageCollector {
        let table = OutboxTable::new(self.schema.as_deref());
        let settings =
            Settings { bounds: self.bounds, max_age: self.max_age, table, encoder: Encoder::new() };
        UsageCollector { settings: Arc::new(settings) }
    }
}

/// The client of one module: it emits under the module's name and under no other.
#[derive(Clone)]
pub struct ScopedCollector {
    module: Arc<str>,
    settings: Arc<Settings>,
}

impl ScopedCollector {
    /// The source of the records.
    pub fn module(&self) -> &str {
        &self.module
    }

    /// Finds out, before a transaction is open, whether the caller may emit `metric`.
    ///
    /// Everything that needs another service belongs here. Policies, quotas and usage types are not asked for yet.
    ///
    /// # Errors
    /// [`EmitError::Denied`] for a caller without the scope `usage:emit` or without a tenant; [`EmitError::InvalidRecord`] for a module or a
    /// metric that is no name.
    pub async fn authorize_emit(
        &self,
        ctx: &SecurityContext,
        metric: &str,
    ) -> Result<EmitAuthorization, EmitError> {
        validate::name("source", &self.module)?;
        validate::name("metric", metric)?;
        if ctx.tenant_id.is_nil() || !ctx.has(Scope::Emit) {
            return Err(EmitError::Denied { metric: metric.into() });
        }
        Ok(EmitAuthorization::issue(&self.module, metric, ctx, Constraints::default()))
    }

    /// Checks the record in memory and writes its outbox row in the caller's transaction; returns the record's id.
    ///
    /// Nothing is awaited but the INSERT. The subject is the caller of `ctx`, never the record's.
    pub async fn emit<T: OutboxTransaction + ?Sized>(
        &self,
        tx: &mut T,
        ctx: &SecurityContext,
        record: NewRecord,
        auth: &EmitAuthorization,
    ) -> Result<Uuid, EmitError> {
        let (id, row) = self.prepare(ctx, record, auth)?;
        self.write(tx, &[row]).await?;
        Ok(id)
    }

    /// The same for several records of one metric: all or none, by one INSERT. The ids are in the order of the records.
    pub async fn emit_batch<T: OutboxTransaction + ?Sized>(
        &self,
        tx: &mut T,
        ctx: &SecurityContext,
        records: Vec<NewRecord>,
        auth: &EmitAuthorization,
    ) -> Result<Vec<Uuid>, EmitError> {
        let mut ids = Vec::with_capacity(records.len());
        let mut rows = Vec::with_capacity(records.len());
        for (index, record) in records.into_iter().enumerate() {
            let (id, row) = self
                .prepare(ctx, record, auth)
                .map_err(|error| EmitError::InBatch { index, error: Box::new(error) })?;
            ids.push(id);
            rows.push(row);
        }
        self.write(tx, &rows).await?;
        Ok(ids)
    }

    async fn write<T: OutboxTransaction + ?Sized>(
        &self,
        tx: &mut T,
        rows: &[OutboxRow],
    ) -> Result<(), EmitError> {
        tx.insert(&self.settings.table, &self.module, names::PAYLOAD_RECORD, rows)
            .await
            .map_err(EmitError::Database)
    }

    /// The checks, in the order of the requirements: age of the authorization, meaning of the metric's kind, bounds, what was authorized.
    fn prepare(
        &self,
        ctx: &SecurityContext,
        record: NewRecord,
        auth: &EmitAuthorization,
    ) -> Result<(Uuid, OutboxRow), EmitError> {
        auth.check_age(self.settings.max_age)?;
        validate::value(record.kind, record.value)?;
        if record.kind == Kind::Counter && record.idempotency_key.is_none() {
            return Err(EmitError::MissingIdempotencyKey);
        }
        let now = Timestamp::from_micros(clock::now_micros());
        let record_id = match &record.idempotency_key {
            Some(key) => ids::record_id(record.tenant_id, key),
            None => Uuid::now_v7(),
        };
        let traceparent = record.traceparent;
        let record = UsageRecord {
            record_id,
            tenant_id: record.tenant_id,
            source: self.module.to_string(),
            metric: record.metric,
            kind: record.kind,
            value: record.value,
            timestamp: record.timestamp.unwrap_or(now),
            idempotency_key: record.idempotency_key,
            resource_id: record.resource_id,
            resource_type: record.resource_type,
            subject_id: ctx.subject_id,
            subject_type: ctx.subject_type.clone(),
            metadata: record.metadata,
        };
        validate::validate(&record.borrowed(), &self.settings.bounds, now)?;
        if traceparent.as_deref().is_some_and(|text| !record::is_traceparent(text)) {
            return Err(EmitError::InvalidRecord {
                field: "traceparent",
                detail: "is no W3C trace context".into(),
            });
        }
        auth.check(&self.module, ctx, &record.metric, record.tenant_id)?;
        let payload = self.settings.encoder.encode(&record);
        Ok((record_id, OutboxRow { tenant_id: record.tenant_id, traceparent, payload }))
    }
}

#[cfg(test)]
mod tests;
