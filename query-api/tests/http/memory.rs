//! A storage reader and a registry in memory: a second implementation of the traits, plain enough to be seen to be right.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use ethnum::I256;
use tokio::sync::watch;
use usage_control::{Completeness, NewUsageType, Registration};
use usage_query_api::registry::{Registry, RegistryError};
use usage_schemas::{Kind, Quantity, Timestamp, TypeVersion, UsageType};
use usage_storage::{
    AggregateQuery, AggregateRow, PartitionCounts, RawQuery, Reader, RowKey, SourceWatermark, StatusFilter,
    StorageError, StoredRecord, WatermarkQuery, Windows,
};
use uuid::Uuid;

/// How a store behaves when it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mood {
    #[default]
    Well,
    /// Well for so many more calls, then away.
    AwayAfter(usize),
    Hangs,
    /// Well, but not for this tenant.
    HangsFor(Uuid),
    Panics,
    Broken,
}

/// Records in memory.
#[derive(Default)]
pub struct Memory {
    records: Mutex<Vec<StoredRecord>>,
    mood: Mutex<Mood>,
    changes: watch::Sender<()>,
    calls: watch::Sender<usize>,
    questions: Mutex<Vec<Question>>,
}

/// What storage was asked for; empty filters are none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub tenant_id: Uuid,
    /// `None`: a single record by its id.
    pub filters: Option<(Vec<String>, Vec<String>)>,
}

impl Memory {
    pub fn add(&self, record: StoredRecord) {
        lock(&self.records).push(record);
    }

    pub fn set_mood(&self, mood: Mood) {
        *lock(&self.mood) = mood;
        self.changes.send_replace(());
    }

    /// How often it was asked.
    pub fn calls(&self) -> usize {
        *self.calls.borrow()
    }

    /// Returns once it was asked so often.
    pub async fn asked(&self, times: usize) {
        self.calls.subscribe().wait_for(|calls| *calls >= times).await.unwrap();
    }

    /// What it was asked since this was called last.
    pub fn questions(&self) -> Vec<Question> {
        std::mem::take(&mut *lock(&self.questions))
    }

    async fn asks(
        &self,
        tenant_id: Uuid,
        metrics: &[String],
        sources: &[String],
    ) -> Result<(), StorageError> {
        let filters = Some((metrics.to_vec(), sources.to_vec()));
        lock(&self.questions).push(Question { tenant_id, filters });
        self.behave(tenant_id).await
    }

    async fn behave(&self, tenant_id: Uuid) -> Result<(), StorageError> {
        self.calls.send_modify(|calls| *calls += 1);
        let away = || StorageError::Unavailable("connection refused".into());
        let mood = *lock(&self.mood);
        match mood {
            Mood::Well => Ok(()),
            Mood::AwayAfter(0) => Err(away()),
            Mood::AwayAfter(left) => {
                self.set_mood(Mood::AwayAfter(left - 1));
                Ok(())
            }
            Mood::Hangs => std::future::pending().await,
            Mood::HangsFor(tenant) if tenant != tenant_id => Ok(()),
            // Until the mood is another one.
            Mood::HangsFor(_) => {
                let mut changes = self.changes.subscribe();
                changes.wait_for(|()| *lock(&self.mood) != mood).await.unwrap();
                Ok(())
            }
            Mood::Panics => panic!("a bug in the reader"),
            Mood::Broken => Err(StorageError::Inconsistent("secret detail of the server".to_owned())),
        }
    }

    fn select(&self, keep: impl Fn(&StoredRecord) -> bool) -> Vec<StoredRecord> {
        lock(&self.records).iter().filter(|record| keep(record)).cloned().collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn any_of<T: PartialEq>(wanted: &[T], value: Option<&T>) -> bool {
    wanted.is_empty() || value.is_some_and(|value| wanted.contains(value))
}

fn window_of(windows: &Windows, from: i64, timestamp: i64) -> i64 {
    let start = |starts: &[i64]| {
        *starts.iter().rev().find(|start| **start <= timestamp).expect("starts cover the range")
    };
    match windows {
        Windows::Total => from,
        Windows::Starts(starts) => start(starts),
        Windows::Within { days, width } => {
            let day = start(days);
            day + (timestamp - day) / width * width
        }
    }
}

#[async_trait]
impl Reader for Memory {
    async fn aggregate(&self, query: &AggregateQuery) -> Result<Vec<AggregateRow>, StorageError> {
        self.asks(query.tenant_id, &query.metrics, &query.sources).await?;
        assert!(query.from < query.to, "an empty range is not storage's business");
        let found = self.select(|record| {
            record.active
                && record.tenant_id == query.tenant_id
                && (query.from..query.to).contains(&record.timestamp)
                && any_of(&query.metrics, Some(&record.metric))
                && any_of(&query.sources, Some(&record.source))
                && any_of(&query.subject_ids, record.subject_id.as_ref())
                && any_of(&query.subject_types, record.subject_type.as_ref())
                && any_of(&query.resource_ids, record.resource_id.as_ref())
                && any_of(&query.resource_types, record.resource_type.as_ref())
        });
        let mut rows: BTreeMap<RowKey, AggregateRow> = BTreeMap::new();
        for record in found {
            let by = query.group_by;
            let key = RowKey {
                window_start: window_of(&query.windows, query.from, record.timestamp),
                metric: by.metric.then(|| record.metric.clone()),
                source: by.source.then(|| record.source.clone()),
                subject_id: record.subject_id.filter(|_| by.subject),
                subject_type: record.subject_type.clone().filter(|_| by.subject),
                resource_id: record.resource_id.filter(|_| by.resource),
                resource_type: record.resource_type.clone().filter(|_| by.resource),
            };
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
                let sample = (record.timestamp, record.record_id, record.value);
                row.latest = row.latest.max(Some(sample));
            }
        }
        let rows = rows.into_values().filter(|row| query.after.as_ref().is_none_or(|after| row.key > *after));
        Ok(rows.take(query.limit).collect())
    }

    async fn raw(&self, query: &RawQuery) -> Result<Vec<StoredRecord>, StorageError> {
        self.asks(query.tenant_id, &query.metrics, &query.sources).await?;
        let mut found = self.select(|record| {
            record.tenant_id == query.tenant_id
                && (query.from..query.to).contains(&record.timestamp)
                && match query.status {
                    StatusFilter::Active => record.active,
                    StatusFilter::Inactive => !record.active,
                    StatusFilter::All => true,
                }
                && any_of(&query.metrics, Some(&record.metric))
                && any_of(&query.sources, Some(&record.source))
                && any_of(&query.subject_ids, record.subject_id.as_ref())
                && any_of(&query.subject_types, record.subject_type.as_ref())
                && any_of(&query.resource_ids, record.resource_id.as_ref())
                && any_of(&query.resource_types, record.resource_type.as_ref())
                && query.after.is_none_or(|after| (record.timestamp, record.record_id) > after)
        });
        found.sort_by_key(|record| (record.timestamp, record.record_id));
        found.truncate(query.limit);
        Ok(found)
    }

    async fn record(&self, tenant_id: Uuid, record_id: Uuid) -> Result<Option<StoredRecord>, StorageError> {
        lock(&self.questions).push(Question { tenant_id, filters: None });
        self.behave(tenant_id).await?;
        Ok(self.select(|record| record.tenant_id == tenant_id && record.record_id == record_id).pop())
    }

    async fn watermarks(&self, query: &WatermarkQuery) -> Result<Vec<SourceWatermark>, StorageError> {
        self.asks(query.tenant_id, &query.metrics, &query.sources).await?;
        let mut sources: BTreeMap<String, SourceWatermark> = BTreeMap::new();
        let found = self.select(|record| {
            record.tenant_id == query.tenant_id
                && any_of(&query.metrics, Some(&record.metric))
                && any_of(&query.sources, Some(&record.source))
        });
        for record in found {
            let found = sources.entry(record.source.clone()).or_insert(SourceWatermark {
                source: record.source,
                records: 0,
                latest_timestamp: i64::MIN,
                latest_ingested_at: i64::MIN,
            });
            found.records += 1;
            found.latest_timestamp = found.latest_timestamp.max(record.timestamp);
            found.latest_ingested_at = found.latest_ingested_at.max(record.ingested_at);
        }
        Ok(sources.into_values().collect())
    }
}

/// Usage types in memory.
#[derive(Default)]
pub struct MemoryRegistry {
    types: Mutex<BTreeMap<String, UsageType>>,
    away: Mutex<bool>,
    hangs: Mutex<bool>,
    reads: Mutex<usize>,
    calls: Mutex<usize>,
    count_reads: Mutex<usize>,
    completeness: Mutex<Completeness>,
    completeness_reads: Mutex<usize>,
    /// Further counts, each with the read from which on it is listed.
    listed: Mutex<Vec<(usize, i32)>>,
}

impl MemoryRegistry {
    pub fn set_away(&self, away: bool) {
        *lock(&self.away) = away;
    }

    /// Makes it answer nothing at all any more, not even an error.
    pub fn freeze(&self) {
        *lock(&self.hangs) = true;
    }

    /// What the workers and the sources have come to.
    pub fn set_completeness(&self, completeness: Completeness) {
        *lock(&self.completeness) = completeness;
    }

    /// How often it was asked anything, but for readiness.
    pub fn calls(&self) -> usize {
        *lock(&self.calls)
    }

    /// How often the types were asked for.
    pub fn reads(&self) -> usize {
        *lock(&self.reads)
    }

    /// How often the partition counts were asked for.
    pub fn count_reads(&self) -> usize {
        *lock(&self.count_reads)
    }

    /// How often it was asked how far the sources are.
    pub fn completeness_reads(&self) -> usize {
        *lock(&self.completeness_reads)
    }

    /// Lists a partition count behind the API's back, as growing the topic does.
    pub fn list_count(&self, count: i32) {
        self.list_count_at_read(count, 0);
    }

    /// The same, just before the counts are read for the nth time.
    pub fn list_count_at_read(&self, count: i32, nth: usize) {
        lock(&self.listed).push((nth, count));
    }

    /// Registers a type behind the API's back, as another instance does.
    pub fn put(&self, name: &str, kind: Kind, unit: &str) {
        let new = NewUsageType::new(name, kind, unit);
        lock(&self.types).insert(name.to_owned(), added(None, &new));
    }

    async fn answers(&self) -> Result<(), RegistryError> {
        *lock(&self.calls) += 1;
        let (hangs, away) = (*lock(&self.hangs), *lock(&self.away));
        if hangs {
            std::future::pending::<()>().await;
        }
        let refused = || Arc::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        if away { Err(RegistryError::Unavailable(refused())) } else { Ok(()) }
    }
}

/// The time of the database: 2026-01-01T00:00:00Z.
const NOW: i64 = 1_767_225_600_000_000;

/// The type with a further version.
fn added(found: Option<&UsageType>, new: &NewUsageType) -> UsageType {
    let version = TypeVersion {
        version: new.version,
        valid_from: new.valid_from,
        kind: new.kind,
        unit: new.unit.clone(),
        description: new.description.clone(),
        rules: new.rules.clone(),
        created_at: Timestamp::from_micros(NOW),
    };
    let mut versions = found.map(|found| found.versions.clone()).unwrap_or_default();
    versions.push(version);
    UsageType { name: new.name.clone(), versions }
}

#[async_trait]
impl Registry for MemoryRegistry {
    async fn usage_types(&self) -> Result<Vec<UsageType>, RegistryError> {
        *lock(&self.reads) += 1;
        self.answers().await?;
        Ok(lock(&self.types).values().cloned().collect())
    }

    async fn register(&self, new: &NewUsageType) -> Result<Registration, RegistryError> {
        self.answers().await?;
        let mut types = lock(&self.types);
        let found = types.get(&new.name);
        if let Some(decided) = new.against(found, Timestamp::from_micros(NOW)) {
            return Ok(decided);
        }
        let added = added(found, new);
        types.insert(new.name.clone(), added.clone());
        Ok(Registration::Created(added))
    }

    async fn partition_counts(&self) -> Result<PartitionCounts, RegistryError> {
        *lock(&self.count_reads) += 1;
        self.answers().await?;
        let reads = self.count_reads();
        let listed = lock(&self.listed);
        let listed = listed.iter().filter(|(nth, _)| reads >= *nth).map(|(_, count)| *count);
        Ok(PartitionCounts { current: 12, known: std::iter::once(12).chain(listed).collect() })
    }

    async fn completeness(&self) -> Result<Completeness, RegistryError> {
        *lock(&self.completeness_reads) += 1;
        self.answers().await?;
        Ok(lock(&self.completeness).clone())
    }

    async fn ping(&self) -> Result<(), RegistryError> {
        let pinged = self.answers().await;
        *lock(&self.calls) -= 1;
        pinged
    }
}

/// A record of a tenant with what most tests do not care about.
pub fn record(tenant_id: Uuid, metric: &str, value: &str, timestamp: &str) -> StoredRecord {
    let timestamp = usage_schemas::Timestamp::parse(timestamp).unwrap().micros();
    StoredRecord {
        record_id: Uuid::now_v7(),
        tenant_id,
        source: "gateway".to_owned(),
        metric: metric.to_owned(),
        kind: Kind::Counter,
        value: Quantity::parse(value).unwrap(),
        timestamp,
        idempotency_key: None,
        resource_id: None,
        resource_type: None,
        subject_id: None,
        subject_type: None,
        metadata: None,
        active: true,
        ingested_at: timestamp + 1_000_000,
        inactive_at: None,
        version: 1,
    }
}
