//! What a caller may do: one question to the policy decision point, and its answer as the bounds of what is read and written.
//!
//! Every doubt is a refusal, and every refusal of an action reads the same: nobody learns policies by asking.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use usage_access::SecurityContext;
use usage_access::policy::{
    Action, Constraints, Decision, PolicyDecisionPoint, PolicyError, PolicyRequest, Principal,
};
use usage_service::error_chain;
use usage_service::problem::{Problem, kinds};
use usage_storage::{StoredRecord, WatermarkQuery};
use uuid::Uuid;

use crate::failure::Failure;
use crate::filters::Filters;
use crate::params::{MOST_VALUES, is_name};

/// How long a decision may take, whatever bounds the decision point has itself.
const DECIDES_WITHIN: Duration = Duration::from_secs(5);
/// Values of a bound that are put into one question to storage: as many as a caller may name. Who has more must name what is wanted.
const MOST_BOUNDS: usize = MOST_VALUES;

/// What a request is about, as far as it names one single metric or source.
#[derive(Debug, Clone, Copy, Default)]
pub struct Named<'a> {
    pub metric: Option<&'a str>,
    pub source: Option<&'a str>,
}

impl<'a> Named<'a> {
    pub const NOTHING: Self = Self { metric: None, source: None };

    /// Of one metric or usage type, if it is a name at all.
    pub fn metric(name: &'a str) -> Self {
        Self { metric: Some(name).filter(|name| is_name(name)), source: None }
    }

    /// What filters name; nothing if they could not be read.
    pub fn filters(filters: Option<&'a Filters>) -> Self {
        let only = |values: &'a [String]| match values {
            [one] if is_name(one) => Some(one.as_str()),
            _ => None,
        };
        filters.map_or(Self::NOTHING, |filters| Self {
            metric: only(&filters.metrics),
            source: only(&filters.sources),
        })
    }
}

/// The permission of one caller for one action. Whatever a handler asks storage or writes goes through its bounds.
///
/// Serialised it is what cursors are bound to: the tenant and the bounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Grant {
    tenant_id: Uuid,
    #[serde(skip)]
    action: Action,
    metrics: Bound,
    sources: Bound,
}

/// What a permission says of metrics or of sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Bound {
    /// `None` is no bound; never empty.
    among: Option<BTreeSet<String>>,
    /// The one that was asked for.
    #[serde(skip)]
    named: Option<String>,
}

impl Grant {
    /// Asks the decision point, once.
    ///
    /// # Errors
    /// 403 if it refuses or leaves any doubt, 503 if it does not answer.
    pub async fn ask(
        policy: &dyn PolicyDecisionPoint,
        context: &SecurityContext,
        action: Action,
        named: Named<'_>,
    ) -> Result<Self, Failure> {
        let request = PolicyRequest {
            principal: Principal::Caller(context),
            action,
            tenant_id: Some(context.tenant_id),
            metric: named.metric,
            source: named.source,
        };
        let decided = match tokio::time::timeout(DECIDES_WITHIN, policy.decide(&request)).await {
            Ok(decided) => decided,
            Err(elapsed) => Err(PolicyError::Unavailable(Box::new(elapsed))),
        };
        let (tenant_id, operation) = (context.tenant_id, action.as_str());
        let granted = match decided {
            Ok(Decision::Permit(bounds)) => Self::within(context.tenant_id, action, named, bounds),
            Ok(Decision::Deny) => None,
            Err(error @ PolicyError::Unavailable(_)) => {
                tracing::warn!(%tenant_id, operation, decision = "none", error = %error_chain(&error), "authorization");
                return Err(Failure::undecided());
            }
            Err(error @ PolicyError::InvalidAnswer { .. }) => {
                tracing::error!(%tenant_id, operation, decision = "none", error = %error_chain(&error), "authorization");
                return Err(Failure::refused(action));
            }
        };
        let decision = if granted.is_some() { "permitted" } else { "denied" };
        tracing::info!(%tenant_id, operation, decision, "authorization");
        granted.ok_or_else(|| Failure::refused(action))
    }

    /// The permission within these bounds; `None` where they leave nothing of the request, or can't be held.
    fn within(tenant_id: Uuid, action: Action, named: Named<'_>, bounds: Constraints) -> Option<Self> {
        let Constraints { tenants, metrics, sources, elevated: _ } = bounds;
        if tenants.is_some_and(|tenants| !tenants.contains(&tenant_id)) {
            return None;
        }
        if sources.is_some() && !has_sources(action) {
            let operation = action.as_str();
            tracing::warn!(
                operation,
                "refused: a permission is limited to sources, which this action does not know"
            );
            return None;
        }
        let metrics = Bound::new(metrics, named.metric)?;
        let sources = Bound::new(sources, named.source)?;
        Some(Self { tenant_id, action, metrics, sources })
    }

    #[cfg(test)]
    pub(crate) fn unbounded(tenant_id: Uuid) -> Self {
        Self::within(tenant_id, Action::Read, Named::NOTHING, Constraints::default())
            .expect("nothing is in its way")
    }

    /// The caller's tenant: the only one that is read.
    pub fn tenant_id(&self) -> Uuid {
        self.tenant_id
    }

    /// True if the bounds let the metric through, registered or not.
    pub fn has_metric(&self, metric: &str) -> bool {
        self.metrics.has(metric)
    }

    /// True if it was asked for about a metric or a source by name, so that it says nothing of others.
    pub fn is_of_what_is_named(&self) -> bool {
        self.metrics.named.is_some() || self.sources.named.is_some()
    }

    /// As [`Self::has_metric`], for a metric that the request names.
    ///
    /// # Errors
    /// 403.
    pub fn metric(&self, metric: &str) -> Result<(), Failure> {
        if self.has_metric(metric) { Ok(()) } else { Err(self.refusal()) }
    }

    /// The filters of a question within the bounds: what is named, or else all that may be seen.
    ///
    /// # Errors
    /// 403 if something is named that lies outside: an empty answer would look like no usage. 422 if the bounds have too many
    /// values for one question.
    pub fn narrow(&self, filters: &Filters) -> Result<Filters, Failure> {
        Ok(Filters {
            metrics: self.narrow_to(&self.metrics, "metric", &filters.metrics)?,
            sources: self.narrow_to(&self.sources, "source", &filters.sources)?,
            ..filters.clone()
        })
    }

    fn narrow_to(&self, bound: &Bound, parameter: &str, named: &[String]) -> Result<Vec<String>, Failure> {
        if !named.iter().all(|name| bound.has(name)) {
            return Err(self.refusal());
        }
        match &bound.among {
            Some(among) if named.is_empty() && among.len() > MOST_BOUNDS => {
                let detail =
                    format!("the question covers too many values of `{parameter}`: name those that you want");
                Err(Problem::new(kinds::QUERY_TOO_LARGE).with_detail(detail).into())
            }
            Some(among) if named.is_empty() => Ok(among.iter().cloned().collect()),
            _ => Ok(named.to_vec()),
        }
    }

    /// The question for watermarks within the bounds.
    ///
    /// # Errors
    /// 422 as [`Self::narrow`].
    pub fn watermarks(&self) -> Result<WatermarkQuery, Failure> {
        let Filters { metrics, sources, .. } = self.narrow(&Filters::default())?;
        Ok(WatermarkQuery { tenant_id: self.tenant_id, metrics, sources })
    }

    /// True if a record may be seen.
    pub fn covers(&self, record: &StoredRecord) -> bool {
        let inside = self.metrics.has(&record.metric) && self.sources.has(&record.source);
        inside && record.tenant_id == self.tenant_id
    }

    /// True if a question with these filters (empty: no filter) asks for nothing beyond the bounds.
    pub fn holds(&self, tenant_id: Uuid, metrics: &[String], sources: &[String]) -> bool {
        tenant_id == self.tenant_id && self.metrics.holds(metrics) && self.sources.holds(sources)
    }

    /// 403, in the words of every other refusal of the action.
    pub fn refusal(&self) -> Failure {
        let (tenant_id, operation) = (self.tenant_id, self.action.as_str());
        tracing::info!(%tenant_id, operation, decision = "beyond the bounds", "authorization");
        Failure::refused(self.action)
    }
}

impl Bound {
    /// `None` if nothing is allowed, or not what is named.
    fn new(among: Option<BTreeSet<String>>, named: Option<&str>) -> Option<Self> {
        let left = match (&among, named) {
            (None, _) => true,
            (Some(among), None) => !among.is_empty(),
            (Some(among), Some(named)) => among.contains(named),
        };
        left.then(|| Self { among, named: named.map(str::to_owned) })
    }

    fn has(&self, name: &str) -> bool {
        self.among.as_ref().is_none_or(|among| among.contains(name))
    }

    fn holds(&self, asked: &[String]) -> bool {
        match (&self.named, &self.among) {
            // What was permitted for the one is not permitted for others.
            (Some(named), _) => matches!(asked, [only] if only == named),
            (None, Some(among)) => !asked.is_empty() && asked.iter().all(|name| among.contains(name)),
            (None, None) => true,
        }
    }
}

/// True if what the action is about has a source. Usage types and allowances have none.
fn has_sources(action: Action) -> bool {
    !matches!(action, Action::ReadTypes | Action::RegisterType | Action::ReadAllowances)
}

#[cfg(test)]
#[path = "grant/tests.rs"]
mod tests;
