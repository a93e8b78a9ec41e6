//! The handlers, one file a path.

pub mod aggregated;
pub mod allowances;
pub mod raw;
pub mod records;
pub mod types;
pub mod watermarks;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use usage_service::problem::{Problem, kinds};

use crate::accept::Format;
use crate::auth::Caller;
use crate::failure::Failure;
use crate::grant::{Grant, Named};
use crate::hints::nearest;
use crate::params::{Params, shortened};
use crate::registry::Types;
use crate::state::App;

/// 200 with a JSON body.
fn json(value: &impl Serialize) -> Result<Response, Failure> {
    let body = serde_json::to_vec(value).map_err(|error| internal(&error))?;
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static(Format::Json.content_type()))], body)
        .into_response())
}

/// 200 with a body of pages.
fn streamed(format: Format, body: axum::body::Body) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()))], body).into_response()
}

/// 500 for what can't happen; the log has what did.
fn internal(error: &(dyn std::error::Error + 'static)) -> Failure {
    tracing::error!(error = %usage_service::error_chain(error), "an answer could not be written");
    Problem::internal().into()
}

/// Refuses parameters on a path that takes none.
fn no_parameters(raw: Option<&str>) -> Result<(), Failure> {
    Ok(Params::parse(raw, &[]).finish(Some(()))?)
}

/// Unknown metrics of one question that get a hint: each is compared with all registered names.
const HINTS: usize = 3;

/// The registered types, if all of `metrics` are among them; `parameter` named them. Hints are what the caller may see.
async fn registered(
    app: &App,
    caller: &Caller,
    grant: &Grant,
    parameter: &str,
    metrics: &[String],
) -> Result<Types, Failure> {
    let types = app.catalog.types_with(metrics).await?;
    let unknown: Vec<&String> = metrics.iter().filter(|metric| !types.contains_key(*metric)).collect();
    if unknown.is_empty() {
        return Ok(types);
    }
    // A permission for what was named says nothing of other names.
    let open = if grant.is_of_what_is_named() { caller.may(app, Named::NOTHING).await.ok() } else { None };
    let visible = |name: &&str| match grant.is_of_what_is_named() {
        true => open.as_ref().is_some_and(|open| open.has_metric(name)),
        false => grant.has_metric(name),
    };
    let hint = |(at, metric): (usize, &String)| {
        let known = types.keys().map(String::as_str).filter(visible);
        let hint = if at < HINTS { nearest(metric, known) } else { None };
        let metric = shortened(metric);
        match hint {
            Some(nearest) => format!("no usage type has the name `{metric}`, did you mean `{nearest}`?"),
            None if types.is_empty() => {
                format!("no usage type has the name `{metric}`, none is registered yet")
            }
            None => format!("no usage type has the name `{metric}`"),
        }
    };
    let details: Vec<String> = unknown.into_iter().enumerate().map(hint).collect();
    let problem =
        Problem::new(kinds::UNKNOWN_METRIC).with_detail(details.first().cloned().unwrap_or_default());
    let problem = details
        .into_iter()
        .fold(problem, |problem, detail| problem.with_parameter(parameter, "unknown_metric", detail));
    Err(problem.into())
}
