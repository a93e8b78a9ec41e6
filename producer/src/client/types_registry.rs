//! The types registry as a source sees it: all usage types as the query-api lists them, remembered.
//!
//! What is remembered serves for [`Freshness::fresh`]; after that it still serves while it is read again beside, and while the
//! registry is away for at most [`Freshness::stale`]. A name that is not remembered is asked for before it is refused, at most once per
//! [`Freshness::pause`]. Nothing remembered, or too old, and no answer: an error, so that nothing is emitted unjudged.

mod http;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use tokio::sync::Mutex;
use usage_schemas::{CompiledType, RegistryError, TypesRegistry, UsageType};

pub use http::{HttpRegistryError, QueryApi, TokenSource};

/// How long usage types are remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freshness {
    /// After this they are read again, beside what goes on with them.
    pub fresh: Duration,
    /// After this they are not used any more. A version that demands more begins at least 10 minutes after its registration: a source
    /// whose registry is away for longer may emit what the consumer then refuses.
    pub stale: Duration,
    /// Between two questions, answered or not.
    pub pause: Duration,
}

impl Default for Freshness {
    /// 30 s, 1 h, 1 s.
    fn default() -> Self {
        Self {
            fresh: Duration::from_secs(30),
            stale: Duration::from_secs(3_600),
            pause: Duration::from_secs(1),
        }
    }
}

/// All types at one time, and what tells whether they have changed since.
#[derive(Debug, Clone)]
pub struct Listed {
    pub types: Vec<UsageType>,
    pub etag: Option<String>,
}

/// Where all types are listed.
#[async_trait]
pub trait TypesList: Send + Sync {
    /// All types; `None` if they are the same as those that came with `etag`.
    ///
    /// # Errors
    /// No answer that can be used.
    async fn list(&self, etag: Option<&str>) -> Result<Option<Listed>, RegistryError>;
}

/// A [`TypesRegistry`] that remembers. Clones share what is remembered.
#[derive(Clone)]
pub struct RememberedTypes(Arc<Shared>);

struct Shared {
    list: Box<dyn TypesList>,
    freshness: Freshness,
    snapshot: ArcSwapOption<Snapshot>,
    /// Held by the one who asks: when a question last failed.
    asking: Mutex<Option<Instant>>,
}

struct Snapshot {
    types: HashMap<String, Arc<CompiledType>>,
    etag: Option<String>,
    /// When the question was sent that it answers.
    asked: Instant,
}

impl RememberedTypes {
    pub fn new(list: impl TypesList + 'static, freshness: Freshness) -> Self {
        Self(Arc::new(Shared {
            list: Box::new(list),
            freshness,
            snapshot: ArcSwapOption::empty(),
            asking: Mutex::new(None),
        }))
    }

    /// Reads the types, so that the first emit finds them remembered.
    ///
    /// # Errors
    /// No answer that can be used.
    pub async fn warm(&self) -> Result<(), RegistryError> {
        self.0.read_again().await.map(drop)
    }
}

#[async_trait]
impl TypesRegistry for RememberedTypes {
    async fn usage_type(&self, name: &str) -> Result<Option<Arc<CompiledType>>, RegistryError> {
        let freshness = self.0.freshness;
        let remembered = self.0.snapshot.load_full().filter(|found| found.asked.elapsed() < freshness.stale);
        if let Some(snapshot) = remembered
            && let Some(found) = snapshot.types.get(name)
        {
            if snapshot.asked.elapsed() >= freshness.fresh && self.0.asking.try_lock().is_ok() {
                let shared = self.0.clone();
                tokio::spawn(async move {
                    if let Err(error) = shared.read_again().await {
                        tracing::debug!(error = %usage_service::error_chain(&error), "usage types can't be read again");
                    }
                });
            }
            return Ok(Some(found.clone()));
        }
        Ok(self.0.read_again().await?.types.get(name).cloned())
    }
}

impl Shared {
    /// What is not older than the pause: remembered, being read, or read now.
    async fn read_again(&self) -> Result<Arc<Snapshot>, RegistryError> {
        let mut failed = self.asking.lock().await;
        let remembered = self.snapshot.load_full();
        if let Some(young) = remembered.as_ref().filter(|found| found.asked.elapsed() < self.freshness.pause)
        {
            return Ok(young.clone());
        }
        if failed.is_some_and(|failed| failed.elapsed() < self.freshness.pause) {
            return Err(RegistryError::Unavailable("it did not answer a moment ago".into()));
        }
        let asked = Instant::now();
        let etag = remembered.as_ref().and_then(|found| found.etag.as_deref());
        let snapshot = match self.list.list(etag).await {
            Ok(Some(listed)) => {
                Snapshot { types: compiled(listed.types, remembered.as_deref()), etag: listed.etag, asked }
            }
            Ok(None) => match remembered {
                Some(same) => Snapshot { types: same.types.clone(), etag: same.etag.clone(), asked },
                None => return Err(RegistryError::Unusable("nothing was said to be unchanged".into())),
            },
            Err(error) => {
                *failed = Some(Instant::now());
                return Err(error);
            }
        };
        let snapshot = Arc::new(snapshot);
        self.snapshot.store(Some(snapshot.clone()));
        Ok(snapshot)
    }
}

/// Makes types ready for judging, those that did not change as they were. One that can't be refuses its records.
fn compiled(types: Vec<UsageType>, former: Option<&Snapshot>) -> HashMap<String, Arc<CompiledType>> {
    let compile = |usage_type: UsageType| match former.and_then(|former| former.types.get(&usage_type.name)) {
        Some(same) if *same.usage_type() == usage_type => same.clone(),
        _ => Arc::new(CompiledType::new(usage_type.clone()).unwrap_or_else(|error| {
            tracing::error!(error = %error, "records of a usage type are refused");
            CompiledType::refusing(usage_type)
        })),
    };
    types.into_iter().map(|usage_type| (usage_type.name.clone(), compile(usage_type))).collect()
}

#[cfg(test)]
mod tests;
