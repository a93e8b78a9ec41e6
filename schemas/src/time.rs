//! Times as microseconds since the Unix epoch.

/// Microseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(i64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimestampError {
    #[error("not an RFC 3339 time")]
    NotRfc3339,
    #[error("leap second: send the second before or after")]
    LeapSecond,
}

impl Timestamp {
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Parses RFC 3339 with an offset; digits beyond microseconds are cut off.
    pub fn parse(_text: &str) -> Result<Self, TimestampError> {
        unimplemented!()
    }
}

impl std::fmt::Display for Timestamp {
    fn fmt(&self, _f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        unimplemented!()
    }
}
