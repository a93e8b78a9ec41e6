use usage_schemas::{Kind, Quantity, RecordRef, Timestamp};
use uuid::Uuid;

use super::*;
use crate::clickhouse::ClickHouseStorage;
use crate::clickhouse::partition::lock_rolling;
use crate::{PlannedBatch, Rows, Storage, Writer};

/// 2026-11-10T00:00:00Z.
const START: i64 = 1_794_268_800_000_000;

fn config() -> ClickHouseConfig {
    let database = format!("test_{}", Uuid::new_v4().simple());
    let url = usage_devstack::testing::clickhouse_url();
    let mut config = ClickHouseConfig::new(url, database).with_dev_passwords();
    config.flush_age = Duration::ZERO;
    config
}

fn batch(batch_seq: i64, rows: usize) -> Arc<PlannedBatch> {
    let mut batch = PlannedBatch { partition: 0, batch_seq, rows: Rows::default() };
    for i in 0..rows {
        let record = RecordRef {
            record_id: Uuid::new_v4(),
            tenant_id: Uuid::from_u128(1),
            source: "s",
            metric: "m",
            kind: Kind::Counter,
            value: Quantity::from_unscaled(1).unwrap(),
            timestamp: Timestamp::from_micros(START + i as i64),
            idempotency_key: None,
            resource_id: None,
            resource_type: None,
            subject_id: None,
            subject_type: None,
            metadata: None,
        };
        batch.rows.push(&record, [0; 16], i as i64, START);
    }
    Arc::new(batch)
}

/// Sum of what is rolled up.
async fn rolled_up(writer: &ClickHouseWriter) -> u64 {
    let bytes = writer.client.fetch("SELECT sum(record_count) FROM usage_rollups").await.unwrap();
    crate::clickhouse::rowbinary::RowReader::new(&bytes).u64().unwrap()
}

async fn migrated() -> ClickHouseWriter {
    let config = config();
    ClickHouseStorage::connect(config.clone()).migrate().await.unwrap();
    ClickHouseWriter::new(&config)
}

/// A tick may still work on the state of before a partition was opened anew, by the same process and so the same owner: no
/// fence tells the two apart, and the rows are in the new state too.
#[tokio::test]
async fn what_was_opened_anew_is_not_flushed_by_the_old_state() {
    let writer = migrated().await;
    for in_doubt in [true, false] {
        writer.open(0).await.unwrap();
        writer.recover(0).await.unwrap();
        let before = rolled_up(&writer).await;
        let number = writer.partitions.get([0])[0].state().through + 1;
        writer.write(&[batch(number, 10)]).await.unwrap();
        let old = lock_rolling(writer.partitions.get([0])).await;
        if in_doubt {
            // As after a flush without an answer.
            old.slots[0].state().freeze(Month(202611)).unwrap();
        }
        writer.open(0).await.unwrap();
        let refused = flush(&writer, &old).await;
        assert!(refused.is_err(), "{in_doubt}: {refused:?}");
        assert_eq!(rolled_up(&writer).await, before, "{in_doubt}: the old state stored nothing");
        drop(old);
        writer.recover(0).await.unwrap();
        while writer.tick(&[0]).await.is_err_and(|error| error.may_pass()) {}
        assert_eq!(rolled_up(&writer).await, before + 10, "{in_doubt}: rolled up once");
    }
}

/// Closing forgets the partition, but not one that was opened anew meanwhile.
#[tokio::test]
async fn closing_spares_what_was_opened_anew() {
    let writer = migrated().await;
    writer.open(0).await.unwrap();
    let old = writer.partitions.get([0]);
    writer.open(0).await.unwrap();
    assert!(old[0].is_dead());
    writer.partitions.forget(&old[0]);
    assert_eq!(writer.partitions.get([0]).len(), 1);
    writer.close(0, true).await.unwrap();
    assert!(writer.partitions.get([0]).is_empty());
}

#[test]
fn the_outcome_to_act_on_wins() {
    let fenced = |partition| Err(StorageError::Fenced { partitions: vec![partition] });
    let failed = || Err(StorageError::Unavailable("x".into()));
    assert!(worst(Ok(()), Ok(())).is_ok());
    assert!(matches!(worst(failed(), Ok(())), Err(StorageError::Unavailable(_))));
    assert!(matches!(worst(Ok(()), failed()), Err(StorageError::Unavailable(_))));
    assert!(
        matches!(worst(failed(), fenced(1)), Err(StorageError::Fenced { partitions }) if partitions == [1])
    );
    assert!(
        matches!(worst(fenced(1), failed()), Err(StorageError::Fenced { partitions }) if partitions == [1])
    );
    assert!(
        matches!(worst(fenced(1), fenced(2)), Err(StorageError::Fenced { partitions }) if partitions == [1, 2])
    );
}
