//! Whatever is asked under whatever policy: nothing that is refused gets behind the door, and nothing gets out beyond the bounds.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use usage_access::policy::{Action, Constraints};
use usage_access::{Scopes, SecurityContext};
use usage_query_api::grant::{Grant, Named};
use usage_query_api::store::{Bounds, Store};
use usage_schemas::Kind;
use usage_storage::{RawQuery, StatusFilter};
use uuid::Uuid;

use crate::memory::{Memory, record};
use crate::policy::{Says, Scripted};
use crate::support::{Answer, Harness, bearer};

/// No name is part of another one, of a unit or of a parameter.
const METRICS: [&str; 4] = ["alpha.count", "beta.count", "gamma.count", "delta.count"];
const SOURCES: [&str; 3] = ["mill", "forge", "quay"];
const OWN: Uuid = Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0001);
const OTHER: Uuid = Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0002);

fn names(pool: &'static [&'static str]) -> impl Strategy<Value = Option<BTreeSet<String>>> {
    option::of(btree_set(select(pool).prop_map(str::to_owned), 0..=pool.len()))
}

fn says() -> impl Strategy<Value = Says> {
    let tenants = option::weighted(0.3, btree_set(select(&[OWN, OTHER][..]), 0..=2));
    let permits = (tenants, names(&METRICS), names(&SOURCES))
        .prop_map(|(tenants, metrics, sources)| Constraints { tenants, metrics, sources, elevated: false })
        .prop_map(Says::Permit);
    prop_oneof![
        6 => permits,
        1 => Just(Says::Shipped),
        1 => Just(Says::Deny),
        1 => Just(Says::Unavailable),
        1 => Just(Says::Invalid),
    ]
}

#[derive(Debug, Clone)]
struct Asked {
    method: &'static str,
    uri: String,
    accept: &'static str,
    body: String,
}

fn asked() -> impl Strategy<Value = Asked> {
    let question = (
        select(&["aggregated", "raw"][..]),
        vec(select(&METRICS[..]), 0..3),
        vec(select(&["mill", "forge", "quay", "there.is.none"][..]), 0..3),
        select(
            &["", "&group_by=metric", "&group_by=metric,source", "&nonsense=1", "&status=all", "&fill=zero"]
                [..],
        ),
    )
        .prop_map(|(path, metrics, sources, rest)| {
            let metrics: String = metrics.iter().map(|metric| format!("&metric={metric}")).collect();
            let sources: String = sources.iter().map(|source| format!("&source={source}")).collect();
            format!("{path}?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z{metrics}{sources}{rest}")
        });
    let record = (0..24_u128).prop_map(|at| format!("records/{}", Uuid::from_u128(OWN.as_u128() << 8 | at)));
    let other = prop_oneof![
        Just("types".to_owned()),
        Just("metadata/watermarks".to_owned()),
        select(&METRICS[..]).prop_map(|metric| format!("types/{metric}")),
        Just(format!("allowances/{OWN}")),
    ];
    let path = prop_oneof![5 => question, 2 => record, 2 => other];
    let accept = select(&["application/json", "text/csv", "application/x-ndjson", "image/png"][..]);
    let get = (path, accept).prop_map(|(path, accept)| Asked {
        method: "GET",
        uri: format!("/v1/usage/{path}"),
        accept,
        body: String::new(),
    });
    let post = select(&METRICS[..]).prop_map(|name| Asked {
        method: "POST",
        uri: "/v1/usage/types".to_owned(),
        accept: "application/json",
        body: format!(r#"{{"name":"{name}","kind":"counter","unit":"piece"}}"#),
    });
    prop_oneof![9 => get, 1 => post]
}

/// One record of each metric from each source, of the own tenant and of another one.
fn filled() -> Harness {
    let mut api = Harness::new();
    api.tenant = OWN;
    let mut at = 0;
    for tenant in [OWN, OTHER] {
        for metric in METRICS {
            for source in SOURCES {
                let mut found = record(tenant, metric, "1", "2026-01-01T01:00:00Z");
                found.source = source.to_owned();
                found.record_id = Uuid::from_u128(OWN.as_u128() << 8 | at);
                api.memory.add(found);
                at += 1;
            }
        }
    }
    for metric in METRICS {
        api.registry.put(metric, Kind::Counter, "piece");
    }
    api
}

/// True if the policy leaves nothing of the action, whatever is asked.
fn is_refused(says: &Says, uri: &str) -> bool {
    let Says::Permit(bounds) = says else { return *says != Says::Shipped };
    let sourceless = uri.starts_with("/v1/usage/types") || uri.starts_with("/v1/usage/allowances");
    let empty = |bound: &Option<BTreeSet<String>>| bound.as_ref().is_some_and(BTreeSet::is_empty);
    bounds.tenants.as_ref().is_some_and(|tenants| !tenants.contains(&OWN))
        || empty(&bounds.metrics)
        || empty(&bounds.sources)
        || (sourceless && bounds.sources.is_some())
}

fn check(api: &Harness, says: &Says, asked: &Asked, answer: &Answer) {
    let status = answer.status.as_u16();
    let cell = format!("{asked:?} under {says:?}: {status} {}", answer.text);
    if is_refused(says, &asked.uri) {
        assert_eq!(status, if *says == Says::Unavailable { 503 } else { 403 }, "{cell}");
    }
    assert!(matches!(status, 200 | 201 | 400 | 403 | 404 | 406 | 503), "{cell}");
    if matches!(status, 400 | 403 | 406 | 503) {
        assert_eq!(api.memory.calls(), 0, "{cell}");
    }
    if matches!(status, 403 | 406 | 503) {
        assert_eq!(api.registry.calls(), 0, "{cell}");
    }
    let none = Constraints::default();
    let bounds = if let Says::Permit(bounds) = says { bounds } else { &none };
    let inside = |bound: &Option<BTreeSet<String>>, asked: &[String]| {
        bound.as_ref().is_none_or(|bound| !asked.is_empty() && asked.iter().all(|name| bound.contains(name)))
    };
    for question in api.memory.questions() {
        assert_eq!(question.tenant_id, OWN, "{cell}");
        if let Some((metrics, sources)) = question.filters {
            assert!(inside(&bounds.metrics, &metrics) && inside(&bounds.sources, &sources), "{cell}");
        }
    }
    let outside = |bound: &Option<BTreeSet<String>>, name: &str| {
        bound.as_ref().is_some_and(|bound| !bound.contains(name))
    };
    let hidden = METRICS.into_iter().filter(|name| outside(&bounds.metrics, name));
    let hidden = hidden.chain(SOURCES.into_iter().filter(|name| outside(&bounds.sources, name)));
    for name in hidden {
        assert!(!answer.text.contains(name), "{name}: {cell}");
    }
    assert!(!answer.text.contains(&OTHER.to_string()), "{cell}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, ..ProptestConfig::default() })]

    #[test]
    fn nothing_refused_reaches_storage_and_nothing_leaves_beyond_the_bounds(says in says(), asked in asked()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let api = filled();
            api.policy.says(says.clone());
            let request = Request::builder()
                .method(asked.method)
                .uri(&asked.uri)
                .header("accept", asked.accept)
                .header("content-type", "application/json")
                .header("authorization", bearer(OWN, Scopes::all()));
            let answer = api.send(request.body(Body::from(asked.body.clone())).unwrap()).await;
            check(&api, &says, &asked, &answer);
        });
    }
}

/// The last look, for the day on which a handler forgets the bounds.
#[tokio::test]
async fn a_question_beyond_the_grant_is_not_asked() {
    let memory = Arc::new(Memory::default());
    let store = Store::new("memory", memory.clone(), Bounds::default());
    let policy = Scripted::default();
    policy.says(Says::limited(&["alpha.count"], &["mill"]));
    let context = SecurityContext::for_tenant(OWN, Scopes::NONE);
    let grant = Grant::ask(&policy, &context, Action::Read, Named::NOTHING).await.unwrap();
    let question = |tenant_id, metrics: &[&str], sources: &[&str]| {
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        RawQuery {
            tenant_id,
            metrics: texts(metrics),
            from: 0,
            to: 1,
            status: StatusFilter::All,
            sources: texts(sources),
            subject_ids: Vec::new(),
            subject_types: Vec::new(),
            resource_ids: Vec::new(),
            resource_types: Vec::new(),
            after: None,
            limit: 1,
        }
    };
    for forgotten in [
        question(OWN, &[], &["mill"]),
        question(OWN, &["alpha.count"], &[]),
        question(OWN, &["alpha.count", "beta.count"], &["mill"]),
        question(OTHER, &["alpha.count"], &["mill"]),
    ] {
        assert_eq!(
            store.raw(&grant, &forgotten).await.unwrap_err().0.status().as_u16(),
            500,
            "{forgotten:?}"
        );
    }
    assert_eq!(memory.calls(), 0);
    store.raw(&grant, &question(OWN, &["alpha.count"], &["mill"])).await.unwrap();
    assert_eq!(memory.calls(), 1);
}
