//! Limits over HTTP: the 429 as a problem (RFC 9457), the fields of draft-ietf-httpapi-ratelimit-headers-12, a tower layer.

mod fields;
mod layer;
mod problem;
mod refused;
mod spread;

pub use fields::{RATE_LIMIT, RATE_LIMIT_POLICY, policies, remaining};
pub use layer::{MissingKey, RateLimitLayer, RateLimitService};
pub use problem::{ALLOWANCE_EXHAUSTED, RATE_LIMITED, UNAVAILABLE, allowance_exhausted, rate_limited};

use std::time::Duration;

/// Whole seconds for a header: rounded up, so that nobody comes back too early.
pub fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
