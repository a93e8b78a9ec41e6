//! The handlers, one file a path.

pub mod aggregated;
pub mod raw;
pub mod records;
pub mod types;
pub mod watermarks;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use usage_service::problem::{Problem, kinds};

use crate::accept::Format;
use crate::failure::Failure;
use crate::params::{Params, nearest, shortened};
use crate::registry::{Catalog, Types};

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

/// The registered types, if all of `metrics` are among them; `parameter` named them.
async fn registered(catalog: &Catalog, parameter: &str, metrics: &[String]) -> Result<Types, Failure> {
    let types = catalog.types_with(metrics).await?;
    let unknown: Vec<&String> = metrics.iter().filter(|metric| !types.contains_key(*metric)).collect();
    let Some(first) = unknown.first() else { return Ok(types) };
    let hint = |metric: &str| match nearest(metric, types.keys().map(String::as_str)) {
        Some(nearest) => {
            format!("no usage type has the name `{}`, did you mean `{nearest}`?", shortened(metric))
        }
        None => format!("no usage type has the name `{}`, none is registered yet", shortened(metric)),
    };
    let problem = Problem::new(kinds::UNKNOWN_METRIC).with_detail(hint(first));
    let problem = unknown
        .iter()
        .fold(problem, |problem, metric| problem.with_parameter(parameter, "unknown_metric", hint(metric)));
    Err(problem.into())
}
