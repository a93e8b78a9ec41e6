//! What runs beside the owner's thread for it, and reports to it.

use std::sync::Arc;

use usage_control::{QuotaCounts, Quotas};
use usage_service::error_chain::error_chain;
use usage_service::{clock, fail_point, metric_names};
use usage_storage::StorageError;

use crate::counts;
use crate::ledger::Question;
use crate::link::Event;
use crate::permissions;
use crate::services::Services;
use crate::takeover::load_filter;
use crate::telemetry;
use crate::ticket::Ticket;

/// Counters of a partition that one sweep removes at most.
const SWEPT_AT_ONCE: i64 = 10_000;

/// Asks the registry, the policy point, storage and the counters of quotas what a closed batch wants to know.
pub async fn answer(services: Arc<Services>, ticket: Ticket, question: Question) {
    let mut attempts = services.attempts("lookup", &ticket);
    let registry = if question.registry {
        let Some(registry) = attempts.until_ok(|| services.registry()).await else { return };
        Some(Arc::new(registry))
    } else {
        None
    };
    let permissions = match &registry {
        Some(registry) if !question.pairs.is_empty() => {
            let Some(permissions) = permissions::ask(&services, &ticket, registry, question.pairs).await
            else {
                return;
            };
            permissions
        }
        _ => Vec::new(),
    };
    let found = if question.probes.is_empty() {
        Vec::new()
    } else {
        let Some(found) = attempts.until_ok(|| services.writer.find(&question.probes)).await else { return };
        found
    };
    let counts = if question.counters.is_empty() {
        QuotaCounts::default()
    } else {
        fail_point!("consumer.count");
        let ask = || services.control.quota_counts(ticket.partition, &question.counters);
        let Some(counts) = attempts.until_ok(ask).await else { return };
        fail_point!("consumer.counted");
        counts
    };
    let hits = found.len() as u64;
    let misses = (question.probes.len() as u64).saturating_sub(hits);
    metrics::counter!(metric_names::CONSUMER_FILTER_HITS_TOTAL, "result" => "stored").increment(hits);
    metrics::counter!(metric_names::CONSUMER_FILTER_HITS_TOTAL, "result" => "false").increment(misses);
    let Question { number: question, counters, .. } = question;
    services.link.report(Event::Answered {
        ticket,
        question,
        registry,
        permissions,
        found,
        counters,
        counts,
    });
}

pub async fn refresh(services: Arc<Services>) {
    match services.registry().await {
        Ok(registry) => services.link.report(Event::Registry(Arc::new(registry))),
        // What is known stays; what is not known is read again before it is refused.
        Err(error) => tracing::warn!(error = %error, "the registry can't be read"),
    }
}

pub async fn refresh_quotas(services: Arc<Services>) {
    let rules = services.control.quotas().await;
    if let Err(error) = &rules {
        // Those that are known go on holding.
        tracing::warn!(error = %error_chain(error), "the quotas can't be read");
    }
    services.link.report(Event::Quotas(rules.ok().map(|rules| Arc::new(Quotas::new(rules)))));
}

/// Removes counters of windows that ended before the partitions' times (seconds since the Unix epoch).
pub async fn sweep_quotas(services: Arc<Services>, ended: Vec<(i32, i64)>) {
    match services.control.sweep_quota_counters(&ended, SWEPT_AT_ONCE).await {
        Ok(0) => {}
        Ok(swept) => tracing::debug!(swept, "counters of quotas are removed"),
        Err(error) => tracing::warn!(error = %error_chain(&error), "old counters of quotas can't be removed"),
    }
}

/// Every worker shows all sources: that of one that died must not be missed.
pub async fn show_completeness(services: Arc<Services>) {
    match services.control.completeness().await {
        Ok(known) => telemetry::completeness(&known, clock::now_micros()),
        Err(error) => tracing::warn!(error = %error_chain(&error), "completeness can't be read"),
    }
}

/// Looks at the topic: its id, and whether it has partitions that nobody knows of.
pub async fn look_at_topic(services: Arc<Services>) {
    match services.reader.topic_id().await {
        Ok(id) => services.link.report(Event::TopicId(id)),
        // The next time; while the topic does not exist nothing comes from it either.
        Err(error) => tracing::debug!(error = %error_chain(&error), "the topic's id can't be read"),
    }
    if let Err(error) = counts::look(&services.control, &services.reader).await {
        tracing::debug!(error = %error_chain(&error), "the topic's partitions can't be counted");
    }
}

pub async fn roll_up(services: Arc<Services>, tickets: Vec<Ticket>) {
    let partitions: Vec<i32> = tickets.iter().map(|ticket| ticket.partition).collect();
    let fenced = match services.writer.tick(&partitions).await {
        Ok(()) => Vec::new(),
        Err(error) => {
            tracing::warn!(error = %error_chain(&error), "rolling up failed");
            fenced(&error, tickets)
        }
    };
    services.link.report(Event::TickDone { fenced });
}

/// The tickets whose partitions another owner has fenced.
fn fenced(error: &StorageError, mut tickets: Vec<Ticket>) -> Vec<Ticket> {
    let StorageError::Fenced { partitions } = error else { return Vec::new() };
    tickets.retain(|ticket| partitions.contains(&ticket.partition));
    tickets
}

pub async fn reload_filter(services: Arc<Services>, ticket: Ticket, load: u64, partition_count: i32) {
    let mut attempts = services.attempts("filter", &ticket);
    let again = || load_filter(&services, ticket.partition, partition_count);
    if let Some(filter) = attempts.until_ok(again).await {
        services.link.report(Event::FilterLoaded { ticket: ticket.clone(), load, filter: Box::new(filter) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_that_rolling_up_meets_names_its_tickets() {
        let tickets = || (0..3).map(|partition| Ticket::new(partition, 7)).collect::<Vec<_>>();
        let error = StorageError::Fenced { partitions: vec![2, 0, 9] };
        assert_eq!(fenced(&error, tickets()), [Ticket::new(0, 7), Ticket::new(2, 7)]);
        assert_eq!(fenced(&StorageError::Timeout, tickets()), []);
    }
}
