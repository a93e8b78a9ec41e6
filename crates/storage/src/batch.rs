//! A planned batch of one partition, as columns: what the consumer fills while it decides, and a plugin writes.

use usage_schemas::{Kind, RecordRef};
use uuid::Uuid;

/// The kept rows of one planned batch, in offset order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedBatch {
    pub partition: i32,
    pub batch_seq: i64,
    pub rows: Rows,
}

/// Columns of equal length. Texts lie one after another in one buffer per column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    pub record_id: Vec<Uuid>,
    pub tenant_id: Vec<Uuid>,
    pub content_hash: Vec<[u8; 16]>,
    pub offset: Vec<i64>,
    /// Microseconds since the Unix epoch, the worker's clock when it decided.
    pub ingested_at: Vec<i64>,
    pub source: Texts,
    pub metric: Texts,
    pub kind: Vec<Kind>,
    /// Units of 10^-18.
    pub value: Vec<i128>,
    /// Microseconds since the Unix epoch.
    pub timestamp: Vec<i64>,
    pub idempotency_key: Texts,
    pub resource_id: Vec<Option<Uuid>>,
    pub resource_type: Texts,
    pub subject_id: Vec<Option<Uuid>>,
    pub subject_type: Texts,
    pub metadata: Texts,
}

impl Rows {
    pub fn len(&self) -> usize {
        self.offset.len()
    }

    pub fn is_empty(&self) -> bool {
        self.offset.is_empty()
    }

    /// Appends a decided record; `record_id` is the derived one.
    pub fn push(&mut self, record: &RecordRef<'_>, content_hash: [u8; 16], offset: i64, ingested_at: i64) {
        self.record_id.push(record.record_id);
        self.tenant_id.push(record.tenant_id);
        self.content_hash.push(content_hash);
        self.offset.push(offset);
        self.ingested_at.push(ingested_at);
        self.source.push(Some(record.source));
        self.metric.push(Some(record.metric));
        self.kind.push(record.kind);
        self.value.push(record.value.unscaled());
        self.timestamp.push(record.timestamp.micros());
        self.idempotency_key.push(record.idempotency_key);
        self.resource_id.push(record.resource_id);
        self.resource_type.push(record.resource_type);
        self.subject_id.push(record.subject_id);
        self.subject_type.push(record.subject_type);
        self.metadata.push(record.metadata);
    }
}

/// A column of optional texts in one buffer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Texts {
    bytes: String,
    /// End of text i in `bytes`; its start is the end of text i - 1.
    ends: Vec<u32>,
    /// One flag per text; a missing text is empty in `bytes`.
    present: Vec<bool>,
}

impl Texts {
    pub fn push(&mut self, text: Option<&str>) {
        self.bytes.push_str(text.unwrap_or_default());
        self.ends.push(u32::try_from(self.bytes.len()).expect("a batch is cut by bytes long before 4 GiB"));
        self.present.push(text.is_some());
    }

    pub fn get(&self, index: usize) -> Option<&str> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        self.present[index].then(|| &self.bytes[start..self.ends[index] as usize])
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}
