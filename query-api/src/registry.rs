//! What the control database tells a reader: usage types and the partition counts of the records topic, cached briefly.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::Mutex;
use usage_control::{Control, ControlError, NewUsageType, Registration, UsageType};
use usage_storage::PartitionCounts;

/// The control database failed; sorted by what the caller must do.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// Trying again may help.
    #[error("the control database is unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It would fail again.
    #[error("the control database failed")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Usage types and partition counts.
#[async_trait]
pub trait Registry: Send + Sync {
    /// All registered types.
    async fn usage_types(&self) -> Result<Vec<UsageType>, RegistryError>;
    /// Registers a type, or says that the name is taken.
    async fn register(&self, new: &NewUsageType) -> Result<Registration, RegistryError>;
    /// The counts that the records topic has had.
    async fn partition_counts(&self) -> Result<PartitionCounts, RegistryError>;
    /// One cheap round trip, for readiness.
    async fn ping(&self) -> Result<(), RegistryError>;
}

impl From<ControlError> for RegistryError {
    fn from(error: ControlError) -> Self {
        // Until the topics are made there is nothing to ask for: that passes too.
        let passes = error.may_pass() || matches!(error, ControlError::NoPartitionCount);
        if passes { Self::Unavailable(Box::new(error)) } else { Self::Failed(Box::new(error)) }
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

    async fn ping(&self) -> Result<(), RegistryError> {
        Ok(Control::ping(self).await?)
    }
}

/// Registered types by name.
pub type Types = Arc<BTreeMap<String, UsageType>>;

struct Cached<T> {
    value: T,
    read_at: Instant,
}

/// A registry with short memory. What is older than the cache time is never used: growing the topic relies on it.
pub struct Catalog {
    registry: Arc<dyn Registry>,
    /// How long an answer is used.
    keep: Duration,
    /// How long one waits for the control database.
    timeout: Duration,
    types: Mutex<Option<Cached<Types>>>,
    counts: Mutex<Option<Cached<PartitionCounts>>>,
}

impl Catalog {
    /// How often a name that is not known may send a question to the control database.
    const MISS_INTERVAL: Duration = Duration::from_secs(1);

    pub fn new(registry: Arc<dyn Registry>, keep: Duration, timeout: Duration) -> Self {
        Self { registry, keep, timeout, types: Mutex::new(None), counts: Mutex::new(None) }
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
        // Held over the read on purpose: a burst of questions asks the database once.
        let mut cached = self.types.lock().await;
        if let Some(cached) = cached.as_ref().filter(|cached| cached.read_at.elapsed() < age) {
            return Ok(cached.value.clone());
        }
        let read_at = Instant::now();
        let types = self.bounded(self.registry.usage_types()).await?;
        let value: Types =
            Arc::new(types.into_iter().map(|usage_type| (usage_type.name.clone(), usage_type)).collect());
        *cached = Some(Cached { value: value.clone(), read_at });
        Ok(value)
    }

    /// Registers a type; the next look sees it.
    ///
    /// # Errors
    /// The control database does not answer or refuses.
    pub async fn register(&self, new: &NewUsageType) -> Result<Registration, RegistryError> {
        let registration = self.bounded(self.registry.register(new)).await?;
        *self.types.lock().await = None;
        Ok(registration)
    }

    /// The partition counts, at most as old as the cache time.
    ///
    /// # Errors
    /// The control database does not answer: nobody may answer questions by older counts.
    pub async fn partition_counts(&self) -> Result<PartitionCounts, RegistryError> {
        let mut cached = self.counts.lock().await;
        if let Some(cached) = cached.as_ref().filter(|cached| cached.read_at.elapsed() < self.keep) {
            return Ok(cached.value.clone());
        }
        let read_at = Instant::now();
        let value = self.bounded(self.registry.partition_counts()).await?;
        *cached = Some(Cached { value: value.clone(), read_at });
        Ok(value)
    }

    /// One cheap round trip to the control database.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn ping(&self) -> Result<(), RegistryError> {
        self.bounded(self.registry.ping()).await
    }

    async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, RegistryError>>,
    ) -> Result<T, RegistryError> {
        match tokio::time::timeout(self.timeout, call).await {
            Ok(result) => result,
            Err(elapsed) => Err(RegistryError::Unavailable(Box::new(elapsed))),
        }
    }
}
