//! `usagectl source add`, `source set`, `source list` and `source retire`.

use std::collections::BTreeSet;

use anyhow::Context as _;
use secrecy::{ExposeSecret as _, SecretSlice};
use usage_control::{
    Attribution, Control, ControlError, OutboxProgress, Placed, QuotaRule, QuotaScope, Source, SourceKey,
    SourceKeyInfo,
};
use usage_service::config::Resolved;

use crate::WrongInput;
use crate::arguments::{List, SourceAdd, SourceRetire, SourceSet, Tenants};
use crate::{output, parse};

/// Adds a key. The same key again changes nothing unless a validity is given: a stack that comes up again must not make a key valid
/// that an operator has ended.
pub(super) async fn add(config: &Resolved, options: SourceAdd) -> anyhow::Result<()> {
    let key = match options.key_hex.as_deref() {
        Some("-") => given_key(std::io::read_to_string(std::io::stdin())?.trim())?,
        Some(text) => given_key(text)?,
        None => super::source_key::random_key(),
    };
    let control = super::control(config).await?;
    let found = control.source_key(&options.name, &options.key_id).await.map_err(wrong_input)?;
    if let Some(tenants) = &options.tenants {
        control.add_source(&options.name, attribution(tenants)).await?;
    }
    let same = found.as_ref().is_some_and(|found| found.key.expose_secret() == key.expose_secret());
    if same && options.valid_from.is_none() && options.valid_until.is_none() {
        println!("key {} of source {} is there already", options.key_id, options.name);
        return hint(&control, &options.name).await;
    }
    let new = SourceKey {
        source: options.name,
        key_id: options.key_id,
        key,
        // A key that only begins now would refuse what it signed a moment ago by another clock.
        valid_from: options.valid_from.or_else(|| found.as_ref().map(|found| found.valid_from)).unwrap_or(0),
        valid_until: options.valid_until.or_else(|| found.and_then(|found| found.valid_until)),
    };
    if options.generate {
        // First: a key that was made and could not be shown is in force and known to nobody.
        println!("key {} of source {}:\n{}", new.key_id, new.source, parse::to_hex(new.key.expose_secret()));
        output::written().context("the key was not added")?;
    }
    let placed = control.put_source_key(&new).await.map_err(wrong_input)?;
    let did = if placed == Placed::Created { "added" } else { "changed the validity of" };
    println!("{did} key {} of source {}", new.key_id, new.source);
    hint(&control, &new.source).await
}

/// A source that signs rightly and may emit for nobody is most often one that was forgotten.
pub(super) async fn hint(control: &Control, name: &str) -> anyhow::Result<()> {
    if control.sources().await?.iter().all(|source| source.name != name) {
        eprintln!(
            "source {name} may emit for no tenant but those that a policy names: see `usagectl source set {name} --help`"
        );
    }
    Ok(())
}

fn attribution(tenants: &Tenants) -> Attribution {
    match tenants.home_tenant {
        Some(home) => Attribution::HomeTenant(home),
        None if tenants.any_tenant => Attribution::AnyTenant,
        None => Attribution::ByPolicy,
    }
}

pub(super) async fn set(config: &Resolved, options: &SourceSet) -> anyhow::Result<()> {
    let attribution = attribution(&options.tenants);
    let control = super::control(config).await?;
    control.set_source(&options.name, attribution).await.map_err(wrong_input)?;
    println!("source {} emits usage of {}", options.name, whose(attribution));
    warn_without_key(&control, &options.name).await
}

/// What is said of a source without a key holds for nobody: most often its name is misspelt.
pub(super) async fn warn_without_key(control: &Control, name: &str) -> anyhow::Result<()> {
    let keys = control.source_key_infos().await?;
    if keys.iter().any(|key| key.source == name) {
        return Ok(());
    }
    let nearest = keys.iter().min_by_key(|key| strsim::damerau_levenshtein(&key.source, name));
    let nearest = nearest.map_or_else(String::new, |key| format!("; did you mean {}?", key.source));
    eprintln!(
        "warning: source {name} has no key, so nothing of it is taken, see `usagectl source list`{nearest}"
    );
    Ok(())
}

/// Sources of which something was said, by `set` or a quota, and that have no key.
fn without_key(keys: &[SourceKeyInfo], sources: &[Source], quotas: &[QuotaRule]) -> BTreeSet<String> {
    let of_quotas = quotas.iter().filter_map(|rule| match &rule.scope {
        QuotaScope::EverySource => None,
        QuotaScope::Source(name) | QuotaScope::Tenant(name, _) => Some(name),
    });
    let mut named: BTreeSet<_> =
        sources.iter().map(|source| &source.name).chain(of_quotas).cloned().collect();
    named.retain(|name| keys.iter().all(|key| key.source != *name));
    named
}

fn whose(attribution: Attribution) -> String {
    match attribution {
        Attribution::AnyTenant => "any tenant".into(),
        Attribution::HomeTenant(home) => format!("tenant {home}"),
        Attribution::ByPolicy => "tenants that a policy names".into(),
    }
}

/// Bounds that only the control database checks are still about an argument.
pub(super) fn wrong_input(error: ControlError) -> anyhow::Error {
    match error {
        ControlError::Invalid { field: "key_id", detail } => {
            WrongInput { argument: "--key-id", detail }.into()
        }
        ControlError::Invalid { field: "valid_until", detail } => {
            WrongInput { argument: "--valid-until", detail }.into()
        }
        error @ ControlError::NoSource { outbox, .. } => {
            let argument = if outbox.is_some() { "--outbox" } else { "NAME" };
            WrongInput { argument, detail: error.to_string() }.into()
        }
        other => super::wrong_setting(other),
    }
}

fn given_key(text: &str) -> Result<SecretSlice<u8>, WrongInput> {
    parse::hex(text).map_err(|detail| WrongInput { argument: "--key-hex", detail })
}

pub(super) async fn list(config: &Resolved, options: &List) -> anyhow::Result<()> {
    let control = super::control(config).await?;
    let keys = control.source_key_infos().await?;
    let sources = control.sources().await?;
    let known = control.completeness().await?;
    let outboxes = control.outbox_progress().await?;
    let keyless = without_key(&keys, &sources, &control.quotas().await?);
    if options.json {
        let rows = keys.iter().map(|key| {
            serde_json::json!({
                "source": key.source,
                "key_id": key.key_id,
                "valid_from": output::time(key.valid_from),
                "valid_until": key.valid_until.map(output::time),
                "home_tenant": attribution_of(&sources, &key.source).home_tenant(),
                "any_tenant": attribution_of(&sources, &key.source).any_tenant(),
                "complete_until": known.complete_until(&[&key.source]).map(output::time),
                "outboxes": outboxes.iter().filter(|found| found.source == key.source).map(outbox).collect::<Vec<_>>(),
            })
        });
        let keyless = keyless.iter().map(|name| {
            serde_json::json!({
                "source": name,
                "key_id": null,
                "valid_from": null,
                "valid_until": null,
                "home_tenant": attribution_of(&sources, name).home_tenant(),
                "any_tenant": attribution_of(&sources, name).any_tenant(),
                "complete_until": known.complete_until(&[name]).map(output::time),
                "outboxes": outboxes.iter().filter(|found| found.source == *name).map(outbox).collect::<Vec<_>>(),
            })
        });
        return output::json(&rows.chain(keyless).collect::<Vec<_>>());
    }
    let keyless = keyless.into_iter().map(|name| vec![name, "(no key)".into(), String::new(), String::new()]);
    let rows = keys.into_iter().map(|key| {
        let until = key.valid_until.map_or_else(|| "for ever".to_string(), output::time);
        vec![key.source, key.key_id, output::time(key.valid_from), until]
    });
    output::table(&["SOURCE", "KEY", "VALID FROM", "VALID UNTIL"], rows.chain(keyless));
    println!();
    let rows = known.sources.iter().map(|found| {
        let until =
            known.complete_until(&[&found.source]).map_or_else(|| "unknown".to_string(), output::time);
        let whose = whose(attribution_of(&sources, &found.source));
        vec![found.source.clone(), whose, if found.retired { "retired".into() } else { until }]
    });
    output::table(&["SOURCE", "EMITS USAGE OF", "COMPLETE UNTIL"], rows);
    println!();
    let rows = outboxes.into_iter().map(|found| {
        let until = if found.retired { "retired".into() } else { output::time(found.complete_until) };
        let (heard, slowest) = (found.partitions.to_string(), found.slowest_partition.to_string());
        vec![found.source, found.outbox.to_string(), until, slowest, heard]
    });
    output::table(&["SOURCE", "OUTBOX", "HEARD UNTIL", "SLOWEST PARTITION", "PARTITIONS HEARD"], rows);
    Ok(())
}

fn attribution_of(sources: &[Source], name: &str) -> Attribution {
    sources.iter().find(|source| source.name == name).map(|source| source.attribution).unwrap_or_default()
}

fn outbox(found: &OutboxProgress) -> serde_json::Value {
    serde_json::json!({
        "outbox": found.outbox,
        "retired": found.retired,
        "heard_until": output::time(found.complete_until),
        "slowest_partition": found.slowest_partition,
        "partitions": found.partitions,
    })
}

pub(super) async fn retire(config: &Resolved, options: &SourceRetire) -> anyhow::Result<()> {
    let SourceRetire { name, outbox, undo } = options;
    let control = super::control(config).await?;
    let what = match outbox {
        Some(outbox) => format!("outbox {outbox} of source {name}"),
        None => format!("source {name}"),
    };
    let did = if *undo {
        if !control.unretire(name, *outbox).await? {
            anyhow::bail!("{what} is not retired");
        }
        "counts again"
    } else if control.retire(name, *outbox).await.map_err(wrong_input)? {
        "is retired"
    } else {
        "is retired already"
    };
    println!("{what} {did}");
    Ok(())
}
