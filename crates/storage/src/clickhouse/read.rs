//! The read side of the ClickHouse plugin (protocol 6.3).
//!
//! A small question is answered from the records alone. A large one is answered from the rollups for whole, clean
//! 15-minute buckets, and from the records for everything the rollups don't hold: the partial buckets at both ends,
//! buckets under correction, and what lies beyond each partition's horizon.

mod aggregate;
mod dimensions;
mod merge;
mod question;
mod raw;
mod records;
mod rollups;
mod session;
mod spans;
mod sql;
#[cfg(test)]
mod tests;
mod watermarks;
mod windows;

use std::collections::BTreeSet;

use async_trait::async_trait;
use uuid::Uuid;

use self::{aggregate::Sizes, session::Session};
use super::{
    client::{Client, Profile},
    config::ClickHouseConfig,
};
use crate::{
    AggregateQuery, AggregateRow, RawQuery, Reader, SourceWatermark, StorageError, StoredRecord,
    WatermarkQuery,
};

/// Answers questions as the reading user.
#[derive(Clone)]
pub struct ClickHouseReader {
    session: Session,
    sizes: Sizes,
}

impl ClickHouseReader {
    pub(crate) fn new(config: &ClickHouseConfig) -> Self {
        let client = Client::new(config, Profile::Reader);
        Self { session: Session::new(client, config.read_timeout), sizes: Sizes::new(config.rollup_rows) }
    }

    /// The buckets that are marked as under correction. Records can't be corrected yet (protocol 6.4 comes with its own
    /// issue), so there is none; the reads behind this already leave marked buckets to the records.
    fn dirty_buckets(&self) -> BTreeSet<i64> {
        BTreeSet::new()
    }
}

#[async_trait]
impl Reader for ClickHouseReader {
    async fn aggregate(&self, query: &AggregateQuery) -> Result<Vec<AggregateRow>, StorageError> {
        self.session
            .bounded(aggregate::aggregate(&self.session, query, &self.dirty_buckets(), self.sizes))
            .await
    }

    async fn raw(&self, query: &RawQuery) -> Result<Vec<StoredRecord>, StorageError> {
        self.session.bounded(raw::page(&self.session, query)).await
    }

    async fn record(&self, tenant_id: Uuid, record_id: Uuid) -> Result<Option<StoredRecord>, StorageError> {
        self.session.bounded(raw::record(&self.session, tenant_id, record_id)).await
    }

    async fn watermarks(&self, query: &WatermarkQuery) -> Result<Vec<SourceWatermark>, StorageError> {
        self.session.bounded(watermarks::watermarks(&self.session, query)).await
    }
}
