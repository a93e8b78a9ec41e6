//! A reader behind a circuit breaker, with a deadline for each call.
//!
//! Writers have none: the consumer repeats for ever and pauses between attempts, so a breaker would add up to its half-open
//! interval to each recovery and spare nobody anything.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use usage_service::breaker::{BreakerConfig, CircuitBreaker, Permit};
use usage_service::metric_names::STORAGE_BREAKER_OPEN;
use uuid::Uuid;

use crate::{
    AggregateQuery, AggregateRow, RawQuery, Reader, SourceWatermark, StorageError, StoredRecord,
    WatermarkQuery,
};

/// How long the cheap look may take that tells a slow question from a backend that does not answer.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// Ends each call at the deadline, and refuses calls for a while after several in a row have failed.
///
/// A question that runs into its deadline says nothing of the backend by itself: one caller's dear questions must not shut the
/// others out. So a cheap look follows, and its outcome is what counts. The probe of a half-open breaker is such a look too.
pub struct GuardedReader {
    guard: Arc<Guard>,
    timeout: Duration,
}

struct Guard {
    inner: Arc<dyn Reader>,
    plugin: &'static str,
    config: BreakerConfig,
    look_within: Duration,
    breaker: Mutex<CircuitBreaker>,
    /// No more looks at the same time than open the breaker.
    looks: Arc<Semaphore>,
}

impl GuardedReader {
    /// `plugin` is the label of the metric; each call may take `timeout`.
    pub fn new(
        inner: Arc<dyn Reader>,
        plugin: &'static str,
        timeout: Duration,
        config: BreakerConfig,
    ) -> Self {
        metrics::gauge!(STORAGE_BREAKER_OPEN, "plugin" => plugin).set(0);
        let guard = Guard {
            inner,
            plugin,
            config,
            look_within: LOOK_WITHIN.min(timeout),
            breaker: Mutex::new(CircuitBreaker::new(config)),
            looks: Arc::new(Semaphore::new(config.failures.max(1))),
        };
        Self { guard: Arc::new(guard), timeout }
    }

    async fn call<T>(
        &self,
        question: impl Future<Output = Result<T, StorageError>> + Send,
    ) -> Result<T, StorageError> {
        match self.guard.permit() {
            Permit::Allowed => {}
            Permit::Refused(retry_after) => return Err(StorageError::Open { retry_after }),
            Permit::Probe => {
                // On a task of its own: a caller that goes away must not leave the breaker half open.
                let probed = look(&self.guard).await;
                if !probed.is_ok_and(|answers| answers) {
                    return Err(StorageError::Open { retry_after: self.guard.config.half_open_after });
                }
            }
        }
        let answer = tokio::time::timeout(self.timeout, question).await.unwrap_or(Err(StorageError::Timeout));
        match &answer {
            Err(StorageError::Timeout) => {
                if let Ok(permit) = Arc::clone(&self.guard.looks).try_acquire_owned() {
                    let looking = look(&self.guard);
                    tokio::spawn(async move {
                        let _ = looking.await;
                        drop(permit);
                    });
                }
            }
            answer => self.guard.report(speaks_against(answer.as_ref().err())),
        }
        answer
    }
}

/// True if an outcome speaks against the backend; a refused question or a contradiction in the data is an answer.
fn speaks_against(error: Option<&StorageError>) -> bool {
    error.is_some_and(StorageError::may_pass)
}

/// Asks for what nobody has, and reports whether there was an answer.
fn look(guard: &Arc<Guard>) -> JoinHandle<bool> {
    let guard = Arc::clone(guard);
    tokio::spawn(async move {
        let nobodys = WatermarkQuery::of_tenant(Uuid::nil());
        let asked = guard.inner.watermarks(&nobodys);
        let answer =
            tokio::time::timeout(guard.look_within, asked).await.unwrap_or(Err(StorageError::Timeout));
        let failed = speaks_against(answer.as_ref().err());
        guard.report(failed);
        !failed
    })
}

impl Guard {
    fn permit(&self) -> Permit {
        self.breaker().permit(Instant::now().into_std())
    }

    fn report(&self, failed: bool) {
        let mut breaker = self.breaker();
        let was_open = breaker.is_open();
        if failed {
            breaker.failure(Instant::now().into_std())
        } else {
            breaker.success()
        }
        let is_open = breaker.is_open();
        drop(breaker);
        if is_open == was_open {
            return;
        }
        metrics::gauge!(STORAGE_BREAKER_OPEN, "plugin" => self.plugin).set(u8::from(is_open));
        if is_open {
            let half_open_after_ms =
                u64::try_from(self.config.half_open_after.as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(plugin = self.plugin, half_open_after_ms, "the circuit to storage is open");
        } else {
            tracing::info!(plugin = self.plugin, "the circuit to storage is closed again");
        }
    }

    fn breaker(&self) -> std::sync::MutexGuard<'_, CircuitBreaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Reader for GuardedReader {
    async fn aggregate(&self, query: &AggregateQuery) -> Result<Vec<AggregateRow>, StorageError> {
        self.call(self.guard.inner.aggregate(query)).await
    }

    async fn raw(&self, query: &RawQuery) -> Result<Vec<StoredRecord>, StorageError> {
        self.call(self.guard.inner.raw(query)).await
    }

    async fn record(&self, tenant_id: Uuid, record_id: Uuid) -> Result<Option<StoredRecord>, StorageError> {
        self.call(self.guard.inner.record(tenant_id, record_id)).await
    }

    async fn watermarks(&self, query: &WatermarkQuery) -> Result<Vec<SourceWatermark>, StorageError> {
        self.call(self.guard.inner.watermarks(query)).await
    }
}

#[cfg(test)]
mod tests;
