//! What is remembered of the control database, and for how long.

use std::sync::Arc;
use std::time::Duration;

use usage_control::{ControlError, NewUsageType};
use usage_query_api::registry::{Catalog, RegistryError};
use usage_schemas::Kind;

use crate::memory::MemoryRegistry;
use crate::support::Harness;

fn catalog(keep: Duration) -> (Catalog, Arc<MemoryRegistry>) {
    let registry = Arc::new(MemoryRegistry::default());
    registry.put("tokens", Kind::Counter, "token");
    (Catalog::new(registry.clone(), keep, Duration::from_secs(5)), registry)
}

#[tokio::test]
async fn types_are_read_once_while_they_are_young() {
    let (catalog, registry) = catalog(Duration::from_secs(60));
    for _ in 0..10 {
        assert!(catalog.types_with(&["tokens".to_owned()]).await.unwrap().contains_key("tokens"));
    }
    assert_eq!(registry.reads(), 1);
}

#[tokio::test]
async fn what_is_too_old_is_not_used_even_if_the_database_is_away() {
    let (catalog, registry) = catalog(Duration::ZERO);
    catalog.types().await.unwrap();
    catalog.partition_counts().await.unwrap();
    registry.set_away(true);
    assert!(matches!(catalog.types().await, Err(RegistryError::Unavailable(_))));
    assert!(matches!(catalog.partition_counts().await, Err(RegistryError::Unavailable(_))));
}

#[tokio::test]
async fn what_is_young_is_used_while_the_database_is_away() {
    let (catalog, registry) = catalog(Duration::from_secs(60));
    catalog.types().await.unwrap();
    catalog.partition_counts().await.unwrap();
    registry.set_away(true);
    assert_eq!(catalog.types().await.unwrap().len(), 1);
    assert_eq!(catalog.partition_counts().await.unwrap().counts.known, [12]);
}

#[tokio::test]
async fn unknown_names_ask_again_but_not_at_every_request() {
    let (catalog, registry) = catalog(Duration::from_secs(60));
    let started = std::time::Instant::now();
    for _ in 0..100 {
        assert!(!catalog.types_with(&["nothing".to_owned()]).await.unwrap().contains_key("nothing"));
    }
    let seconds = usize::try_from(started.elapsed().as_secs()).unwrap();
    assert!(registry.reads() <= 2 + seconds, "{} reads", registry.reads());
}

#[tokio::test]
async fn a_type_registered_here_is_known_at_once() {
    let (catalog, _) = catalog(Duration::from_secs(60));
    catalog.types().await.unwrap();
    catalog.register(&NewUsageType::new("new", Kind::Gauge, "x")).await.unwrap();
    assert!(catalog.types_with(&["new".to_owned()]).await.unwrap().contains_key("new"));
}

#[tokio::test]
async fn a_type_registered_by_another_instance_is_found_within_a_moment() {
    let api = Harness::new();
    api.get("/v1/usage/types").await;
    let path = "/v1/usage/aggregated?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z&metric=fresh";
    api.get(path).await.problem(404, "unknown-metric");
    api.registry.put("fresh", Kind::Counter, "x");
    // Looked up again once a second at most.
    let found = tokio::time::timeout(Duration::from_secs(60), async {
        while api.get(path).await.status.as_u16() != 200 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    found.await.unwrap();
}

#[test]
fn what_may_pass_is_told_apart_from_what_does_not() {
    let unavailable =
        |error: ControlError| matches!(RegistryError::from(error), RegistryError::Unavailable(_));
    assert!(unavailable(ControlError::Timeout(Duration::from_secs(5))));
    assert!(unavailable(ControlError::NoPartitionCount), "topics may be made any moment");
    assert!(!unavailable(ControlError::Unknown("kind timer".to_owned())));
}
