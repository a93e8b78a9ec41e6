//! What the control database tells a reader: usage types, the partition counts of the records topic and how far the sources are,
//! cached briefly.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use usage_control::{Completeness, Control, ControlError, NewUsageType, Registration};
use usage_schemas::UsageType;
use usage_service::fail_point;
use usage_storage::PartitionCounts;

use crate::shared::Remembered;

/// The control database failed; sorted by what the caller must do. Clones are for those who share a read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RegistryError {
    /// Trying again may help.
    #[error("the control database is unavailable")]
    Unavailable(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// It would fail again.
    #[error("the control database failed")]
    Failed(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

/// Usage types, partition counts and completeness.
#[async_trait]
pub trait Registry: Send + Sync {
    /// All registered types.
    async fn usage_types(&self) -> Result<Vec<UsageType>, RegistryError>;
    /// Registers a type, or says that the name is taken.
    async fn register(&self, new: &NewUsageType) -> Result<Registration, RegistryError>;
    /// The counts that the records topic has had.
    async fn partition_counts(&self) -> Result<PartitionCounts, RegistryError>;
    /// Until when each source is complete.
    async fn completeness(&self) -> Result<Completeness, RegistryError>;
    /// One cheap round trip, for readiness.
    async fn ping(&self) -> Result<(), RegistryError>;
}

impl From<ControlError> for RegistryError {
    fn from(error: ControlError) -> Self {
        // Until the topics are made there is nothing to ask for: that passes too.
        let passes = error.may_pass() || matches!(error, ControlError::NoPartitionCount);
        if passes { Self::Unavailable(Arc::new(error)) } else { Self::Failed(Arc::new(error)) }
    }
}

#[async_trait]
impl Registry for Control {
    async fn usage_types(&self) -> Result<Vec<UsageType>, RegistryError> {
        Ok(Control::usage_types(self).await?)
    }

    async fn register(&self, new: &NewUsageType) -> Result<Registration, RegistryError> {
        Ok(self.register_type(new).await?)
    }

    async fn partition_counts(&self) -> Result<PartitionCounts, RegistryError> {
        let partitions = Control::partition_counts(self).await?;
        Ok(PartitionCounts { current: partitions.current, known: partitions.known })
    }

    async fn completeness(&self) -> Result<Completeness, RegistryError> {
        Ok(Control::completeness(self).await?)
    }

    async fn ping(&self) -> Result<(), RegistryError> {
        Ok(Control::ping(self).await?)
    }
}

/// Registered types by name.
pub type Types = Arc<BTreeMap<String, UsageType>>;

/// Partition counts, with the time when their reading began.
#[derive(Debug, Clone)]
pub struct Counted {
    pub counts: PartitionCounts,
    began: Instant,
}

/// A registry with short memory. What is older than the cache time is never used, and no answer stands by counts that are older than
/// twice that at its end: growing the topic relies on it (protocol 5.4).
pub struct Catalog {
    registry: Arc<dyn Registry>,
    /// How long an answer is used.
    keep: Duration,
    /// How long one waits for the control database.
    timeout: Duration,
    types: Remembered<Types, RegistryError>,
    counts: Remembered<Counted, RegistryError>,
    completeness: Remembered<Arc<Completeness>, RegistryError>,
}

impl Catalog {
    /// How often a name that is not known may send a question to the control database.
    const MISS_INTERVAL: Duration = Duration::from_secs(1);
    /// How long completeness is used: many questions share a look, and relays send markers once a second at most.
    const COMPLETENESS: Duration = Duration::from_secs(1);

    pub fn new(registry: Arc<dyn Registry>, keep: Duration, timeout: Duration) -> Self {
        Self {
            registry,
            keep,
            timeout,
            types: Remembered::default(),
            counts: Remembered::default(),
            completeness: Remembered::default(),
        }
    }

    /// The registered types, at most as old as the cache time.
    ///
    /// # Errors
    /// The control database does not answer.
    pub async fn types(&self) -> Result<Types, RegistryError> {
        self.types_younger_than(self.keep).await
    }

    /// The types, read again if one of `names` is not among the cached ones: it may have been registered just now.
    ///
    /// # Errors
    /// The control database does not answer.
    pub async fn types_with(&self, names: &[String]) -> Result<Types, RegistryError> {
        let types = self.types().await?;
        if names.iter().all(|name| types.contains_key(name)) {
            return Ok(types);
        }
        self.types_younger_than(Self::MISS_INTERVAL.min(self.keep)).await
    }

    async fn types_younger_than(&self, age: Duration) -> Result<Types, RegistryError> {
        let (registry, timeout) = (self.registry.clone(), self.timeout);
        let read = || async move {
            fail_point!("query.types");
            let types = bounded(timeout, registry.usage_types()).await?;
            fail_point!("query.types_read");
            Ok(Arc::new(types.into_iter().map(|found| (found.name.clone(), found)).collect()))
        };
        self.types.younger_than(age, read).await
    }

    /// Registers a type; the next look sees it.
    ///
    /// # Errors
    /// The control database does not answer or refuses.
    pub async fn register(&self, new: &NewUsageType) -> Result<Registration, RegistryError> {
        fail_point!("query.register");
        let registration = bounded(self.timeout, self.registry.register(new)).await;
        fail_point!("query.registered");
        // Also after a failure: the answer may be what was lost.
        self.types.forget();
        registration
    }

    /// The partition counts, at most as old as the cache time.
    ///
    /// # Errors
    /// The control database does not answer: nobody may answer questions by older counts.
    pub async fn partition_counts(&self) -> Result<Counted, RegistryError> {
        self.counts_younger_than(self.keep).await
    }

    /// Whether an answer that is complete now and was made by these counts stands. Until twice the cache time has passed since a count
    /// was listed no row lies by it; later they are read again, since the answer may have taken, or the process slept, so long.
    ///
    /// # Errors
    /// The control database does not answer.
    pub async fn still_hold(&self, used: &Counted) -> Result<bool, RegistryError> {
        if used.began.elapsed() < self.keep * 2 {
            return Ok(true);
        }
        Ok(self.counts_younger_than(Duration::ZERO).await?.counts.known == used.counts.known)
    }

    async fn counts_younger_than(&self, age: Duration) -> Result<Counted, RegistryError> {
        let (registry, timeout) = (self.registry.clone(), self.timeout);
        let read = || {
            let began = Instant::now();
            async move {
                fail_point!("query.counts");
                let counts = bounded(timeout, registry.partition_counts()).await?;
                fail_point!("query.counts_read");
                Ok(Counted { counts, began })
            }
        };
        self.counts.younger_than(age, read).await
    }

    /// Until when each source is complete, at most a second old. Whoever shows it beside an answer asks for it before storage:
    /// what was complete then is in the answer.
    ///
    /// # Errors
    /// The control database does not answer.
    pub async fn completeness(&self) -> Result<Arc<Completeness>, RegistryError> {
        let (registry, timeout) = (self.registry.clone(), self.timeout);
        let read = || async move { Ok(Arc::new(bounded(timeout, registry.completeness()).await?)) };
        self.completeness.younger_than(Self::COMPLETENESS.min(self.keep), read).await
    }

    /// One cheap round trip to the control database.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn ping(&self) -> Result<(), RegistryError> {
        bounded(self.timeout, self.registry.ping()).await
    }
}

async fn bounded<T>(
    timeout: Duration,
    call: impl Future<Output = Result<T, RegistryError>>,
) -> Result<T, RegistryError> {
    match tokio::time::timeout(timeout, call).await {
        Ok(result) => result,
        Err(elapsed) => Err(RegistryError::Unavailable(Arc::new(elapsed))),
    }
}
