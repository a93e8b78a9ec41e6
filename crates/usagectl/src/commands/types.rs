//! `usagectl types add` and `types list`.

use usage_control::{ControlError, NewUsageType, Registration};
use usage_schemas::Kind;
use usage_service::config::Resolved;

use crate::arguments::{self, List, TypesAdd};
use crate::{WrongInput, output};

pub(super) async fn add(config: &Resolved, options: TypesAdd) -> anyhow::Result<()> {
    let kind = match options.kind {
        arguments::Kind::Counter => Kind::Counter,
        arguments::Kind::Gauge => Kind::Gauge,
    };
    let TypesAdd { name, unit, description, .. } = options;
    let new = NewUsageType { name, kind, unit, description };
    match super::control(config).await?.register_type(&new).await.map_err(wrong_input)? {
        Registration::Created(created) => println!("registered {}", created.name),
        Registration::Unchanged(found) => println!("{} is registered already", found.name),
        Registration::Different(found) => {
            let description =
                found.description.map_or_else(String::new, |text| format!(", described as {text:?}"));
            anyhow::bail!(
                "{} is registered as a {} in {}{description}; it was not changed",
                found.name,
                found.kind.as_str(),
                found.unit,
            );
        }
    }
    Ok(())
}

fn wrong_input(error: ControlError) -> anyhow::Error {
    match error {
        ControlError::Invalid { field: "unit", detail } => WrongInput { argument: "--unit", detail }.into(),
        ControlError::Invalid { field: "description", detail } => {
            WrongInput { argument: "--description", detail }.into()
        }
        other => other.into(),
    }
}

pub(super) async fn list(config: &Resolved, options: &List) -> anyhow::Result<()> {
    let types = super::control(config).await?.usage_types().await?;
    if options.json {
        let rows = types.iter().map(|found| {
            serde_json::json!({
                "name": found.name,
                "version": found.version,
                "kind": found.kind,
                "unit": found.unit,
                "description": found.description,
                "valid_from": found.valid_from.map(output::time),
                "created_at": output::time(found.created_at),
            })
        });
        return output::json(&rows.collect::<Vec<_>>());
    }
    let rows = types.into_iter().map(|found| {
        vec![found.name, found.kind.as_str().into(), found.unit, found.description.unwrap_or_default()]
    });
    output::table(&["NAME", "KIND", "UNIT", "DESCRIPTION"], rows);
    Ok(())
}
