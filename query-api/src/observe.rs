//! What surrounds every request: its ids, its log line, its metrics, and the problem that every error must be.

use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::Instrument as _;
use usage_service::metric_names::{HTTP_REQUEST_SECONDS, HTTP_REQUESTS_TOTAL, USAGE_QUERY_LATENCY_MS};
use usage_service::problem::{Problem, kinds};
use usage_service::telemetry::{millis, panic_message, tenant_label};
use usage_service::trace::TraceId;

use crate::auth::SeenTenant;
use crate::hints::nearest;

const REQUEST_ID: &str = "x-request-id";
const TRACE_ID: &str = "trace-id";

/// Axum middleware around all routes.
pub async fn layer(mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let trace_id = request
        .headers()
        .get("traceparent")
        .and_then(|value| value.to_str().ok())
        .and_then(TraceId::from_traceparent)
        .unwrap_or_else(TraceId::random);
    let request_id = request_id(request.headers()).unwrap_or_else(|| trace_id.to_string());
    let method = method_label(request.method());
    let route = request.extensions().get::<MatchedPath>().map_or("unknown", MatchedPath::as_str).to_owned();
    let path = request.uri().path().to_owned();
    let tenant = SeenTenant::default();
    request.extensions_mut().insert(tenant.clone());

    let span = tracing::info_span!("request", correlation_id = %request_id, trace_id = %trace_id);
    let answered = async {
        let response = as_problem(next.run(request).await, &path);
        let status = response.status().as_u16();
        let latency = started.elapsed();
        let tenant_id = tenant.get();
        tracing::info!(
            tenant_id = tenant_id.map(tracing::field::display),
            operation = route,
            method,
            status,
            latency_ms = u64::try_from(latency.as_millis()).unwrap_or(u64::MAX),
            "answered"
        );
        metrics::counter!(HTTP_REQUESTS_TOTAL, "method" => method, "route" => route.clone(), "status" => status.to_string())
            .increment(1);
        metrics::histogram!(HTTP_REQUEST_SECONDS, "method" => method, "route" => route.clone())
            .record(latency);
        if let (Some(query_type), Some(tenant_id)) = (query_type(&route), tenant_id) {
            let labels = [("tenant_id", tenant_label(tenant_id)), ("query_type", query_type.into())];
            metrics::histogram!(USAGE_QUERY_LATENCY_MS, &labels).record(millis(latency));
        }
        response
    };
    let mut response = trace_id.scope(answered.instrument(span)).await;

    let headers = response.headers_mut();
    for (name, value) in [(REQUEST_ID, request_id), (TRACE_ID, trace_id.to_string())] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    // Answers are a tenant's own and change with every record.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::VARY, HeaderValue::from_static("authorization, accept"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The problem for a panic in a handler.
pub fn panicked(panic: Box<dyn std::any::Any + Send + 'static>) -> Response {
    tracing::error!(error = panic_message(&*panic), "a handler panicked");
    Problem::internal().into_response()
}

/// An id of the caller's that is safe in headers and logs.
fn request_id(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(REQUEST_ID)?.to_str().ok()?;
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(&byte);
    ((1..=128).contains(&text.len()) && text.bytes().all(safe)).then(|| text.to_owned())
}

/// The router's own refusals have no body; whatever is an error becomes a problem.
fn as_problem(response: Response, path: &str) -> Response {
    let status = response.status();
    let has_body = response.headers().contains_key(header::CONTENT_TYPE)
        && !response.headers()[header::CONTENT_TYPE].as_bytes().starts_with(b"text/plain");
    if !(status.is_client_error() || status.is_server_error()) || has_body {
        return response;
    }
    let problem = match status {
        StatusCode::NOT_FOUND => Problem::not_found(format!(
            "there is nothing at this path, the nearest is {}",
            nearest_path(path)
        )),
        StatusCode::METHOD_NOT_ALLOWED => Problem::new(kinds::METHOD_NOT_ALLOWED),
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(kinds::PAYLOAD_TOO_LARGE),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Problem::new(kinds::UNSUPPORTED_MEDIA_TYPE),
        status => {
            tracing::error!(status = status.as_u16(), "an error of a kind that has no problem type");
            Problem::internal()
        }
    };
    let allow = response.headers().get(header::ALLOW).cloned();
    match allow {
        Some(allow) => problem
            .with_detail(format!("allowed: {}", allow.to_str().unwrap_or_default()))
            .with_header(header::ALLOW, allow)
            .into_response(),
        None => problem.into_response(),
    }
}

fn nearest_path(path: &str) -> &'static str {
    nearest(path, crate::app::paths()).unwrap_or("/v1/usage/aggregated")
}

/// Bounded, whatever a caller invents.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

fn query_type(route: &str) -> Option<&'static str> {
    match route {
        "/v1/usage/aggregated" => Some("aggregated"),
        "/v1/usage/raw" => Some("raw"),
        "/v1/usage/records/{id}" => Some("record"),
        "/v1/usage/metadata/watermarks" => Some("watermarks"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_safe_request_ids_are_taken() {
        let id = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(text.as_bytes()).unwrap());
            request_id(&headers)
        };
        assert_eq!(id("018f-abc.1"), Some("018f-abc.1".to_owned()));
        for unsafe_id in ["", "a b", "a\"b", "ä", &"x".repeat(129)] {
            assert_eq!(id(unsafe_id), None, "{unsafe_id}");
        }
        assert_eq!(request_id(&HeaderMap::new()), None);
    }

    #[test]
    fn a_wrong_path_names_the_nearest() {
        assert_eq!(nearest_path("/v1/usage/agregated"), "/v1/usage/aggregated");
        assert_eq!(nearest_path("/v1/usage/type"), "/v1/usage/types");
    }

    #[test]
    fn methods_have_a_bounded_label() {
        assert_eq!(method_label(&Method::from_bytes(b"BREW").unwrap()), "other");
        assert_eq!(method_label(&Method::PATCH), "PATCH");
    }
}
