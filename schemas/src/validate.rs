//! The bounds of a record (design section 4).

use crate::{RecordRef, Timestamp};

/// Configurable bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Greatest length of `metadata` in bytes.
    pub metadata_bytes: usize,
    /// How far a timestamp may lie after the judge's clock, in microseconds.
    pub future_micros: i64,
    /// How far a timestamp may lie before the judge's clock, in microseconds.
    pub past_micros: i64,
}

/// A field that breaks its bound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct Invalid {
    pub reason: crate::Reason,
    pub field: &'static str,
    pub detail: String,
}

/// Checks every field but the record id. `now` is the broker's time of the message (the database's at emit).
pub fn validate(_record: &RecordRef<'_>, _bounds: &Bounds, _now: Timestamp) -> Result<(), Invalid> {
    unimplemented!()
}
