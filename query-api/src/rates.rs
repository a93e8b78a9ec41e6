//! Limits of the requests themselves: per tenant and per token, counted in the control database for all instances.

use std::time::Duration;

use axum::http::request::Parts;
use axum::response::IntoResponse as _;
use humantime_serde::re::humantime;
use usage_control::Control;
use usage_limits::http::{MissingKey, RateLimitLayer, seconds};
use usage_limits::{Decision, InvalidName, Quota, RateLimits, Reason, Rule};
use usage_service::CancellationToken;
use usage_service::metric_names::RATE_LIMIT_DECISIONS_TOTAL;
use usage_service::problem::{Problem, kinds};

use crate::auth::{Verified, bearer};
use crate::config;

/// Made by the control database's migrations.
pub const TABLE: &str = "rate_limits";
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Of this process's own for counting: a flood must not keep the catalog and readiness waiting for a connection.
const CONNECTIONS: u32 = 4;

/// What the configuration allows, if it says anything.
#[derive(Debug, Default)]
pub struct Rules {
    token: Option<Rule>,
    tenant: Option<Rule>,
}

impl Rules {
    /// # Errors
    /// A sentence that names the setting.
    pub fn read(config: &config::Limits) -> Result<Self, String> {
        let rule = |name: &str, setting: &str, quotas: &[String]| {
            if quotas.is_empty() {
                return Ok(None);
            }
            let named = |error: &dyn std::fmt::Display| format!("limits.{setting}: {error}");
            let quotas = quotas.iter().map(|text| quota(text)).collect::<Result<Vec<_>, _>>();
            let rule =
                Rule::new(name, &quotas.map_err(|error| named(&error))?).map_err(|error| named(&error))?;
            let rule = rule.sliding();
            Ok::<_, String>(Some(if config.requests_fail_closed { rule.fail_closed() } else { rule }))
        };
        Ok(Self {
            token: rule("api.token", "token_requests", &config.token_requests)?,
            tenant: rule("api.tenant", "tenant_requests", &config.tenant_requests)?,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.token.is_none() && self.tenant.is_none()
    }
}

/// Counters in the control database, over connections of their own. All instances need the same key.
///
/// # Errors
/// None while [`TABLE`] is a name.
pub fn counters(control: &Control, key: &[u8]) -> Result<RateLimits, InvalidName> {
    Ok(RateLimits::new(control.another_pool(CONNECTIONS), TABLE)?.with_key(key))
}

/// The layer for these rules; without any it lets everything through.
///
/// Only verified requests are counted: who has no token uses up nobody's limit, and gets its 401.
pub fn layer(counters: &RateLimits, rules: Rules) -> RateLimitLayer {
    let mut layer = RateLimitLayer::new().refuse_with(refusal).observe_with(count);
    if let Some(rule) = rules.token {
        layer = layer.rule(counters.limiter(rule), MissingKey::Skip, token);
    }
    if let Some(rule) = rules.tenant {
        layer = layer.rule(counters.limiter(rule), MissingKey::Skip, tenant);
    }
    layer
}

/// `50/1s`: units and length of a window.
fn quota(text: &str) -> Result<Quota, String> {
    let parse = || {
        let (limit, length) = text.split_once('/')?;
        Some(Quota::new(limit.trim().parse().ok()?, humantime::parse_duration(length.trim()).ok()?))
    };
    parse().ok_or_else(|| format!("`{text}` is not like `50/1s`"))
}

fn tenant(head: &Parts) -> Option<String> {
    let context = head.extensions.get::<Verified>()?.0.as_ref().ok()?;
    Some(context.tenant_id.to_string())
}

fn token(head: &Parts) -> Option<String> {
    head.extensions.get::<Verified>()?.0.as_ref().ok()?;
    bearer(&head.headers).ok().map(str::to_owned)
}

fn refusal(decision: &Decision) -> axum::response::Response {
    let policy = &decision.policy;
    if decision.reason == Reason::Degraded {
        let detail = format!("the limit {} can't be looked up at present", policy.name);
        return Problem::unavailable(detail, Duration::from_secs(1)).into_response();
    }
    let window = humantime::format_duration(policy.quota.length);
    Problem::new(kinds::RATE_LIMITED)
        .with_detail(format!("{} allows {} requests in {window}", policy.name, decision.limit))
        .with_extension("violated-policies", vec![policy.name.as_str()])
        .with_header(axum::http::header::RETRY_AFTER, seconds(decision.reset).max(1).into())
        .into_response()
}

fn count(rule: &Rule, decision: &Decision) {
    let labels = [("rule", rule.name().to_owned()), ("decision", outcome(decision).to_owned())];
    metrics::counter!(RATE_LIMIT_DECISIONS_TOTAL, &labels).increment(1);
}

/// The decision as a label.
fn outcome(decision: &Decision) -> &'static str {
    match (decision.reason, decision.allowed) {
        (Reason::Degraded, true) => "failed_open",
        (Reason::Degraded, false) => "failed_closed",
        (_, true) => "allowed",
        (_, false) => "denied",
    }
}

/// Deletes counters of windows that are over, until the process stops.
pub async fn sweep(limits: RateLimits, shutdown: CancellationToken) {
    let work = async {
        let mut ticks = tokio::time::interval(SWEEP_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match limits.sweep().await {
                Ok(0) => {}
                Ok(swept) => tracing::debug!(swept, "swept counters of rate limits"),
                // The next sweep takes what this one left.
                Err(error) => tracing::warn!(error = %error, "counters of rate limits were not swept"),
            }
        }
    };
    shutdown.run_until_cancelled_owned(work).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_units_and_a_length() {
        assert_eq!(quota("50/1s"), Ok(Quota::new(50, Duration::from_secs(1))));
        assert_eq!(quota(" 2000 / 15m "), Ok(Quota::new(2_000, Duration::from_secs(900))));
        for bad in ["", "50", "50/", "/1s", "many/1s", "50/1 fortnight", "3000000000/1s"] {
            assert!(quota(bad).unwrap_err().contains("50/1s"), "{bad}");
        }
    }
}
