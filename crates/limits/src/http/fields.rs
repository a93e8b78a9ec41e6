//! The fields `RateLimit-Policy` and `RateLimit`: lists of structured field strings with parameters (RFC 9651).

use http::{HeaderName, HeaderValue};

use super::seconds;
use crate::rate::{Decision, Policy};

pub const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// `"login";q=5;w=60`: what is allowed, whatever was used. None for no policies: an empty list is no field.
pub fn policies<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> Option<HeaderValue> {
    let item = |policy: &Policy| {
        format!("{};q={};w={}", quoted(&policy.name), policy.quota.limit, policy.quota.length.as_secs())
    };
    list(policies.into_iter().map(item))
}

/// `"login";r=3;t=42`: what is left. Degraded decisions know nothing and are left out.
pub fn remaining<'a>(decisions: impl IntoIterator<Item = &'a Decision>) -> Option<HeaderValue> {
    let item = |decision: &Decision| {
        let (name, left) = (quoted(&decision.policy.name), decision.remaining?);
        Some(format!("{name};r={left};t={}", seconds(decision.reset)))
    };
    list(decisions.into_iter().filter_map(item))
}

fn list(items: impl Iterator<Item = String>) -> Option<HeaderValue> {
    let text = items.collect::<Vec<_>>().join(", ");
    if text.is_empty() { None } else { HeaderValue::from_str(&text).ok() }
}

/// A structured field string holds printable ASCII only; `"` and `\` are escaped.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            ' '..='~' => quoted.push(character),
            _ => quoted.push('?'),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rate::{Quota, Reason, Rule};

    fn decision(name: &str, remaining: Option<i32>, reset: Duration) -> Decision {
        let quota = Quota::new(10, Duration::from_secs(60));
        Decision {
            allowed: true,
            policy: Policy { name: name.to_owned(), quota },
            limit: 10,
            remaining,
            reset,
            reason: Reason::Allowed,
        }
    }

    #[test]
    fn policies_name_quota_and_window() {
        let quotas =
            [(5, 1), (100, 60)].map(|(limit, seconds)| Quota::new(limit, Duration::from_secs(seconds)));
        let rule = Rule::new("api", &quotas).unwrap();
        assert_eq!(policies(&rule.policies()).unwrap(), "\"api-1s\";q=5;w=1, \"api-60s\";q=100;w=60");
        assert_eq!(policies(&[]), None);
    }

    #[test]
    fn what_is_left_is_told_with_seconds_rounded_up() {
        let field = remaining(&[
            decision("a", Some(3), Duration::from_millis(41_001)),
            decision("b", None, Duration::ZERO),
            decision("c", Some(0), Duration::from_secs(7)),
        ]);
        assert_eq!(field.unwrap(), "\"a\";r=3;t=42, \"c\";r=0;t=7");
        assert_eq!(remaining(&[decision("b", None, Duration::ZERO)]), None);
    }

    #[test]
    fn strings_are_escaped_as_structured_fields_want() {
        assert_eq!(quoted(r#"a "b" \c"#), r#""a \"b\" \\c""#);
        assert_eq!(quoted("ä\r\nX: y"), "\"???X: y\"");
    }
}
