//! Policy points and registries that say what they are told to, and remember what they were asked.

use std::collections::BTreeSet;
use std::sync::Mutex;

use usage_access::policy::{PolicyDecisionPoint, PolicyError};
use usage_schemas::{CompiledType, RegistryError, Rules, TypeVersion, TypesRegistry, UsageType};

use super::*;

/// What a double does with each question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer<T> {
    Say(T),
    Fail,
    /// Never answers.
    Hang,
}

pub struct Point {
    pub answer: Answer<Decision>,
    /// Metric, source and tenant of each question.
    pub asked: Mutex<Vec<(String, String, Option<Uuid>)>>,
}

impl Point {
    pub fn new(answer: Answer<Decision>) -> Arc<Self> {
        Arc::new(Self { answer, asked: Mutex::default() })
    }

    pub fn permits(constraints: Constraints) -> Arc<Self> {
        Self::new(Answer::Say(Decision::Permit(constraints)))
    }

    pub fn questions(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

#[async_trait::async_trait]
impl PolicyDecisionPoint for Point {
    async fn decide(&self, request: &PolicyRequest<'_>) -> Result<Decision, PolicyError> {
        assert_eq!((request.action, request.principal), (Action::Emit, Principal::Caller(&caller(TENANT))));
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        self.asked.lock().unwrap().push((text(request.metric), text(request.source), request.tenant_id));
        match &self.answer {
            Answer::Say(decision) => Ok(decision.clone()),
            Answer::Fail => Err(PolicyError::InvalidAnswer { detail: "none".into() }),
            Answer::Hang => std::future::pending().await,
        }
    }

    async fn ready(&self) -> Result<(), PolicyError> {
        Ok(())
    }
}

pub struct Registry {
    pub answer: Answer<Option<Arc<CompiledType>>>,
    pub asked: Mutex<Vec<String>>,
}

impl Registry {
    pub fn new(answer: Answer<Option<Arc<CompiledType>>>) -> Arc<Self> {
        Arc::new(Self { answer, asked: Mutex::default() })
    }

    /// Knows a counter of whole numbers of at most 1,000 under every name.
    pub fn whole_counters() -> Arc<Self> {
        let version = TypeVersion {
            version: 1,
            valid_from: None,
            kind: Kind::Counter,
            unit: "token".into(),
            description: None,
            rules: Rules { integer: true, max: Some(Quantity::parse("1000").unwrap()), ..Rules::default() },
            created_at: Timestamp::from_micros(0),
        };
        let usage_type = UsageType { name: "llm.tokens".into(), versions: vec![version] };
        Self::new(Answer::Say(Some(Arc::new(CompiledType::new(usage_type).unwrap()))))
    }

    pub fn questions(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

#[async_trait::async_trait]
impl TypesRegistry for Registry {
    async fn usage_type(&self, name: &str) -> Result<Option<Arc<CompiledType>>, RegistryError> {
        self.asked.lock().unwrap().push(name.to_owned());
        match &self.answer {
            Answer::Say(found) => Ok(found.clone()),
            Answer::Fail => Err(RegistryError::Unavailable("away".into())),
            Answer::Hang => std::future::pending().await,
        }
    }
}

pub fn set(names: &[&str]) -> Option<BTreeSet<String>> {
    Some(names.iter().map(|name| (*name).to_owned()).collect())
}
