//! The JSON payload that `usage_emit` writes into the outbox.

use crate::{Invalid, UsageRecord};

/// Reads a JSON payload; `source` is the row's, `record_id` is part of the payload.
pub fn decode(_payload: &[u8], _source: &str) -> Result<UsageRecord, Invalid> {
    unimplemented!()
}
