//! Settings of a collector. Who decides about callers and about types has to be said: nothing is allowed because nobody was asked.

use std::sync::Arc;
use std::time::Duration;

use usage_access::policy::PolicyDecisionPoint;
use usage_schemas::codec::Encoder;
use usage_schemas::{Bounds, TypesRegistry};

use super::quota::{InvalidQuota, Quotas, SourceQuota};
use super::row::OutboxTable;
use super::{Settings, UsageCollector};

/// How long an authorization serves unless told otherwise.
const MAX_AGE: Duration = Duration::from_secs(30);
/// How long `authorize_emit` waits for answers unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(3);

/// How much longer than an authorization the quota's count is kept fresh: an emit that passed its check of the age is admitted later.
const LINGER: Duration = Duration::from_secs(1);

/// Who decides whether a caller may emit.
#[derive(Clone)]
pub(super) enum Policy {
    Asked(Arc<dyn PolicyDecisionPoint>),
    /// The scope `usage:emit` is enough, for the caller's own tenant.
    Scopes,
}

/// Who knows the usage types.
#[derive(Clone)]
pub(super) enum Types {
    Asked(Arc<dyn TypesRegistry>),
    /// Any metric of any kind.
    Unchecked,
}

/// Settings of a [`UsageCollector`]; see [`UsageCollector::builder`].
#[derive(Clone)]
pub struct UsageCollectorBuilder {
    policy: Option<Policy>,
    types: Option<Types>,
    quota: Option<SourceQuota>,
    bounds: Bounds,
    max_age: Duration,
    patience: Duration,
    schema: Option<String>,
}

/// A collector can't be made of these settings.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(
        "nobody decides who may emit: name a policy decision point with .policy(…), or rely on the callers' scopes with .trust_scopes()"
    )]
    NoPolicy,
    #[error(
        "nobody knows the usage types: name a registry with .types(…), or emit any metric with .unchecked_types()"
    )]
    NoTypes,
    #[error("the source's quota can't be meant")]
    Quota(#[from] InvalidQuota),
}

impl UsageCollectorBuilder {
    pub(super) fn new() -> Self {
        Self {
            policy: None,
            types: None,
            quota: None,
            bounds: Bounds::default(),
            max_age: MAX_AGE,
            patience: PATIENCE,
            schema: None,
        }
    }

    /// Who decides whether a caller may emit, asked by `authorize_emit` only. A caller's scopes are for its policies to judge.
    #[must_use]
    pub fn policy(mut self, point: Arc<dyn PolicyDecisionPoint>) -> Self {
        self.policy = Some(Policy::Asked(point));
        self
    }

    /// Without a policy decision point: whoever has the scope `usage:emit` may emit every metric, for its own tenant.
    #[must_use]
    pub fn trust_scopes(mut self) -> Self {
        self.policy = Some(Policy::Scopes);
        self
    }

    /// Who knows the usage types, asked by `authorize_emit` only. Give it a memory, or each authorization is a question:
    /// [`super::RememberedTypes`] over [`super::QueryApi`].
    #[must_use]
    pub fn types(mut self, registry: Arc<dyn TypesRegistry>) -> Self {
        self.types = Some(Types::Asked(registry));
        self
    }

    /// Without a registry: any metric is emitted. What is not registered, or contradicts its type, becomes a dead letter of the consumer.
    #[must_use]
    pub fn unchecked_types(mut self) -> Self {
        self.types = Some(Types::Unchecked);
        self
    }

    /// How many records a module may emit in a window; without a bound by default.
    #[must_use]
    pub fn source_quota(mut self, quota: SourceQuota) -> Self {
        self.quota = Some(quota);
        self
    }

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

    /// How long `authorize_emit` waits for each of those whom it asks, before it refuses; 3 s by default.
    #[must_use]
    pub fn authorization_timeout(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The schema of the outbox, if it is not in the search path of the connections that emit.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// # Errors
    /// Nobody decides about callers or types, or the quota can't be meant.
    pub fn build(self) -> Result<UsageCollector, BuildError> {
        let settings = Settings {
            policy: self.policy.ok_or(BuildError::NoPolicy)?,
            types: self.types.ok_or(BuildError::NoTypes)?,
            quotas: self.quota.map(|quota| Quotas::new(quota, self.max_age + LINGER)).transpose()?,
            bounds: self.bounds,
            max_age: self.max_age,
            patience: self.patience,
            table: OutboxTable::new(self.schema.as_deref()),
            encoder: Encoder::new(),
        };
        Ok(UsageCollector { settings: Arc::new(settings) })
    }
}
