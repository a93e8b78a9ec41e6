//! Why a record was not emitted.

use std::error::Error;
use std::time::Duration;

use usage_schemas::{Invalid, Reason, Violation};

/// Why a record was not emitted. Nothing is written on any of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError {
    /// The caller may not emit this metric. It is not said why: nobody learns policies by asking.
    #[error("emitting {metric} is not allowed")]
    Denied { metric: String },
    /// Whoever has to be asked before the transaction gave no answer; refused, since nobody knows. Asking again may help.
    #[error("{what} gave no answer")]
    Unavailable {
        /// `the policy decision point`, `the types registry`.
        what: &'static str,
        #[source]
        error: Box<dyn Error + Send + Sync>,
    },
    /// No usage type of this name is registered.
    #[error("metric: {metric} is not a registered usage type")]
    UnknownUsageType { metric: String },
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
    SchemaViolation { field: &'static str, detail: String },
    /// The source has used up its quota, or a batch is larger than what is left of it.
    #[error(
        "the source's quota of {limit} records in {window:?} is used up; the window ends in {retry_after:?}"
    )]
    RateLimitExceeded {
        /// Records that a window lets through.
        limit: i32,
        window: Duration,
        /// Until the window ends. A batch above the limit never fits.
        retry_after: Duration,
    },
    /// How much of the source's quota is left is not known: its database was last heard of so long ago, or never.
    #[error("what is left of the source's quota is not known")]
    QuotaUnknown { age: Option<Duration> },
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
    /// A fixed word for its kind, for metrics and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Denied { .. } => "denied",
            Self::Unavailable { .. } => "unavailable",
            Self::UnknownUsageType { .. } => "unknown_usage_type",
            Self::AuthorizationExpired => "authorization_expired",
            Self::MissingIdempotencyKey => "missing_idempotency_key",
            Self::InvalidRecord { .. } => "invalid_record",
            Self::MetadataTooLarge { .. } => "metadata_too_large",
            Self::SchemaViolation { .. } => "schema_violation",
            Self::RateLimitExceeded { .. } => "rate_limit_exceeded",
            Self::QuotaUnknown { .. } => "quota_unknown",
            Self::ConstraintViolation { .. } => "constraint_violation",
            Self::InBatch { error, .. } => error.reason(),
            Self::Database(_) => "database",
        }
    }

    /// The field that the error is about; `None` where it is about no field.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Denied { .. } | Self::UnknownUsageType { .. } => Some("metric"),
            Self::MissingIdempotencyKey => Some("idempotency_key"),
            Self::MetadataTooLarge { .. } => Some("metadata"),
            Self::InvalidRecord { field, .. }
            | Self::SchemaViolation { field, .. }
            | Self::ConstraintViolation { field, .. } => Some(field),
            Self::InBatch { error, .. } => error.field(),
            Self::Unavailable { .. }
            | Self::AuthorizationExpired
            | Self::RateLimitExceeded { .. }
            | Self::QuotaUnknown { .. }
            | Self::Database(_) => None,
        }
    }
}

impl From<Violation> for EmitError {
    fn from(violation: Violation) -> Self {
        Self::SchemaViolation { field: violation.field, detail: violation.detail }
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
