//! Why a record was not emitted.

use std::error::Error;

use usage_schemas::{Invalid, Reason};

/// Why a record was not emitted. Nothing is written on any of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError {
    /// The caller may not emit this metric.
    #[error("emitting {metric} is not allowed")]
    Denied { metric: String },
    /// The authorization is older than its greatest age: ask for another one.
    #[error("the authorization has expired")]
    AuthorizationExpired,
    /// A counter without a key could be counted twice.
    #[error("idempotency_key: a counter has an idempotency key")]
    MissingIdempotencyKey,
    /// A field breaks its bound.
    #[error("{field}: {detail}")]
    InvalidRecord { field: &'static str, detail: String },
    /// The metadata is larger than allowed.
    #[error("metadata: {detail}")]
    MetadataTooLarge { detail: String },
    /// The record contradicts its usage type.
    #[error("{field}: {detail}")]
    SchemaViolation { field: String, detail: String },
    /// The source has used up its quota.
    #[error("the source's quota is used up")]
    RateLimitExceeded,
    /// The record is outside of what was authorized.
    #[error("{field}: {detail}")]
    ConstraintViolation { field: &'static str, detail: &'static str },
    /// A record of a batch was refused, and with it the whole batch.
    #[error("record {index} of the batch was refused")]
    InBatch {
        /// Its place, from 0.
        index: usize,
        #[source]
        error: Box<EmitError>,
    },
    /// The row could not be written; the caller's transaction has to be rolled back.
    #[error("cannot write the outbox row")]
    Database(#[source] Box<dyn Error + Send + Sync>),
}

impl EmitError {
    /// The field that the error is about.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::MissingIdempotencyKey => Some("idempotency_key"),
            Self::MetadataTooLarge { .. } => Some("metadata"),
            Self::InvalidRecord { field, .. } | Self::ConstraintViolation { field, .. } => Some(field),
            Self::SchemaViolation { field, .. } => Some(field),
            Self::InBatch { error, .. } => error.field(),
            _ => None,
        }
    }
}

impl From<Invalid> for EmitError {
    fn from(invalid: Invalid) -> Self {
        match invalid.reason {
            Reason::MetadataTooLarge => Self::MetadataTooLarge { detail: invalid.detail },
            _ => Self::InvalidRecord { field: invalid.field, detail: invalid.detail },
        }
    }
}
