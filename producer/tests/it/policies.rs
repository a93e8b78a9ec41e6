//! The policy decision point and real policies before the transaction, their bounds inside it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use usage_access::policy::{Cached, EmbeddedPolicies, Look};
use usage_producer::{EmitError, NewRecord, UsageCollector};
use usage_schemas::Quantity;
use uuid::Uuid;

use crate::support::{Source, caller};

const RESELLER: Uuid = Uuid::from_u128(0xa0);
const CUSTOMER: Uuid = Uuid::from_u128(0xb0);

fn record(tenant: Uuid, metric: &str, key: &str) -> NewRecord {
    NewRecord::counter(tenant, metric, Quantity::parse("1").unwrap(), key)
}

fn write(folder: &Path, tenants: &str) {
    let policy = format!(
        r#"
        @id("reseller")
        @tenants("{tenants}")
        @metrics("llm.tokens, llm.requests")
        @sources("llm-gateway")
        permit (principal is Caller, action == Action::"emit", resource)
        when {{ principal.scopes.contains(Scope::"usage:emit") }};
        "#
    );
    std::fs::write(folder.join("reseller.cedar"), policy).unwrap();
}

#[tokio::test]
async fn policies_bound_tenants_metrics_and_sources_of_what_is_emitted() {
    let (source, folder) = (Source::new().await, tempfile::tempdir().unwrap());
    write(folder.path(), "own, 00000000-0000-0000-0000-0000000000b0");
    let policies = Arc::new(EmbeddedPolicies::open(folder.path()).unwrap());
    let point = Arc::new(Cached::new(policies.clone(), Duration::from_secs(60), 100));
    let usage = UsageCollector::builder().policy(point).unchecked_types().build().unwrap();
    let (gateway, ctx) = (usage.for_module("llm-gateway"), caller(RESELLER));
    let denied = |result: Result<_, EmitError>| matches!(result, Err(EmitError::Denied { .. }));
    assert!(denied(gateway.authorize_emit(&ctx, "vm.hours").await), "a metric that is not listed");
    assert!(denied(usage.for_module("billing").authorize_emit(&ctx, "llm.tokens").await), "another source");

    let auth = gateway.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let mut tx = source.pool.begin().await.unwrap();
    for tenant in [RESELLER, CUSTOMER] {
        gateway.emit(&mut tx, &ctx, record(tenant, "llm.tokens", "k"), &auth).await.unwrap();
    }
    for (other, field) in [
        (record(Uuid::from_u128(0xc0), "llm.tokens", "k"), "tenant_id"),
        (record(RESELLER, "llm.requests", "k"), "metric"),
    ] {
        let error = gateway.emit(&mut tx, &ctx, other, &auth).await.unwrap_err();
        assert!(matches!(error, EmitError::ConstraintViolation { field: found, .. } if found == field));
    }

    // The customer is taken away: the next authorization knows, and this one ends with its age.
    write(folder.path(), "own");
    assert_eq!([policies.look(), policies.look()], [Look::Changing, Look::Taken]);
    let later = gateway.authorize_emit(&ctx, "llm.tokens").await.unwrap();
    let error = gateway.emit(&mut tx, &ctx, record(CUSTOMER, "llm.tokens", "k2"), &later).await.unwrap_err();
    assert!(matches!(error, EmitError::ConstraintViolation { field: "tenant_id", .. }));
    gateway.emit(&mut tx, &ctx, record(CUSTOMER, "llm.tokens", "k3"), &auth).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(source.count("usage_outbox").await, 3);
}
