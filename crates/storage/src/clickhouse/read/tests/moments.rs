//! What happens between and during the reads of one answer must not show in it.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::{
    aggregates::everything,
    database::Database,
    model,
    samples::{BUCKET, Sample, generator, random_samples},
};
use crate::{
    AggregateQuery, AggregateRow, GroupBy, Reader as _,
    clickhouse::read::{aggregate::complete, question::Question, rollups, spans},
};

const TENANT: Uuid = Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0031);

fn by_metric() -> AggregateQuery {
    AggregateQuery {
        tenant_id: TENANT,
        from: everything().from + 1,
        group_by: GroupBy { metric: true, ..GroupBy::default() },
        ..everything()
    }
}

/// Horizons of every partition and month at one batch number.
fn horizons(samples: &[Sample], horizon: i64) -> BTreeMap<(i32, u32), i64> {
    let partitions: BTreeSet<i32> = samples.iter().map(|sample| sample.partition).collect();
    let months = [202_601, 202_602, 202_603, 202_604];
    partitions.iter().flat_map(|partition| months.map(|month| ((*partition, month), horizon))).collect()
}

/// Reads the rollups, lets `meanwhile` happen, then reads the records.
async fn answer_around(database: &Database, meanwhile: impl AsyncFnOnce()) -> Vec<AggregateRow> {
    let query = by_metric();
    let question = Question::new(&query);
    let session = &database.reader(true).session;
    let cut = spans::cut(question.range, &BTreeSet::new()).unwrap();
    let rolled = rollups::read(session, &question, &cut).await.unwrap();
    assert!(!rolled.rows.is_empty() && !rolled.horizons.is_empty());
    meanwhile().await;
    complete(session, &question, &cut, rolled).await.unwrap()
}

#[tokio::test]
async fn a_flush_between_both_reads_does_not_show() {
    let database = Database::create().await;
    let samples = random_samples(&mut generator(31), [TENANT; 2], 600);
    database.insert(&samples).await;
    database.roll_up(&horizons(&samples, 10)).await;
    let rows = answer_around(&database, async || {
        database.roll_up(&horizons(&samples, 25)).await;
        database.run("OPTIMIZE TABLE usage_rollups FINAL").await;
        database.run("OPTIMIZE TABLE usage_records FINAL").await;
    })
    .await;
    assert_eq!(rows, model::aggregate(&samples, &by_metric()));
    database.drop().await;
}

#[tokio::test]
async fn records_stored_between_both_reads_are_counted() {
    let database = Database::create().await;
    let samples = random_samples(&mut generator(32), [TENANT; 2], 600);
    let (early, late) = samples.split_at(400);
    database.insert(early).await;
    database.roll_up(&horizons(early, 20)).await;
    let rows = answer_around(&database, async || database.insert(late).await).await;
    assert_eq!(rows, model::aggregate(&samples, &by_metric()));
    database.drop().await;
}

/// Hole H3 of the proved protocol: a bucket that is rolled up anew while a reader pauses.
#[tokio::test]
async fn a_bucket_rolled_up_anew_between_both_reads_does_not_show() {
    let database = Database::create().await;
    let samples = random_samples(&mut generator(33), [TENANT; 2], 600);
    database.insert(&samples).await;
    let horizons = horizons(&samples, 20);
    database.roll_up(&horizons).await;
    let buckets: BTreeSet<i64> =
        samples.iter().map(|sample| sample.record.timestamp.div_euclid(BUCKET) * 900).collect();
    let buckets: Vec<i64> = buckets.into_iter().collect();
    for generation in [1, 2] {
        let rows =
            answer_around(&database, async || database.roll_up_anew(generation, &buckets, &horizons).await)
                .await;
        assert_eq!(rows, model::aggregate(&samples, &by_metric()), "generation {generation}");
    }
    database.drop().await;
}

/// The lookup by id goes by positions in parts; merges make new parts all the time.
#[tokio::test]
async fn a_record_is_found_while_parts_are_merged() {
    let database = Database::create().await;
    let samples = random_samples(&mut generator(34), [TENANT; 2], 1200);
    let (early, late) = samples.split_at(400);
    database.insert(early).await;
    let reader = database.reader(false);
    let merging = async {
        for chunk in late.chunks(50) {
            database.insert(chunk).await;
            database.run("OPTIMIZE TABLE usage_records FINAL").await;
        }
    };
    let looking = async {
        let mut found = 0;
        loop {
            for sample in early {
                let record = reader.record(TENANT, sample.record.record_id).await.unwrap();
                assert_eq!(record.as_ref(), Some(&sample.record));
                found += 1;
                tokio::task::yield_now().await;
            }
            if found > 10_000 {
                return;
            }
        }
    };
    // Ends with the merges.
    tokio::select! {
        () = merging => {}
        () = looking => {}
    }
    database.drop().await;
}
