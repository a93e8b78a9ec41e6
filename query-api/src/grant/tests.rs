use std::sync::Mutex;

use usage_access::Scopes;
use usage_schemas::{Kind, Quantity};

use super::*;

const TENANT: Uuid = Uuid::from_u128(7);

/// Answers once, with what it was given, and remembers the question.
struct Once {
    answer: Mutex<Option<Result<Decision, PolicyError>>>,
    asked: Mutex<Vec<Question>>,
}

type Question = (Action, Option<Uuid>, Option<String>);

#[async_trait::async_trait]
impl PolicyDecisionPoint for Once {
    async fn decide(&self, request: &PolicyRequest<'_>) -> Result<Decision, PolicyError> {
        let question = (request.action, request.tenant_id, request.metric.map(str::to_owned));
        self.asked.lock().unwrap().push(question);
        let answer = self.answer.lock().unwrap().take();
        match answer {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    async fn ready(&self) -> Result<(), PolicyError> {
        Ok(())
    }
}

async fn ask(
    answer: Option<Result<Decision, PolicyError>>,
    action: Action,
    named: Named<'_>,
) -> Result<Grant, Failure> {
    let policy = Once { answer: Mutex::new(answer), asked: Mutex::default() };
    let granted =
        Grant::ask(&policy, &SecurityContext::for_tenant(TENANT, Scopes::NONE), action, named).await;
    let metric = named.metric.map(str::to_owned);
    assert_eq!(
        *policy.asked.lock().unwrap(),
        [(action, Some(TENANT), metric)],
        "asked once, for the own tenant"
    );
    granted
}

async fn permit(bounds: Constraints, action: Action, named: Named<'_>) -> Result<Grant, Failure> {
    ask(Some(Ok(Decision::Permit(bounds))), action, named).await
}

fn set(names: &[&str]) -> Option<BTreeSet<String>> {
    Some(names.iter().map(|name| (*name).to_owned()).collect())
}

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn filters(metrics: &[&str], sources: &[&str]) -> Filters {
    Filters { metrics: texts(metrics), sources: texts(sources), ..Filters::default() }
}

async fn limited() -> Grant {
    let bounds = Constraints {
        metrics: set(&["bytes", "tokens"]),
        sources: set(&["edge", "gateway"]),
        ..Constraints::default()
    };
    permit(bounds, Action::Read, Named::NOTHING).await.unwrap()
}

#[tokio::test]
async fn a_doubt_is_a_refusal_and_reads_like_any_other() {
    let foreign = Constraints { tenants: Some([Uuid::from_u128(8)].into()), ..Constraints::default() };
    let refusals = [
        ask(Some(Ok(Decision::Deny)), Action::Read, Named::NOTHING).await,
        ask(Some(Err(PolicyError::InvalidAnswer { detail: "secret".into() })), Action::Read, Named::NOTHING)
            .await,
        permit(foreign, Action::Read, Named::NOTHING).await,
        permit(
            Constraints { tenants: Some([].into()), ..Constraints::default() },
            Action::Read,
            Named::NOTHING,
        )
        .await,
        permit(Constraints { metrics: set(&[]), ..Constraints::default() }, Action::Read, Named::NOTHING)
            .await,
        permit(Constraints { sources: set(&[]), ..Constraints::default() }, Action::Read, Named::NOTHING)
            .await,
        permit(
            Constraints { metrics: set(&["a"]), ..Constraints::default() },
            Action::Read,
            Named::metric("b"),
        )
        .await,
    ];
    let texts: BTreeSet<String> =
        refusals.into_iter().map(|refused| refused.unwrap_err().0.to_string()).collect();
    assert_eq!(texts, [Failure::refused(Action::Read).0.to_string()].into());
    let own = Constraints { tenants: Some([TENANT, Uuid::from_u128(8)].into()), ..Constraints::default() };
    assert_eq!(permit(own, Action::Read, Named::NOTHING).await.unwrap().tenant_id(), TENANT);
}

#[tokio::test(start_paused = true)]
async fn no_answer_is_told_apart_from_a_refusal() {
    let away = Some(Err(PolicyError::Unavailable("connection refused".into())));
    for answer in [away, None] {
        let failure = ask(answer, Action::Read, Named::NOTHING).await.unwrap_err();
        assert_eq!(failure.0.status().as_u16(), 503);
        assert!(!failure.0.to_string().contains("connection refused"));
    }
}

#[tokio::test]
async fn a_bound_that_can_not_be_held_refuses() {
    let by_source = || Constraints { sources: set(&["gateway"]), ..Constraints::default() };
    for action in [Action::ReadTypes, Action::RegisterType, Action::ReadAllowances] {
        assert!(permit(by_source(), action, Named::NOTHING).await.is_err(), "{action:?}");
        assert!(permit(Constraints::default(), action, Named::NOTHING).await.is_ok(), "{action:?}");
    }
    assert!(permit(by_source(), Action::Read, Named::NOTHING).await.is_ok());
}

#[tokio::test]
async fn filters_become_what_is_named_or_else_all_that_may_be_seen() {
    let grant = limited().await;
    let all = filters(&["bytes", "tokens"], &["edge", "gateway"]);
    assert_eq!(grant.narrow(&Filters::default()).unwrap(), all);
    let one = filters(&["tokens"], &[]);
    assert_eq!(grant.narrow(&one).unwrap(), filters(&["tokens"], &["edge", "gateway"]));
    for outside in [filters(&["level"], &[]), filters(&["bytes", "level"], &[]), filters(&[], &["mail"])] {
        assert_eq!(grant.narrow(&outside).unwrap_err().0.status().as_u16(), 403, "{outside:?}");
    }
    // Whoever has no bounds keeps the filters as they are.
    let free = permit(Constraints::default(), Action::Read, Named::NOTHING).await.unwrap();
    assert_eq!(free.narrow(&one).unwrap(), one);
    assert_eq!(free.narrow(&Filters::default()).unwrap(), Filters::default());
}

#[tokio::test]
async fn bounds_beyond_one_question_must_be_narrowed_by_the_caller() {
    let many: BTreeSet<String> = (0..=MOST_BOUNDS).map(|at| format!("m{at}")).collect();
    let bounds = Constraints { metrics: Some(many), ..Constraints::default() };
    let grant = permit(bounds, Action::Read, Named::NOTHING).await.unwrap();
    assert_eq!(grant.narrow(&Filters::default()).unwrap_err().0.status().as_u16(), 422);
    assert_eq!(grant.watermarks().unwrap_err().0.status().as_u16(), 422);
    let named = filters(&["m0", "m100"], &[]);
    assert_eq!(grant.narrow(&named).unwrap(), named);
}

#[tokio::test]
async fn nothing_beyond_the_bounds_passes_the_last_look() {
    let grant = limited().await;
    for (metrics, sources, held) in [
        (&["tokens"][..], &["gateway"][..], true),
        (&["bytes", "tokens"], &["edge", "gateway"], true),
        (&[], &["gateway"], false),
        (&["tokens"], &[], false),
        (&["tokens", "level"], &["gateway"], false),
        (&["tokens"], &["mail"], false),
    ] {
        assert_eq!(grant.holds(TENANT, &texts(metrics), &texts(sources)), held, "{metrics:?} {sources:?}");
        assert!(!grant.holds(Uuid::from_u128(8), &texts(metrics), &texts(sources)));
    }
    // A permission for one metric is none for another, nor for all.
    let one = permit(Constraints::default(), Action::Read, Named::metric("tokens")).await.unwrap();
    assert!(one.holds(TENANT, &texts(&["tokens"]), &[]));
    assert!(!one.holds(TENANT, &texts(&["bytes"]), &[]) && !one.holds(TENANT, &[], &[]));
}

#[tokio::test]
async fn a_record_is_covered_by_its_tenant_metric_and_source() {
    let grant = limited().await;
    let record = |tenant_id, metric: &str, source: &str| StoredRecord {
        record_id: Uuid::from_u128(1),
        tenant_id,
        source: source.to_owned(),
        metric: metric.to_owned(),
        kind: Kind::Counter,
        value: Quantity::parse("1").unwrap(),
        timestamp: 0,
        idempotency_key: None,
        resource_id: None,
        resource_type: None,
        subject_id: None,
        subject_type: None,
        metadata: None,
        active: true,
        ingested_at: 0,
        inactive_at: None,
        version: 1,
    };
    assert!(grant.covers(&record(TENANT, "tokens", "gateway")));
    for outside in [
        record(Uuid::from_u128(8), "tokens", "gateway"),
        record(TENANT, "level", "gateway"),
        record(TENANT, "tokens", "mail"),
    ] {
        assert!(!grant.covers(&outside));
    }
}

#[test]
fn only_one_single_name_is_named() {
    let named =
        |metrics: &[&str]| Named::filters(Some(&filters(metrics, &["edge"]))).metric.map(str::to_owned);
    assert_eq!(named(&["tokens"]).as_deref(), Some("tokens"));
    for nobody in [&[][..], &["bytes", "tokens"], &["x') OR 1=1 --"], &["Tokens"]] {
        assert_eq!(named(nobody), None, "{nobody:?}");
    }
    assert_eq!(Named::filters(Some(&filters(&[], &["edge"]))).source, Some("edge"));
    assert_eq!(Named::metric("a b").metric, None);
}
