//! What the answers must be: computed row by row from a plain list.

use std::collections::BTreeMap;

use ethnum::I256;

use super::samples::Sample;
use crate::query::{AggregateQuery, AggregateRow, RawQuery, RowKey, StatusFilter, StoredRecord, Windows};

/// Every row of an aggregate query, whatever its page.
pub fn aggregate(samples: &[Sample], query: &AggregateQuery) -> Vec<AggregateRow> {
    let mut rows: BTreeMap<RowKey, AggregateRow> = BTreeMap::new();
    for record in samples.iter().map(|sample| &sample.record) {
        let wanted = record.active
            && record.tenant_id == query.tenant_id
            && (query.from..query.to).contains(&record.timestamp)
            && any_of(&query.metrics, Some(&record.metric))
            && any_of(&query.sources, Some(&record.source))
            && any_of(&query.subject_ids, record.subject_id.as_ref())
            && any_of(&query.subject_types, record.subject_type.as_ref())
            && any_of(&query.resource_ids, record.resource_id.as_ref())
            && any_of(&query.resource_types, record.resource_type.as_ref());
        if !wanted {
            continue;
        }
        let key = key(record, query);
        let row = rows.entry(key.clone()).or_insert(AggregateRow {
            key,
            count: 0,
            sum: I256::ZERO,
            min: None,
            max: None,
            latest: None,
        });
        row.count += 1;
        row.sum += I256::from(record.value.unscaled());
        if query.measure.min_max {
            row.min = Some(row.min.map_or(record.value, |min| min.min(record.value)));
            row.max = Some(row.max.map_or(record.value, |max| max.max(record.value)));
        }
        if query.measure.latest {
            row.latest = row.latest.max(Some((record.timestamp, record.record_id, record.value)));
        }
    }
    rows.into_values().collect()
}

fn key(record: &StoredRecord, query: &AggregateQuery) -> RowKey {
    let group = query.group_by;
    let window_start = match &query.windows {
        Windows::Total => query.from,
        Windows::Starts(starts) => last_before(starts, record.timestamp),
        Windows::Within { days, width } => {
            let day = last_before(days, record.timestamp);
            day + (record.timestamp - day) / width * width
        }
    };
    RowKey {
        window_start,
        metric: group.metric.then(|| record.metric.clone()),
        source: group.source.then(|| record.source.clone()),
        subject_id: record.subject_id.filter(|_| group.subject),
        subject_type: record.subject_type.clone().filter(|_| group.subject),
        resource_id: record.resource_id.filter(|_| group.resource),
        resource_type: record.resource_type.clone().filter(|_| group.resource),
    }
}

fn last_before(starts: &[i64], time: i64) -> i64 {
    *starts.iter().rfind(|start| **start <= time).expect("the first start is at or before the range")
}

/// Every record of a raw query, whatever its page.
pub fn raw(samples: &[Sample], query: &RawQuery) -> Vec<StoredRecord> {
    let mut records: Vec<StoredRecord> = samples
        .iter()
        .map(|sample| &sample.record)
        .filter(|record| {
            let status = match query.status {
                StatusFilter::Active => record.active,
                StatusFilter::Inactive => !record.active,
                StatusFilter::All => true,
            };
            status
                && record.tenant_id == query.tenant_id
                && (query.from..query.to).contains(&record.timestamp)
                && any_of(&query.metrics, Some(&record.metric))
                && any_of(&query.sources, Some(&record.source))
                && any_of(&query.subject_ids, record.subject_id.as_ref())
                && any_of(&query.subject_types, record.subject_type.as_ref())
                && any_of(&query.resource_ids, record.resource_id.as_ref())
                && any_of(&query.resource_types, record.resource_type.as_ref())
        })
        .cloned()
        .collect();
    records.sort_by_key(|record| (record.timestamp, record.record_id));
    records
}

fn any_of<T: PartialEq>(filter: &[T], value: Option<&T>) -> bool {
    filter.is_empty() || value.is_some_and(|value| filter.contains(value))
}
