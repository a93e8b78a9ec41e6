//! A usage record, owned and borrowed.

use uuid::Uuid;

use crate::{Quantity, Timestamp};

/// What a metric's values mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Non-negative deltas that add up.
    Counter,
    /// Samples of a level.
    Gauge,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// One measurement, as it borrows from a decoded message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordRef<'a> {
    pub record_id: Uuid,
    pub tenant_id: Uuid,
    pub source: &'a str,
    pub metric: &'a str,
    pub kind: Kind,
    pub value: Quantity,
    pub timestamp: Timestamp,
    pub idempotency_key: Option<&'a str>,
    pub resource_id: Option<Uuid>,
    pub resource_type: Option<&'a str>,
    pub subject_id: Option<Uuid>,
    pub subject_type: Option<&'a str>,
    /// One JSON object, byte for byte as received.
    pub metadata: Option<&'a str>,
}

/// One measurement, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRecord {
    pub record_id: Uuid,
    pub tenant_id: Uuid,
    pub source: String,
    pub metric: String,
    pub kind: Kind,
    pub value: Quantity,
    pub timestamp: Timestamp,
    pub idempotency_key: Option<String>,
    pub resource_id: Option<Uuid>,
    pub resource_type: Option<String>,
    pub subject_id: Option<Uuid>,
    pub subject_type: Option<String>,
    pub metadata: Option<String>,
}

impl UsageRecord {
    pub fn borrowed(&self) -> RecordRef<'_> {
        RecordRef {
            record_id: self.record_id,
            tenant_id: self.tenant_id,
            source: &self.source,
            metric: &self.metric,
            kind: self.kind,
            value: self.value,
            timestamp: self.timestamp,
            idempotency_key: self.idempotency_key.as_deref(),
            resource_id: self.resource_id,
            resource_type: self.resource_type.as_deref(),
            subject_id: self.subject_id,
            subject_type: self.subject_type.as_deref(),
            metadata: self.metadata.as_deref(),
        }
    }
}

impl RecordRef<'_> {
    pub fn to_owned(&self) -> UsageRecord {
        UsageRecord {
            record_id: self.record_id,
            tenant_id: self.tenant_id,
            source: self.source.into(),
            metric: self.metric.into(),
            kind: self.kind,
            value: self.value,
            timestamp: self.timestamp,
            idempotency_key: self.idempotency_key.map(Into::into),
            resource_id: self.resource_id,
            resource_type: self.resource_type.map(Into::into),
            subject_id: self.subject_id,
            subject_type: self.subject_type.map(Into::into),
            metadata: self.metadata.map(Into::into),
        }
    }
}
