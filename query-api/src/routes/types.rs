//! `POST /v1/usage/types`, `GET /v1/usage/types`, `GET /v1/usage/types/{name}`

mod body;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;
use usage_control::{NewUsageType, Registration};
use usage_schemas::{TypeVersion, UsageType};
use usage_service::problem::Problem;

use super::{internal, json, no_parameters, registered};
use crate::accept::{Format, negotiate};
use crate::auth::Caller;
use crate::body::object;
use crate::etag::tagged;
use crate::failure::Failure;
use crate::grant::Named;
use crate::state::App;

/// A usage type in an answer: its newest version, and all of them, newest first.
#[derive(Serialize)]
struct JsonType<'a> {
    name: &'a str,
    #[serde(flatten)]
    newest: &'a TypeVersion,
    versions: Vec<&'a TypeVersion>,
}

impl<'a> JsonType<'a> {
    fn new(usage_type: &'a UsageType) -> Self {
        Self {
            name: &usage_type.name,
            newest: usage_type.newest(),
            versions: usage_type.versions.iter().rev().collect(),
        }
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    data: Vec<JsonType<'a>>,
}

fn with_tag(request: &HeaderMap, value: &impl Serialize) -> Result<Response, Failure> {
    let body = serde_json::to_vec(value).map_err(|error| internal(&error))?;
    Ok(tagged(request, Format::Json.content_type(), body))
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
    with_tag(&headers, &Answer { data: visible.map(JsonType::new).collect() })
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
    let types = registered(&app, &caller, &grant, "name", &name).await?;
    match types.get(&name[0]) {
        Some(found) => with_tag(&headers, &JsonType::new(found)),
        None => Err(Problem::not_found("no usage type has this name").into()),
    }
}

/// Registers a version of a type: 201 if it is new, 200 if it is registered just so, 409 if it is registered with other content or
/// can't follow the version before it.
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
    let new = body::read(object(&headers, body, app.limits.body_bytes).await?)?;
    grant.metric(&new.name)?;
    let (status, found) = match app.catalog.register(&new).await? {
        Registration::Created(created) => (StatusCode::CREATED, created),
        Registration::Unchanged(found) => (StatusCode::OK, found),
        Registration::Different(found) => return Err(different(&new, &found)),
        Registration::CannotFollow(faults) => {
            let problem = Problem::conflict(format!(
                "version {} of the usage type `{}` can't follow what is registered",
                new.version, new.name
            ));
            let fold = |problem: Problem, fault: usage_control::TypeFault| {
                problem.with_pointer(fault.pointer, "cannot_follow", fault.detail)
            };
            return Err(faults.into_iter().fold(problem, fold).into());
        }
    };
    tracing::info!(tenant_id = %caller.tenant_id(), operation = "register_type", usage_type = new.name, version = new.version, status = status.as_u16(), "usage type");
    let mut response = json(&JsonType::new(&found))?;
    *response.status_mut() = status;
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/usage/types/{}", new.name)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

fn different(new: &NewUsageType, found: &UsageType) -> Failure {
    let newest = found.newest().version;
    let mut problem = Problem::conflict(format!(
        "version {} of the usage type `{}` is registered with other content, and stays as it is; the next version is {}",
        new.version,
        found.name,
        newest + 1
    ));
    let Some(found) = found.version(new.version) else { return problem.into() };
    if new.kind != found.kind {
        problem = problem.with_pointer("/kind", "differs", format!("registered: {}", found.kind.as_str()));
    }
    if new.unit != found.unit {
        problem = problem.with_pointer("/unit", "differs", format!("registered: {}", found.unit));
    }
    if new.description != found.description {
        problem = problem.with_pointer("/description", "differs", "registered with another description");
    }
    if new.valid_from != found.valid_from {
        let registered = found.valid_from.map_or_else(|| "none".to_owned(), |from| from.to_string());
        problem = problem.with_pointer("/valid_from", "differs", format!("registered: {registered}"));
    }
    let rules = (&new.rules, &found.rules);
    for (member, differs) in [
        ("min", rules.0.min != rules.1.min),
        ("max", rules.0.max != rules.1.max),
        ("integer", rules.0.integer != rules.1.integer),
        ("resource_types", rules.0.resource_types != rules.1.resource_types),
        ("metadata", rules.0.metadata != rules.1.metadata),
    ] {
        if differs {
            let detail = "registered with another rule";
            problem = problem.with_pointer(format!("/rules/{member}"), "differs", detail);
        }
    }
    problem.into()
}
