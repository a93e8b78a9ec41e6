//! What `authorize_emit` found out before the transaction, so that `emit` need not ask anybody.

use std::sync::Arc;
use std::time::{Duration, Instant};

use usage_access::SecurityContext;
use usage_access::policy::Constraints;
use usage_schemas::{CompiledType, RecordRef};
use uuid::Uuid;

use super::{EmitError, Settings};

/// The permission to emit one metric for a short while, bound to the module and the caller that asked for it.
///
/// It carries the bounds of the policy decision and the usage type as it was registered; the quota is counted on beside it. One
/// authorization serves many emits of its metric. It is opaque, cannot be made by hand, and ages on the monotonic clock, so that a step
/// of the wall clock neither prolongs nor ends it.
#[derive(Clone)]
pub struct EmitAuthorization {
    /// Tells authorizations apart, in logs and where they are counted.
    nonce: Uuid,
    issued: Instant,
    /// Whose it is: an authorization is no use to a collector that asks others.
    settings: Arc<Settings>,
    module: Arc<str>,
    metric: String,
    caller: SecurityContext,
    constraints: Constraints,
    /// `None`: types are not looked at.
    usage_type: Option<Arc<CompiledType>>,
}

impl EmitAuthorization {
    pub(super) fn issue(
        settings: &Arc<Settings>,
        module: &Arc<str>,
        metric: &str,
        ctx: &SecurityContext,
        constraints: Constraints,
        usage_type: Option<Arc<CompiledType>>,
    ) -> Self {
        Self {
            nonce: Uuid::new_v4(),
            issued: Instant::now(),
            settings: settings.clone(),
            module: module.clone(),
            metric: metric.into(),
            caller: ctx.clone(),
            constraints,
            usage_type,
        }
    }

    /// A random id of this authorization.
    pub fn nonce(&self) -> Uuid {
        self.nonce
    }

    /// The metric that it was given for.
    pub fn metric(&self) -> &str {
        &self.metric
    }

    /// How long ago it was given.
    pub fn age(&self) -> Duration {
        self.issued.elapsed()
    }

    pub(super) fn check_age(&self, max_age: Duration) -> Result<(), EmitError> {
        if self.age() < max_age { Ok(()) } else { Err(EmitError::AuthorizationExpired) }
    }

    /// Holds the record against the usage type. One of another metric is left to [`EmitAuthorization::check`].
    pub(super) fn check_type(&self, record: &RecordRef<'_>) -> Result<(), EmitError> {
        match &self.usage_type {
            Some(usage_type) if record.metric == self.metric => Ok(usage_type.check(record)?),
            _ => Ok(()),
        }
    }

    /// Whether the record, emitted by a module of `settings` for `ctx`, is what was authorized.
    pub(super) fn check(
        &self,
        settings: &Arc<Settings>,
        ctx: &SecurityContext,
        record: &RecordRef<'_>,
    ) -> Result<(), EmitError> {
        let violation = |field, detail| Err(EmitError::ConstraintViolation { field, detail });
        if *self.module != *record.source {
            return violation("source", "is not the module that the authorization was given to");
        }
        if !Arc::ptr_eq(&self.settings, settings) {
            return violation("source", "is not of the collector that gave the authorization");
        }
        // Everything that the decision may depend on; a new token of the same caller is the same caller.
        let caller = |ctx: &SecurityContext| (ctx.tenant_id, ctx.subject_id, ctx.scopes);
        if caller(&self.caller) != caller(ctx) || self.caller.subject_type != ctx.subject_type {
            return violation("subject_id", "is not the caller that the authorization was given to");
        }
        if self.metric != record.metric {
            return violation("metric", "is not the metric that the authorization was given for");
        }
        if self.constraints.sources.as_ref().is_some_and(|sources| !sources.contains(record.source)) {
            return violation("source", "is not one of the sources that the caller may emit as");
        }
        if self.constraints.metrics.as_ref().is_some_and(|metrics| !metrics.contains(record.metric)) {
            return violation("metric", "is not one of the metrics that the caller may emit");
        }
        match &self.constraints.tenants {
            Some(tenants) if tenants.contains(&record.tenant_id) => Ok(()),
            None if record.tenant_id == ctx.tenant_id => Ok(()),
            Some(_) => violation("tenant_id", "is not one of the tenants that the caller may emit for"),
            None => violation("tenant_id", "is not the caller's tenant"),
        }
    }
}

impl std::fmt::Debug for EmitAuthorization {
    /// Without the subject, which must not come into logs, and without the policy's bounds.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmitAuthorization")
            .field("nonce", &self.nonce)
            .field("module", &self.module)
            .field("metric", &self.metric)
            .field("age", &self.age())
            .finish_non_exhaustive()
    }
}
