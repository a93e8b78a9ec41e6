//! What the consumer says about itself: metrics by batch, never by record.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use metrics::SharedString;
use usage_control::Completeness;
use usage_schemas::{Marker, Reason, Timestamp};
use usage_service::telemetry::tenant_label;
use usage_service::{clock, metric_names};
use usage_storage::Rows;
use uuid::Uuid;

use crate::batch::{Decided, IdHasher, Whose};
use crate::plan::NotKept;

/// A count as a metric's value.
#[allow(clippy::cast_precision_loss, reason = "metrics take floats; counts in hand are far below 2^52")]
pub fn count(count: usize) -> f64 {
    count as f64
}

/// The label `status` of what is not kept; markers and forwarded records are not ingested here.
fn status(why: NotKept) -> Option<&'static str> {
    match why {
        NotKept::Duplicate => Some("dedup"),
        NotKept::Marker | NotKept::Forwarded => None,
        NotKept::Refused(Reason::BadSignature | Reason::UnknownSource | Reason::ForbiddenTenant) => {
            Some("auth_denied")
        }
        NotKept::Refused(Reason::QuotaExceeded) => Some("quota_exceeded"),
        NotKept::Refused(_) => Some("validation_error"),
    }
}

/// A batch is done; storage refused the rows at the offsets `refused`.
pub fn shipped(decided: &Decided, refused: &[i64]) {
    let rows = &decided.batch.rows;
    metrics::histogram!(metric_names::CONSUMER_BATCH_ROWS).record(count(rows.len()));
    metrics::histogram!(metric_names::CONSUMER_BATCH_BYTES).record(count(decided.charge.bytes));
    let latency = clock::now_millis().saturating_sub(decided.oldest).max(0);
    type Metrics<'a> = Vec<(&'a str, u64)>;
    let mut kept: HashMap<Uuid, Metrics<'_>, std::hash::BuildHasherDefault<IdHasher>> = HashMap::default();
    for (row, tenant) in rows.tenant_id.iter().enumerate() {
        if refused.contains(&rows.offset[row]) {
            continue;
        }
        let metric = rows.metric.get(row).unwrap_or_default();
        let metrics = kept.entry(*tenant).or_default();
        match metrics.iter_mut().find(|(known, _)| *known == metric) {
            Some((_, count)) => *count += 1,
            None => metrics.push((metric, 1)),
        }
    }
    for (tenant, by_metric) in kept {
        let tenant = tenant_label(tenant);
        for (metric, records) in by_metric {
            let labels = [("usage_type", metric.to_string()), ("status", "success".into())];
            let mut labels: Vec<metrics::Label> =
                labels.map(|(key, value)| metrics::Label::new(key, value)).into();
            labels.push(metrics::Label::new("tenant_id", tenant.clone()));
            metrics::counter!(metric_names::USAGE_INGESTION_TOTAL, labels).increment(records);
        }
        #[allow(clippy::cast_precision_loss, reason = "metrics take floats")]
        metrics::histogram!(metric_names::USAGE_INGESTION_LATENCY_MS, "tenant_id" => tenant)
            .record(latency as f64);
    }
    ahead(decided.batch.partition, &decided.ahead);
    for ((whose, why), records) in &decided.tally {
        not_kept(whose, *why, *records);
    }
    for (source, records) in &decided.over_quota {
        metrics::counter!(metric_names::CONSUMER_OVER_QUOTA_TOTAL, "source" => source.clone())
            .increment(*records);
    }
    for offset in refused {
        not_kept(&whose_at(rows, *offset), NotKept::Refused(Reason::StorageRefused), 1);
    }
}

/// Whose the row at an offset is; what is in the rows has a registered metric.
fn whose_at(rows: &Rows, offset: i64) -> Whose {
    let Ok(row) = rows.offset.binary_search(&offset) else { return Whose::default() };
    Whose { tenant_id: Some(rows.tenant_id[row]), metric: rows.metric.get(row).map(Into::into) }
}

/// Markers of a batch that move nothing: an alarm by batch, not by marker.
fn ahead(partition: i32, markers: &[Marker]) {
    let mut by_source = BTreeMap::<&str, (u64, Timestamp)>::new();
    for marker in markers {
        let (count, greatest) = by_source.entry(&marker.source).or_insert((0, marker.complete_until));
        *count += 1;
        *greatest = marker.complete_until.max(*greatest);
    }
    for (source, (count, greatest)) in by_source {
        metrics::counter!(metric_names::CONSUMER_MARKERS_AHEAD_TOTAL, "source" => source.to_string())
            .increment(count);
        tracing::error!(
            partition,
            source,
            markers = count,
            complete_until = %greatest,
            "completeness markers ahead of the broker's clock are ignored: the clock of the source's database is wrong"
        );
    }
}

/// How far each source's completeness lies behind the clock (microseconds).
pub fn completeness(known: &Completeness, now: i64) {
    for found in &known.sources {
        let lag = match known.complete_until(&[&found.source]) {
            _ if found.retired => 0.0,
            Some(until) => {
                Duration::from_micros(now.saturating_sub(until).try_into().unwrap_or_default()).as_secs_f64()
            }
            None => f64::INFINITY,
        };
        metrics::gauge!(metric_names::USAGE_SOURCE_LAG_SECONDS, "source" => found.source.clone()).set(lag);
    }
}

fn not_kept(whose: &Whose, why: NotKept, records: u64) {
    let tenant = whose.tenant_id.map_or_else(|| "unknown".into(), tenant_label);
    let usage_type = whose.metric.clone().map_or("unregistered".into(), SharedString::from_shared);
    if why == NotKept::Forwarded {
        metrics::counter!(metric_names::CONSUMER_FORWARDED_TOTAL).increment(records);
    }
    if let NotKept::Refused(reason) = why {
        metrics::counter!(
            metric_names::CONSUMER_DEAD_LETTERS_TOTAL,
            "reason" => reason.as_str(),
            "severity" => reason.severity().as_str()
        )
        .increment(records);
        if matches!(reason, Reason::SchemaViolation | Reason::UnknownUsageType) {
            metrics::counter!(
                metric_names::USAGE_SCHEMA_VALIDATION_ERRORS_TOTAL,
                "tenant_id" => tenant.clone(),
                "usage_type" => usage_type.clone()
            )
            .increment(records);
        }
    }
    if why == NotKept::Duplicate {
        metrics::counter!(metric_names::USAGE_DEDUP_TOTAL, "tenant_id" => tenant.clone()).increment(records);
    }
    if let Some(status) = status(why) {
        metrics::counter!(
            metric_names::USAGE_INGESTION_TOTAL,
            "tenant_id" => tenant,
            "usage_type" => usage_type,
            "status" => status
        )
        .increment(records);
    }
}
