//! Delivery.

use usage_schemas::partition::partition_of;
use uuid::Uuid;

use crate::support::{Running, SOURCE, Source, Topic, config};

#[tokio::test]
async fn committed_records_arrive_signed_on_the_tenants_partition() {
    let (source, topic) = (Source::new().await, Topic::new(12).await);
    let relay = Running::start(config(&source, &topic));
    let tenants: Vec<Uuid> = (0..20).map(|_| Uuid::new_v4()).collect();
    for tenant in &tenants {
        source.emit(*tenant, "k").await;
    }
    source.emptied().await;
    let received = topic.read().await;
    assert_eq!(received.len(), tenants.len());
    for received in received {
        assert!(tenants.contains(&received.record.tenant_id));
        assert_eq!(received.key, received.record.tenant_id.to_string());
        assert_eq!(received.partition, partition_of(received.record.tenant_id, 12));
        assert_eq!(received.record.source, SOURCE);
    }
    relay.stop().await;
}
