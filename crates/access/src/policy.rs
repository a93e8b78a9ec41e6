//! The policy decision point: may this caller do this, and within which bounds?
//!
//! Every doubt is a refusal: no answer in time, an answer that can't be read, a policy that fails all deny.
//!
//! [`PolicyConfig::decision_point`] makes the point that a process asks: Cedar policies of a folder or the shipped ones
//! (`EmbeddedPolicies`, feature `cedar`), or [`AuthZen`], each behind [`Cached`].

mod authzen;
mod bounds;
mod cache;
#[cfg(feature = "cedar")]
mod embedded;
mod measure;
mod settings;

use std::collections::BTreeSet;
use std::sync::Arc;

use uuid::Uuid;

use crate::SecurityContext;

pub use authzen::{AuthZen, AuthZenConfig};
pub use cache::{CACHED_DECISIONS, Cached};
#[cfg(feature = "cedar")]
pub use embedded::{
    DEFAULT_POLICIES, EmbeddedPolicies, Fault, LOOK_EVERY, Look, PolicyFolderError, SCHEMA as CEDAR_SCHEMA,
};
pub use settings::{PolicyConfig, PolicyConfigError, SETTINGS};

/// What somebody wants to do. The words are the names of the actions in policies and in requests to a remote decision point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Emit records of a metric.
    Emit,
    /// A source's record names another tenant than the source's home.
    EmitOnBehalf,
    /// Totals, records and watermarks.
    Read,
    /// See the registered usage types.
    ReadTypes,
    /// Register a usage type or a version of it.
    RegisterType,
    /// See a subject's allowances.
    ReadAllowances,
    /// Load records of the past; `elevated` allows it beyond the usual window.
    Backfill,
    Amend,
    Deactivate,
    /// See and set retention policies.
    Retention,
    /// Operate the collector: quotas, keys, sources.
    Operate,
}

impl Action {
    pub const ALL: [Self; 11] = [
        Self::Emit,
        Self::EmitOnBehalf,
        Self::Read,
        Self::ReadTypes,
        Self::RegisterType,
        Self::ReadAllowances,
        Self::Backfill,
        Self::Amend,
        Self::Deactivate,
        Self::Retention,
        Self::Operate,
    ];

    /// The action's name, as in policies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Emit => "emit",
            Self::EmitOnBehalf => "emit_on_behalf",
            Self::Read => "read",
            Self::ReadTypes => "read_types",
            Self::RegisterType => "register_type",
            Self::ReadAllowances => "read_allowances",
            Self::Backfill => "backfill",
            Self::Amend => "amend",
            Self::Deactivate => "deactivate",
            Self::Retention => "retention",
            Self::Operate => "operate",
        }
    }
}

/// Who wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Principal<'a> {
    /// The bearer of a verified token.
    Caller(&'a SecurityContext),
    /// A source whose signature was verified.
    Source {
        name: &'a str,
        /// The tenant that it may always emit for.
        home_tenant: Option<Uuid>,
        /// It may ask to emit for any other one, as an operator registered it.
        any_tenant: bool,
    },
}

/// One question. What is `None` is not limited to one value: the constraints of the answer say what it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyRequest<'a> {
    pub principal: Principal<'a>,
    pub action: Action,
    pub tenant_id: Option<Uuid>,
    pub metric: Option<&'a str>,
    pub source: Option<&'a str>,
}

/// The bounds of a permission. `None` is no bound; an empty set allows nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Constraints {
    /// The tenants that may be named; `None`: the caller's own one only (a source's: the one that was asked for).
    pub tenants: Option<BTreeSet<Uuid>>,
    pub metrics: Option<BTreeSet<String>>,
    pub sources: Option<BTreeSet<String>>,
    /// Beyond the usual bounds, as for a backfill older than the window.
    pub elevated: bool,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Permit(Constraints),
    /// Nothing more is said: a caller must not learn policies by asking.
    Deny,
}

/// Why there was no answer. Callers of the API see a refusal or 503, never the cause.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// Asking again may help: no connection, no answer in time, a server error.
    #[error("the policy decision point does not answer")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer makes no sense.
    #[error("the policy decision point's answer is invalid: {detail}")]
    InvalidAnswer { detail: String },
}

/// Decides. Implementations: policies from a folder, and a remote AuthZEN endpoint.
#[async_trait::async_trait]
pub trait PolicyDecisionPoint: Send + Sync {
    /// # Errors
    /// [`PolicyError`] where there is no answer, which a caller treats as a refusal; a consumer waits instead.
    async fn decide(&self, request: &PolicyRequest<'_>) -> Result<Decision, PolicyError>;

    /// Whether it could decide now, for `/health/ready`.
    async fn ready(&self) -> Result<(), PolicyError>;

    /// Counts the changes of the policies that this process knows of: part of the key of every cached decision.
    fn generation(&self) -> u64 {
        0
    }
}

#[async_trait::async_trait]
impl<P: PolicyDecisionPoint + ?Sized> PolicyDecisionPoint for Arc<P> {
    async fn decide(&self, request: &PolicyRequest<'_>) -> Result<Decision, PolicyError> {
        (**self).decide(request).await
    }

    async fn ready(&self) -> Result<(), PolicyError> {
        (**self).ready().await
    }

    fn generation(&self) -> u64 {
        (**self).generation()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_action_has_its_own_name() {
        let names: BTreeSet<_> = Action::ALL.into_iter().map(Action::as_str).collect();
        assert_eq!(names.len(), Action::ALL.len());
    }
}
