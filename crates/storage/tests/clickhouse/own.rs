//! What is ClickHouse's own.

use std::sync::Arc;

use usage_storage::clickhouse::ClickHouseStorage;
use usage_storage::{IdProbe, Storage, StorageError};
use uuid::Uuid;

use crate::contract::Bench;
use crate::contract::batches::Maker;
use crate::contract::oracle::{Oracle, ask};
use crate::contract::worker::{store, take};
use crate::harness::Database;

#[tokio::test]
async fn a_changed_or_newer_migration_is_refused() {
    for (version, checksum, word) in [(1, "0123", "changed"), (9_999, "0123", "newer")] {
        let database = Database::shared();
        let storage = database.storage();
        storage.migrate().await.unwrap();
        storage.check().await.unwrap();
        let row = format!(
            "INSERT INTO usage_migrations (version, name, checksum) VALUES ({version}, 'x', '{checksum}')"
        );
        database.query(&row).await;
        for refused in [storage.migrate().await, storage.check().await] {
            let error = refused.unwrap_err();
            assert!(matches!(&error, StorageError::Schema(text) if text.contains(word)), "{error:?}");
        }
    }
}

#[tokio::test]
async fn a_database_that_was_not_migrated_is_refused() {
    let database = Database::shared();
    let error = database.storage().check().await.unwrap_err();
    assert!(matches!(error, StorageError::Schema(_)), "{error:?}");
}

#[tokio::test]
async fn users_without_their_profiles_are_refused() {
    let database = Database::shared();
    database.storage().migrate().await.unwrap();
    let mut config = database.config();
    config.reader_user = config.writer_user.clone();
    let error = ClickHouseStorage::connect(config).check().await.unwrap_err();
    assert!(matches!(&error, StorageError::Config(text) if text.contains("priority")), "{error:?}");
    let mut config = database.config();
    config.reader_user = config.maintenance_user.clone();
    let error = ClickHouseStorage::connect(config).check().await.unwrap_err();
    assert!(matches!(&error, StorageError::Config(text) if text.contains("readonly")), "{error:?}");
}

/// Rule 4, with batches that are larger than what the server's defaults would make one block of.
#[tokio::test]
async fn an_insert_is_one_part() {
    let database = Database::shared();
    let storage = database.storage();
    storage.migrate().await.unwrap();
    // Merges would hide how many parts there were.
    database.query("SYSTEM STOP MERGES").await;
    let writer = storage.writer();
    take(&*writer, &[0, 1]).await;
    let oracle = Oracle::default();
    let mut makers = [Maker::new(71, 0, 3), Maker::new(73, 1, 3)];
    for inserts in 1..=2 {
        let batches: Vec<_> = makers.iter_mut().map(|maker| maker.batch(80_000)).collect();
        store(&*writer, &oracle, &batches).await.unwrap();
        let records = parts(&database, "usage_records").await;
        assert_eq!(records.len(), 2 * inserts, "one part per month and insert: {records:?}");
        writer.tick(&[0, 1]).await.unwrap();
        let rollups = parts(&database, "usage_rollups").await;
        assert_eq!(rollups.len(), 2 * inserts, "{rollups:?}");
    }
    database.query("SYSTEM START MERGES").await;
}

async fn parts(database: &Database, table: &str) -> Vec<Vec<String>> {
    let sql = format!(
        "SELECT name, rows FROM system.parts WHERE database = currentDatabase() AND table = '{table}' AND active"
    );
    database.query(&sql).await
}

/// After the rollups were emptied (a restore), new owners leave the rebuilding of large months to the server.
#[tokio::test]
async fn emptied_rollups_are_rebuilt_by_the_server() {
    let database = Database::shared();
    let storage = database.storage();
    storage.migrate().await.unwrap();
    let writer = storage.writer();
    take(&*writer, &[0]).await;
    let oracle = Oracle::default();
    let mut maker = Maker::new(79, 0, 2);
    // The second month has few rows: both ways in one recovery.
    store(&*writer, &oracle, &[maker.batch_of_a_month(20_000)]).await.unwrap();
    store(&*writer, &oracle, &[maker.batch(400)]).await.unwrap();
    writer.tick(&[0]).await.unwrap();
    let keys = database.rollup_keys().await;
    writer.close(0, true).await.unwrap();
    database.query("TRUNCATE TABLE usage_rollups").await;
    database.query("SYSTEM STOP MERGES usage_rollups").await;
    take(&*writer, &[0]).await;
    assert_eq!(parts(&database, "usage_rollups").await.len(), 1, "the large month, as one part");
    for tenant in &maker.tenants {
        assert_eq!(ask(&*storage.reader(), *tenant).await.unwrap(), oracle.expected(*tenant));
    }
    writer.tick(&[0]).await.unwrap();
    assert_eq!(database.rollup_keys().await, keys);
    assert_eq!(database.rollup_differences().await, Vec::<String>::new());
}

/// A month that is too large for one statement is rolled up in slices of whole batches.
#[tokio::test]
async fn large_months_are_rebuilt_in_slices() {
    let database = Database::shared();
    let mut config = database.config();
    config.rebuild_rows = 100;
    let storage = ClickHouseStorage::connect(config);
    storage.migrate().await.unwrap();
    let writer = storage.writer();
    take(&*writer, &[0]).await;
    let oracle = Oracle::default();
    let mut maker = Maker::new(103, 0, 2);
    for rows in [1_000, 2_000, 500, 4_000, 100, 900, 1_600, 10] {
        store(&*writer, &oracle, &[maker.batch_of_a_month(rows)]).await.unwrap();
    }
    database.query("SYSTEM STOP MERGES usage_rollups").await;
    take(&*writer, &[0]).await;
    let horizons = "SELECT horizon FROM usage_rollups WHERE horizon > 0 ORDER BY horizon";
    // 2,500 rows at once, up to the end of the batch in which they end.
    assert_eq!(database.query(horizons).await.concat(), ["2", "4", "7", "8"]);
    for tenant in &maker.tenants {
        assert_eq!(ask(&*storage.reader(), *tenant).await.unwrap(), oracle.expected(*tenant));
    }
    assert_eq!(database.rollup_differences().await, Vec::<String>::new());
}

/// Whoever has lost a partition does not add fences by trying again.
#[tokio::test]
async fn a_lost_owner_raises_no_fence() {
    let database = Database::shared();
    let (storage, other) = (database.storage(), database.storage());
    storage.migrate().await.unwrap();
    let (stale, owner) = (storage.writer(), other.writer());
    take(&*stale, &[0]).await;
    let mut maker = Maker::new(107, 0, 1);
    store(&*stale, &Oracle::default(), &[maker.batch(10)]).await.unwrap();
    take(&*owner, &[0]).await;
    let fences = || database.query("SELECT count() FROM usage_fences");
    let before = fences().await;
    for _ in 0..3 {
        assert!(matches!(stale.tick(&[0]).await, Err(StorageError::Fenced { .. })));
        assert!(matches!(stale.settle(&[maker.batch(10)]).await, Err(StorageError::Fenced { .. })));
    }
    assert_eq!(fences().await, before);
}

/// On tables of more than a million rows the server looks at projections, also where they don't fit.
#[tokio::test]
async fn ids_are_found_in_a_large_table() {
    let database = Database::shared();
    let storage = database.storage();
    storage.migrate().await.unwrap();
    let fill = "INSERT INTO usage_records (record_id, tenant_id, source, metric, kind, value, timestamp, ingested_at, content_hash, \
                kafka_partition, kafka_offset, batch_seq) \
                SELECT toUUID(UUIDNumToString(reinterpretAsFixedString(sipHash128(number)))), \
                toUUID(UUIDNumToString(toFixedString(leftPad(toString(number % 40), 16, '0'), 16))), 's', 'm', 1, 1, \
                toDateTime64('2026-11-01 00:00:00', 6, 'UTC') + number % 86400, now64(6), \
                reinterpretAsFixedString(sipHash128(number)), 0, number, 1 FROM numbers(2500000)";
    database.query(fill).await;
    let sql = "SELECT tenant_id, metric, toUnixTimestamp64Micro(timestamp), record_id FROM usage_records \
               ORDER BY sipHash64(record_id) LIMIT 3000";
    let probe = |row: Vec<String>| IdProbe {
        tenant_id: row[0].parse().unwrap(),
        metric: row[1].clone(),
        timestamp: row[2].parse().unwrap(),
        record_id: row[3].parse().unwrap(),
    };
    let mut probes: Vec<IdProbe> = database.query(sql).await.into_iter().map(probe).collect();
    let writer = storage.writer();
    assert_eq!(writer.find(&probes).await.unwrap().len(), 3_000, "by the sort key");
    probes.iter_mut().for_each(|probe| probe.timestamp += 1);
    assert_eq!(writer.find(&probes).await.unwrap().len(), 3_000, "by the id");
    probes.iter_mut().for_each(|probe| probe.record_id = Uuid::new_v4());
    assert_eq!(writer.find(&probes).await.unwrap(), []);
}

/// A writer that is not told to open a partition does not own it.
#[tokio::test]
async fn a_partition_must_be_opened_first() {
    let database = Database::shared();
    let storage = database.storage();
    storage.migrate().await.unwrap();
    let batch = Maker::new(83, 2, 1).batch(3);
    let error = storage.writer().write(&[Arc::clone(&batch)]).await.unwrap_err();
    assert!(matches!(error, StorageError::Fenced { partitions } if partitions == [2]));
}
