//! Questions and answers, free of any backend's terms. Times are microseconds since the Unix epoch, ranges half-open.

use ethnum::I256;
use usage_schemas::{Kind, Quantity};
use uuid::Uuid;

/// How the range is cut into windows. Boundaries come from the caller, who knows time zones; storage only buckets by them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Windows {
    /// One total.
    Total,
    /// Window i is [starts[i], starts[i + 1]); ascending, the first is at or before `from`, the last start before `to`.
    Starts(Vec<i64>),
    /// Windows of `width` microseconds counted from the start of the day that a time lies in (the last one of a day may be
    /// shorter); `days` as in `Starts`.
    Within { days: Vec<i64>, width: i64 },
}

/// Which dimensions a row carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupBy {
    pub metric: bool,
    pub source: bool,
    pub subject: bool,
    pub resource: bool,
}

/// Which measures are needed; those not asked for may be left at their neutral value. `count` and `sum` always come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measure {
    pub min_max: bool,
    pub latest: bool,
}

/// The partition counts that the records topic has had, so that a tenant's partitions can be named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionCounts {
    pub current: i32,
    /// All counts ever used, `current` among them.
    pub known: Vec<i32>,
}

#[derive(Debug, Clone)]
pub struct AggregateQuery {
    pub tenant_id: Uuid,
    /// Empty: all metrics.
    pub metrics: Vec<String>,
    pub from: i64,
    pub to: i64,
    pub windows: Windows,
    pub group_by: GroupBy,
    pub measure: Measure,
    /// Filters: empty = no filter, else any of.
    pub sources: Vec<String>,
    pub subject_ids: Vec<Uuid>,
    pub subject_types: Vec<String>,
    pub resource_ids: Vec<Uuid>,
    pub resource_types: Vec<String>,
    pub partition_counts: PartitionCounts,
    /// Only rows whose key is greater.
    pub after: Option<RowKey>,
    pub limit: usize,
}

/// Orders rows: by window, metric, source, subject id and type, resource id and type; `None` last (so not derived `Ord`,
/// see `RowKey::cmp`). Ids order by their 16 bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct RowKey {
    /// Start of the window; for `Windows::Total` the start of the range.
    pub window_start: i64,
    pub metric: Option<String>,
    pub source: Option<String>,
    pub subject_id: Option<Uuid>,
    pub subject_type: Option<String>,
    pub resource_id: Option<Uuid>,
    pub resource_type: Option<String>,
}

impl RowKey {
    fn parts(&self) -> impl Ord + '_ {
        /// `None` sorts after every value.
        fn last<T: Ord>(value: &Option<T>) -> (bool, &Option<T>) {
            (value.is_none(), value)
        }
        (
            self.window_start,
            last(&self.metric),
            last(&self.source),
            last(&self.subject_id),
            last(&self.subject_type),
            last(&self.resource_id),
            last(&self.resource_type),
        )
    }
}

impl Ord for RowKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl PartialOrd for RowKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// One group of one window. Only active records count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregateRow {
    pub key: RowKey,
    pub count: u64,
    /// Sum of the values in units of 10^-18.
    pub sum: I256,
    pub min: Option<Quantity>,
    pub max: Option<Quantity>,
    /// The sample with the greatest (timestamp, record_id).
    pub latest: Option<(i64, Uuid, Quantity)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StatusFilter {
    #[default]
    Active,
    Inactive,
    All,
}

#[derive(Debug, Clone)]
pub struct RawQuery {
    pub tenant_id: Uuid,
    pub metrics: Vec<String>,
    pub from: i64,
    pub to: i64,
    pub status: StatusFilter,
    pub sources: Vec<String>,
    pub subject_ids: Vec<Uuid>,
    pub subject_types: Vec<String>,
    pub resource_ids: Vec<Uuid>,
    pub resource_types: Vec<String>,
    /// Only records after this (timestamp, record_id); ids order by their 16 bytes.
    pub after: Option<(i64, Uuid)>,
    pub limit: usize,
}

/// A record as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    pub record_id: Uuid,
    pub tenant_id: Uuid,
    pub source: String,
    pub metric: String,
    pub kind: Kind,
    pub value: Quantity,
    pub timestamp: i64,
    pub idempotency_key: Option<String>,
    pub resource_id: Option<Uuid>,
    pub resource_type: Option<String>,
    pub subject_id: Option<Uuid>,
    pub subject_type: Option<String>,
    pub metadata: Option<String>,
    pub active: bool,
    pub ingested_at: i64,
    pub inactive_at: Option<i64>,
    pub version: u32,
}

/// Whose watermarks are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatermarkQuery {
    pub tenant_id: Uuid,
    /// Filters: empty = no filter, else any of.
    pub metrics: Vec<String>,
    pub sources: Vec<String>,
}

impl WatermarkQuery {
    /// All of a tenant's.
    pub fn of_tenant(tenant_id: Uuid) -> Self {
        Self { tenant_id, metrics: Vec::new(), sources: Vec::new() }
    }
}

/// What has arrived from a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceWatermark {
    pub source: String,
    /// Every stored record that the filters let through, inactive ones too.
    pub records: u64,
    pub latest_timestamp: i64,
    pub latest_ingested_at: i64,
}
