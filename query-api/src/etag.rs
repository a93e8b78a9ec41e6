//! Entity tags (RFC 9110, 8.8.3): a strong one of the bytes of an answer, so that whoever asks again is spared what they have.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};

/// An answer with its tag, or 304 without a body if the caller has it already.
pub fn tagged(request: &HeaderMap, content_type: &'static str, body: Vec<u8>) -> Response {
    let digest = Sha256::digest(&body);
    let hex: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let tag = format!("\"{hex}\"");
    let (status, body) = match has(request, &tag) {
        true => (StatusCode::NOT_MODIFIED, Vec::new()),
        false => (StatusCode::OK, body),
    };
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    // `axum` gives every body a type, also one that is empty.
    headers.remove(header::CONTENT_TYPE);
    if status == StatusCode::OK {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    // It depends on who asks, and must be asked for again each time.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

/// Whether `If-None-Match` names the tag, by the weak comparison that it asks for.
fn has(request: &HeaderMap, tag: &str) -> bool {
    let given = request.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    given
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(condition: &[&str], body: &str) -> Response {
        let mut headers = HeaderMap::new();
        for one in condition {
            headers.append(header::IF_NONE_MATCH, one.parse().unwrap());
        }
        tagged(&headers, "application/json", body.as_bytes().to_vec())
    }

    fn tag(response: &Response) -> &str {
        response.headers()[header::ETAG].to_str().unwrap()
    }

    #[test]
    fn the_tag_is_of_the_bytes() {
        let (one, same, other) = (ask(&[], "{}"), ask(&[], "{}"), ask(&[], "{ }"));
        assert_eq!(tag(&one), tag(&same));
        assert_ne!(tag(&one), tag(&other));
        assert_eq!((tag(&one).len(), &tag(&one)[..1]), (34, "\""));
        assert_eq!(one.headers()[header::CONTENT_TYPE], "application/json");
    }

    #[tokio::test]
    async fn who_has_it_gets_no_body() {
        let known = tag(&ask(&[], "{}")).to_owned();
        let weak = format!("W/{known}");
        let listed = format!("\"other\", {known}");
        for condition in [&[known.as_str()][..], &[&weak], &[&listed], &["*"], &["\"other\"", &known]] {
            let response = ask(condition, "{}");
            assert_eq!(response.status(), StatusCode::NOT_MODIFIED, "{condition:?}");
            assert_eq!(tag(&response), known);
            assert!(!response.headers().contains_key(header::CONTENT_TYPE));
            assert!(axum::body::to_bytes(response.into_body(), 10).await.unwrap().is_empty());
        }
        let unquoted = known.trim_matches('"').to_owned();
        for condition in [&["\"other\""][..], &[&unquoted], &[""], &[]] {
            assert_eq!(ask(condition, "{}").status(), StatusCode::OK, "{condition:?}");
        }
    }
}
