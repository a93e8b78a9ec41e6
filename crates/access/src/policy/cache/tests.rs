use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::policy::Constraints;
use crate::{Scope, SecurityContext};

const LONG: Duration = Duration::from_secs(3_600);

/// Answers with what it is told to, and counts.
#[derive(Default)]
struct Counting {
    asked: AtomicU64,
    generation: AtomicU64,
    denies: bool,
    fails: bool,
    /// Waited for before it answers.
    gate: Option<tokio::sync::Semaphore>,
}

impl Counting {
    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

#[async_trait::async_trait]
impl PolicyDecisionPoint for Counting {
    async fn decide(&self, _: &PolicyRequest<'_>) -> Result<Decision, PolicyError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if let Some(gate) = &self.gate {
            drop(gate.acquire().await);
        }
        if self.fails {
            let cause = std::io::Error::other("connection refused");
            return Err(PolicyError::Unavailable(Box::new(cause)));
        }
        Ok(if self.denies { Decision::Deny } else { Decision::Permit(Constraints::default()) })
    }

    async fn ready(&self) -> Result<(), PolicyError> {
        Ok(())
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }
}

fn cached(inner: Counting) -> (Arc<Counting>, Cached<Arc<Counting>>) {
    let inner = Arc::new(inner);
    (inner.clone(), Cached::new(inner, LONG, 100))
}

fn caller() -> SecurityContext {
    SecurityContext::for_tenant(Uuid::from_u128(1), Scopes::NONE.with(Scope::Read))
}

fn ask(context: &SecurityContext) -> PolicyRequest<'_> {
    PolicyRequest {
        principal: Principal::Caller(context),
        action: Action::Read,
        tenant_id: None,
        metric: None,
        source: None,
    }
}

#[tokio::test]
async fn a_decision_is_asked_for_once_a_denial_too() {
    for denies in [false, true] {
        let (inner, cached) = cached(Counting { denies, ..Counting::default() });
        for _ in 0..3 {
            let decision = cached.decide(&ask(&caller())).await.unwrap();
            assert_eq!(decision == Decision::Deny, denies);
        }
        assert_eq!(inner.asked(), 1);
    }
}

#[tokio::test]
async fn an_error_is_not_remembered_and_keeps_its_cause() {
    let (inner, cached) = cached(Counting { fails: true, ..Counting::default() });
    for asked in 1..=3 {
        let error = cached.decide(&ask(&caller())).await.unwrap_err();
        assert_eq!(
            usage_service::error_chain(&error),
            "the policy decision point does not answer: connection refused"
        );
        assert_eq!(inner.asked(), asked);
    }
}

#[tokio::test]
async fn the_same_question_at_the_same_time_is_put_once() {
    for fails in [false, true] {
        let gate = Some(tokio::sync::Semaphore::new(0));
        let (inner, cached) = cached(Counting { gate, fails, ..Counting::default() });
        let context = caller();
        let (request, point) = (ask(&context), &inner);
        let questions = futures::future::join_all((0..50).map(|_| cached.decide(&request)));
        // All have begun before the first is answered: the gate opens after each was polled once.
        let open = async { point.gate.as_ref().unwrap().add_permits(50) };
        let (answers, ()) = tokio::join!(questions, open);
        assert!(answers.iter().all(|answer| answer.is_err() == fails));
        assert_eq!(inner.asked(), 1);
    }
}

#[tokio::test]
async fn a_caller_that_gives_up_leaves_the_question_to_the_others() {
    let gate = Some(tokio::sync::Semaphore::new(0));
    let (inner, cached) = cached(Counting { gate, ..Counting::default() });
    let context = caller();
    let request = ask(&context);
    {
        let first = cached.decide(&request);
        futures::pin_mut!(first);
        assert!(futures::poll!(first).is_pending());
    }
    inner.gate.as_ref().unwrap().add_permits(1);
    assert!(cached.decide(&request).await.is_ok());
    assert_eq!(inner.asked(), 2);
}

#[tokio::test]
async fn new_policies_hold_at_once() {
    let (inner, cached) = cached(Counting::default());
    cached.decide(&ask(&caller())).await.unwrap();
    inner.generation.store(1, Ordering::SeqCst);
    cached.decide(&ask(&caller())).await.unwrap();
    assert_eq!((inner.asked(), cached.generation()), (2, 1));
}

#[tokio::test]
async fn a_decision_is_asked_for_again_when_its_time_is_over() {
    let inner = Arc::new(Counting::default());
    let cached = Cached::new(inner.clone(), Duration::from_millis(1), 100);
    while inner.asked() < 3 {
        cached.decide(&ask(&caller())).await.unwrap();
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn no_more_decisions_are_remembered_than_allowed() {
    let (_, cached) = cached(Counting::default());
    for tenant in 1..=1_000 {
        let context = SecurityContext { tenant_id: Uuid::from_u128(tenant), ..caller() };
        cached.decide(&ask(&context)).await.unwrap();
    }
    cached.decisions.run_pending_tasks().await;
    assert!(cached.decisions.entry_count() <= 100);
}

/// A question as plain values, from a small world so that some are alike.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    generation: u64,
    who: Who,
    action: Action,
    tenant_id: Option<Uuid>,
    metric: Option<&'static str>,
    source: Option<&'static str>,
}

impl Asked {
    fn key(&self) -> Key {
        let context;
        let principal = match &self.who {
            Who::Caller { tenant_id, subject_id, subject_type, scopes } => {
                context = SecurityContext {
                    tenant_id: *tenant_id,
                    subject_id: *subject_id,
                    subject_type: subject_type.as_deref().map(str::to_owned),
                    scopes: *scopes,
                    token_id: Some("any".into()),
                };
                Principal::Caller(&context)
            }
            Who::Source { name, home_tenant, any_tenant } => {
                Principal::Source { name, home_tenant: *home_tenant, any_tenant: *any_tenant }
            }
        };
        let request = PolicyRequest {
            principal,
            action: self.action,
            tenant_id: self.tenant_id,
            metric: self.metric,
            source: self.source,
        };
        Key::of(&request, self.generation)
    }
}

fn asked() -> impl Strategy<Value = Asked> {
    let id = || (1..=2_u128).prop_map(Uuid::from_u128);
    let word = || proptest::option::of(proptest::sample::select(&["a", "b"][..]));
    let scopes = proptest::sample::subsequence(&Scope::ALL[..2], 0..=2);
    let caller = (id(), proptest::option::of(id()), word(), scopes).prop_map(
        |(tenant_id, subject_id, typed, scopes)| Who::Caller {
            tenant_id,
            subject_id,
            subject_type: typed.map(Into::into),
            scopes: scopes.into_iter().collect(),
        },
    );
    let source =
        (proptest::sample::select(&["a", "b"][..]), proptest::option::of(id()), any::<bool>()).prop_map(
            |(name, home_tenant, any_tenant)| Who::Source { name: name.into(), home_tenant, any_tenant },
        );
    let action = proptest::sample::select(&Action::ALL[..3]);
    (0..2_u64, prop_oneof![caller, source], action, proptest::option::of(id()), word(), word()).prop_map(
        |(generation, who, action, tenant_id, metric, source)| Asked {
            generation,
            who,
            action,
            tenant_id,
            metric,
            source,
        },
    )
}

/// One thing about a question made another.
fn changed(asked: &Asked) -> Vec<Asked> {
    let mut all = vec![
        Asked { generation: asked.generation + 1, ..asked.clone() },
        Asked { metric: Some("other"), ..asked.clone() },
        Asked { source: Some("other"), ..asked.clone() },
        Asked { tenant_id: Some(Uuid::from_u128(9)), ..asked.clone() },
    ];
    let actions = Action::ALL.into_iter().filter(|action| *action != asked.action);
    all.extend(actions.map(|action| Asked { action, ..asked.clone() }));
    let nine = Some(Uuid::from_u128(9));
    let whos = match asked.who.clone() {
        Who::Caller { tenant_id, subject_id, subject_type, scopes } => {
            let caller = |tenant_id, subject_id, subject_type: &Option<Box<str>>, scopes| Who::Caller {
                tenant_id,
                subject_id,
                subject_type: subject_type.clone(),
                scopes,
            };
            let mut whos = vec![
                caller(Uuid::from_u128(9), subject_id, &subject_type, scopes),
                caller(tenant_id, nine, &subject_type, scopes),
                caller(tenant_id, subject_id, &Some("other".into()), scopes),
            ];
            let more = Scope::ALL.into_iter().filter(|scope| !scopes.contains(*scope));
            whos.extend(more.map(|scope| caller(tenant_id, subject_id, &subject_type, scopes.with(scope))));
            whos
        }
        Who::Source { name, home_tenant, any_tenant } => vec![
            Who::Source { name: "other".into(), home_tenant, any_tenant },
            Who::Source { name: name.clone(), home_tenant: nine, any_tenant },
            Who::Source { name, home_tenant, any_tenant: !any_tenant },
        ],
    };
    all.extend(whos.into_iter().map(|who| Asked { who, ..asked.clone() }));
    all
}

proptest! {
    #[test]
    fn two_questions_share_a_key_only_if_they_are_the_same(one in asked(), other in asked()) {
        prop_assert_eq!(one.key() == other.key(), one == other);
    }

    #[test]
    fn each_component_changes_the_key(asked in asked()) {
        prop_assert_eq!(asked.key(), asked.clone().key());
        for other in changed(&asked) {
            prop_assert_ne!(asked.key(), other.key(), "{:?}", other);
        }
    }
}

/// `cargo test -p usage-access --features cedar -- --ignored --nocapture what_decisions_cost`
#[cfg(feature = "cedar")]
#[tokio::test]
#[ignore = "measures; the figures mean something on a quiet machine and in a release build only"]
async fn what_decisions_cost() {
    use crate::policy::EmbeddedPolicies;
    const TIMES: u32 = 2_000;

    let policies = EmbeddedPolicies::shipped().unwrap();
    let context = SecurityContext { subject_id: Some(Uuid::from_u128(7)), ..caller() };
    let request = PolicyRequest { metric: Some("calls"), source: Some("mail"), ..ask(&context) };
    let start = std::time::Instant::now();
    for _ in 0..TIMES {
        policies.decide(&request).await.unwrap();
    }
    println!("decision of the shipped policies: {:?}", start.elapsed() / TIMES);
    let cached = Cached::new(policies, LONG, 100);
    cached.decide(&request).await.unwrap();
    let start = std::time::Instant::now();
    for _ in 0..TIMES {
        cached.decide(&request).await.unwrap();
    }
    println!("hit: {:?}", start.elapsed() / TIMES);
}
