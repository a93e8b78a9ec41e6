//! Requests that two servers could read differently. Behind a proxy such a request may be routed, logged or cut off at another place
//! than it is answered at, so it is refused and its connection ends.
//!
//! What is no HTTP at all the server refuses before anybody is asked; where both `Transfer-Encoding` and `Content-Length` are given it
//! takes the former and ends the connection (RFC 9112, 6.3).

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use usage_service::problem::{Problem, kinds};

/// Axum middleware that answers 400 to a request with more than one reading.
pub async fn one_reading(request: Request, next: Next) -> Response {
    match doubt(request.version(), request.headers()) {
        None => next.run(request).await,
        Some(detail) => Problem::new(kinds::INVALID_REQUEST)
            .with_detail(detail)
            .with_header(header::CONNECTION, HeaderValue::from_static("close"))
            .into_response(),
    }
}

/// What leaves a doubt of which request it is, if anything does.
fn doubt(version: Version, headers: &HeaderMap) -> Option<&'static str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (_, Some(_)) => return Some("the request has more than one Host header"),
        // Before HTTP/1.1 nobody had to send it.
        (None, None) if version == Version::HTTP_11 => return Some("the request has no Host header"),
        (Some(host), None) if !is_host(host) => {
            return Some("the Host header is not a host with a port or without");
        }
        _ => {}
    }
    let mut encodings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (encodings.next(), encodings.next()) {
        (None, _) => None,
        (Some(only), None) if only.as_bytes().eq_ignore_ascii_case(b"chunked") => None,
        _ => Some("the only Transfer-Encoding that is taken is `chunked`, once"),
    }
}

fn is_host(value: &HeaderValue) -> bool {
    let host = Authority::try_from(value.as_bytes());
    host.is_ok_and(|host| !host.as_str().contains('@') && !host.host().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubted(version: Version, headers: &[(&'static str, &str)]) -> Option<&'static str> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        doubt(version, &map)
    }

    #[test]
    fn one_host_is_needed_and_not_two() {
        for host in ["a", "api.example:8443", "10.0.0.7", "[::1]:80", "query_api", "A.example"] {
            assert_eq!(doubted(Version::HTTP_11, &[("host", host)]), None, "{host}");
        }
        for host in ["", "a b", "a, b", "user@a", "a/b", "a?b", "a#b", "http://a", ":80", "ä"] {
            let said = doubted(Version::HTTP_11, &[("host", host)]);
            assert_eq!(said, Some("the Host header is not a host with a port or without"), "{host}");
        }
        for version in [Version::HTTP_10, Version::HTTP_11] {
            let said = doubted(version, &[("host", "a"), ("host", "a")]);
            assert_eq!(said, Some("the request has more than one Host header"));
        }
        assert_eq!(doubted(Version::HTTP_11, &[]), Some("the request has no Host header"));
        assert_eq!(doubted(Version::HTTP_10, &[]), None);
    }

    #[test]
    fn a_body_comes_in_chunks_or_not() {
        for encoding in ["chunked", "Chunked"] {
            let headers = [("host", "a"), ("transfer-encoding", encoding)];
            assert_eq!(doubted(Version::HTTP_11, &headers), None, "{encoding}");
        }
        let refused = Some("the only Transfer-Encoding that is taken is `chunked`, once");
        for encoding in ["gzip, chunked", "chunked, chunked", "identity", "xchunked", "chunked;q=1", ""] {
            let headers = [("host", "a"), ("transfer-encoding", encoding)];
            assert_eq!(doubted(Version::HTTP_11, &headers), refused, "{encoding}");
        }
        let twice = [("host", "a"), ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")];
        assert_eq!(doubted(Version::HTTP_11, &twice), refused);
    }
}
