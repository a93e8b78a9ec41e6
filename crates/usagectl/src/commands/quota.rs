//! `usagectl quota set`, `list`, `show` and `remove`.

use std::time::Duration;

use humantime_serde::re::humantime::format_duration;
use usage_control::{Quota, QuotaRule, QuotaScope, QuotaUse, Quotas};
use usage_service::config::Resolved;

use crate::arguments::{List, QuotaRemove, QuotaSet, QuotaShow};
use crate::output;

/// Windows that `show` prints.
const SHOWN: i64 = 10;

pub(super) async fn set(config: &Resolved, options: &QuotaSet) -> anyhow::Result<()> {
    let scope = options.whose.scope();
    let quota = options.records.zip(options.window);
    let quota = quota.map(|(max_records, window_seconds)| Quota { max_records, window_seconds });
    let control = super::control(config).await?;
    control.set_quota(&scope, quota).await?;
    println!("{scope}: {}", words(quota));
    match &scope {
        QuotaScope::EverySource => Ok(()),
        QuotaScope::Source(name) | QuotaScope::Tenant(name, _) => {
            super::source::warn_without_key(&control, name).await
        }
    }
}

pub(super) async fn list(config: &Resolved, options: &List) -> anyhow::Result<()> {
    let rules = super::control(config).await?.quotas().await?;
    if options.json {
        return output::json(&rules.iter().map(json).collect::<Vec<_>>());
    }
    let rows = rules.into_iter().map(|rule| {
        let (source, tenant) = names(&rule.scope);
        vec![
            source.unwrap_or_else(|| "(every source)".into()),
            tenant.unwrap_or_else(|| "(every tenant)".into()),
            words(rule.quota),
            output::time(rule.updated_at),
        ]
    });
    output::table(&["SOURCE", "TENANT", "QUOTA", "SET AT"], rows);
    Ok(())
}

pub(super) async fn show(config: &Resolved, options: &QuotaShow) -> anyhow::Result<()> {
    let control = super::control(config).await?;
    let quotas = Quotas::new(control.quotas().await?);
    let rule = quotas.rule_of(&options.source, options.tenant);
    let used = control.quota_use(&options.source, options.tenant, SHOWN).await?;
    if options.json {
        let windows: Vec<_> = used.iter().map(window_json).collect();
        return output::json(&serde_json::json!({ "holds": rule.map(json), "windows": windows }));
    }
    match rule {
        Some(rule) => println!("{}, set for {}", words(rule.quota), rule.scope),
        None => println!("no bound: nothing is set"),
    }
    let rows = used.iter().map(|used| {
        let [start, end] = bounds(used);
        vec![start, end, used.records.to_string()]
    });
    output::table(&["WINDOW FROM", "TO", "KEPT"], rows);
    Ok(())
}

pub(super) async fn remove(config: &Resolved, options: &QuotaRemove) -> anyhow::Result<()> {
    let scope = options.whose.scope();
    let removed = super::control(config).await?.remove_quota(&scope).await?;
    anyhow::ensure!(removed, "{scope} has no quota of its own; see usagectl quota list");
    println!("{scope}: removed");
    Ok(())
}

fn words(quota: Option<Quota>) -> String {
    match quota {
        None => "no bound".into(),
        Some(Quota { max_records, window_seconds }) => {
            let window = Duration::from_secs(window_seconds.unsigned_abs().into());
            format!("{max_records} records in {}", format_duration(window))
        }
    }
}

fn names(scope: &QuotaScope) -> (Option<String>, Option<String>) {
    match scope {
        QuotaScope::EverySource => (None, None),
        QuotaScope::Source(source) => (Some(source.clone()), None),
        QuotaScope::Tenant(source, tenant) => (Some(source.clone()), Some(tenant.to_string())),
    }
}

/// `null` for source or tenant is every one, for the quota no bound.
fn json(rule: &QuotaRule) -> serde_json::Value {
    let (source, tenant) = names(&rule.scope);
    serde_json::json!({
        "source": source,
        "tenant_id": tenant,
        "max_records": rule.quota.map(|quota| quota.max_records),
        "window_seconds": rule.quota.map(|quota| quota.window_seconds),
        "set_at": output::time(rule.updated_at),
    })
}

fn bounds(used: &QuotaUse) -> [String; 2] {
    let end = used.window_start.saturating_add(used.window_seconds.into());
    [used.window_start, end].map(|seconds| output::time(seconds.saturating_mul(1_000_000)))
}

fn window_json(used: &QuotaUse) -> serde_json::Value {
    let [start, end] = bounds(used);
    serde_json::json!({
        "window_seconds": used.window_seconds,
        "from": start,
        "to": end,
        "kept": used.records,
    })
}
