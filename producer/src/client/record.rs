//! A measurement as the caller states it.

use usage_schemas::{Kind, Quantity, Timestamp};
use uuid::Uuid;

/// A measurement as the caller states it. Source and subject are not the caller's to state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRecord {
    pub tenant_id: Uuid,
    pub metric: String,
    pub kind: Kind,
    pub value: Quantity,
    /// When it happened, to the microsecond; the time of the emit if absent. A repeat under the same key has to state the same time, or it
    /// contradicts the first record: state it wherever an operation may be retried. [`Timestamp::parse`] cuts digits beyond microseconds
    /// off, while Postgres rounds them before `usage_emit` sees them, so both doors get the same record from microseconds only.
    pub timestamp: Option<Timestamp>,
    /// 1 to 255 bytes; required for a counter. The same key of the same tenant is the same record, for ever.
    pub idempotency_key: Option<String>,
    pub resource_id: Option<Uuid>,
    pub resource_type: Option<String>,
    /// One JSON object, kept byte for byte.
    pub metadata: Option<String>,
    /// W3C trace context of the operation, carried to the consumer.
    pub traceparent: Option<String>,
}

impl NewRecord {
    /// A delta that adds up; `idempotency_key` names the work that caused it, so that a repeat is not counted again.
    pub fn counter(
        tenant_id: Uuid,
        metric: impl Into<String>,
        value: Quantity,
        idempotency_key: impl Into<String>,
    ) -> Self {
        Self {
            idempotency_key: Some(idempotency_key.into()),
            ..Self::new(tenant_id, metric, Kind::Counter, value)
        }
    }

    /// A sample of a level.
    pub fn gauge(tenant_id: Uuid, metric: impl Into<String>, value: Quantity) -> Self {
        Self::new(tenant_id, metric, Kind::Gauge, value)
    }

    fn new(tenant_id: Uuid, metric: impl Into<String>, kind: Kind, value: Quantity) -> Self {
        Self {
            tenant_id,
            metric: metric.into(),
            kind,
            value,
            timestamp: None,
            idempotency_key: None,
            resource_id: None,
            resource_type: None,
            metadata: None,
            traceparent: None,
        }
    }

    /// Sets when it happened.
    #[must_use]
    pub fn at(mut self, timestamp: Timestamp) -> Self {
        self.timestamp = Some(timestamp);
        self
    }

    /// Sets the key of a gauge that must not be stored twice.
    #[must_use]
    pub fn with_key(mut self, idempotency_key: impl Into<String>) -> Self {
        self.idempotency_key = Some(idempotency_key.into());
        self
    }

    /// Sets what was used.
    #[must_use]
    pub fn with_resource(mut self, id: Uuid, resource_type: impl Into<String>) -> Self {
        self.resource_id = Some(id);
        self.resource_type = Some(resource_type.into());
        self
    }

    /// Sets the metadata: the text of one JSON object.
    #[must_use]
    pub fn with_metadata(mut self, json: impl Into<String>) -> Self {
        self.metadata = Some(json.into());
        self
    }

    /// Sets the trace context.
    #[must_use]
    pub fn with_traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.traceparent = Some(traceparent.into());
        self
    }
}

/// Whether a text is a W3C traceparent: version, trace id, parent id and flags in lower-case hex.
pub(crate) fn is_traceparent(text: &str) -> bool {
    let hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let parts: Vec<&str> = text.split('-').collect();
    matches!(parts[..], [version, trace, parent, flags]
        if [version.len(), trace.len(), parent.len(), flags.len()] == [2, 32, 16, 2]
            && parts.iter().all(|part| hex(part))
            && version != "ff"
            && trace.bytes().any(|byte| byte != b'0')
            && parent.bytes().any(|byte| byte != b'0'))
}
