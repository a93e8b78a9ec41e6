//! Public problems of other systems (`cases/problems.md`), by row. Rows 42, 46 and 116 are in `renames`, 38 in the contract.

use std::sync::Arc;

use usage_storage::clickhouse::ClickHouseStorage;
use usage_storage::{Storage, Writer};

use crate::contract::Bench as _;
use crate::contract::batches::Maker;
use crate::contract::fences::settled_exactly_once;
use crate::contract::oracle::{Oracle, ask, question};
use crate::contract::verifying::{everything, verify};
use crate::contract::worker::{Way, store, take};
use crate::harness::Database;

/// A worker that stores batch after batch of partition 1 until it is told to stop.
struct Load {
    task: tokio::task::JoinHandle<Maker>,
    stop: tokio::sync::watch::Sender<bool>,
    batches: tokio::sync::watch::Receiver<u32>,
}

impl Load {
    fn start(writer: &Arc<dyn Writer>, oracle: &Oracle, mut maker: Maker) -> Self {
        let (writer, oracle) = (Arc::clone(writer), oracle.clone());
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let (count, batches) = tokio::sync::watch::channel(0);
        let task = tokio::spawn(async move {
            while !*stopped.borrow() {
                store(&*writer, &oracle, &[maker.batch(100)]).await.unwrap();
                writer.tick(&[maker.partition]).await.unwrap();
                count.send_modify(|count| *count += 1);
            }
            maker
        });
        Self { task, stop, batches }
    }

    /// Waits for so many more batches.
    async fn more(&mut self, count: u32) {
        let wanted = *self.batches.borrow() + count;
        self.batches.wait_for(|batches| *batches >= wanted).await.expect("the worker works");
    }

    async fn end(self) -> Maker {
        self.stop.send(true).unwrap();
        self.task.await.unwrap()
    }
}

/// A schema that is brought up to date, or altered by hand, with batches in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_9_the_schema_changes_while_batches_are_in_flight() {
    let database = Database::shared();
    let storage = database.storage();
    storage.migrate().await.unwrap();
    let writer = storage.writer();
    take(&*writer, &[1]).await;
    let oracle = Oracle::default();
    let mut load = Load::start(&writer, &oracle, Maker::new(301, 1, 2));
    load.more(2).await;
    for migration in [database.storage(), database.storage()] {
        migration.migrate().await.unwrap();
    }
    load.more(1).await;
    for table in ["usage_records", "usage_rollups"] {
        database.query(&format!("ALTER TABLE {table} ADD COLUMN note String DEFAULT 'mine'")).await;
        load.more(2).await;
    }
    let maker = load.end().await;
    // The next owner reads what was written under both.
    take(&*writer, &[1]).await;
    settled_exactly_once(&database, &oracle, &[maker]).await;
    assert_eq!(verify(&*storage, &everything()).await.unwrap().1, []);
}

/// Nothing is deduplicated when a question is asked, so its memory does not grow with the tenant's records.
#[tokio::test]
async fn problem_19_questions_about_a_large_tenant_fit_into_little_memory() {
    let database = Database::shared();
    let mut config = database.config();
    // From the records alone, on a busy machine.
    config.rollup_rows = u64::MAX;
    config.read_timeout = std::time::Duration::from_secs(60);
    let storage = ClickHouseStorage::connect(config);
    storage.migrate().await.unwrap();
    let tenant = Maker::new(302, 0, 1).tenants[0];
    database
        .query(&format!(
            "INSERT INTO usage_records (record_id, tenant_id, source, metric, kind, value, timestamp, ingested_at, content_hash, \
             kafka_partition, kafka_offset, batch_seq) \
             SELECT toUUID(UUIDNumToString(reinterpretAsFixedString(sipHash128(number)))), '{tenant}', 's', 'm', 1, 1, \
             fromUnixTimestamp64Micro(toInt64({} + number % 3600000000), 'UTC'), now64(6), \
             reinterpretAsFixedString(sipHash128(number)), 0, number, 1 FROM numbers(2000000)",
            question(tenant).from
        ))
        .await;
    assert_eq!(ask(&*storage.reader(), tenant).await.unwrap().count, 2_000_000);
    database.query("SYSTEM FLUSH LOGS").await;
    let log = "SELECT max(memory_usage), max(read_rows) FROM system.query_log WHERE type = 'QueryFinish' \
               AND user = 'usage_reader' AND current_database = currentDatabase()";
    let seen = &database.query(log).await[0];
    let (memory, rows): (u64, u64) = (seen[0].parse().unwrap(), seen[1].parse().unwrap());
    assert!(rows >= 2_000_000, "the records were read: {rows}");
    assert!(memory < 256 << 20, "{memory} bytes");
}

/// There are no views, and no deduplication of inserts that could treat two tables differently: a batch that is sent again is
/// looked for.
#[tokio::test]
async fn problem_39_40_a_batch_that_is_sent_again_counts_once_in_both_tables() {
    let database = Database::shared();
    let storage = database.storage();
    storage.migrate().await.unwrap();
    let writer = storage.writer();
    take(&*writer, &[0]).await;
    let oracle = Oracle::default();
    let mut makers = vec![Maker::new(303, 0, 2)];
    for _ in 0..3 {
        let batch = makers[0].batch(200);
        assert_eq!(store(&*writer, &oracle, std::slice::from_ref(&batch)).await.unwrap(), Way::Written);
        // As after an answer that was lost, before and after the flush.
        writer.settle(std::slice::from_ref(&batch)).await.unwrap();
        writer.tick(&[0]).await.unwrap();
        writer.settle(std::slice::from_ref(&batch)).await.unwrap();
        writer.tick(&[0]).await.unwrap();
        settled_exactly_once(&database, &oracle, &makers).await;
    }
    assert_eq!(database.stored().await.values().sum::<u64>(), 600);
    let views = "SELECT count() FROM system.tables WHERE database = currentDatabase() AND engine = 'MaterializedView'";
    assert_eq!(database.query(views).await[0][0], "0");
    assert_eq!(verify(&*storage, &everything()).await.unwrap().1, []);
}

/// `Ok` is proof, for writes and for flushes: the rows are there at that moment.
#[tokio::test]
async fn problem_47_48_ok_means_that_the_rows_are_there() {
    let database = Database::shared();
    let storage = database.storage();
    storage.migrate().await.unwrap();
    let writer = storage.writer();
    take(&*writer, &[0, 1]).await;
    let mut makers = [0, 1].map(|partition| Maker::new(304, partition, 2));
    let mut rows = 0;
    for round in 1..=5 {
        let batches = makers.each_mut().map(|maker| maker.batch(10 * round));
        rows += batches.iter().map(|batch| batch.rows.len() as u64).sum::<u64>();
        store(&*writer, &Oracle::default(), &batches).await.unwrap();
        assert_eq!(database.stored().await.values().sum::<u64>(), rows);
        writer.tick(&[0, 1]).await.unwrap();
        let rolled_up = database.query("SELECT sum(record_count), max(horizon) FROM usage_rollups").await;
        assert_eq!(rolled_up[0], [rows.to_string(), round.to_string()]);
    }
}

/// A view that is made during a long insert misses its rows. Here a month is rolled up for the first time, by the server itself,
/// while another worker inserts into the same month.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_115_rollups_that_are_made_under_load_miss_nothing() {
    let database = Database::shared();
    let storage = database.storage();
    storage.migrate().await.unwrap();
    let (writer, other) = (storage.writer(), database.storage().writer());
    take(&*writer, &[0]).await;
    take(&*other, &[1]).await;
    let oracle = Oracle::default();
    let mut makers = vec![Maker::new(305, 0, 2)];
    let mut load = Load::start(&other, &oracle, Maker::new(306, 1, 2));
    for _ in 0..3 {
        store(&*writer, &oracle, &[makers[0].batch_of_a_month(10_000)]).await.unwrap();
        // Nobody has rolled these records up: the next owner leaves them to the server.
        writer.close(0, false).await.unwrap();
        take(&*writer, &[0]).await;
        load.more(1).await;
    }
    makers.push(load.end().await);
    settled_exactly_once(&database, &oracle, &makers).await;
    let (verified, differences) = verify(&*storage, &everything()).await.unwrap();
    assert_eq!(differences, []);
    assert!(verified.records >= 30_000, "the server has rolled them up: {verified:?}");
}
