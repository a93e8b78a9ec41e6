//! Metrics of decisions.

use std::time::Instant;

use usage_service::metric_names::{POLICY_DECISION_SECONDS, POLICY_DECISIONS_TOTAL};

use super::{Action, Decision, PolicyError};

/// Counts a decision that was not in the cache.
pub(super) fn decided(
    point: &'static str,
    action: Action,
    start: Instant,
    answer: &Result<Decision, PolicyError>,
) {
    let decision = match answer {
        Ok(Decision::Permit(_)) => "permit",
        Ok(Decision::Deny) => "deny",
        Err(_) => "error",
    };
    metrics::counter!(POLICY_DECISIONS_TOTAL, "point" => point, "action" => action.as_str(), "decision" => decision)
        .increment(1);
    metrics::histogram!(POLICY_DECISION_SECONDS, "point" => point).record(start.elapsed());
}
