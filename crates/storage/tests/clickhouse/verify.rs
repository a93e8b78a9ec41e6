//! `verify` and `rebuild`, on data that was damaged by hand.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use usage_storage::{
    BucketKey, Difference, LastBatch, PlannedBatch, PreviousBatch, Scope, Storage, StorageError, Writer,
};
use uuid::Uuid;

use crate::contract::Bench as _;
use crate::contract::batches::{Maker, START};
use crate::contract::fences::settled_exactly_once;
use crate::contract::oracle::Oracle;
use crate::contract::verifying::{everything, verify};
use crate::contract::worker::{again, store, take};
use crate::harness::Database;

/// A key of the rollups that counts something, as SQL tells it.
const KEYS: &str = "SELECT tenant_id, metric, source, toString(kind), toUInt32(bucket), kafka_partition FROM usage_rollups \
                    WHERE record_count > 0 GROUP BY tenant_id, metric, source, kind, bucket, kafka_partition ORDER BY ALL";

/// The condition for one row of [`KEYS`].
fn is_key(row: &[String]) -> String {
    format!(
        "tenant_id = '{}' AND metric = '{}' AND source = '{}' AND kind = '{}' AND toUInt32(bucket) = {} AND kafka_partition = {}",
        row[0], row[1], row[2], row[3], row[4], row[5]
    )
}

fn names(key: &BucketKey, row: &[String]) -> bool {
    key.tenant_id.to_string() == row[0]
        && key.metric == row[1]
        && key.source == row[2]
        && key.bucket.to_string() == row[4]
        && key.partition.to_string() == row[5]
}

/// Two partitions with some batches, all rolled up.
struct Filled {
    database: Database,
    storage: Arc<dyn Storage>,
    writer: Arc<dyn Writer>,
    oracle: Oracle,
    makers: Vec<Maker>,
}

impl Filled {
    async fn new(seed: u64) -> Self {
        let database = Database::shared();
        let storage = database.storage();
        storage.migrate().await.unwrap();
        let writer = storage.writer();
        take(&*writer, &[0, 1]).await;
        let (oracle, makers) =
            (Oracle::default(), [0, 1].map(|partition| Maker::new(seed, partition, 2)).into());
        let mut filled = Self { database, storage, writer, oracle, makers };
        filled.store_some().await;
        filled.writer.tick(&[0, 1]).await.unwrap();
        filled
    }

    async fn store_some(&mut self) {
        let batches: Vec<_> = self.makers.iter_mut().map(|maker| maker.batch(150)).collect();
        store(&*self.writer, &self.oracle, &batches).await.unwrap();
    }

    async fn differences(&self) -> Vec<Difference> {
        verify(&*self.storage, &everything()).await.unwrap().1
    }

    async fn rebuild(&self, differences: &[Difference]) {
        let bucket = |difference: &Difference| match difference {
            Difference::Bucket { key, .. } => Some(key.clone()),
            _ => None,
        };
        let buckets: Vec<BucketKey> = differences.iter().filter_map(bucket).collect();
        self.storage.maintenance().rebuild(&buckets).await.unwrap();
    }
}

#[tokio::test]
async fn what_was_stored_and_rolled_up_is_verified() {
    let mut filled = Filled::new(201).await;
    // Beyond the horizon: nothing that the rollups should hold yet.
    filled.store_some().await;
    let (verified, differences) = verify(&*filled.storage, &everything()).await.unwrap();
    assert_eq!(differences, []);
    let keys = filled.database.rollup_keys().await;
    assert_eq!((verified.months, verified.buckets), (2, keys));
    assert_eq!((verified.records, verified.identities), (300, 600));
}

#[tokio::test]
async fn damaged_buckets_are_named_and_rebuilt() {
    let mut filled = Filled::new(202).await;
    let keys = filled.database.query(KEYS).await;
    let (lost, wrong) = (&keys[0], &keys[keys.len() - 1]);
    let database = &filled.database;
    database
        .query(&format!(
            "ALTER TABLE usage_rollups DELETE WHERE {} SETTINGS mutations_sync = 2",
            is_key(lost)
        ))
        .await;
    // The same count and extremes, another sum.
    let one_more = "INSERT INTO usage_rollups (tenant_id, metric, source, kind, bucket, kafka_partition, generation, \
                    record_count, value_sum, latest) SELECT tenant_id, metric, source, kind, bucket, kafka_partition, generation, \
                    0, toDecimal256('0.000000000000000001', 18), latest FROM usage_rollups";
    database.query(&format!("{one_more} WHERE {} LIMIT 1", is_key(wrong))).await;
    // A source that no record has.
    let ghost = one_more.replacen(
        "metric, source, kind, bucket, kafka_partition, generation, 0",
        "metric, 'ghost', kind, bucket, kafka_partition, generation, 1",
        1,
    );
    database.query(&format!("{ghost} WHERE {} LIMIT 1", is_key(wrong))).await;

    let found = filled.differences().await;
    assert_eq!(found.len(), 3, "{found:?}");
    let mut named = BTreeSet::new();
    for difference in &found {
        let Difference::Bucket { key, expected, found } = difference else { panic!("{difference:?}") };
        match (expected, found) {
            (Some(_), None) => named.insert(("lost", names(key, lost))),
            (Some(expected), Some(found)) => {
                assert_eq!((found.count, found.sum - expected.sum), (expected.count, ethnum::I256::ONE));
                named.insert(("wrong", names(key, wrong)))
            }
            (None, Some(found)) => {
                assert_eq!(found.count, 1);
                named.insert(("ghost", key.source == "ghost"))
            }
            (None, None) => panic!("neither side has anything"),
        };
    }
    assert_eq!(named, [("ghost", true), ("lost", true), ("wrong", true)].into());

    filled.rebuild(&found).await;
    assert_eq!(filled.differences().await, []);
    settled_exactly_once(&filled.database, &filled.oracle, &filled.makers).await;
    // Again, although nothing differs: the same under yet another generation.
    filled.rebuild(&found).await;
    assert_eq!(filled.differences().await, []);
    // Whoever held the partition is fenced, takes it over and goes on under the new generations.
    let partition: i32 = lost[5].parse().unwrap();
    let late = filled.makers[usize::try_from(partition).unwrap()].batch(150);
    let refused = filled.writer.write(std::slice::from_ref(&late)).await;
    assert!(matches!(refused, Err(StorageError::Fenced { .. })), "{refused:?}");
    again(|| filled.writer.open(partition)).await;
    filled.oracle.begin(&late);
    filled.writer.settle(std::slice::from_ref(&late)).await.unwrap();
    filled.oracle.acknowledge(&late);
    take(&*filled.writer, &[0, 1]).await;
    filled.store_some().await;
    filled.writer.tick(&[0, 1]).await.unwrap();
    settled_exactly_once(&filled.database, &filled.oracle, &filled.makers).await;
    assert_eq!(filled.differences().await, []);
}

#[tokio::test]
async fn a_rollup_whose_horizon_is_gone_is_rebuilt_as_nothing() {
    let filled = Filled::new(203).await;
    let horizons = "ALTER TABLE usage_rollups DELETE WHERE horizon > 0 AND kafka_partition = 0 SETTINGS mutations_sync = 2";
    filled.database.query(horizons).await;
    let found = filled.differences().await;
    assert!(!found.is_empty());
    for difference in &found {
        assert!(
            matches!(difference, Difference::Bucket { key, expected: None, found: Some(_) } if key.partition == 0),
            "{difference:?}"
        );
    }
    filled.rebuild(&found).await;
    assert_eq!(filled.differences().await, []);
    settled_exactly_once(&filled.database, &filled.oracle, &filled.makers).await;
}

#[tokio::test]
async fn identities_that_are_stored_twice_are_named() {
    let filled = Filled::new(204).await;
    let rows = filled
        .database
        .query("SELECT tenant_id, record_id FROM usage_records ORDER BY record_id LIMIT 2")
        .await;
    // Once in the same month, and once two months later.
    for (row, later) in rows.iter().zip([0, 2]) {
        let columns = format!("timestamp + INTERVAL {later} MONTH AS timestamp");
        let copy = format!(
            "INSERT INTO usage_records SELECT * REPLACE ({columns}) FROM usage_records WHERE record_id = '{}'",
            row[1]
        );
        filled.database.query(&copy).await;
    }
    let found = filled.differences().await;
    let twice: BTreeSet<(Uuid, Uuid, u64)> = found
        .iter()
        .filter_map(|difference| match difference {
            Difference::StoredTwice { tenant_id, record_id, copies } => {
                Some((*tenant_id, *record_id, *copies))
            }
            _ => None,
        })
        .collect();
    let wanted = rows.iter().map(|row| (row[0].parse().unwrap(), row[1].parse().unwrap(), 2)).collect();
    assert_eq!(twice, wanted);
    // The first copy counts in a bucket behind the horizon, which therefore differs as well.
    assert_eq!(found.len(), 3, "{found:?}");
}

#[tokio::test]
async fn records_in_a_wrong_partition_are_named() {
    let filled = Filled::new(205).await;
    let astray = PlannedBatch { partition: 2, ..(*Maker::new(206, 0, 1).batch(40)).clone() };
    let tenant = astray.rows.tenant_id[0];
    take(&*filled.writer, &[2]).await;
    store(&*filled.writer, &filled.oracle, &[Arc::new(astray)]).await.unwrap();
    let wrong = Difference::WrongPartition {
        tenant_id: tenant,
        partition: 2,
        records: 40,
        first_offset: 0,
        last_offset: 39,
    };
    assert_eq!(filled.differences().await, [wrong]);
    // A count that the topic once had and that puts it there makes it right.
    let mut counts = everything();
    let earlier = (1..1_000)
        .find(|&count| usage_schemas::partition::partition_of(tenant, count) == 2)
        .expect("some count puts it there");
    counts.partition_counts.known.push(earlier);
    assert_eq!(verify(&*filled.storage, &counts).await.unwrap().1, []);
}

#[tokio::test]
async fn only_what_is_asked_for_is_looked_at() {
    let filled = Filled::new(207).await;
    // Every bucket is one too high.
    let damage = "INSERT INTO usage_rollups (tenant_id, metric, source, kind, bucket, kafka_partition, generation, record_count, latest) \
                  SELECT tenant_id, metric, source, kind, bucket, kafka_partition, generation, 1, latest FROM usage_rollups WHERE record_count > 0";
    filled.database.query(damage).await;
    let keys = filled.database.query(KEYS).await;
    let tenant = filled.makers[0].tenants[0];
    let (from, to) = (START + 900_000_000, START + 2 * 3_600_000_000 - 1);
    type Belongs<'a> = &'a dyn Fn(&Vec<String>) -> bool;
    let scopes: [(Scope, Belongs<'_>); 4] = [
        (everything(), &|_| true),
        (Scope { tenant_id: Some(tenant), ..everything() }, &|row| row[0] == tenant.to_string()),
        (Scope { metric: Some("vm.hours".into()), ..everything() }, &|row| row[1] == "vm.hours"),
        (Scope { from: Some(from), to: Some(to), ..everything() }, &|row| {
            row[4].parse::<i64>().unwrap() * 1_000_000 >= from
        }),
    ];
    for (scope, wanted) in scopes {
        let (verified, found) = verify(&*filled.storage, &scope).await.unwrap();
        let count = keys.iter().filter(|row| wanted(row)).count();
        assert!(count > 3);
        assert_eq!((found.len(), verified.buckets as usize), (count, count), "{scope:?}");
    }
    let nothing = Scope { from: Some(START + 400 * 3_600_000_000), ..everything() };
    assert_eq!(verify(&*filled.storage, &nothing).await.unwrap().1, []);
}

/// An owner writes and rolls up, and takes its partition back whenever it is fenced, while buckets are rebuilt again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_are_rebuilt_beside_a_running_owner() {
    let mut filled = Filled::new(208).await;
    let damage = "INSERT INTO usage_rollups (tenant_id, metric, source, kind, bucket, kafka_partition, generation, record_count, latest) \
                  SELECT tenant_id, metric, source, kind, bucket, kafka_partition, generation, 1, latest FROM usage_rollups WHERE record_count > 0";
    filled.database.query(damage).await;
    let damaged = filled.differences().await;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let owner = {
        let (writer, oracle) = (Arc::clone(&filled.writer), filled.oracle.clone());
        let mut maker = filled.makers.remove(0);
        tokio::spawn(async move {
            let mut taken_back = 0;
            while !*stopped.borrow() || taken_back == 0 {
                let batch = maker.batch(30);
                oracle.begin(&batch);
                taken_back += own(&*writer, &batch).await;
                oracle.acknowledge(&batch);
                // A worker waits for its batches to fill.
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            (maker, taken_back)
        })
    };
    for _ in 0..5 {
        filled.rebuild(&damaged).await;
    }
    stop.send(true).unwrap();
    let (maker, taken_back) = owner.await.unwrap();
    assert!(taken_back > 0);
    filled.makers.push(maker);
    filled.writer.close(0, true).await.unwrap();
    assert_eq!(filled.differences().await, []);
    settled_exactly_once(&filled.database, &filled.oracle, &filled.makers).await;
}

/// Stores a batch and rolls it up as its partition's owner; how often the partition had to be taken over again.
async fn own(writer: &dyn Writer, batch: &Arc<PlannedBatch>) -> u32 {
    let mut taken_back = 0;
    let mut result = writer.write(std::slice::from_ref(batch)).await;
    while let Err(error) = result {
        if matches!(error, StorageError::Fenced { .. }) {
            taken_back += 1;
            again(|| writer.open(batch.partition)).await;
        }
        result = writer.settle(std::slice::from_ref(batch)).await;
        if result.is_ok() {
            again(|| writer.recover(batch.partition)).await;
        }
    }
    // A fence that only the flush meets is met by the next write too.
    match writer.tick(&[batch.partition]).await {
        Ok(()) | Err(StorageError::Fenced { .. }) => {}
        Err(error) => assert!(error.may_pass(), "{error:?}"),
    }
    taken_back
}

/// A table of fences that came back from a backup has forgotten the epochs of later owners.
#[tokio::test]
async fn fences_above_all_shut_out_owners_that_the_table_has_forgotten() {
    let mut filled = Filled::new(209).await;
    filled.database.query("TRUNCATE TABLE usage_fences").await;
    let late = filled.makers[0].batch(10);
    filled.storage.maintenance().fence_above_all(&[0, 1, 2, 3]).await.unwrap();
    let before = filled.database.stored().await;
    let refused = filled.writer.write(&[late]).await;
    assert!(matches!(refused, Err(StorageError::Fenced { .. })), "{refused:?}");
    assert_eq!(filled.database.stored().await, before);
    // The next owner goes on above them.
    take(&*filled.database.storage().writer(), &[0]).await;
}

#[tokio::test]
async fn the_last_batch_of_each_partition_is_found() {
    let mut filled = Filled::new(210).await;
    filled.store_some().await;
    let last = filled.storage.maintenance().last_batches().await.unwrap();
    let of = |partition, batch_seq, first_offset, previous| LastBatch {
        partition,
        batch_seq,
        first_offset,
        previous,
    };
    let first = Some(PreviousBatch { batch_seq: 1, last_offset: 149 });
    assert_eq!(last, [of(0, 2, 150, first), of(1, 2, 150, first)]);
    // As in a snapshot that was taken between two months of a batch, and where nothing is older.
    let database = &filled.database;
    database
        .query(
            "ALTER TABLE usage_records DELETE WHERE (kafka_partition = 0 AND batch_seq = 2 AND kafka_offset < 170) \
             OR (kafka_partition = 1 AND batch_seq = 1) SETTINGS mutations_sync = 2",
        )
        .await;
    let last = filled.storage.maintenance().last_batches().await.unwrap();
    assert_eq!(last, [of(0, 2, 170, first), of(1, 2, 150, None)]);
    assert_eq!(filled.storage.maintenance().running_questions().await.unwrap(), 0);
    filled.storage.maintenance().empty_rollups().await.unwrap();
    assert_eq!(filled.database.rollup_keys().await, 0);
}
