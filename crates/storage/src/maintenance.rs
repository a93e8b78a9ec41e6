//! What operators do with storage: hold rollups against records, rebuild them, and bring a restored backup back to work.

use async_trait::async_trait;
use ethnum::I256;
use usage_schemas::Kind;
use uuid::Uuid;

use crate::{PartitionCounts, StorageError};

/// What to look at. Times are microseconds since the Unix epoch, the range is half-open.
#[derive(Debug, Clone)]
pub struct Scope {
    /// Rollups are compared by whole quarters of an hour: those that the range touches.
    pub from: Option<i64>,
    pub to: Option<i64>,
    pub tenant_id: Option<Uuid>,
    pub metric: Option<String>,
    /// Where tenants may lie.
    pub partition_counts: PartitionCounts,
}

/// What one rolled-up row is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BucketKey {
    pub tenant_id: Uuid,
    pub metric: String,
    pub source: String,
    pub kind: Kind,
    /// Start of the quarter of an hour, in seconds since the Unix epoch.
    pub bucket: u32,
    pub partition: i32,
}

/// What is counted of a bucket. Values are units of 10^-18, as they are stored: also what no quantity could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketTotals {
    pub count: u64,
    pub sum: I256,
    pub min: Option<i128>,
    pub max: Option<i128>,
    /// Time in microseconds, id and value of the sample with the greatest (time, id).
    pub latest: Option<(i64, Uuid, i128)>,
}

/// Something that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// A rolled-up bucket does not equal the records that it stands for; `None` if there are none, or if it is not rolled up.
    Bucket { key: BucketKey, expected: Option<Box<BucketTotals>>, found: Option<Box<BucketTotals>> },
    /// One identity is stored more than once.
    StoredTwice { tenant_id: Uuid, record_id: Uuid, copies: u64 },
    /// Records of a tenant were stored by a partition in which no known partition count puts it.
    WrongPartition { tenant_id: Uuid, partition: i32, records: u64, first_offset: i64, last_offset: i64 },
}

/// What was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    pub months: u64,
    /// Buckets that were compared.
    pub buckets: u64,
    /// Records that the compared buckets should count.
    pub records: u64,
    /// Records whose identity and partition were looked at.
    pub identities: u64,
}

/// The last batch of a partition that storage knows of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastBatch {
    pub partition: i32,
    pub batch_seq: i64,
    /// The lowest offset among its stored records. Months of a batch are stored one after another, so if some of them are missing, it may
    /// have begun before it.
    pub first_offset: i64,
    /// The last one below it, which is stored wholly: a batch is not sent before its predecessor is.
    pub previous: Option<PreviousBatch>,
}

/// The last batch of a partition before the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreviousBatch {
    pub batch_seq: i64,
    /// The greatest offset among its stored records.
    pub last_offset: i64,
}

/// The operators' side.
#[async_trait]
pub trait Maintenance: Send + Sync {
    /// Recomputes every rolled-up bucket from the records up to the horizon, and looks for identities stored twice and records
    /// in a wrong partition. May run while workers and readers do. Memory is bounded: a month and some tenants at a time.
    async fn verify(
        &self,
        scope: &Scope,
        sink: &mut (dyn FnMut(Difference) + Send),
    ) -> Result<Verified, StorageError>;

    /// Rolls buckets up anew from the records. Takes their partitions over for that: whoever holds one is fenced at its next
    /// write and takes it over again. May be repeated.
    async fn rebuild(&self, buckets: &[BucketKey]) -> Result<(), StorageError>;

    /// Raises the fence of each partition above every epoch that was ever used, also one that a lost table of fences had
    /// known, and ends what still runs under older ones.
    async fn fence_above_all(&self, partitions: &[i32]) -> Result<(), StorageError>;

    /// The last batch of every partition that has records, ascending by partition.
    async fn last_batches(&self) -> Result<Vec<LastBatch>, StorageError>;

    /// Empties the rollups, horizons too; new owners rebuild them from the records.
    async fn empty_rollups(&self) -> Result<(), StorageError>;

    /// Questions of readers that run at this moment.
    async fn running_questions(&self) -> Result<u64, StorageError>;
}
