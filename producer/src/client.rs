//! Emitting: ask before the transaction, check in memory, write one row inside it.

mod adapters;
mod authorization;
mod builder;
mod error;
mod quota;
mod record;
mod row;
mod types_registry;

use std::sync::Arc;
use std::time::Duration;

use usage_access::policy::{Action, Constraints, Decision, PolicyRequest, Principal};
use usage_access::{Scope, SecurityContext};
use usage_limits::TallyError;
use usage_schemas::codec::Encoder;
use usage_schemas::{Bounds, CompiledType, Kind, Timestamp, UsageRecord, ids, names, validate};
use usage_service::clock;
use usage_service::metric_names::EMIT_REFUSED_TOTAL;
use uuid::Uuid;

pub use authorization::EmitAuthorization;
pub use builder::{BuildError, UsageCollectorBuilder};
pub use error::EmitError;
pub use quota::{InvalidQuota, QUOTA_TABLE, QuotaStatus, SourceQuota};
pub use record::NewRecord;
pub use row::{OutboxRow, OutboxTable, OutboxTransaction};
pub use types_registry::{
    Freshness, HttpRegistryError, Listed, QueryApi, RememberedTypes, TokenSource, TypesList,
};

use builder::{Policy, Types};
use quota::{Quotas, SourceCounter};

/// The way into the usage collector. Cheap to clone; one per process.
#[derive(Clone)]
pub struct UsageCollector {
    settings: Arc<Settings>,
}

struct Settings {
    policy: Policy,
    types: Types,
    quotas: Option<Quotas>,
    bounds: Bounds,
    max_age: Duration,
    patience: Duration,
    table: OutboxTable,
    encoder: Encoder,
}

impl UsageCollector {
    /// Begins with nobody who decides: name who decides about callers and who knows the usage types, then
    /// [`UsageCollectorBuilder::build`].
    pub fn builder() -> UsageCollectorBuilder {
        UsageCollectorBuilder::new()
    }

    /// The client of one module; its name becomes the source of every record (1 to 128 of `a-z 0-9 _ . -`, first a letter; another name
    /// is refused at the first `authorize_emit`). Call it once, at start, with a constant.
    pub fn for_module(&self, name: &str) -> ScopedCollector {
        let module: Arc<str> = name.into();
        let quota = self.settings.quotas.as_ref().map(|quotas| quotas.counter(&module));
        ScopedCollector { module, quota, settings: self.settings.clone() }
    }
}

/// The client of one module: it emits under the module's name and under no other.
#[derive(Clone)]
pub struct ScopedCollector {
    module: Arc<str>,
    quota: Option<Arc<SourceCounter>>,
    settings: Arc<Settings>,
}

impl ScopedCollector {
    /// The source of the records.
    pub fn module(&self) -> &str {
        &self.module
    }

    /// Finds out, **before a transaction is open**, whether the caller may emit `metric`: the policy decision, the usage type, and what
    /// is left of the source's quota. Everything that needs somebody else belongs here; [`ScopedCollector::emit`] asks nobody.
    ///
    /// The answer serves every emit of this metric by this caller until it is too old (30 s by default).
    ///
    /// # Errors
    /// No answer is a refusal. [`EmitError::Denied`] for a caller without a tenant, or one that may not emit the metric;
    /// [`EmitError::UnknownUsageType`]; [`EmitError::Unavailable`] if policy decision point or types registry can't be asked in time;
    /// [`EmitError::RateLimitExceeded`] and [`EmitError::QuotaUnknown`] for the quota; [`EmitError::InvalidRecord`] for a module or a
    /// metric that is no name.
    pub async fn authorize_emit(
        &self,
        ctx: &SecurityContext,
        metric: &str,
    ) -> Result<EmitAuthorization, EmitError> {
        self.ask_all(ctx, metric).await.inspect_err(|error| self.refused(error))
    }

    async fn ask_all(&self, ctx: &SecurityContext, metric: &str) -> Result<EmitAuthorization, EmitError> {
        validate::name("source", &self.module)?;
        validate::name("metric", metric)?;
        let constraints = self.decide(ctx, metric).await?;
        let usage_type = self.usage_type(metric).await?;
        if let Some(quota) = &self.quota {
            quota.prepare().await;
            quota.room(1)?;
        }
        Ok(EmitAuthorization::issue(&self.settings, &self.module, metric, ctx, constraints, usage_type))
    }

    async fn decide(&self, ctx: &SecurityContext, metric: &str) -> Result<Constraints, EmitError> {
        let denied = || EmitError::Denied { metric: metric.into() };
        if ctx.tenant_id.is_nil() {
            return Err(denied());
        }
        let Policy::Asked(point) = &self.settings.policy else {
            return if ctx.has(Scope::Emit) { Ok(Constraints::default()) } else { Err(denied()) };
        };
        let request = PolicyRequest {
            principal: Principal::Caller(ctx),
            action: Action::Emit,
            // Which tenants it may be is part of the answer.
            tenant_id: None,
            metric: Some(metric),
            source: Some(&self.module),
        };
        match self.ask("the policy decision point", point.decide(&request)).await? {
            Decision::Permit(constraints) => Ok(constraints),
            Decision::Deny => Err(denied()),
        }
    }

    async fn usage_type(&self, metric: &str) -> Result<Option<Arc<CompiledType>>, EmitError> {
        let Types::Asked(registry) = &self.settings.types else { return Ok(None) };
        let found = self.ask("the types registry", registry.usage_type(metric)).await?;
        found.map(Some).ok_or_else(|| EmitError::UnknownUsageType { metric: metric.into() })
    }

    async fn ask<T, E: std::error::Error + Send + Sync + 'static>(
        &self,
        what: &'static str,
        question: impl Future<Output = Result<T, E>>,
    ) -> Result<T, EmitError> {
        match tokio::time::timeout(self.settings.patience, question).await {
            Ok(answer) => answer.map_err(|error| EmitError::Unavailable { what, error: Box::new(error) }),
            Err(late) => Err(EmitError::Unavailable { what, error: Box::new(late) }),
        }
    }

    /// Checks the record in memory and writes its outbox row in the caller's transaction; returns the record's id.
    ///
    /// The checks come in this order: age of the authorization; meaning of the metric's kind; bounds of the fields; usage type; the
    /// source's quota; what was authorized, the tenant included; size of the metadata. Nothing is awaited but the INSERT, and nothing is
    /// written on an error. The subject is the caller of `ctx`, never the record's.
    ///
    /// A refused record takes nothing of the quota. One whose INSERT fails or whose transaction is rolled back afterwards does: emitting
    /// and taking back is a load as well, and the counter never waits to hear how a transaction ends.
    ///
    /// # Errors
    /// [`EmitError`]; [`EmitError::field`] says which field it is about.
    pub async fn emit<T: OutboxTransaction + ?Sized>(
        &self,
        tx: &mut T,
        ctx: &SecurityContext,
        record: NewRecord,
        auth: &EmitAuthorization,
    ) -> Result<Uuid, EmitError> {
        let (id, row) = self.prepare(ctx, record, auth, 1).inspect_err(|error| self.refused(error))?;
        self.write(tx, &[row]).await?;
        Ok(id)
    }

    /// The same for several records of one metric: all or none, by one INSERT. The ids are in the order of the records.
    ///
    /// # Errors
    /// [`EmitError::InBatch`] with the place of the first record that is refused.
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
                .prepare(ctx, record, auth, index + 1)
                .map_err(|error| EmitError::InBatch { index, error: Box::new(error) })
                .inspect_err(|error| self.refused(error))?;
            ids.push(id);
            rows.push(row);
        }
        self.write(tx, &rows).await?;
        Ok(ids)
    }

    /// What this process knows of the source's quota; `None` without one.
    pub fn quota(&self) -> Option<QuotaStatus> {
        self.quota.as_ref().map(|quota| quota.status())
    }

    /// Tells the source's other processes now what was admitted here, as happens by itself five times a second. Call it before a process
    /// ends, or they never hear of the last 200 ms.
    ///
    /// # Errors
    /// The counter's database does not answer. What was not told is told by the next flush.
    pub async fn flush_quota(&self) -> Result<(), TallyError> {
        match &self.quota {
            Some(quota) => quota.flush().await,
            None => Ok(()),
        }
    }

    fn refused(&self, error: &EmitError) {
        // A module that is no name must not make series.
        let module = if validate::is_name(&self.module) { self.module.to_string() } else { "unknown".into() };
        metrics::counter!(EMIT_REFUSED_TOTAL, "source_module" => module, "reason" => error.reason())
            .increment(1);
    }

    async fn write<T: OutboxTransaction + ?Sized>(
        &self,
        tx: &mut T,
        rows: &[OutboxRow],
    ) -> Result<(), EmitError> {
        if rows.is_empty() {
            return Ok(());
        }
        // Others may have taken what was left since it was looked at.
        if let Some(quota) = &self.quota {
            quota.admit(rows.len()).inspect_err(|error| self.refused(error))?;
        }
        tx.insert(&self.settings.table, &self.module, names::PAYLOAD_RECORD, rows)
            .await
            .map_err(EmitError::Database)
    }

    /// The checks of one record, which is the `number`th of its batch.
    fn prepare(
        &self,
        ctx: &SecurityContext,
        record: NewRecord,
        auth: &EmitAuthorization,
        number: usize,
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
        // The size of the metadata is judged last.
        let bounds = Bounds { metadata_bytes: usize::MAX, ..self.settings.bounds };
        validate::validate(&record.borrowed(), &bounds, now)?;
        if traceparent.as_deref().is_some_and(|text| !record::is_traceparent(text)) {
            return Err(EmitError::InvalidRecord {
                field: "traceparent",
                detail: "is no W3C trace context".into(),
            });
        }
        auth.check_type(&record.borrowed())?;
        if let Some(quota) = &self.quota {
            quota.room(number)?;
        }
        auth.check(&self.settings, ctx, &record.borrowed())?;
        if let Some(text) = &record.metadata
            && text.len() > self.settings.bounds.metadata_bytes
        {
            validate::metadata(text, &self.settings.bounds)?;
        }
        let payload = self.settings.encoder.encode(&record);
        Ok((record_id, OutboxRow { tenant_id: record.tenant_id, traceparent, payload }))
    }
}

#[cfg(test)]
mod tests;
