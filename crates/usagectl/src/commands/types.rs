//! `usagectl types add`, `types list` and `types show`.

use usage_control::{ControlError, NewUsageType, Registration};
use usage_schemas::{Kind, Rules, TypeVersion, UsageType};
use usage_service::config::Resolved;

use crate::arguments::{self, List, TypesAdd, TypesShow};
use crate::{WrongInput, output};

pub(super) async fn add(config: &Resolved, options: TypesAdd) -> anyhow::Result<()> {
    let kind = match options.kind {
        arguments::Kind::Counter => Kind::Counter,
        arguments::Kind::Gauge => Kind::Gauge,
    };
    let TypesAdd { name, unit, description, version, valid_from, rules, .. } = options;
    let rules = rules.unwrap_or_default();
    let new = NewUsageType { name, kind, unit, description, version, valid_from, rules };
    let named = if version == 1 { new.name.clone() } else { format!("version {version} of {}", new.name) };
    match super::control(config).await?.register_type(&new).await.map_err(wrong_input)? {
        Registration::Created(_) => println!("registered {named}"),
        Registration::Unchanged(_) => println!("{named} is registered already"),
        Registration::Different(found) => {
            let Some(found) = found.version(version) else { anyhow::bail!("{named} was not registered") };
            let description = found
                .description
                .as_ref()
                .map_or_else(String::new, |text| format!(", described as {text:?}"));
            let from = found.valid_from.map_or_else(String::new, |from| format!(", valid from {from}"));
            let rules = if found.rules.is_empty() {
                String::new()
            } else {
                format!(", rules {}", found.rules.to_text())
            };
            anyhow::bail!(
                "{named} is registered as a {} in {}{description}{from}{rules}; it was not changed",
                found.kind.as_str(),
                found.unit,
            );
        }
        Registration::CannotFollow(faults) => {
            let faults: Vec<_> =
                faults.into_iter().map(|fault| format!("{}: {}", fault.field, fault.detail)).collect();
            anyhow::bail!("{named} was not registered: {}", faults.join("; "));
        }
    }
    Ok(())
}

fn wrong_input(error: ControlError) -> anyhow::Error {
    let argument = match &error {
        ControlError::Invalid { field: "unit", .. } => "--unit",
        ControlError::Invalid { field: "description", .. } => "--description",
        ControlError::Invalid { field: "version", .. } => "--version",
        ControlError::Invalid { field: "valid_from", .. } => "--valid-from",
        ControlError::Invalid { field: "rules", .. } => "--rules",
        _ => return error.into(),
    };
    match error {
        ControlError::Invalid { detail, .. } => WrongInput { argument, detail }.into(),
        other => other.into(),
    }
}

pub(super) async fn list(config: &Resolved, options: &List) -> anyhow::Result<()> {
    let types = super::control(config).await?.usage_types().await?;
    if options.json {
        let rows = types.iter().map(|found| json(found, found.newest())).collect::<Result<Vec<_>, _>>()?;
        return output::json(&rows);
    }
    let rows = types.iter().map(|found| {
        let newest = found.newest();
        vec![
            found.name.clone(),
            newest.version.to_string(),
            begins(newest),
            newest.kind.as_str().into(),
            newest.unit.clone(),
            rules(&newest.rules),
            newest.description.clone().unwrap_or_default(),
        ]
    });
    output::table(&["NAME", "VERSION", "VALID FROM", "KIND", "UNIT", "RULES", "DESCRIPTION"], rows);
    Ok(())
}

pub(super) async fn show(config: &Resolved, options: &TypesShow) -> anyhow::Result<()> {
    let found = super::control(config).await?.usage_type(&options.name).await?;
    let Some(found) = found else { anyhow::bail!("no usage type has the name {}", options.name) };
    let versions = found.versions.iter().rev();
    if options.json {
        let rows = versions.map(|version| json(&found, version)).collect::<Result<Vec<_>, _>>()?;
        return output::json(&rows);
    }
    let rows = versions.map(|version| {
        vec![
            version.version.to_string(),
            begins(version),
            version.kind.as_str().into(),
            version.unit.clone(),
            rules(&version.rules),
            version.description.clone().unwrap_or_default(),
        ]
    });
    output::table(&["VERSION", "VALID FROM", "KIND", "UNIT", "RULES", "DESCRIPTION"], rows);
    Ok(())
}

/// From which timestamp of records on a version holds.
fn begins(version: &TypeVersion) -> String {
    version.valid_from.map_or_else(|| "all times".into(), |from| from.to_string())
}

fn rules(rules: &Rules) -> String {
    if rules.is_empty() { String::new() } else { rules.to_text() }
}

/// A version with its type's name, as one object.
fn json(usage_type: &UsageType, version: &TypeVersion) -> anyhow::Result<serde_json::Value> {
    let mut json = serde_json::to_value(version)?;
    json["name"] = usage_type.name.clone().into();
    Ok(json)
}
