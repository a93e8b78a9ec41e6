//! Quotas as tests set them, and what was counted.

use usage_control::{Quota, QuotaScope};
use usage_schemas::UsageRecord;
use usage_service::clock;
use uuid::Uuid;

use super::{Pipeline, SOURCE};

/// A quota in a window that does not end while a test runs.
pub fn long(max_records: i64) -> Quota {
    let seconds = clock::now_millis() / 1_000;
    let ends_late = |window: &i32| i64::from(*window) - seconds % i64::from(*window) > 3_600;
    let window_seconds = [2_000_000, 2_300_000].into_iter().find(ends_late).expect("they end at other times");
    Quota { max_records, window_seconds }
}

/// One tenant of the test's source.
pub fn of(tenant: Uuid) -> QuotaScope {
    QuotaScope::Tenant(SOURCE.into(), tenant)
}

pub async fn set(pipeline: &Pipeline, tenant: Uuid, quota: Option<Quota>) {
    pipeline.control.set_quota(&of(tenant), quota).await.expect("the quota is set");
}

/// What the database has counted of a tenant, in all windows.
pub async fn counted(pipeline: &Pipeline, tenant: Uuid) -> i64 {
    let used = pipeline.control.quota_use(SOURCE, tenant, 100).await.expect("the control database answers");
    used.iter().map(|window| window.records).sum()
}

/// Produces in order; each with its partition and offset.
pub async fn send(pipeline: &Pipeline, records: &[UsageRecord]) -> Vec<(i32, i64, UsageRecord)> {
    let messages: Vec<_> = records.iter().map(|record| pipeline.message(record)).collect();
    let offsets = pipeline.send(&messages).await;
    messages
        .iter()
        .zip(offsets)
        .zip(records)
        .map(|((message, offset), record)| (message.partition, offset, record.clone()))
        .collect()
}
