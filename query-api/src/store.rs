//! Storage with bounds: how long one waits for an answer, and how many questions are asked at the same time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use usage_service::metric_names::STORAGE_READ_SECONDS;
use usage_storage::{
    AggregateQuery, AggregateRow, RawQuery, Reader, SourceWatermark, StorageError, StoredRecord,
};
use uuid::Uuid;

use crate::failure::Failure;

/// How long a question waits for its turn before the caller is told to come back.
const TURN_WITHIN: Duration = Duration::from_secs(1);

/// The read side of storage; each call ends within the timeout. Clones share the bounds.
#[derive(Clone)]
pub struct Store {
    reader: Arc<dyn Reader>,
    timeout: Duration,
    turns: Arc<Semaphore>,
}

impl Store {
    /// `concurrent`: questions asked at the same time; `timeout`: bound of one.
    pub fn new(reader: Arc<dyn Reader>, timeout: Duration, concurrent: usize) -> Self {
        Self { reader, timeout, turns: Arc::new(Semaphore::new(concurrent)) }
    }

    /// See [`Reader::aggregate`].
    ///
    /// # Errors
    /// The reader's, no answer in time, or no turn.
    pub async fn aggregate(&self, query: &AggregateQuery) -> Result<Vec<AggregateRow>, Failure> {
        self.bounded("aggregated", self.reader.aggregate(query)).await
    }

    /// See [`Reader::raw`].
    ///
    /// # Errors
    /// The reader's, no answer in time, or no turn.
    pub async fn raw(&self, query: &RawQuery) -> Result<Vec<StoredRecord>, Failure> {
        self.bounded("raw", self.reader.raw(query)).await
    }

    /// See [`Reader::record`].
    ///
    /// # Errors
    /// The reader's, no answer in time, or no turn.
    pub async fn record(&self, tenant_id: Uuid, record_id: Uuid) -> Result<Option<StoredRecord>, Failure> {
        self.bounded("record", self.reader.record(tenant_id, record_id)).await
    }

    /// See [`Reader::watermarks`].
    ///
    /// # Errors
    /// The reader's, no answer in time, or no turn.
    pub async fn watermarks(&self, tenant_id: Uuid) -> Result<Vec<SourceWatermark>, Failure> {
        self.bounded("watermarks", self.reader.watermarks(tenant_id)).await
    }

    /// One cheap round trip as the reading user, for readiness: what this process needs, with no other rights. It does not
    /// wait for a turn: a busy process is ready.
    ///
    /// # Errors
    /// Storage does not answer, or not in time.
    pub async fn probe(&self) -> Result<(), StorageError> {
        // Nobody's tenant: nothing is found, but everything on the way was there.
        let call = self.reader.watermarks(Uuid::nil());
        tokio::time::timeout(self.timeout, call).await.unwrap_or(Err(StorageError::Timeout)).map(|_| ())
    }

    async fn bounded<T>(
        &self,
        query_type: &'static str,
        call: impl Future<Output = Result<T, StorageError>>,
    ) -> Result<T, Failure> {
        let turn = tokio::time::timeout(TURN_WITHIN, self.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else { return Err(Failure::overloaded()) };
        let asked = Instant::now();
        let answer = tokio::time::timeout(self.timeout, call).await.unwrap_or(Err(StorageError::Timeout));
        metrics::histogram!(STORAGE_READ_SECONDS, "query_type" => query_type).record(asked.elapsed());
        answer.map_err(Failure::from)
    }
}
