//! What is asked before the transaction, and what becomes of the answers inside it.

use std::collections::BTreeSet;

use super::doubles::{Answer, Point, Registry, set};
use super::*;

const SOON: Duration = Duration::from_millis(1);

/// A collector that asks these two.
fn asking(point: &Arc<Point>, registry: &Arc<Registry>) -> ScopedCollector {
    let builder = UsageCollector::builder().policy(point.clone()).types(registry.clone());
    builder.authorization_timeout(SOON).build().unwrap().for_module("llm-gateway")
}

fn quantity(text: &str) -> Quantity {
    Quantity::parse(text).unwrap()
}

#[test]
fn who_decides_has_to_be_said() {
    let builder = UsageCollector::builder;
    let fault = |builder: UsageCollectorBuilder| builder.build().map(|_| ()).unwrap_err().to_string();
    let nobody = fault(builder().unchecked_types());
    assert!(nobody.contains(".policy(") && nobody.contains(".trust_scopes()"), "{nobody}");
    let nothing = fault(builder().trust_scopes());
    assert!(nothing.contains(".types(") && nothing.contains(".unchecked_types()"), "{nothing}");
    assert!(builder().trust_scopes().unchecked_types().build().is_ok());
}

#[tokio::test]
async fn both_are_asked_once_before_and_never_inside() {
    let (point, registry) = (Point::permits(Constraints::default()), Registry::whole_counters());
    let collector = asking(&point, &registry);
    let auth = collector.authorize_emit(&caller(TENANT), "llm.tokens").await.unwrap();
    for number in 0..50 {
        emit(&collector, counter().with_key(format!("k{number}")), &auth).unwrap();
    }
    let asked = ("llm.tokens".to_owned(), "llm-gateway".to_owned(), None);
    assert_eq!(*point.asked.lock().unwrap(), [asked], "which tenants is part of the answer");
    assert_eq!(*registry.asked.lock().unwrap(), ["llm.tokens"]);
}

#[tokio::test]
async fn a_denial_is_an_end_and_says_nothing_more() {
    let (point, registry) = (Point::new(Answer::Say(Decision::Deny)), Registry::whole_counters());
    let error = asking(&point, &registry).authorize_emit(&caller(TENANT), "llm.tokens").await.unwrap_err();
    assert!(matches!(&error, EmitError::Denied { metric } if metric == "llm.tokens"));
    assert_eq!(
        (error.to_string().as_str(), error.field()),
        ("emitting llm.tokens is not allowed", Some("metric"))
    );
    assert_eq!(registry.questions(), 0);
}

#[tokio::test]
async fn no_answer_is_a_refusal() {
    for answer in [Answer::Fail, Answer::Hang] {
        let (point, registry) = (Point::new(answer), Registry::whole_counters());
        let error =
            asking(&point, &registry).authorize_emit(&caller(TENANT), "llm.tokens").await.unwrap_err();
        assert!(matches!(error, EmitError::Unavailable { what: "the policy decision point", .. }));
        assert_eq!(registry.questions(), 0);
    }
    for answer in [Answer::Fail, Answer::Hang] {
        let (point, registry) = (Point::permits(Constraints::default()), Registry::new(answer));
        let error =
            asking(&point, &registry).authorize_emit(&caller(TENANT), "llm.tokens").await.unwrap_err();
        assert!(matches!(error, EmitError::Unavailable { what: "the types registry", .. }));
    }
}

#[tokio::test]
async fn a_metric_that_is_not_registered_is_refused() {
    let (point, registry) = (Point::permits(Constraints::default()), Registry::new(Answer::Say(None)));
    let error = asking(&point, &registry).authorize_emit(&caller(TENANT), "llm.tokens").await.unwrap_err();
    assert!(matches!(&error, EmitError::UnknownUsageType { metric } if metric == "llm.tokens"));
    assert_eq!(error.field(), Some("metric"));
}

#[tokio::test]
async fn a_policy_point_decides_whatever_the_scopes_say() {
    let (point, registry) = (Point::new(Answer::Say(Decision::Deny)), Registry::whole_counters());
    assert!(asking(&point, &registry).authorize_emit(&caller(TENANT), "llm.tokens").await.is_err());
    let nil = SecurityContext { tenant_id: Uuid::nil(), ..caller(TENANT) };
    let asked = point.questions();
    let error = asking(&point, &registry).authorize_emit(&nil, "llm.tokens").await.unwrap_err();
    assert!(matches!(error, EmitError::Denied { .. }));
    assert_eq!(point.questions(), asked, "nobody is no caller");
}

#[tokio::test]
async fn the_bounds_of_the_decision_bound_every_record() {
    let registry = Registry::whole_counters();
    let of = |tenants: &[Uuid]| Some(tenants.iter().copied().collect::<BTreeSet<_>>());
    let none = Constraints::default;
    // Constraints, the record's tenant, the field that is refused.
    let cases = [
        (none(), TENANT, None),
        (none(), OTHER, Some("tenant_id")),
        (Constraints { tenants: of(&[OTHER]), ..none() }, OTHER, None),
        (Constraints { tenants: of(&[OTHER]), ..none() }, TENANT, Some("tenant_id")),
        (Constraints { tenants: of(&[]), ..none() }, TENANT, Some("tenant_id")),
        (Constraints { metrics: set(&["llm.tokens", "b"]), ..none() }, TENANT, None),
        (Constraints { metrics: set(&["b"]), ..none() }, TENANT, Some("metric")),
        (Constraints { metrics: set(&[]), ..none() }, TENANT, Some("metric")),
        (Constraints { sources: set(&["llm-gateway"]), ..none() }, TENANT, None),
        (Constraints { sources: set(&["billing"]), ..none() }, TENANT, Some("source")),
        (Constraints { elevated: true, ..none() }, OTHER, Some("tenant_id")),
    ];
    for (constraints, tenant_id, refused) in cases {
        let collector = asking(&Point::permits(constraints.clone()), &registry);
        let auth = collector.authorize_emit(&caller(TENANT), "llm.tokens").await.unwrap();
        let result = emit(&collector, NewRecord { tenant_id, ..counter() }, &auth);
        match refused {
            None => assert!(result.is_ok(), "{constraints:?}"),
            Some(refused) => assert!(
                matches!(result, Err(EmitError::ConstraintViolation { field, .. }) if field == refused),
                "{constraints:?}"
            ),
        }
    }
}

#[tokio::test]
async fn the_usage_type_bounds_every_record() {
    let collector = asking(&Point::permits(Constraints::default()), &Registry::whole_counters());
    let auth = collector.authorize_emit(&caller(TENANT), "llm.tokens").await.unwrap();
    assert!(emit(&collector, NewRecord { value: quantity("1000"), ..counter() }, &auth).is_ok());
    for (record, refused) in [
        (NewRecord { value: quantity("1001"), ..counter() }, "value"),
        (NewRecord { value: quantity("1.5"), ..counter() }, "value"),
        (NewRecord::gauge(TENANT, "llm.tokens", one()), "kind"),
    ] {
        let error = emit(&collector, record, &auth).unwrap_err();
        assert!(matches!(error, EmitError::SchemaViolation { field, .. } if field == refused));
    }
}

#[tokio::test]
async fn usage_type_comes_before_what_was_authorized_and_the_size_of_metadata_last() {
    let collector = asking(&Point::permits(Constraints::default()), &Registry::whole_counters());
    let auth = collector.authorize_emit(&caller(TENANT), "llm.tokens").await.unwrap();
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(8_192));
    let mut record = NewRecord {
        tenant_id: OTHER,
        value: quantity("0.5"),
        metadata: Some(large),
        resource_type: Some("VM".into()),
        ..counter()
    };
    let fault = |record: &NewRecord| emit(&collector, record.clone(), &auth).unwrap_err();
    assert!(matches!(fault(&record), EmitError::InvalidRecord { field: "resource_type", .. }));
    record.resource_type = None;
    assert!(matches!(fault(&record), EmitError::SchemaViolation { field: "value", .. }));
    record.value = one();
    assert!(matches!(fault(&record), EmitError::ConstraintViolation { field: "tenant_id", .. }));
    record.tenant_id = TENANT;
    assert!(matches!(fault(&record), EmitError::MetadataTooLarge { .. }));
    record.metadata = Some("{}".into());
    assert!(emit(&collector, record, &auth).is_ok());
}

#[test]
fn an_authorization_is_bound_to_its_collector_and_to_all_of_its_caller() {
    let (collector, other) = (scoped(), scoped());
    let auth = authorize(&collector);
    let error = emit(&other, counter(), &auth).unwrap_err();
    assert!(matches!(error, EmitError::ConstraintViolation { field: "source", .. }), "it asks others");
    let me = caller(TENANT);
    for changed in [
        SecurityContext { scopes: Scopes::all(), ..me.clone() },
        SecurityContext { subject_type: None, ..me.clone() },
        SecurityContext { subject_id: None, ..me.clone() },
        SecurityContext { tenant_id: OTHER, ..me.clone() },
    ] {
        let error = try_emit(&collector, &changed, counter(), &auth).unwrap_err();
        assert!(matches!(error, EmitError::ConstraintViolation { field: "subject_id", .. }), "{changed:?}");
    }
    let renewed = SecurityContext { token_id: Some("new".into()), ..me };
    assert!(try_emit(&collector, &renewed, counter(), &auth).is_ok());
}

#[test]
fn an_authorization_ages_by_the_monotonic_clock_alone() {
    let collector = scoped();
    let auth = authorize(&collector);
    for hours in [-24, -1, 1, 24, 24 * 365] {
        clock::testing::step(hours * 3_600_000_000);
        let result = emit(&collector, counter(), &auth);
        clock::testing::step(0);
        assert!(result.is_ok(), "the wall clock stepped by {hours} h");
    }
    let short = trusting().authorization_max_age(SOON).build().unwrap().for_module("llm-gateway");
    let auth = authorize(&short);
    // As long as it takes, on the monotonic clock.
    while auth.age() < SOON {
        std::hint::spin_loop();
    }
    for hours in [-24, 0, 24] {
        clock::testing::step(hours * 3_600_000_000);
        let result = emit(&short, counter(), &auth);
        clock::testing::step(0);
        assert!(
            matches!(result, Err(EmitError::AuthorizationExpired)),
            "the wall clock stepped by {hours} h"
        );
    }
}

#[test]
fn what_is_shown_of_an_authorization_has_no_subject() {
    let auth = authorize(&scoped());
    let shown = format!("{auth:?}");
    assert!(shown.contains("llm.tokens") && shown.contains(&auth.nonce().to_string()));
    assert!(!shown.contains(&SUBJECT.to_string()) && !shown.contains("user"), "{shown}");
}

/// Nobody listens on port 1 of this machine.
fn unreachable() -> SourceQuota {
    let pool = sqlx::PgPool::connect_lazy("postgres://nobody@127.0.0.1:1/nothing").unwrap();
    SourceQuota::new(pool, 2, Duration::from_secs(3_600))
}

#[tokio::test]
async fn a_quota_that_was_never_heard_of_refuses_or_counts_alone() {
    let build = |quota| trusting().source_quota(quota).build().unwrap().for_module("llm-gateway");
    let error = build(unreachable()).authorize_emit(&caller(TENANT), "llm.tokens").await.unwrap_err();
    assert!(matches!(error, EmitError::QuotaUnknown { age: None }));
    let collector = build(unreachable().on_stale(usage_limits::OnError::Open));
    let auth = collector.authorize_emit(&caller(TENANT), "llm.tokens").await.unwrap();
    assert!(emit(&collector, counter(), &auth).is_ok() && emit(&collector, counter(), &auth).is_ok());
    let error = emit(&collector, counter(), &auth).unwrap_err();
    assert!(matches!(error, EmitError::RateLimitExceeded { limit: 2, .. }), "its own limit holds");
    assert!(collector.authorize_emit(&caller(TENANT), "llm.tokens").await.is_err());
}

#[tokio::test]
async fn quotas_that_cant_be_meant_are_refused() {
    let fault = |quota: SourceQuota| trusting().source_quota(quota).build().map(|_| ()).unwrap_err();
    let pool = || sqlx::PgPool::connect_lazy("postgres://nobody@127.0.0.1:1/nothing").unwrap();
    for quota in [
        SourceQuota::new(pool(), 0, Duration::from_secs(1)),
        SourceQuota::new(pool(), 1, Duration::from_millis(1_500)),
        unreachable().flush_every(Duration::ZERO),
        unreachable().flush_every(Duration::from_secs(2)),
        unreachable().stale_after(Duration::from_millis(300)),
        unreachable().schema("Odd \"s"),
    ] {
        assert!(matches!(fault(quota), BuildError::Quota(_)));
    }
}
