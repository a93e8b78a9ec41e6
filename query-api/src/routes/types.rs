//! `POST /v1/usage/types`, `GET /v1/usage/types`, `GET /v1/usage/types/{name}`

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use usage_control::{ControlError, NewUsageType, Registration, UsageType};
use usage_schemas::{Kind, Timestamp};
use usage_service::problem::{Problem, kinds};

use super::{json, no_parameters, registered};
use crate::accept::{Format, negotiate};
use crate::auth::Caller;
use crate::body::{Members, object, pointer};
use crate::failure::Failure;
use crate::grant::Named;
use crate::hints::nearest;
use crate::state::App;

const MEMBERS: [&str; 4] = ["name", "kind", "unit", "description"];

/// A usage type in an answer.
#[derive(Serialize)]
struct JsonType<'a> {
    name: &'a str,
    kind: &'static str,
    unit: &'a str,
    description: Option<&'a str>,
    created_at: String,
}

impl<'a> JsonType<'a> {
    fn new(usage_type: &'a UsageType) -> Self {
        Self {
            name: &usage_type.name,
            kind: usage_type.kind.as_str(),
            unit: &usage_type.unit,
            description: usage_type.description.as_deref(),
            created_at: Timestamp::from_micros(usage_type.created_at).to_string(),
        }
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    data: Vec<JsonType<'a>>,
}

/// All registered types that the caller may see, ascending by name.
pub async fn list(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    RawQuery(raw): RawQuery,
) -> Result<Response, Failure> {
    let grant = caller.may(&app, Named::NOTHING).await?;
    negotiate(&headers, &[Format::Json])?;
    no_parameters(raw.as_deref())?;
    let types = app.catalog.types().await?;
    let visible = types.values().filter(|found| grant.has_metric(&found.name));
    json(&Answer { data: visible.map(JsonType::new).collect() })
}

/// One registered type.
pub async fn get(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    RawQuery(raw): RawQuery,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Failure> {
    let name = [name.map(|Path(name)| name).unwrap_or_default()];
    let grant = caller.may(&app, Named::metric(&name[0])).await?;
    negotiate(&headers, &[Format::Json])?;
    no_parameters(raw.as_deref())?;
    grant.metric(&name[0])?;
    let types = registered(&app.catalog, &grant, "name", &name).await?;
    match types.get(&name[0]) {
        Some(found) => json(&JsonType::new(found)),
        None => Err(Problem::not_found("no usage type has this name").into()),
    }
}

/// Registers a type: 201 if it is new, 200 if it is registered just so, 409 if the name is taken by another content.
pub async fn post(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    RawQuery(raw): RawQuery,
    body: Body,
) -> Result<Response, Failure> {
    let grant = caller.may(&app, Named::NOTHING).await?;
    negotiate(&headers, &[Format::Json])?;
    no_parameters(raw.as_deref())?;
    let new = read(object(&headers, body, app.limits.body_bytes).await?)?;
    grant.metric(&new.name)?;
    let registration = app.catalog.register(&new).await?;
    let status = match &registration {
        Registration::Created(_) => StatusCode::CREATED,
        Registration::Unchanged(_) => StatusCode::OK,
        Registration::Different(found) => return Err(different(&new, found)),
    };
    tracing::info!(tenant_id = %caller.tenant_id(), operation = "register_type", usage_type = new.name, status = status.as_u16(), "usage type");
    let mut response = json(&JsonType::new(registration.usage_type()))?;
    *response.status_mut() = status;
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/usage/types/{}", new.name)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response.into_response())
}

/// Reads the members; every fault is told.
fn read(members: Members) -> Result<NewUsageType, Failure> {
    let mut problem = Problem::new(kinds::INVALID_BODY);
    let (mut name, mut kind, mut unit, mut description) = (None, None, None, None);
    for (member, value) in members {
        let place = pointer(&member);
        match (member.as_str(), value) {
            ("name", Value::String(text)) => name = Some(text),
            ("unit", Value::String(text)) => unit = Some(text),
            ("description", Value::String(text)) => description = Some(text),
            ("description", Value::Null) => {}
            ("kind", Value::String(text)) => {
                kind = [Kind::Counter, Kind::Gauge].into_iter().find(|kind| kind.as_str() == text);
                if kind.is_none() {
                    problem = problem.with_pointer(place, "unknown_value", "`counter` or `gauge`");
                    // Told; not also missing.
                    kind = Some(Kind::Counter);
                }
            }
            (known, _) if MEMBERS.contains(&known) => {
                problem = problem.with_pointer(place, "wrong_type", "the member must be a string");
            }
            (unknown, _) => {
                let hint = match nearest(unknown, MEMBERS) {
                    Some(nearest) => format!("unknown member, did you mean `{nearest}`?"),
                    None => format!("unknown member. Known: {}", MEMBERS.join(", ")),
                };
                problem = problem.with_pointer(place, "unknown_member", hint);
            }
        }
    }
    for (member, missing) in [("name", name.is_none()), ("kind", kind.is_none()), ("unit", unit.is_none())] {
        let place = pointer(member);
        if missing
            && !problem
                .errors()
                .iter()
                .any(|error| error.place == usage_service::problem::Place::Pointer(place.clone()))
        {
            problem = problem.with_pointer(place, "missing", "the member is required");
        }
    }
    // Each text is judged beside good ones, so that all faults are found.
    let good =
        NewUsageType { name: "a".to_owned(), kind: Kind::Counter, unit: "a".to_owned(), description: None };
    let probes = [
        name.clone().map(|name| NewUsageType { name, ..good.clone() }),
        unit.clone().map(|unit| NewUsageType { unit, ..good.clone() }),
        Some(NewUsageType { description: description.clone(), ..good }),
    ];
    for probe in probes.into_iter().flatten() {
        if let Err(ControlError::Invalid { field, detail }) = probe.validate() {
            problem = problem.with_pointer(pointer(field), "invalid", detail);
        }
    }
    match (name, kind, unit) {
        (Some(name), Some(kind), Some(unit)) if problem.errors().is_empty() => {
            Ok(NewUsageType { name, kind, unit, description })
        }
        _ => {
            let count = problem.errors().len();
            let first = problem.errors().first().map(|error| error.detail.clone()).unwrap_or_default();
            let detail = if count == 1 { first } else { format!("{count} members are not valid") };
            Err(problem.with_detail(detail).into())
        }
    }
}

fn different(new: &NewUsageType, found: &UsageType) -> Failure {
    let mut problem = Problem::conflict(format!(
        "the usage type `{}` is registered with other content, and stays as it is",
        found.name
    ));
    if new.kind != found.kind {
        problem = problem.with_pointer("/kind", "differs", format!("registered: {}", found.kind.as_str()));
    }
    if new.unit != found.unit {
        problem = problem.with_pointer("/unit", "differs", format!("registered: {}", found.unit));
    }
    if new.description != found.description {
        problem = problem.with_pointer("/description", "differs", "registered with another description");
    }
    problem.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn members(value: Value) -> Members {
        value.as_object().unwrap().iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    fn faults(value: Value) -> Vec<String> {
        let failure = read(members(value)).unwrap_err();
        let mut faults: Vec<_> = failure
            .0
            .errors()
            .iter()
            .map(|error| match &error.place {
                usage_service::problem::Place::Pointer(place) => format!("{place}:{}", error.code),
                other => format!("{other:?}"),
            })
            .collect();
        faults.sort();
        faults
    }

    #[test]
    fn a_type_is_read() {
        let new =
            read(members(json!({"name": "tokens", "kind": "gauge", "unit": "token", "description": null})))
                .unwrap();
        assert_eq!(
            new,
            NewUsageType {
                name: "tokens".to_owned(),
                kind: Kind::Gauge,
                unit: "token".to_owned(),
                description: None
            }
        );
    }

    #[test]
    fn every_fault_of_a_body_is_told() {
        assert_eq!(faults(json!({})), ["/kind:missing", "/name:missing", "/unit:missing"]);
        assert_eq!(
            faults(json!({"name": "Tokens", "kind": "histogram", "unit": " x", "descripton": "d"})),
            ["/descripton:unknown_member", "/kind:unknown_value", "/name:invalid", "/unit:invalid"]
        );
        assert_eq!(
            faults(json!({"name": 1, "kind": "counter", "unit": null})),
            ["/name:wrong_type", "/unit:wrong_type"]
        );
        assert_eq!(faults(json!({"name": "", "kind": "counter", "unit": "x"})), ["/name:invalid"]);
    }
}
