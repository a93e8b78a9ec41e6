//! Remembers decisions for a short time.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use usage_service::metric_names::POLICY_CACHE_TOTAL;
use uuid::Uuid;

use super::{Action, Decision, PolicyDecisionPoint, PolicyError, PolicyRequest, Principal};
use crate::Scopes;

/// Decisions that are remembered at most.
pub const CACHED_DECISIONS: u64 = 50_000;

/// Another point, whose decisions (denials too, errors never) hold for a while. The same question asked at the same time is put once.
pub struct Cached<P> {
    inner: P,
    decisions: Cache<Key, Decision>,
}

/// Everything that a decision depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    /// Of the policies, so that a change of them holds at once.
    generation: u64,
    principal: Who,
    action: Action,
    tenant_id: Option<Uuid>,
    metric: Option<Box<str>>,
    source: Option<Box<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Who {
    Caller { tenant_id: Uuid, subject_id: Option<Uuid>, subject_type: Option<Box<str>>, scopes: Scopes },
    Source { name: Box<str>, home_tenant: Option<Uuid>, any_tenant: bool },
}

impl Key {
    /// Without the token's id: no decision depends on it, and every new token would miss.
    fn of(request: &PolicyRequest<'_>, generation: u64) -> Self {
        let principal = match request.principal {
            Principal::Caller(context) => Who::Caller {
                tenant_id: context.tenant_id,
                subject_id: context.subject_id,
                subject_type: context.subject_type.as_deref().map(Into::into),
                scopes: context.scopes,
            },
            Principal::Source { name, home_tenant, any_tenant } => {
                Who::Source { name: name.into(), home_tenant, any_tenant }
            }
        };
        Self {
            generation,
            principal,
            action: request.action,
            tenant_id: request.tenant_id,
            metric: request.metric.map(Into::into),
            source: request.source.map(Into::into),
        }
    }
}

impl<P: PolicyDecisionPoint> Cached<P> {
    /// Remembers each decision for `ttl`, and not more than `capacity` of them.
    pub fn new(inner: P, ttl: Duration, capacity: u64) -> Self {
        let decisions = Cache::builder().time_to_live(ttl).max_capacity(capacity).build();
        Self { inner, decisions }
    }
}

#[async_trait::async_trait]
impl<P: PolicyDecisionPoint> PolicyDecisionPoint for Cached<P> {
    async fn decide(&self, request: &PolicyRequest<'_>) -> Result<Decision, PolicyError> {
        // Read before the policies are asked: an answer of newer ones under an older generation is met by nobody.
        let key = Key::of(request, self.inner.generation());
        if let Some(decision) = self.decisions.get(&key).await {
            metrics::counter!(POLICY_CACHE_TOTAL, "result" => "hit").increment(1);
            return Ok(decision);
        }
        metrics::counter!(POLICY_CACHE_TOTAL, "result" => "miss").increment(1);
        self.decisions.try_get_with(key, self.inner.decide(request)).await.map_err(shared)
    }

    async fn ready(&self) -> Result<(), PolicyError> {
        self.inner.ready().await
    }

    fn generation(&self) -> u64 {
        self.inner.generation()
    }
}

/// An error that several callers got at once.
fn shared(error: Arc<PolicyError>) -> PolicyError {
    match &*error {
        PolicyError::InvalidAnswer { detail } => PolicyError::InvalidAnswer { detail: detail.clone() },
        PolicyError::Unavailable(_) => PolicyError::Unavailable(Box::new(Cause(error))),
    }
}

/// The cause of an error that several callers got.
#[derive(Debug)]
struct Cause(Arc<PolicyError>);

impl Cause {
    fn inner(&self) -> &(dyn Error + 'static) {
        match &*self.0 {
            PolicyError::Unavailable(cause) => &**cause,
            error @ PolicyError::InvalidAnswer { .. } => error,
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self.inner(), f)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.inner().source()
    }
}

#[cfg(test)]
mod tests;
