//! RFC 9457 problem details: the body of every error over HTTP.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::trace::TraceId;

macro_rules! problem_types {
    ($($name:ident $status:ident $slug:literal $title:literal)*) => {
        /// The kinds of problems, each with one heading in `docs/errors.md`.
        pub mod kinds {
            use super::{ProblemType, StatusCode};
            $(pub const $name: ProblemType = ProblemType { slug: $slug, status: StatusCode::$status, title: $title };)*

            /// All of them.
            pub const ALL: &[ProblemType] = &[$($name),*];
        }
    };
}

problem_types! {
    INVALID_PARAMETER BAD_REQUEST "invalid-parameter" "A query parameter is not valid"
    INVALID_REQUEST BAD_REQUEST "invalid-request" "The request can be read in more than one way"
    INVALID_BODY BAD_REQUEST "invalid-body" "The request body is not valid"
    INVALID_CURSOR BAD_REQUEST "invalid-cursor" "The cursor does not belong to this query"
    UNAUTHENTICATED UNAUTHORIZED "unauthenticated" "A valid token is required"
    FORBIDDEN FORBIDDEN "forbidden" "Not allowed"
    NOT_FOUND NOT_FOUND "not-found" "Not found"
    UNKNOWN_METRIC NOT_FOUND "unknown-metric" "No such usage type"
    METHOD_NOT_ALLOWED METHOD_NOT_ALLOWED "method-not-allowed" "The resource has no such method"
    NOT_ACCEPTABLE NOT_ACCEPTABLE "not-acceptable" "None of the accepted media types is offered"
    REQUEST_TIMEOUT REQUEST_TIMEOUT "request-timeout" "The request body did not arrive in time"
    CONFLICT CONFLICT "conflict" "Contradicts what is stored"
    PAYLOAD_TOO_LARGE PAYLOAD_TOO_LARGE "payload-too-large" "The request body is too large"
    UNSUPPORTED_MEDIA_TYPE UNSUPPORTED_MEDIA_TYPE "unsupported-media-type" "The body's media type is not supported"
    QUERY_TOO_LARGE UNPROCESSABLE_ENTITY "query-too-large" "The query is larger than allowed"
    ALLOWANCE_EXHAUSTED TOO_MANY_REQUESTS "allowance-exhausted" "The allowance is exhausted"
    RATE_LIMITED TOO_MANY_REQUESTS "rate-limited" "Too many requests"
    INTERNAL INTERNAL_SERVER_ERROR "internal" "Internal error"
    UNAVAILABLE SERVICE_UNAVAILABLE "unavailable" "Temporarily unavailable"
    TIMEOUT GATEWAY_TIMEOUT "timeout" "Took too long"
}

/// A stable kind of problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProblemType {
    /// `type` is `usage/<slug>`.
    pub slug: &'static str,
    pub status: StatusCode,
    pub title: &'static str,
}

/// Where in the request an error lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A query parameter.
    Parameter(String),
    /// A JSON pointer into the body.
    Pointer(String),
}

/// One error among the `errors` of a problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Detail {
    #[serde(flatten)]
    pub place: Place,
    /// A stable word for programs, for example `unknown`, `repeated`, `out_of_range`.
    pub code: &'static str,
    /// A sentence for people.
    pub detail: String,
}

/// A problem on its way to the caller.
#[derive(Debug, Clone)]
pub struct Problem {
    kind: ProblemType,
    detail: Option<String>,
    errors: Vec<Detail>,
    extensions: serde_json::Map<String, serde_json::Value>,
    trace_id: Option<TraceId>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

#[derive(Serialize)]
struct Body<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [Detail],
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    #[serde(flatten)]
    extensions: &'a serde_json::Map<String, serde_json::Value>,
}

impl Problem {
    /// A problem of the request being answered; takes the current trace id.
    pub fn new(kind: ProblemType) -> Self {
        Self {
            kind,
            detail: None,
            errors: Vec::new(),
            extensions: serde_json::Map::new(),
            trace_id: TraceId::current(),
            headers: Vec::new(),
        }
    }

    /// 400: one query parameter is wrong.
    pub fn parameter(name: impl Into<String>, code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(kinds::INVALID_PARAMETER).with_parameter(name, code, detail)
    }

    /// 400: one place of the body is wrong; `pointer` is a JSON pointer like `/name`.
    pub fn body(pointer: impl Into<String>, code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(kinds::INVALID_BODY).with_pointer(pointer, code, detail)
    }

    /// 401, with the challenge that RFC 6750 asks for. Why is for the log, not for the caller.
    pub fn unauthenticated() -> Self {
        Self::new(kinds::UNAUTHENTICATED)
            .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"usage\""))
    }

    /// 403.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(kinds::FORBIDDEN).with_detail(detail)
    }

    /// 404.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(kinds::NOT_FOUND).with_detail(detail)
    }

    /// 409.
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(kinds::CONFLICT).with_detail(detail)
    }

    /// 500. What went wrong belongs into the log; the trace id leads there.
    pub fn internal() -> Self {
        Self::new(kinds::INTERNAL)
    }

    /// 503 with `Retry-After` in whole seconds.
    pub fn unavailable(detail: impl Into<String>, retry_after: std::time::Duration) -> Self {
        // Rounded up: whoever comes back a moment too early is refused again.
        let seconds = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
        let seconds = seconds.max(1);
        Self::new(kinds::UNAVAILABLE)
            .with_detail(detail)
            .with_header(header::RETRY_AFTER, HeaderValue::from(seconds))
    }

    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    pub fn with_parameter(
        mut self,
        name: impl Into<String>,
        code: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        self.errors.push(Detail { place: Place::Parameter(name.into()), code, detail: detail.into() });
        self
    }

    pub fn with_pointer(
        mut self,
        pointer: impl Into<String>,
        code: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        self.errors.push(Detail { place: Place::Pointer(pointer.into()), code, detail: detail.into() });
        self
    }

    pub fn with_trace_id(mut self, trace_id: TraceId) -> Self {
        self.trace_id = Some(trace_id);
        self
    }

    /// A member that problems of this kind have beside the common ones.
    pub fn with_extension(mut self, name: &'static str, value: impl Into<serde_json::Value>) -> Self {
        self.extensions.insert(name.to_owned(), value.into());
        self
    }

    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    pub fn kind(&self) -> ProblemType {
        self.kind
    }

    pub fn status(&self) -> StatusCode {
        self.kind.status
    }

    pub fn errors(&self) -> &[Detail] {
        &self.errors
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind.status.as_u16(), self.kind.title)?;
        if let Some(detail) = &self.detail {
            write!(f, ": {detail}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = Body {
            r#type: format!("usage/{}", self.kind.slug),
            title: self.kind.title,
            status: self.kind.status.as_u16(),
            detail: self.detail.as_deref(),
            errors: &self.errors,
            trace_id: self.trace_id.or_else(TraceId::current).map(|id| id.to_string()),
            extensions: &self.extensions,
        };
        let json = serde_json::to_vec(&body).unwrap_or_default();
        let content_type = HeaderValue::from_static("application/problem+json");
        let mut response = (self.kind.status, [(header::CONTENT_TYPE, content_type)], json).into_response();
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        for (name, value) in self.headers {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn parts(problem: Problem) -> (StatusCode, axum::http::HeaderMap, serde_json::Value) {
        let response = problem.into_response();
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        (status, headers, serde_json::from_slice(&bytes).unwrap())
    }

    #[tokio::test]
    async fn a_parameter_problem_has_all_its_parts() {
        let id =
            TraceId::from_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
        let problem = Problem::parameter("windowsize", "unknown", "did you mean window_size?")
            .with_pointer("/value", "not_a_decimal", "expected digits")
            .with_detail("1 of 2")
            .with_trace_id(id);
        let (status, headers, body) = parts(problem).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(headers[header::CONTENT_TYPE], "application/problem+json");
        let expected = serde_json::json!({
            "type": "usage/invalid-parameter",
            "title": "A query parameter is not valid",
            "status": 400,
            "detail": "1 of 2",
            "errors": [
                {"parameter": "windowsize", "code": "unknown", "detail": "did you mean window_size?"},
                {"pointer": "/value", "code": "not_a_decimal", "detail": "expected digits"},
            ],
            "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        });
        assert_eq!(body, expected);
    }

    #[tokio::test]
    async fn empty_parts_are_left_out() {
        let (_, _, body) = parts(Problem::internal()).await;
        assert_eq!(
            body,
            serde_json::json!({"type": "usage/internal", "title": "Internal error", "status": 500})
        );
    }

    #[tokio::test]
    async fn members_of_a_kind_stand_beside_the_common_ones() {
        let (_, _, body) =
            parts(Problem::new(kinds::RATE_LIMITED).with_extension("violated-policies", vec!["api.token"]))
                .await;
        let expected = serde_json::json!({
            "type": "usage/rate-limited",
            "title": "Too many requests",
            "status": 429,
            "violated-policies": ["api.token"],
        });
        assert_eq!(body, expected);
    }

    #[tokio::test]
    async fn the_trace_of_the_request_is_taken() {
        let id = TraceId::random();
        let (_, _, body) = id.scope(parts(Problem::not_found("no such record"))).await;
        assert_eq!(body["trace_id"], id.to_string());
    }

    #[tokio::test]
    async fn headers_that_the_status_asks_for() {
        let (status, headers, _) = parts(Problem::unauthenticated()).await;
        assert_eq!(
            (status.as_u16(), &headers["www-authenticate"]),
            (401, &"Bearer realm=\"usage\"".parse().unwrap())
        );
        let (status, headers, _) =
            parts(Problem::unavailable("storage is away", Duration::from_millis(10))).await;
        assert_eq!((status.as_u16(), &headers["retry-after"]), (503, &"1".parse().unwrap()));
    }

    #[test]
    fn slugs_are_unique_and_plain() {
        let mut slugs: Vec<_> = kinds::ALL.iter().map(|kind| kind.slug).collect();
        assert!(slugs.iter().all(|slug| slug.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')));
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), kinds::ALL.len());
    }
}
