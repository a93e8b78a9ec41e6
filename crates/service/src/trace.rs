//! The id that ties a request's log lines, its answer and the caller's trace together.

use std::future::Future;

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use uuid::Uuid;

tokio::task_local! {
    static CURRENT: TraceId;
}

/// A W3C trace id: 16 bytes, not all zero; 32 lower-case hex digits as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

impl TraceId {
    /// A new random one.
    pub fn random() -> Self {
        Self(Uuid::new_v4().as_u128())
    }

    /// The trace id of a `traceparent` header (version 00, or a later one that starts alike).
    pub fn from_traceparent(header: &str) -> Option<Self> {
        let mut parts = header.split('-');
        let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let sizes = version.len() == 2 && trace.len() == 32 && parent.len() == 16 && flags.len() == 2;
        let digits = [version, trace, parent, flags]
            .iter()
            .all(|part| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')));
        let ended = version != "00" || parts.next().is_none();
        if !(sizes && digits && ended) || version == "ff" || parent.bytes().all(|byte| byte == b'0') {
            return None;
        }
        u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0).map(Self)
    }

    /// The trace of the request that is being answered, if there is one.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(|id| *id).ok()
    }

    /// Runs `work` as part of this trace.
    pub async fn scope<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }
}

impl std::fmt::Display for TraceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Axum middleware (`axum::middleware::from_fn(trace::layer)`): takes the trace id of the caller's `traceparent` or makes one,
/// opens a span with `correlation_id`, answers with the header `trace-id`.
pub async fn layer(request: Request, next: Next) -> Response {
    use tracing::Instrument as _;

    let given = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
    let id = given.and_then(TraceId::from_traceparent).unwrap_or_else(TraceId::random);
    let span = tracing::info_span!("request", correlation_id = %id);
    let mut response = id.scope(next.run(request).instrument(span)).await;
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert("trace-id", value);
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::routing::get;
    use tower::ServiceExt as _;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn reads_a_traceparent() {
        let id = TraceId::from_traceparent(PARENT).unwrap();
        assert_eq!(id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(TraceId::from_traceparent(&format!("cc{}-more", &PARENT[2..])).is_some());
    }

    #[test]
    fn refuses_what_is_not_one() {
        for header in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceId::from_traceparent(header), None, "{header}");
        }
    }

    async fn ask(traceparent: Option<&str>) -> (String, String) {
        let seen = get(|| async { TraceId::current().unwrap().to_string() });
        let app = Router::new().route("/", seen).layer(axum::middleware::from_fn(layer));
        let mut request = Request::get("/");
        if let Some(value) = traceparent {
            request = request.header("traceparent", value);
        }
        let response = app.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let header = response.headers()["trace-id"].to_str().unwrap().to_string();
        let body = axum::body::to_bytes(response.into_body(), 100).await.unwrap();
        (header, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn the_callers_trace_goes_through() {
        let (header, seen) = ask(Some(PARENT)).await;
        assert_eq!((header.as_str(), seen.as_str()), ("4bf92f3577b34da6a3ce929d0e0e4736", header.as_str()));
    }

    #[tokio::test]
    async fn each_request_without_one_gets_its_own() {
        let ((first, seen), (second, _)) = (ask(None).await, ask(Some("nonsense")).await);
        assert_eq!(first, seen);
        assert_ne!(first, second);
        assert_eq!(TraceId::current(), None);
    }
}
