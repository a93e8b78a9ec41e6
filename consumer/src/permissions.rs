//! Asks the policy point whose usage sources may emit.

use std::sync::Arc;

use futures::StreamExt as _;
use usage_access::policy::{Action, Decision, PolicyError, PolicyRequest, Principal};
use usage_control::Attribution;
use usage_service::error_chain::error_chain;
use usage_service::metric_names;

use crate::attribution::{Allowed, Pair, Pairs, Permission};
use crate::judge::Registry;
use crate::link::Event;
use crate::services::Services;
use crate::ticket::Ticket;

/// Questions that are under way at once.
const AT_ONCE: usize = 16;

/// Answers for all pairs but those that the registry allows without a question. A policy point that is away is asked for ever; `None`
/// when the ticket was revoked.
pub async fn ask(
    services: &Services,
    ticket: &Ticket,
    registry: &Registry,
    pairs: Pairs,
) -> Option<Vec<Permission>> {
    let mut attempts = services.attempts("policy", ticket);
    let (mut open, mut answers) = (pairs.into_pairs(), Vec::new());
    loop {
        let asked = tokio::select! {
            asked = ask_once(services, registry, open) => asked,
            () = ticket.revoked() => return None,
        };
        answers.extend(asked.answers);
        open = asked.unanswered;
        match asked.error {
            None => {
                attempts.succeeded();
                return Some(answers);
            }
            Some(error) => {
                if !attempts.failed(&error).await {
                    return None;
                }
            }
        }
    }
}

/// Asks again about what is in use. What has no answer is left to be forgotten.
pub async fn refresh(services: Arc<Services>, registry: Arc<Registry>, pairs: Pairs) {
    let asked = ask_once(&services, &registry, pairs.into_pairs()).await;
    if let Some(error) = asked.error {
        tracing::warn!(error = %error_chain(&error), "permissions can't be asked for again");
    }
    services.link.report(Event::Permissions(asked.answers));
}

#[derive(Default)]
struct Asked {
    answers: Vec<Permission>,
    unanswered: Vec<Pair>,
    /// Why the last of them has no answer.
    error: Option<PolicyError>,
}

async fn ask_once(services: &Services, registry: &Registry, pairs: Vec<Pair>) -> Asked {
    let one = |pair: Pair| async move { (permission(services, registry, &pair).await, pair) };
    let mut results = futures::stream::iter(pairs.into_iter().map(one)).buffer_unordered(AT_ONCE);
    let mut asked = Asked::default();
    while let Some((permission, pair)) = results.next().await {
        match permission {
            Ok(permission) => asked.answers.extend(permission),
            Err(error) => {
                asked.unanswered.push(pair);
                asked.error = Some(error);
            }
        }
    }
    asked
}

/// `None` if the registry allows it without a question.
///
/// The first question names no metric, so that its answer serves for all of them. A policy that tells metrics apart may have to refuse
/// that ("all but one" is no answer); so the metrics that it does not permit are asked about by name.
async fn permission(
    services: &Services,
    registry: &Registry,
    pair: &Pair,
) -> Result<Option<Permission>, PolicyError> {
    let attribution = registry.attribution(&pair.source);
    if attribution.home_tenant() == Some(pair.tenant_id) {
        return Ok(None);
    }
    // Before the question: an answer by policies that change meanwhile counts as one by the old ones.
    let generation = services.policy.generation();
    let mut allowed = decide(services, pair, attribution, None).await?;
    for metric in &pair.metrics {
        if !allowed.includes(metric)
            && decide(services, pair, attribution, Some(metric)).await?.includes(metric)
        {
            allowed.permit(metric);
        }
    }
    let Pair { source, tenant_id, metrics: asked } = pair.clone();
    Ok(Some(Permission { source, tenant_id, asked, attribution, generation, allowed }))
}

async fn decide(
    services: &Services,
    pair: &Pair,
    attribution: Attribution,
    metric: Option<&str>,
) -> Result<Allowed, PolicyError> {
    let principal = Principal::Source {
        name: &pair.source,
        home_tenant: attribution.home_tenant(),
        any_tenant: attribution.any_tenant(),
    };
    let request = PolicyRequest {
        principal,
        action: Action::EmitOnBehalf,
        tenant_id: Some(pair.tenant_id),
        metric,
        source: Some(&pair.source),
    };
    let decision = services.policy.decide(&request).await;
    let word = match &decision {
        Ok(Decision::Permit(_)) => "permit",
        Ok(Decision::Deny) => "deny",
        Err(_) => "error",
    };
    metrics::counter!(metric_names::CONSUMER_POLICY_QUESTIONS_TOTAL, "answer" => word).increment(1);
    Ok(Allowed::by(decision?, &pair.source, pair.tenant_id))
}
