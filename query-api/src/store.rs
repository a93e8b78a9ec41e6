//! Storage with bounds: how long one waits for an answer, how many questions are asked at the same time, by one tenant and by
//! all, and a circuit breaker for the time in which storage fails.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use usage_service::breaker::BreakerConfig;
use usage_service::fail_point;
use usage_service::metric_names::STORAGE_READ_SECONDS;
use usage_service::problem::Problem;
use usage_storage::{
    AggregateQuery, AggregateRow, GuardedReader, RawQuery, Reader, SourceWatermark, StorageError,
    StoredRecord, WatermarkQuery,
};
use uuid::Uuid;

use crate::failure::Failure;
use crate::grant::Grant;

/// Bounds of all questions together.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// How long one question may take.
    pub timeout: Duration,
    /// When storage that fails is left alone for a while.
    pub breaker: BreakerConfig,
    /// Questions asked at the same time.
    pub concurrent: usize,
    /// Of these, those of one tenant: slow questions of one leave turns for the others.
    pub concurrent_per_tenant: usize,
    /// How long a question waits for its turn before the caller is told to come back.
    pub turn_within: Duration,
    /// The same for a stream that is under way, which can only be broken off.
    pub stream_turn_within: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            breaker: BreakerConfig::default(),
            concurrent: 64,
            concurrent_per_tenant: 16,
            turn_within: Duration::from_secs(1),
            stream_turn_within: Duration::from_secs(30),
        }
    }
}

/// The read side of storage; each call ends within the bounds, and asks for nothing that the caller was not granted. Clones
/// share them.
#[derive(Clone)]
pub struct Store {
    reader: Arc<GuardedReader>,
    bounds: Bounds,
    turn_within: Duration,
    turns: Arc<Semaphore>,
    tenants: Arc<Tenants>,
}

impl Store {
    /// `plugin` names the storage plugin in metrics.
    pub fn new(plugin: &'static str, reader: Arc<dyn Reader>, bounds: Bounds) -> Self {
        let reader = Arc::new(GuardedReader::new(reader, plugin, bounds.timeout, bounds.breaker));
        let turns = Arc::new(Semaphore::new(bounds.concurrent));
        let tenants = Arc::new(Tenants::new(bounds.concurrent_per_tenant));
        Self { reader, bounds, turn_within: bounds.turn_within, turns, tenants }
    }

    /// The same store for the later pages of a stream: they wait longer for their turns.
    #[must_use]
    pub fn for_stream(&self) -> Self {
        Self { turn_within: self.bounds.stream_turn_within, ..self.clone() }
    }

    /// See [`Reader::aggregate`].
    ///
    /// # Errors
    /// The reader's, no answer in time, or no turn.
    pub async fn aggregate(
        &self,
        grant: &Grant,
        query: &AggregateQuery,
    ) -> Result<Vec<AggregateRow>, Failure> {
        granted(grant.holds(query.tenant_id, &query.metrics, &query.sources))?;
        self.bounded("aggregated", query.tenant_id, self.reader.aggregate(query)).await
    }

    /// See [`Reader::raw`].
    ///
    /// # Errors
    /// The reader's, no answer in time, or no turn.
    pub async fn raw(&self, grant: &Grant, query: &RawQuery) -> Result<Vec<StoredRecord>, Failure> {
        granted(grant.holds(query.tenant_id, &query.metrics, &query.sources))?;
        self.bounded("raw", query.tenant_id, self.reader.raw(query)).await
    }

    /// See [`Reader::record`]; a record beyond the bounds is not there.
    ///
    /// # Errors
    /// The reader's, no answer in time, or no turn.
    pub async fn record(&self, grant: &Grant, record_id: Uuid) -> Result<Option<StoredRecord>, Failure> {
        let tenant_id = grant.tenant_id();
        let found = self.bounded("record", tenant_id, self.reader.record(tenant_id, record_id)).await?;
        Ok(found.filter(|record| grant.covers(record)))
    }

    /// See [`Reader::watermarks`]; of what the bounds let through.
    ///
    /// # Errors
    /// The reader's, no answer in time, no turn, or 422 as [`Grant::narrow`].
    pub async fn watermarks(&self, grant: &Grant) -> Result<Vec<SourceWatermark>, Failure> {
        let query = grant.watermarks()?;
        self.bounded("watermarks", query.tenant_id, self.reader.watermarks(&query)).await
    }

    /// One cheap round trip as the reading user, for readiness: what this process needs, with no other rights. It does not
    /// wait for a turn: a busy process is ready.
    ///
    /// # Errors
    /// Storage does not answer, or not in time, or its circuit is open; once that is half open, this is its probe.
    pub async fn probe(&self) -> Result<(), StorageError> {
        // Nobody's tenant: nothing is found, but everything on the way was there.
        self.reader.watermarks(&WatermarkQuery::of_tenant(Uuid::nil())).await.map(drop)
    }

    async fn bounded<T>(
        &self,
        query_type: &'static str,
        tenant_id: Uuid,
        call: impl Future<Output = Result<T, StorageError>>,
    ) -> Result<T, Failure> {
        let tenant = self.tenants.enter(tenant_id);
        // The tenant's turn first: who waits for it is not in the way of others.
        let turn = async {
            let own = tenant.turns.acquire().await;
            (own, self.turns.acquire().await)
        };
        let Ok((Ok(_own), Ok(_turn))) = tokio::time::timeout(self.turn_within, turn).await else {
            return Err(Failure::overloaded());
        };
        let asked = Instant::now();
        fail_point!("query.read");
        let answer = call.await;
        fail_point!("query.answered");
        metrics::histogram!(STORAGE_READ_SECONDS, "query_type" => query_type).record(asked.elapsed());
        answer.map_err(Failure::from)
    }
}

/// The last look before storage is asked: no handler can forget the bounds.
fn granted(holds: bool) -> Result<(), Failure> {
    if holds {
        return Ok(());
    }
    tracing::error!("a question goes beyond what its caller was granted, and is not asked");
    Err(Problem::internal().into())
}

/// The turns of each tenant that has a question under way; others take no room.
struct Tenants {
    each: usize,
    present: Mutex<HashMap<Uuid, Present>>,
}

struct Present {
    turns: Arc<Semaphore>,
    questions: usize,
}

impl Tenants {
    fn new(each: usize) -> Self {
        Self { each, present: Mutex::default() }
    }

    fn enter(&self, tenant_id: Uuid) -> Entered<'_> {
        let mut present = self.present();
        let tenant = present
            .entry(tenant_id)
            .or_insert_with(|| Present { turns: Arc::new(Semaphore::new(self.each)), questions: 0 });
        tenant.questions += 1;
        Entered { tenants: self, tenant_id, turns: tenant.turns.clone() }
    }

    fn present(&self) -> MutexGuard<'_, HashMap<Uuid, Present>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question of a tenant, from its arrival until it is answered or given up.
struct Entered<'a> {
    tenants: &'a Tenants,
    tenant_id: Uuid,
    turns: Arc<Semaphore>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut present = self.tenants.present();
        if let Some(tenant) = present.get_mut(&self.tenant_id) {
            tenant.questions -= 1;
            if tenant.questions == 0 {
                present.remove(&self.tenant_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_takes_room_only_while_it_asks() {
        let tenants = Tenants::new(2);
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let first = tenants.enter(one);
        let second = tenants.enter(one);
        let stranger = tenants.enter(other);
        assert!(Arc::ptr_eq(&first.turns, &second.turns) && !Arc::ptr_eq(&first.turns, &stranger.turns));
        let held = first.turns.try_acquire_many(2).unwrap();
        assert!(second.turns.try_acquire().is_err() && stranger.turns.try_acquire().is_ok());
        drop((held, second, stranger));
        assert_eq!(tenants.present().keys().collect::<Vec<_>>(), [&one]);
        drop(first);
        assert!(tenants.present().is_empty());
    }
}
