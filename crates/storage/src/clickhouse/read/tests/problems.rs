//! Public problems of other systems (`cases/problems.md`), by row.

use std::collections::BTreeSet;

use ethnum::I256;
use usage_schemas::Quantity;
use uuid::Uuid;

use super::{
    aggregates,
    database::Database,
    pages,
    samples::{BUCKET, DAY, HOUR, START, generator, random_samples, record, sample},
};
use crate::{AggregateQuery, AggregateRow, RawQuery, Reader as _, Windows};

const TENANT: Uuid = Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0021);

fn total() -> AggregateQuery {
    AggregateQuery { tenant_id: TENANT, ..aggregates::everything() }
}

#[tokio::test]
async fn problem_13_two_records_of_one_instant_are_two() {
    let database = Database::create().await;
    let one = record(TENANT, START + 5, 7);
    let mut other = record(TENANT, START + 5, 8);
    other.record_id = Uuid::from_u128(one.record_id.as_u128().wrapping_add(1));
    database.insert(&[sample(one.clone(), 1, 1), sample(other.clone(), 2, 1)]).await;
    database.roll_up(&[((sample(one.clone(), 1, 1).partition, 202_601), 1)].into()).await;
    for rollups in [false, true] {
        let rows = database.reader(rollups).aggregate(&total()).await.unwrap();
        assert_eq!((rows[0].count, rows[0].sum), (2, I256::from(15)));
        assert_eq!(
            rows[0].latest,
            Some((START + 5, other.record_id, other.value)),
            "the greater id is the later one"
        );
    }
    database.drop().await;
}

#[tokio::test]
async fn problem_15_many_records_of_one_instant_are_all_paged() {
    let database = Database::create().await;
    let samples: Vec<_> =
        (0..500).map(|index| sample(record(TENANT, START, 1), index, 1 + index / 50)).collect();
    database.insert(&samples).await;
    let reader = database.reader(false);
    for limit in [7, 100, 500] {
        let found = pages::pages(&reader, &pages::everything_of(TENANT), limit).await;
        let ids: BTreeSet<Uuid> = found.iter().map(|record| record.record_id).collect();
        assert_eq!((found.len(), ids.len()), (500, 500));
        assert!(found.is_sorted_by_key(|record| record.record_id));
    }
    database.drop().await;
}

#[tokio::test]
async fn problem_34_filters_are_values_and_never_sql() {
    let database = Database::create().await;
    let mut plain = record(TENANT, START, 1);
    plain.subject_type = Some("user".into());
    let hostile = ["x') OR 1=1 --", "\\' OR 1=1 --", "{t0:String}", "a\tb\nc\r\0d", "?", "é'\"`"];
    let mut samples = vec![sample(plain, 0, 1)];
    for (index, text) in hostile.iter().enumerate() {
        let mut record = record(TENANT, START + 1 + index as i64, 1);
        record.subject_type = Some((*text).into());
        samples.push(sample(record, 1 + index as i64, 1));
    }
    database.insert(&samples).await;
    let reader = database.reader(true);
    for text in hostile {
        let expected: Vec<_> = samples
            .iter()
            .map(|sample| sample.record.clone())
            .filter(|record| record.subject_type.as_deref() == Some(text))
            .collect();
        assert_eq!(expected.len(), 1);
        let filter = vec![text.to_owned()];
        let query = RawQuery { subject_types: filter.clone(), ..pages::everything_of(TENANT) };
        assert_eq!(reader.raw(&query).await.unwrap(), expected, "{text:?}");
        let query = AggregateQuery { subject_types: filter.clone(), ..total() };
        assert_eq!(reader.aggregate(&query).await.unwrap()[0].count, 1, "{text:?}");
        // In the other filters the text matches nothing.
        let none = [
            AggregateQuery { metrics: filter.clone(), ..total() },
            AggregateQuery { sources: filter.clone(), ..total() },
            AggregateQuery { resource_types: filter, ..total() },
        ];
        for query in none {
            assert_eq!(reader.aggregate(&query).await.unwrap(), [], "{text:?}");
        }
    }
    database.drop().await;
}

/// Sums wider than 128 bits in units of 10^-18: where a `Decimal(38)` wraps around and comes out negative.
#[tokio::test]
async fn problem_38_sums_beyond_38_digits_are_right() {
    let database = Database::create().await;
    let count: i128 = 40;
    let samples: Vec<_> = (0..count)
        .map(|index| {
            sample(
                record(TENANT, START + index as i64, Quantity::MAX_UNSCALED),
                index as i64,
                1 + index as i64,
            )
        })
        .collect();
    database.insert(&samples).await;
    let partition = samples[0].partition;
    let expected = I256::from(Quantity::MAX_UNSCALED) * I256::from(count);
    assert!(expected > I256::from(i128::MAX));
    assert_eq!(database.reader(false).aggregate(&total()).await.unwrap()[0].sum, expected);
    // Partly rolled up, then wholly.
    for horizon in [17, 40] {
        database.run("TRUNCATE TABLE usage_rollups").await;
        database.roll_up(&[((partition, 202_601), horizon)].into()).await;
        assert_eq!(
            database.reader(true).aggregate(&total()).await.unwrap()[0].sum,
            expected,
            "horizon {horizon}"
        );
    }
    database.drop().await;
}

/// Five days of Asia/Kolkata (+05:30), asked for at once, day by day and as one total.
#[tokio::test]
async fn problem_61_single_windows_add_up_to_the_whole() {
    let database = Database::create().await;
    let samples = random_samples(&mut generator(21), [TENANT; 2], 3000);
    database.insert(&samples).await;
    let midnight = START - 5 * HOUR - 2 * BUCKET;
    let days: Vec<i64> = (0..5).map(|day| midnight + day * DAY).collect();
    let whole = AggregateQuery { from: midnight, to: midnight + 5 * DAY, ..total() };
    for rollups in [false, true] {
        let reader = database.reader(rollups);
        let sum = |rows: &[AggregateRow]| {
            rows.iter().fold((0, I256::ZERO), |(count, sum), row| (count + row.count, sum + row.sum))
        };
        let expected = sum(&reader.aggregate(&whole).await.unwrap());
        assert!(expected.0 > 0);
        let at_once = AggregateQuery { windows: Windows::Starts(days.clone()), ..whole.clone() };
        assert_eq!(sum(&reader.aggregate(&at_once).await.unwrap()), expected);
        let mut single = Vec::new();
        for day in &days {
            let query = AggregateQuery { from: *day, to: day + DAY, ..whole.clone() };
            single.extend(reader.aggregate(&query).await.unwrap());
        }
        assert_eq!(sum(&single), expected);
        let hours =
            AggregateQuery { windows: Windows::Within { days: days.clone(), width: HOUR }, ..whole.clone() };
        assert_eq!(sum(&reader.aggregate(&hours).await.unwrap()), expected);
    }
    database.drop().await;
}

#[tokio::test]
async fn problem_78_pages_are_exact_to_the_microsecond() {
    let database = Database::create().await;
    let samples: Vec<_> = [123_001, 123_002, 123_999]
        .into_iter()
        .map(|micros| sample(record(TENANT, START + micros, 1), micros, 1))
        .collect();
    database.insert(&samples).await;
    let found = pages::pages(&database.reader(false), &pages::everything_of(TENANT), 1).await;
    let times: Vec<i64> = found.iter().map(|record| record.timestamp - START).collect();
    assert_eq!(times, [123_001, 123_002, 123_999]);
    database.drop().await;
}
