//! 429 and its relatives as `application/problem+json`.

use axum::body::Body;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::seconds;
use crate::allowance::Exhausted;
use crate::rate::{Decision, Reason};

/// `type` of a problem, relative like all of them.
pub const ALLOWANCE_EXHAUSTED: &str = "usage/allowance-exhausted";
pub const RATE_LIMITED: &str = "usage/rate-limited";
pub const UNAVAILABLE: &str = "usage/unavailable";

/// 429: the allowance is spent until `period_end`. `used` is null where nobody knows it (see [`Exhausted::used`]).
pub fn allowance_exhausted(exhausted: &Exhausted, now: OffsetDateTime) -> Response {
    let Exhausted { meter, limit, used, period_end } = exhausted;
    let end = period_end.to_offset(time::UtcOffset::UTC).format(&Rfc3339).unwrap_or_default();
    let detail = match used {
        Some(used) => format!("{used} of {limit} {meter} are used until {end}"),
        None => format!("the allowance of {limit} {meter} is used until {end}"),
    };
    let body = json!({
        "type": ALLOWANCE_EXHAUSTED,
        "title": "The allowance is exhausted",
        "status": 429,
        "detail": detail,
        "meter": meter,
        "limit": limit,
        "used": used,
        "period_end": end,
    });
    let wait = (*period_end - now).try_into().unwrap_or_default();
    answer(StatusCode::TOO_MANY_REQUESTS, seconds(wait), &body)
}

/// 429 for a refused request; 503 where the rule refused because its database was away.
pub fn rate_limited(decision: &Decision) -> Response {
    let Decision { policy, limit, reset, reason, .. } = decision;
    if *reason == Reason::Degraded {
        let body = json!({
            "type": UNAVAILABLE,
            "title": "Temporarily unavailable",
            "status": 503,
            "detail": format!("the limit {} can't be looked up at the moment", policy.name),
        });
        return answer(StatusCode::SERVICE_UNAVAILABLE, 1, &body);
    }
    let body = json!({
        "type": RATE_LIMITED,
        "title": "Too many requests",
        "status": 429,
        "detail": format!("{limit} in {} s are allowed by {}", policy.quota.length.as_secs(), policy.name),
        "violated-policies": [policy.name],
    });
    answer(StatusCode::TOO_MANY_REQUESTS, seconds(*reset), &body)
}

fn answer(status: StatusCode, retry_after: u64, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(RETRY_AFTER, HeaderValue::from(retry_after.max(1)));
    response
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use time::macros::datetime;

    use super::*;
    use crate::rate::{Policy, Quota};

    async fn parts(response: Response) -> (u16, String, Value) {
        let retry_after = response.headers()[RETRY_AFTER].to_str().unwrap().to_owned();
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        (status, retry_after, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn an_exhausted_allowance_says_all_that_a_caller_shows() {
        let mut exhausted = Exhausted {
            meter: "mail_sent".to_owned(),
            limit: 1_000,
            used: Some(1_000),
            period_end: datetime!(2026-03-01 01:00 +1),
        };
        let now = datetime!(2026-02-28 23:58:59.5 UTC);
        let (status, retry_after, body) = parts(allowance_exhausted(&exhausted, now)).await;
        assert_eq!((status, retry_after.as_str()), (429, "61"));
        let expected = json!({
            "type": "usage/allowance-exhausted",
            "title": "The allowance is exhausted",
            "status": 429,
            "detail": "1000 of 1000 mail_sent are used until 2026-03-01T00:00:00Z",
            "meter": "mail_sent",
            "limit": 1000,
            "used": 1000,
            "period_end": "2026-03-01T00:00:00Z",
        });
        assert_eq!(body, expected);

        exhausted.used = None;
        // A clock that is past the end: come back at once, but not in no time.
        let (_, retry_after, body) =
            parts(allowance_exhausted(&exhausted, datetime!(2026-04-01 0:00 UTC))).await;
        assert_eq!((retry_after.as_str(), &body["used"]), ("1", &Value::Null));
    }

    #[tokio::test]
    async fn a_refused_request_names_the_policy_and_a_degraded_one_is_no_fault_of_the_caller() {
        let quota = Quota::new(5, Duration::from_secs(60));
        let mut decision = Decision {
            allowed: false,
            policy: Policy { name: "login".to_owned(), quota },
            limit: 5,
            remaining: Some(0),
            reset: Duration::from_millis(12_300),
            reason: Reason::Exceeded,
        };
        let (status, retry_after, body) = parts(rate_limited(&decision)).await;
        assert_eq!((status, retry_after.as_str(), &body["type"]), (429, "13", &json!("usage/rate-limited")));
        assert_eq!(body["violated-policies"], json!(["login"]));

        decision.reason = Reason::Degraded;
        let (status, _, body) = parts(rate_limited(&decision)).await;
        assert_eq!((status, &body["type"]), (503, &json!("usage/unavailable")));
    }
}
