//! Aggregated reads, both ways, against the model.

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng, rngs::StdRng, seq::IndexedRandom as _};
use usage_schemas::partition::partition_of;
use uuid::Uuid;

use super::{
    database::Database,
    model,
    samples::{
        BUCKET, DAY, DAYS, HOUR, MINUTE, Pools, START, Sample, generator, partition_counts, random_samples,
        random_time, record, sample,
    },
};
use crate::{
    AggregateQuery, AggregateRow, GroupBy, Measure, Reader as _, Windows,
    clickhouse::{
        ClickHouseReader,
        read::{
            aggregate::{self, Sizes},
            question::Question,
            spans,
        },
    },
};

const TENANTS: [Uuid; 2] = [
    Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0001),
    Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0002),
];

/// A query for everything of the first tenant.
pub fn everything() -> AggregateQuery {
    AggregateQuery {
        tenant_id: TENANTS[0],
        metrics: Vec::new(),
        from: START,
        to: START + (DAYS + 1) * DAY,
        windows: Windows::Total,
        group_by: GroupBy::default(),
        measure: Measure { min_max: true, latest: true },
        sources: Vec::new(),
        subject_ids: Vec::new(),
        subject_types: Vec::new(),
        resource_ids: Vec::new(),
        resource_types: Vec::new(),
        partition_counts: partition_counts(),
        after: None,
        limit: 10_000,
    }
}

/// All pages of a query, one after another.
pub async fn pages(
    reader: &ClickHouseReader,
    query: &AggregateQuery,
    dirty: &BTreeSet<i64>,
    limit: usize,
) -> Vec<AggregateRow> {
    let mut query = AggregateQuery { limit, ..query.clone() };
    let mut rows = Vec::new();
    loop {
        let page = aggregate::aggregate(&reader.session, &query, dirty, reader.sizes)
            .await
            .unwrap_or_else(|error| panic!("{error:?} of {query:?}"));
        assert!(page.len() <= limit);
        query.after = page.last().map(|row| row.key.clone());
        let is_last = page.len() < limit;
        rows.extend(page);
        if is_last {
            return rows;
        }
    }
}

/// Horizons as they may be at some moment: each month on its own, some months without one.
fn random_horizons(random: &mut StdRng, samples: &[Sample]) -> BTreeMap<(i32, u32), i64> {
    let mut horizons = BTreeMap::new();
    let last = samples.iter().map(|sample| sample.batch_seq).max().unwrap();
    let partitions: BTreeSet<i32> = samples.iter().map(|sample| sample.partition).collect();
    for partition in partitions {
        for month in [202_601, 202_602, 202_603, 202_604] {
            if random.random_bool(0.8) {
                horizons.insert((partition, month), random.random_range(1..=last));
            }
        }
    }
    horizons
}

fn subset<T: Clone>(random: &mut StdRng, pool: &[T], chance: f64) -> Vec<T> {
    if !random.random_bool(chance) {
        return Vec::new();
    }
    let count = random.random_range(1..=2);
    pool.choose_multiple(random, count).cloned().collect()
}

/// A query of any shape; `by_rollups` = one that the rollups can answer for.
fn random_query(random: &mut StdRng, by_rollups: bool) -> AggregateQuery {
    let pools = Pools::new();
    let (mut from, mut to) = (random_time(random), random_time(random));
    if from > to {
        (from, to) = (to, from);
    }
    if by_rollups {
        to = (to + BUCKET).max(from + 2 * BUCKET);
    } else if random.random_bool(0.05) {
        to = from;
    }
    let chance = if by_rollups { 0.0 } else { 0.25 };
    AggregateQuery {
        metrics: subset(random, &pools.metrics, 0.5),
        from,
        to,
        windows: random_windows(random, from, to, by_rollups),
        group_by: GroupBy {
            metric: random.random(),
            source: random.random(),
            subject: !by_rollups && random.random(),
            resource: !by_rollups && random.random(),
        },
        measure: Measure { min_max: random.random(), latest: random.random() },
        sources: subset(random, &pools.sources, 0.3),
        subject_ids: subset(random, &pools.ids, chance),
        subject_types: subset(random, &pools.types, chance),
        resource_ids: subset(random, &pools.ids, chance),
        resource_types: subset(random, &pools.types, chance),
        ..everything()
    }
}

fn random_windows(random: &mut StdRng, from: i64, to: i64, on_buckets: bool) -> Windows {
    let grain = if on_buckets { BUCKET } else { 1 };
    match random.random_range(0..3) {
        0 => Windows::Total,
        1 => {
            let mut starts: BTreeSet<i64> = BTreeSet::new();
            for _ in 0..random.random_range(0..8) {
                starts.insert(random_time(random).div_euclid(grain) * grain);
            }
            let mut starts: Vec<i64> =
                starts.into_iter().filter(|start| *start > from && *start < to).collect();
            starts.insert(0, from - random.random_range(0..DAY));
            if random.random() {
                // A caller may send boundaries that the range does not reach.
                starts.insert(0, starts[0] - DAY);
                starts.push(to + DAY);
            }
            Windows::Starts(starts)
        }
        _ => {
            // Days of 23 to 25 hours, as in a zone with daylight saving time.
            let mut day = (from - random.random_range(0..DAY)).div_euclid(grain) * grain;
            let mut days = Vec::new();
            while day < to || days.is_empty() {
                days.push(day);
                day += (23 + random.random_range(0..3)) * HOUR;
            }
            let widths = if on_buckets { [BUCKET, HOUR, 4 * HOUR] } else { [MINUTE, 7 * MINUTE, HOUR] };
            Windows::Within { days, width: *widths.choose(random).unwrap() }
        }
    }
}

/// True if the query is answered from the rollups too.
fn uses_rollups(query: &AggregateQuery, dirty: &BTreeSet<i64>) -> bool {
    let question = Question::new(query);
    question.fits_rollups() && spans::cut(question.range, dirty).is_some()
}

/// Small pages where the answer is short, larger ones where it is long.
fn random_limit(random: &mut StdRng, rows: usize) -> usize {
    (*[1, 2, 7, 10_000].choose(random).unwrap()).max(rows / 4)
}

async fn compare(
    database: &Database,
    samples: &[Sample],
    random: &mut StdRng,
    dirty: &BTreeSet<i64>,
    queries: usize,
) {
    let mut by_rollups = 0;
    for index in 0..queries {
        let query = random_query(random, index % 3 > 0);
        let expected = model::aggregate(samples, &query);
        by_rollups += usize::from(uses_rollups(&query, dirty));
        for rollups in [false, true] {
            let limit = random_limit(random, expected.len());
            let rows = pages(&database.reader(rollups), &query, dirty, limit).await;
            assert_eq!(rows, expected, "query {index}, rollups {rollups}, pages of {limit}: {query:?}");
        }
    }
    assert!(by_rollups * 2 > queries, "only {by_rollups} of {queries} queries asked the rollups");
}

#[tokio::test]
async fn both_ways_answer_like_the_model() {
    let database = Database::create().await;
    let random = &mut generator(1);
    let samples = random_samples(random, TENANTS, 1500);
    database.insert(&samples).await;
    // No horizon at all: everything is beyond it.
    compare(&database, &samples, random, &BTreeSet::new(), 9).await;
    database.roll_up(&random_horizons(random, &samples)).await;
    compare(&database, &samples, random, &BTreeSet::new(), 45).await;
    database.drop().await;
}

#[tokio::test]
async fn the_highest_generation_of_a_bucket_counts() {
    let database = Database::create().await;
    let random = &mut generator(2);
    let samples = random_samples(random, TENANTS, 800);
    database.insert(&samples).await;
    let horizons = random_horizons(random, &samples);
    database.roll_up(&horizons).await;
    let buckets: BTreeSet<i64> =
        samples.iter().map(|sample| sample.record.timestamp.div_euclid(BUCKET) * 900).collect();
    let buckets: Vec<i64> = buckets.into_iter().collect();
    for generation in [1, 2] {
        let again: Vec<i64> = buckets.choose_multiple(random, buckets.len() / 3).copied().collect();
        database.roll_up_anew(generation, &again, &horizons).await;
    }
    compare(&database, &samples, random, &BTreeSet::new(), 24).await;
    database.drop().await;
}

#[tokio::test]
async fn dirty_buckets_are_read_from_the_records() {
    let database = Database::create().await;
    let random = &mut generator(3);
    let samples = random_samples(random, TENANTS, 800);
    database.insert(&samples).await;
    database.roll_up(&random_horizons(random, &samples)).await;
    let buckets: BTreeSet<i64> =
        samples.iter().map(|sample| sample.record.timestamp.div_euclid(BUCKET) * BUCKET).collect();
    let buckets: Vec<i64> = buckets.into_iter().collect();
    let dirty: BTreeSet<i64> = buckets.choose_multiple(random, 40).copied().collect();
    let spoiled: Vec<String> = dirty.iter().map(|bucket| (bucket / 1_000_000).to_string()).collect();
    // What the rollups say of a marked bucket must not matter.
    database
        .run(&format!(
            "INSERT INTO usage_rollups SELECT * REPLACE(toUInt64(77) AS record_count) FROM usage_rollups \
             WHERE record_count > 0 AND toUnixTimestamp(bucket) IN ({})",
            spoiled.join(",")
        ))
        .await;
    compare(&database, &samples, random, &dirty, 24).await;
    database.drop().await;
}

#[tokio::test]
async fn a_small_question_asks_the_records_alone() {
    let database = Database::create().await;
    let random = &mut generator(4);
    let samples = random_samples(random, TENANTS, 300);
    database.insert(&samples).await;
    // Rollups that would be wrong for everything: a small question must not look at them.
    let horizons = random_horizons(random, &samples);
    database.roll_up(&horizons).await;
    database.run("INSERT INTO usage_rollups SELECT * FROM usage_rollups WHERE record_count > 0").await;
    let expected = model::aggregate(&samples, &everything());
    let mut reader = database.reader(false);
    reader.sizes = Sizes { rollup_rows: 100_000, leg_rows: 0, ..reader.sizes };
    assert_eq!(reader.aggregate(&everything()).await.unwrap(), expected);
    // More legs than the rows are worth.
    reader.sizes = Sizes { rollup_rows: 100, leg_rows: 100, ..reader.sizes };
    assert_eq!(reader.aggregate(&everything()).await.unwrap(), expected);
    reader.sizes = Sizes { rollup_rows: 100, leg_rows: 0, ..reader.sizes };
    let large = reader.aggregate(&everything()).await.unwrap();
    assert_ne!(large, expected, "the estimate must send a large question to the rollups");
    // 1970 to 2100: months in which no record can be are no reason to read every record.
    let ages = AggregateQuery { from: 0, to: 4_102_444_800_000_000, ..everything() };
    reader.sizes = Sizes { rollup_rows: 1, leg_rows: 1, ..reader.sizes };
    let large = reader.aggregate(&ages).await.unwrap();
    assert_ne!(large, model::aggregate(&samples, &ages), "a wide question must ask the rollups too");
    database.drop().await;
}

#[tokio::test]
async fn empty_ranges_have_no_rows() {
    let database = Database::create().await;
    for rollups in [false, true] {
        let reader = database.reader(rollups);
        assert_eq!(reader.aggregate(&everything()).await.unwrap(), [], "no record at all");
        for (from, to) in
            [(START, START), (START + 1, START), (i64::MIN, i64::MIN + 1), (i64::MAX - 1, i64::MAX)]
        {
            let query = AggregateQuery { from, to, ..everything() };
            assert_eq!(reader.aggregate(&query).await.unwrap(), []);
        }
    }
    database.drop().await;
}

#[tokio::test]
async fn the_whole_of_time_is_a_range() {
    let database = Database::create().await;
    let samples = random_samples(&mut generator(5), TENANTS, 200);
    database.insert(&samples).await;
    let query = AggregateQuery { from: i64::MIN, to: i64::MAX, ..everything() };
    for rollups in [false, true] {
        let rows = database.reader(rollups).aggregate(&query).await.unwrap();
        assert_eq!(rows, model::aggregate(&samples, &query));
    }
    database.drop().await;
}

#[tokio::test]
async fn thousands_of_windows_are_one_question() {
    let database = Database::create().await;
    let random = &mut generator(6);
    let samples = random_samples(random, TENANTS, 1000);
    database.insert(&samples).await;
    database.roll_up(&random_horizons(random, &samples)).await;
    let starts: Vec<i64> = (0..(DAYS + 1) * 96).map(|index| START + index * BUCKET).collect();
    assert!(starts.len() > 7000);
    let query = AggregateQuery { windows: Windows::Starts(starts), ..everything() };
    let expected = model::aggregate(&samples, &query);
    for rollups in [false, true] {
        assert_eq!(database.reader(rollups).aggregate(&query).await.unwrap(), expected);
    }
    database.drop().await;
}

/// Records on each side of every boundary, pages that are asked for in many stretches.
#[tokio::test]
async fn stretches_end_where_windows_end() {
    let database = Database::create().await;
    let mut samples = Vec::new();
    for hour in 0..100 {
        for micros in [-1, 0, 1] {
            let index = samples.len() as i64;
            samples.push(sample(record(TENANTS[0], START + (hour + 1) * HOUR + micros, 1), index, 1));
        }
    }
    database.insert(&samples).await;
    let mut reader = database.reader(false);
    reader.sizes = Sizes { stretch_rows: 3, ..reader.sizes };
    let from = START + 7;
    let starts: Vec<i64> = (0..200).map(|hour| START + hour * HOUR).collect();
    let days: Vec<i64> = (0..9).map(|day| START - HOUR + day * 23 * HOUR).collect();
    for windows in [Windows::Starts(starts), Windows::Within { days, width: HOUR }] {
        let query = AggregateQuery { from, windows, ..everything() };
        let expected = model::aggregate(&samples, &query);
        assert!(expected.len() > 100);
        for limit in [5, 50, 10_000] {
            assert_eq!(pages(&reader, &query, &BTreeSet::new(), limit).await, expected);
        }
    }
    database.drop().await;
}

#[test]
fn a_tenant_is_looked_for_in_its_partition_of_every_count() {
    let query = everything();
    let expected = BTreeSet::from([partition_of(query.tenant_id, 4), partition_of(query.tenant_id, 12)]);
    assert_eq!(Question::new(&query).partitions, expected);
}
