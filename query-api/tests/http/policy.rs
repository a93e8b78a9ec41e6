//! A policy decision point that says what a test tells it, and remembers what it was asked.

use std::collections::BTreeSet;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use usage_access::policy::{
    Action, Constraints, Decision, EmbeddedPolicies, PolicyDecisionPoint, PolicyError, PolicyRequest,
    Principal,
};
use uuid::Uuid;

/// What is decided of every question.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Says {
    /// What the policies say that come with the program: as the token's scopes say.
    #[default]
    Shipped,
    /// Whatever the scopes are.
    Permit(Constraints),
    /// Every metric by its name but this one, so not all at once.
    AllBut(&'static str),
    Deny,
    Unavailable,
    Invalid,
    Hangs,
}

impl Says {
    /// Permits these metrics and sources; an empty list is no bound.
    pub fn limited(metrics: &[&str], sources: &[&str]) -> Self {
        let set = |names: &[&str]| -> Option<BTreeSet<String>> {
            (!names.is_empty()).then(|| names.iter().map(|name| (*name).to_owned()).collect())
        };
        Self::Permit(Constraints { metrics: set(metrics), sources: set(sources), ..Constraints::default() })
    }
}

/// One question that was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub action: Action,
    pub tenant_id: Option<Uuid>,
    pub metric: Option<String>,
    pub source: Option<String>,
}

#[derive(Debug, Default)]
pub struct Scripted {
    says: Mutex<Says>,
    asked: Mutex<Vec<Question>>,
}

impl Scripted {
    pub fn says(&self, says: Says) {
        *lock(&self.says) = says;
    }

    /// What it was asked since this was called last.
    pub fn asked(&self) -> Vec<Question> {
        std::mem::take(&mut *lock(&self.asked))
    }
}

#[async_trait::async_trait]
impl PolicyDecisionPoint for Scripted {
    async fn decide(&self, request: &PolicyRequest<'_>) -> Result<Decision, PolicyError> {
        let PolicyRequest { principal, action, tenant_id, metric, source } = *request;
        assert!(matches!(principal, Principal::Caller(_)), "the API has callers only");
        let (metric, source) = (metric.map(str::to_owned), source.map(str::to_owned));
        lock(&self.asked).push(Question { action, tenant_id, metric, source });
        let says = lock(&self.says).clone();
        match says {
            Says::Shipped => shipped().decide(request).await,
            Says::Permit(bounds) => Ok(Decision::Permit(bounds)),
            Says::AllBut(secret) => match request.metric {
                Some(metric) if metric != secret => Ok(Decision::Permit(Constraints::default())),
                _ => Ok(Decision::Deny),
            },
            Says::Deny => Ok(Decision::Deny),
            Says::Unavailable => {
                Err(PolicyError::Unavailable("secret-pdp.internal: connection refused".into()))
            }
            Says::Invalid => Err(PolicyError::InvalidAnswer { detail: "secret nonsense".to_owned() }),
            Says::Hangs => std::future::pending().await,
        }
    }

    async fn ready(&self) -> Result<(), PolicyError> {
        match *lock(&self.says) {
            Says::Unavailable => {
                Err(PolicyError::Unavailable("secret-pdp.internal: connection refused".into()))
            }
            Says::Invalid => Err(PolicyError::InvalidAnswer { detail: "secret nonsense".to_owned() }),
            _ => Ok(()),
        }
    }
}

fn shipped() -> &'static EmbeddedPolicies {
    static POLICIES: LazyLock<EmbeddedPolicies> = LazyLock::new(|| EmbeddedPolicies::shipped().unwrap());
    &POLICIES
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
