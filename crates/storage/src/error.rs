//! What can go wrong with storage, sorted by what the caller must do.

use std::time::Duration;

/// Sorted by consequence, not by cause. A Display never repeats its source.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The backend can't be reached, is overloaded or timed out before the request was sent: nothing happened, try again.
    #[error("storage is unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// A write was sent and its outcome is not known: `settle` it.
    #[error("the outcome of a write is unknown")]
    Unknown(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// Another owner has fenced the partitions.
    #[error("fenced by another owner")]
    Fenced { partitions: Vec<i32> },

    /// The data itself is refused; it would be refused again.
    #[error("storage refuses the data (code {code})")]
    Final { code: u32, message: String },

    /// The backend's answer took longer than the deadline of a read.
    #[error("storage did not answer in time")]
    Timeout,

    /// The circuit breaker is open: the backend failed several times in a row and was not asked.
    #[error("storage failed repeatedly and is left alone for a while")]
    Open { retry_after: Duration },

    /// What is stored contradicts the protocol; a person must look.
    #[error("storage is inconsistent: {0}")]
    Inconsistent(String),

    /// The schema was changed outside of its migrations, or is newer than this program.
    #[error("storage schema: {0}")]
    Schema(String),

    /// A configuration value is wrong.
    #[error("storage configuration: {0}")]
    Config(String),
}

impl StorageError {
    /// True if waiting and trying the same call again may help.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Timeout | Self::Unknown(_) | Self::Open { .. })
    }
}
