//! Pages of records, single records and watermarks against the model.

use rand::{Rng, rngs::StdRng, seq::IndexedRandom as _};
use uuid::Uuid;

use super::{
    database::Database,
    model,
    samples::{DAY, DAYS, Pools, START, Sample, generator, random_samples, random_time, record, sample},
};
use crate::{
    RawQuery, Reader, SourceWatermark, StatusFilter, StoredRecord, WatermarkQuery,
    clickhouse::ClickHouseReader,
};

const TENANTS: [Uuid; 2] = [
    Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0011),
    Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0012),
];

/// A query for every record of a tenant.
pub fn everything_of(tenant_id: Uuid) -> RawQuery {
    RawQuery {
        tenant_id,
        metrics: Vec::new(),
        from: START,
        to: START + (DAYS + 1) * DAY,
        status: StatusFilter::All,
        sources: Vec::new(),
        subject_ids: Vec::new(),
        subject_types: Vec::new(),
        resource_ids: Vec::new(),
        resource_types: Vec::new(),
        after: None,
        limit: 1000,
    }
}

/// All pages of a query, one after another.
pub async fn pages(reader: &ClickHouseReader, query: &RawQuery, limit: usize) -> Vec<StoredRecord> {
    let mut query = RawQuery { limit, ..query.clone() };
    let mut records = Vec::new();
    loop {
        let page = reader.raw(&query).await.unwrap_or_else(|error| panic!("{error:?} of {query:?}"));
        assert!(page.len() <= limit);
        let Some(last) = page.last() else {
            return records;
        };
        query.after = Some((last.timestamp, last.record_id));
        records.extend(page);
    }
}

fn subset<T: Clone>(random: &mut StdRng, pool: &[T]) -> Vec<T> {
    if random.random_bool(0.7) { Vec::new() } else { pool.choose_multiple(random, 2).cloned().collect() }
}

fn random_query(random: &mut StdRng) -> RawQuery {
    let pools = Pools::new();
    let (one, other) = (random_time(random), random_time(random));
    RawQuery {
        metrics: match random.random_range(0..3) {
            0 => Vec::new(),
            count => pools.metrics.choose_multiple(random, count).cloned().collect(),
        },
        from: one.min(other),
        to: one.max(other),
        status: *[StatusFilter::Active, StatusFilter::Inactive, StatusFilter::All].choose(random).unwrap(),
        sources: subset(random, &pools.sources),
        subject_ids: subset(random, &pools.ids),
        subject_types: subset(random, &pools.types),
        resource_ids: subset(random, &pools.ids),
        resource_types: subset(random, &pools.types),
        ..everything_of(TENANTS[0])
    }
}

#[tokio::test]
async fn pages_of_records_are_those_of_the_model() {
    let database = Database::create().await;
    let random = &mut generator(11);
    let samples = random_samples(random, TENANTS, 1500);
    database.insert(&samples).await;
    let reader = database.reader(false);
    for index in 0..40 {
        let query = random_query(random);
        let expected = model::raw(&samples, &query);
        let limit = (*[1, 2, 7, 1000].choose(random).unwrap()).max(expected.len() / 5);
        let records = pages(&reader, &query, limit).await;
        assert_eq!(records, expected, "query {index}, pages of {limit}: {query:?}");
    }
    database.drop().await;
}

#[tokio::test]
async fn a_page_is_found_after_years_without_records() {
    let database = Database::create().await;
    let early = record(TENANTS[0], START, 1);
    let late = record(TENANTS[0], START + 2000 * DAY, 2);
    database.insert(&[sample(early.clone(), 1, 1), sample(late.clone(), 2, 1)]).await;
    let query = RawQuery { from: START - 3000 * DAY, to: START + 3000 * DAY, ..everything_of(TENANTS[0]) };
    assert_eq!(database.reader(false).raw(&query).await.unwrap(), [early, late]);
    database.drop().await;
}

#[tokio::test]
async fn the_whole_of_time_is_a_range() {
    let database = Database::create().await;
    let only = record(TENANTS[0], START, 1);
    database.insert(&[sample(only.clone(), 1, 1)]).await;
    let query = RawQuery { from: i64::MIN, to: i64::MAX, ..everything_of(TENANTS[0]) };
    assert_eq!(database.reader(false).raw(&query).await.unwrap(), [only]);
    database.drop().await;
}

#[tokio::test]
async fn a_record_is_found_by_its_id_and_tenant() {
    let database = Database::create().await;
    let samples = random_samples(&mut generator(12), TENANTS, 400);
    database.insert(&samples).await;
    let reader = database.reader(false);
    for sample in samples.iter().take(50) {
        let record = &sample.record;
        let found = reader.record(record.tenant_id, record.record_id).await.unwrap();
        assert_eq!(found.as_ref(), Some(record));
        let foreign = if record.tenant_id == TENANTS[0] { TENANTS[1] } else { TENANTS[0] };
        assert_eq!(reader.record(foreign, record.record_id).await.unwrap(), None);
    }
    assert_eq!(reader.record(TENANTS[0], Uuid::from_u128(5)).await.unwrap(), None);
    database.drop().await;
}

/// What the samples say, of the sources and metrics that a query asks for.
fn watermarks(samples: &[Sample], query: &WatermarkQuery) -> Vec<SourceWatermark> {
    let wanted = |filter: &[String], name: &String| filter.is_empty() || filter.contains(name);
    let mut sources = Pools::new().sources;
    sources.sort_unstable();
    let of_source = |source: String| {
        let records: Vec<&StoredRecord> = samples
            .iter()
            .map(|sample| &sample.record)
            .filter(|record| record.tenant_id == query.tenant_id && record.source == source)
            .filter(|record| wanted(&query.metrics, &record.metric) && wanted(&query.sources, &source))
            .collect();
        Some(SourceWatermark {
            records: records.len() as u64,
            latest_timestamp: records.iter().map(|record| record.timestamp).max()?,
            latest_ingested_at: records.iter().map(|record| record.ingested_at).max()?,
            source,
        })
    };
    sources.into_iter().filter_map(of_source).collect()
}

#[tokio::test]
async fn watermarks_count_every_record_of_a_source() {
    let database = Database::create().await;
    let samples = random_samples(&mut generator(13), TENANTS, 600);
    database.insert(&samples).await;
    let reader = database.reader(false);
    let all = WatermarkQuery::of_tenant(TENANTS[0]);
    let expected = watermarks(&samples, &all);
    assert_eq!(expected.len(), Pools::new().sources.len());
    assert_eq!(reader.watermarks(&all).await.unwrap(), expected);
    let Pools { sources, metrics, .. } = Pools::new();
    for (metrics, sources) in [
        (vec![metrics[0].clone()], vec![]),
        (metrics[..2].to_vec(), vec![sources[0].clone(), "nobody".to_owned()]),
        (vec![], vec![sources[1].clone()]),
        (vec!["x') OR 1=1 --".to_owned()], vec![]),
    ] {
        let query = WatermarkQuery { metrics, sources, ..all.clone() };
        assert_eq!(reader.watermarks(&query).await.unwrap(), watermarks(&samples, &query), "{query:?}");
    }
    assert_eq!(reader.watermarks(&WatermarkQuery::of_tenant(Uuid::from_u128(9))).await.unwrap(), []);
    database.drop().await;
}
