//! JSON bodies, strictly: the right media type, no larger than allowed, one object, no member twice.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use usage_schemas::strict_json::Strict;
use usage_service::problem::{Problem, kinds};

use crate::failure::Failure;

/// How long a body may take to arrive.
const ARRIVES_WITHIN: Duration = Duration::from_secs(10);

/// Far more members than any body has.
const MOST_MEMBERS: usize = 100;

/// The members of a JSON object, in order.
pub type Members = Vec<(String, Value)>;

/// Reads a body that must be one JSON object.
///
/// # Errors
/// 415, 413, 408 or 400.
pub async fn object(headers: &HeaderMap, body: Body, most_bytes: usize) -> Result<Members, Failure> {
    if !is_json(headers) {
        return Err(Problem::new(kinds::UNSUPPORTED_MEDIA_TYPE)
            .with_detail("send `Content-Type: application/json`")
            .into());
    }
    let too_large =
        || Problem::new(kinds::PAYLOAD_TOO_LARGE).with_detail(format!("at most {most_bytes} bytes"));
    let collected = tokio::time::timeout(ARRIVES_WITHIN, Limited::new(body, most_bytes).collect()).await;
    let bytes = match collected {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large().into()),
        Ok(Err(_)) => return Err(Problem::body("", "incomplete", "the body did not arrive whole").into()),
        Err(_) => return Err(Problem::new(kinds::REQUEST_TIMEOUT).into()),
    };
    let mut json = serde_json::Deserializer::from_slice(&bytes);
    let members = json.deserialize_any(Object).and_then(|members| json.end().map(|()| members));
    let members = members.map_err(|error| {
        let detail = format!("not a JSON object: {error}");
        Failure::from(Problem::body("", "malformed", detail.clone()).with_detail(detail))
    })?;
    if members.len() > MOST_MEMBERS {
        let detail = format!("a body has at most {MOST_MEMBERS} members, {} were given", members.len());
        return Err(Problem::body("", "too_many", detail.clone()).with_detail(detail).into());
    }
    for (at, (name, _)) in members.iter().enumerate() {
        if members[..at].iter().any(|(former, _)| former == name) {
            return Err(
                Problem::body(pointer(name), "repeated", "the member stands twice in the body").into()
            );
        }
    }
    Ok(members)
}

/// The JSON pointer (RFC 6901) of a member.
pub fn pointer(name: &str) -> String {
    format!("/{}", crate::params::shortened(name).replace('~', "~0").replace('/', "~1"))
}

fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(given), None) = (types.next(), types.next()) else { return false };
    let Ok(given) = given.to_str() else { return false };
    let mut parts = given.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    let utf8 = parts.all(|parameter| match parameter.split_once('=') {
        Some((name, value)) if name.eq_ignore_ascii_case("charset") => {
            value.trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        _ => true,
    });
    essence.eq_ignore_ascii_case("application/json") && utf8
}

struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = Members;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Members, M::Error> {
        let mut members = Vec::new();
        while let Some(name) = map.next_key()? {
            members.push((name, map.next_value_seed(Strict)?));
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(content_type: &str, body: &str) -> Result<Members, Failure> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, content_type.parse().unwrap());
        object(&headers, Body::from(body.to_owned()), 64 << 10).await
    }

    async fn status(content_type: &str, body: &str) -> u16 {
        read(content_type, body).await.unwrap_err().0.status().as_u16()
    }

    #[tokio::test]
    async fn only_json_is_taken() {
        for content_type in
            ["application/json", "Application/JSON; charset=UTF-8", "application/json;charset=\"utf-8\""]
        {
            assert_eq!(read(content_type, "{}").await.unwrap(), [], "{content_type}");
        }
        for content_type in
            ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1", ""]
        {
            assert_eq!(status(content_type, "{}").await, 415, "{content_type}");
        }
        let failure = object(&HeaderMap::new(), Body::from("{}"), 64).await.unwrap_err();
        assert_eq!(failure.0.status().as_u16(), 415);
    }

    #[tokio::test]
    async fn a_large_body_is_not_read_to_its_end() {
        assert_eq!(status("application/json", &format!("{{\"a\":\"{}\"}}", "x".repeat(64 << 10))).await, 413);
    }

    #[tokio::test]
    async fn very_many_members_are_one_fault() {
        let body = |count: usize| {
            let members: Vec<String> = (0..count).map(|at| format!("\"m{at}\":1")).collect();
            format!("{{{}}}", members.join(","))
        };
        assert_eq!(read("application/json", &body(MOST_MEMBERS)).await.unwrap().len(), MOST_MEMBERS);
        let failure = read("application/json", &body(MOST_MEMBERS + 1)).await.unwrap_err();
        assert_eq!(failure.0.errors().len(), 1);
        assert_eq!(failure.0.errors()[0].code, "too_many");
    }

    #[tokio::test]
    async fn what_is_not_one_object_is_refused() {
        for body in [
            "",
            "null",
            "[]",
            "\"a\"",
            "{",
            "{\"a\":1,}",
            "{}{}",
            "{'a':1}",
            "{\"a\":\u{7f}}",
            "{\"a\":[{\"b\":1,\"b\":2}]}",
        ] {
            assert_eq!(status("application/json", body).await, 400, "{body}");
        }
    }

    #[tokio::test]
    async fn a_member_may_not_stand_twice() {
        let failure = read("application/json", "{\"a/b\":1,\"a/b\":2}").await.unwrap_err();
        let error = &failure.0.errors()[0];
        assert_eq!(error.code, "repeated");
        assert_eq!(error.place, usage_service::problem::Place::Pointer("/a~1b".to_owned()));
    }

    #[tokio::test]
    async fn members_keep_their_order_and_values() {
        let members = read("application/json", " {\"b\":1.50,\"a\":null} ").await.unwrap();
        assert_eq!(members, [("b".to_owned(), serde_json::json!(1.5)), ("a".to_owned(), Value::Null)]);
    }
}
