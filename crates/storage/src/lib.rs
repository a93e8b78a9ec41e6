//! Where records are kept and questions are answered: the plugin contract and its plugins.
//!
//! The consumer writes through [`Writer`], the query-api reads through [`Reader`]; neither knows which plugin is behind.
//! One plugin is active at a time, chosen by configuration.

pub mod batch;
pub mod clickhouse;
pub mod error;
pub mod guarded;
pub mod maintenance;
pub mod query;

use std::sync::Arc;

use async_trait::async_trait;
use uuid::Uuid;

pub use batch::{PlannedBatch, Rows};
pub use error::StorageError;
pub use guarded::GuardedReader;
pub use maintenance::{
    BucketKey, BucketTotals, Difference, LastBatch, Maintenance, PreviousBatch, Scope, Verified,
};
pub use query::{
    AggregateQuery, AggregateRow, GroupBy, Measure, PartitionCounts, RawQuery, RowKey, SourceWatermark,
    StatusFilter, StoredRecord, WatermarkQuery, Windows,
};

/// A storage backend.
#[async_trait]
pub trait Storage: Send + Sync {
    /// Brings the schema up to date; safe when several processes call it at once. Refuses a changed migration.
    async fn migrate(&self) -> Result<(), StorageError>;

    /// One cheap round trip to the backend, for readiness; also verifies the server settings the protocol relies on.
    async fn check(&self) -> Result<(), StorageError>;

    /// The write side for one worker process.
    fn writer(&self) -> Arc<dyn Writer>;

    /// The read side.
    fn reader(&self) -> Arc<dyn Reader>;

    /// The operators' side.
    fn maintenance(&self) -> Arc<dyn Maintenance>;
}

/// What storage knows of a partition right after it was fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The epoch now held.
    pub epoch: i64,
    /// The greatest `batch_seq` among records and horizons of the partition; 0 if there is none.
    pub last_batch_seq: i64,
}

/// An id to be looked for, with what makes the look cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdProbe {
    pub tenant_id: Uuid,
    pub metric: String,
    /// Microseconds since the Unix epoch.
    pub timestamp: i64,
    pub record_id: Uuid,
}

/// A stored id and the hash of the content it was first received with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredId {
    pub tenant_id: Uuid,
    pub record_id: Uuid,
    pub content_hash: [u8; 16],
}

/// A row that storage refuses for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedRow {
    pub offset: i64,
    pub error: String,
}

/// The write side: owns partitions between `open` and `close` (protocol 5.2, 6.1, 6.2).
///
/// Calls for one partition come one after another; calls for different partitions may overlap.
#[async_trait]
pub trait Writer: Send + Sync {
    /// Fences the partition: takes a unique higher epoch, then ends every write of an older one until none runs.
    /// After this returns, no write of a former owner can become visible.
    async fn open(&self, partition: i32) -> Result<Opened, StorageError>;

    /// Fences partitions without holding them: after this returns nobody who held one before can store anything more in it, nor
    /// take it for its own without opening it anew. For operations that change by what rule rows are stored.
    async fn fence(&self, partitions: &[i32]) -> Result<(), StorageError>;

    /// Writes batches of several partitions: each (batch, month) is stored wholly or not at all. `Ok` is proof.
    /// `StorageError::Unknown`: call `settle` after the plan was committed again. `Fenced`: take the partition over again.
    /// `Final`: the data is refused; split, then `bisect`. On `Ok` the rows are in the partition's aggregate.
    async fn write(&self, batches: &[Arc<PlannedBatch>]) -> Result<(), StorageError>;

    /// Finishes batches whose write has an unknown outcome, or that a takeover found planned: raises one's own epoch,
    /// ends what runs, looks which months are stored, sends the missing ones. Same results as `write`. After a takeover
    /// (`recover` not called yet) stored months are not folded into the aggregate, since `recover` reads them.
    async fn settle(&self, batches: &[Arc<PlannedBatch>]) -> Result<(), StorageError>;

    /// Finds the rows of a batch that storage refuses for good, without touching the records.
    async fn bisect(&self, batch: &PlannedBatch) -> Result<Vec<RefusedRow>, StorageError>;

    /// After the plan was carried out: rebuilds the partition's aggregate from the records beyond its horizons.
    async fn recover(&self, partition: i32) -> Result<(), StorageError>;

    /// Hands every stored record id of the tenants that lie in `partition` of `partition_count` to `sink`, in chunks.
    async fn ids(
        &self,
        partition: i32,
        partition_count: i32,
        sink: &mut (dyn for<'a> FnMut(&'a [Uuid]) + Send),
    ) -> Result<(), StorageError>;

    /// Exact check of filter hits: those of the probes that are stored, in no order.
    async fn find(&self, probes: &[IdProbe]) -> Result<Vec<StoredId>, StorageError>;

    /// Rolls up what is old or large enough. Called about once a second for the partitions one holds.
    async fn tick(&self, partitions: &[i32]) -> Result<(), StorageError>;

    /// Gives the partition up: rolls up what is in hand if `flush`, then forgets it.
    async fn close(&self, partition: i32, flush: bool) -> Result<(), StorageError>;

    /// Age of the oldest row not yet behind a horizon, in seconds, per held partition (telemetry).
    fn horizon_age_seconds(&self) -> Vec<(i32, u64)>;
}

/// The read side. Every answer counts each stored record exactly once (protocol 6.3).
#[async_trait]
pub trait Reader: Send + Sync {
    /// At most `query.limit` rows with keys after `query.after`, ascending by key.
    async fn aggregate(&self, query: &AggregateQuery) -> Result<Vec<AggregateRow>, StorageError>;

    /// At most `query.limit` records after `query.after`, ascending by (timestamp, record_id as text order of its bytes).
    async fn raw(&self, query: &RawQuery) -> Result<Vec<StoredRecord>, StorageError>;

    /// One record of the tenant, whatever its status.
    async fn record(&self, tenant_id: Uuid, record_id: Uuid) -> Result<Option<StoredRecord>, StorageError>;

    /// Counts and latest times per source of the tenant, ascending by source; a source without such records has none.
    async fn watermarks(&self, query: &WatermarkQuery) -> Result<Vec<SourceWatermark>, StorageError>;
}
