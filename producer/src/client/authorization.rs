//! What `authorize_emit` found out before the transaction, so that `emit` need not ask anybody.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use usage_access::SecurityContext;
use uuid::Uuid;

use super::EmitError;

/// The permission to emit one metric for a short while, bound to the module and the caller that asked for it.
///
/// One authorization serves many emits of its metric. It is opaque, cannot be made by hand, and ages on the monotonic clock, so that a
/// step of the wall clock neither prolongs nor ends it.
#[derive(Debug, Clone)]
pub struct EmitAuthorization {
    /// Tells authorizations apart, in logs and where they are counted.
    nonce: Uuid,
    issued: Instant,
    module: String,
    metric: String,
    tenant_id: Uuid,
    subject_id: Option<Uuid>,
    constraints: Constraints,
}

/// What the decision allows beyond the metric itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Constraints {
    /// The tenants that may be emitted for; `None`: the caller's own one only.
    pub tenants: Option<BTreeSet<Uuid>>,
}

impl EmitAuthorization {
    pub(crate) fn issue(module: &str, metric: &str, ctx: &SecurityContext, constraints: Constraints) -> Self {
        Self {
            nonce: Uuid::new_v4(),
            issued: Instant::now(),
            module: module.into(),
            metric: metric.into(),
            tenant_id: ctx.tenant_id,
            subject_id: ctx.subject_id,
            constraints,
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

    pub(crate) fn check_age(&self, max_age: Duration) -> Result<(), EmitError> {
        if self.age() < max_age { Ok(()) } else { Err(EmitError::AuthorizationExpired) }
    }

    /// Whether a record of `tenant_id` and `metric`, emitted by `module` for `ctx`, is what was authorized.
    pub(crate) fn check(
        &self,
        module: &str,
        ctx: &SecurityContext,
        metric: &str,
        tenant_id: Uuid,
    ) -> Result<(), EmitError> {
        let violation = |field, detail| Err(EmitError::ConstraintViolation { field, detail });
        if self.module != module {
            return violation("source", "is not the module that the authorization was given to");
        }
        if self.tenant_id != ctx.tenant_id || self.subject_id != ctx.subject_id {
            return violation("subject_id", "is not the caller that the authorization was given to");
        }
        if self.metric != metric {
            return violation("metric", "is not the metric that the authorization was given for");
        }
        match &self.constraints.tenants {
            Some(tenants) if tenants.contains(&tenant_id) => Ok(()),
            None if tenant_id == ctx.tenant_id => Ok(()),
            Some(_) => violation("tenant_id", "is not one of the tenants that the caller may emit for"),
            None => violation("tenant_id", "is not the caller's tenant"),
        }
    }
}
