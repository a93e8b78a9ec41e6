//! What a plugin does when nothing goes wrong.

use std::collections::BTreeSet;
use std::sync::Arc;

use usage_schemas::partition::partition_of;
use usage_storage::{IdProbe, PlannedBatch, RawQuery, Rows, StatusFilter, Storage, StorageError};
use uuid::Uuid;

use super::batches::{Maker, START};
use super::oracle::{Oracle, ask, question};
use super::worker::{Way, store, take};
use super::{Bench, PARTITIONS};

/// Several processes may start at once.
pub async fn migrations_run_at_once(bench: &dyn Bench) {
    let starts = (0..6).map(|_| {
        let storage = bench.storage();
        tokio::spawn(async move { storage.migrate().await })
    });
    for start in starts.collect::<Vec<_>>() {
        start.await.unwrap().unwrap();
    }
    let storage = bench.storage();
    storage.migrate().await.unwrap();
    storage.check().await.unwrap();
}

/// What was written is what is read, field by field, whatever was rolled up and whoever holds the partition.
pub async fn what_is_written_is_read(bench: &dyn Bench) {
    let storage = bench.storage();
    storage.migrate().await.unwrap();
    let writer = storage.writer();
    let oracle = Oracle::default();
    let mut makers: Vec<Maker> = (0..2).map(|partition| Maker::new(7, partition, 3)).collect();
    take(&*writer, &[0, 1]).await;
    for round in 0..6 {
        let batches: Vec<_> = makers.iter_mut().map(|maker| maker.batch(200)).collect();
        assert_eq!(store(&*writer, &oracle, &batches).await.unwrap(), Way::Written);
        assert_totals(&storage, &oracle, &makers).await;
        match round {
            // Rolled up, and more comes on top of it.
            1 => {
                writer.close(0, true).await.unwrap();
                take(&*writer, &[0]).await;
            }
            // Given up without a flush: the next owner rebuilds from the records.
            3 => {
                writer.close(0, false).await.unwrap();
                writer.close(1, false).await.unwrap();
                take(&*writer, &[0, 1]).await;
            }
            _ => {}
        }
        assert_totals(&storage, &oracle, &makers).await;
    }
    for partition in [0, 1] {
        writer.close(partition, true).await.unwrap();
    }
    assert_totals(&storage, &oracle, &makers).await;
    assert_eq!(bench.rollup_differences().await, Vec::<String>::new());
    assert!(bench.rollup_keys().await > 0);
    records_are_whole(&storage, &mut makers[0], &*writer, &oracle).await;
}

async fn assert_totals(storage: &Arc<dyn Storage>, oracle: &Oracle, makers: &[Maker]) {
    let reader = storage.reader();
    for tenant in makers.iter().flat_map(|maker| &maker.tenants) {
        assert_eq!(ask(&*reader, *tenant).await.unwrap(), oracle.expected(*tenant));
    }
}

async fn records_are_whole(
    storage: &Arc<dyn Storage>,
    maker: &mut Maker,
    writer: &dyn usage_storage::Writer,
    oracle: &Oracle,
) {
    take(writer, &[0]).await;
    let batch = maker.batch(50);
    store(writer, oracle, std::slice::from_ref(&batch)).await.unwrap();
    let reader = storage.reader();
    let rows = &batch.rows;
    for i in 0..rows.len() {
        let found =
            reader.record(rows.tenant_id[i], rows.record_id[i]).await.unwrap().expect("the record is stored");
        assert_eq!(found.source, rows.source.get(i).unwrap());
        assert_eq!(found.metric, rows.metric.get(i).unwrap());
        assert_eq!(found.kind, rows.kind[i]);
        assert_eq!(found.value.unscaled(), rows.value[i]);
        assert_eq!(found.timestamp, rows.timestamp[i]);
        assert_eq!(found.idempotency_key.as_deref(), rows.idempotency_key.get(i));
        assert_eq!(found.resource_id, rows.resource_id[i]);
        assert_eq!(found.resource_type.as_deref(), rows.resource_type.get(i));
        assert_eq!(found.subject_id, rows.subject_id[i]);
        assert_eq!(found.subject_type.as_deref(), rows.subject_type.get(i));
        assert_eq!(found.metadata.as_deref(), rows.metadata.get(i));
        assert_eq!(found.ingested_at, rows.ingested_at[i]);
        assert_eq!((found.active, found.inactive_at, found.version), (true, None, 1));
        let foreign = reader.record(Uuid::from_u128(u128::MAX), rows.record_id[i]).await.unwrap();
        assert_eq!(foreign, None);
    }
    let of_tenant = question(rows.tenant_id[0]);
    let page = reader
        .raw(&RawQuery {
            tenant_id: of_tenant.tenant_id,
            metrics: Vec::new(),
            from: of_tenant.from,
            to: of_tenant.to,
            status: StatusFilter::All,
            sources: Vec::new(),
            subject_ids: Vec::new(),
            subject_types: Vec::new(),
            resource_ids: Vec::new(),
            resource_types: Vec::new(),
            after: None,
            limit: 10_000,
        })
        .await
        .unwrap();
    assert_eq!(page.len() as u64, oracle.expected(of_tenant.tenant_id).count);
}

/// `ids` streams exactly the ids of the partition's tenants, by the topic's partitioner.
pub async fn ids_are_streamed_by_partition(bench: &dyn Bench) {
    let storage = bench.storage();
    storage.migrate().await.unwrap();
    let writer = storage.writer();
    take(&*writer, &[0]).await;
    // Many tenants of all partitions, stored by one: the stream goes by tenant, not by who stored it.
    let mut maker = Maker::new(11, 0, 1);
    maker.tenants = (1..2_000u128)
        .map(|i| Uuid::from_u128(i.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)))
        .collect();
    let batch = maker.batch(20_000);
    store(&*writer, &Oracle::default(), std::slice::from_ref(&batch)).await.unwrap();
    for count in [1, 3, PARTITIONS, 12, 100] {
        let mut seen = 0;
        for partition in 0..count {
            let mut ids = BTreeSet::new();
            writer.ids(partition, count, &mut |chunk| ids.extend(chunk)).await.unwrap();
            let wanted = (0..batch.rows.len())
                .filter(|&i| partition_of(batch.rows.tenant_id[i], count) == partition)
                .map(|i| batch.rows.record_id[i])
                .collect();
            assert_eq!(ids, wanted, "partition {partition} of {count}");
            seen += ids.len();
        }
        assert_eq!(seen, batch.rows.len());
    }
}

/// `find` finds true repeats and ids that come back with another content, and nothing else.
pub async fn stored_ids_are_found(bench: &dyn Bench) {
    let storage = bench.storage();
    storage.migrate().await.unwrap();
    let writer = storage.writer();
    take(&*writer, &[0]).await;
    let mut maker = Maker::new(13, 0, 5);
    let (batch, never_stored) = (maker.batch(5_000), maker.batch(100));
    store(&*writer, &Oracle::default(), std::slice::from_ref(&batch)).await.unwrap();
    let rows = &batch.rows;
    let mut probes = probes(rows);
    for (i, probe) in probes.iter_mut().enumerate() {
        match i % 3 {
            0 => {}
            // The same id with another time or metric is a conflict, found by the id.
            1 => probe.timestamp += 1,
            _ => probe.metric = "it's \\ another\t\n".into(),
        }
    }
    // Nobody can store these, but their ids are stored.
    probes[1].metric = "\\".repeat(1 << 20);
    probes[2].timestamp = i64::MAX;
    probes[3].timestamp = i64::MIN;
    // An id of another tenant is another identity.
    probes[0].tenant_id = Uuid::from_u128(u128::MAX);
    probes.extend(self::probes(&never_stored.rows));
    let found = writer.find(&probes).await.unwrap();
    let found: BTreeSet<_> = found.iter().map(|stored| (stored.record_id, stored.content_hash)).collect();
    let wanted: BTreeSet<_> = (1..rows.len()).map(|i| (rows.record_id[i], rows.content_hash[i])).collect();
    assert_eq!(found, wanted);
    assert_eq!(writer.find(&[]).await.unwrap(), []);
}

fn probes(rows: &Rows) -> Vec<IdProbe> {
    let probe = |i: usize| IdProbe {
        tenant_id: rows.tenant_id[i],
        metric: rows.metric.get(i).unwrap().to_owned(),
        timestamp: rows.timestamp[i],
        record_id: rows.record_id[i],
    };
    (0..rows.len()).map(probe).collect()
}

/// Numbers go on after the greatest one, whether it is known from records or only from horizons.
pub async fn numbers_never_go_back(bench: &dyn Bench) {
    let storage = bench.storage();
    storage.migrate().await.unwrap();
    let writer = storage.writer();
    assert_eq!(writer.open(2).await.unwrap().last_batch_seq, 0);
    writer.recover(2).await.unwrap();
    let mut maker = Maker::new(17, 2, 2);
    let oracle = Oracle::default();
    for _ in 0..3 {
        store(&*writer, &oracle, &[maker.batch(20)]).await.unwrap();
    }
    let first = writer.open(2).await.unwrap();
    assert_eq!(first.last_batch_seq, 3, "from the records");
    writer.recover(2).await.unwrap();
    writer.close(2, true).await.unwrap();
    let second = writer.open(2).await.unwrap();
    assert_eq!(second.last_batch_seq, 3, "from the horizon");
    assert!(second.epoch > first.epoch);
    writer.recover(2).await.unwrap();
    let again = Arc::new(PlannedBatch { batch_seq: 3, ..(*maker.batch(5)).clone() });
    assert!(matches!(writer.write(&[again]).await, Err(StorageError::Inconsistent(_))));
}

/// Values at the very bounds, and sums beyond 128 bits.
pub async fn large_values_are_exact(bench: &dyn Bench) {
    let storage = bench.storage();
    storage.migrate().await.unwrap();
    let writer = storage.writer();
    take(&*writer, &[1]).await;
    let mut maker = Maker::new(19, 1, 1);
    let oracle = Oracle::default();
    for sign in [1, 1, -1] {
        let mut batch = (*maker.batch(400)).clone();
        batch.rows.value.fill(sign * usage_schemas::Quantity::MAX_UNSCALED);
        store(&*writer, &oracle, &[Arc::new(batch)]).await.unwrap();
    }
    let tenant = maker.tenants[0];
    let expected = oracle.expected(tenant);
    assert_eq!(expected.sum, ethnum::I256::from(usage_schemas::Quantity::MAX_UNSCALED) * 400);
    assert_eq!(ask(&*storage.reader(), tenant).await.unwrap(), expected, "from the records");
    writer.close(1, true).await.unwrap();
    assert_eq!(ask(&*storage.reader(), tenant).await.unwrap(), expected, "from the rollups");
    assert_eq!(bench.rollup_differences().await, Vec::<String>::new());
}

/// Rows that the backend refuses are found one by one; the rest of the batch is stored under the same number.
pub async fn a_final_error_in_a_joint_insert_is_split_and_bisected(bench: &dyn Bench) {
    let storage = bench.storage();
    storage.migrate().await.unwrap();
    bench.refuse_metric("bad.metric").await;
    let writer = storage.writer();
    take(&*writer, &[0, 1]).await;
    let mut maker = Maker::new(23, 0, 2);
    let good = maker.batch(300);
    maker.metrics.push("bad.metric".into());
    let mut mixed = (*maker.batch(300)).clone();
    // One that no column can hold, found without asking.
    mixed.rows.timestamp[7] = START * 1_000;
    let mixed = Arc::new(mixed);
    let oracle = Oracle::default();
    store(&*writer, &oracle, &[good]).await.unwrap();
    // A joint write is refused as a whole; split, the other partition's batch is stored.
    let mut neighbour = Maker::new(29, 1, 1);
    let other = neighbour.batch(10);
    let joint = writer.write(&[Arc::clone(&mixed), Arc::clone(&other)]).await;
    assert!(matches!(joint, Err(StorageError::Final { .. })), "{joint:?}");
    store(&*writer, &oracle, &[other]).await.unwrap();
    assert!(matches!(writer.write(std::slice::from_ref(&mixed)).await, Err(StorageError::Final { .. })));
    let refused: BTreeSet<i64> =
        writer.bisect(&mixed).await.unwrap().into_iter().map(|row| row.offset).collect();
    let is_bad = |i: usize| i == 7 || mixed.rows.metric.get(i) == Some("bad.metric");
    let (bad, kept): (Vec<usize>, Vec<usize>) = (0..mixed.rows.len()).partition(|&i| is_bad(i));
    assert_eq!(refused, bad.iter().map(|&i| mixed.rows.offset[i]).collect());
    assert!(bad.len() > 10 && kept.len() > 10);
    // The plan is committed again with the bad offsets listed, then carried out.
    let planned = Arc::new(PlannedBatch { rows: pick(&mixed.rows, &kept), ..(*mixed).clone() });
    oracle.begin(&planned);
    writer.settle(std::slice::from_ref(&planned)).await.unwrap();
    oracle.acknowledge(&planned);
    for tenant in &maker.tenants {
        assert_eq!(ask(&*storage.reader(), *tenant).await.unwrap(), oracle.expected(*tenant));
    }
    assert_eq!(
        bench.stored().await.values().sum::<u64>(),
        310 + kept.len() as u64,
        "bisecting stored nothing"
    );
}

fn pick(rows: &Rows, indexes: &[usize]) -> Rows {
    let mut picked = Rows::default();
    for &i in indexes {
        picked.record_id.push(rows.record_id[i]);
        picked.tenant_id.push(rows.tenant_id[i]);
        picked.content_hash.push(rows.content_hash[i]);
        picked.offset.push(rows.offset[i]);
        picked.ingested_at.push(rows.ingested_at[i]);
        picked.source.push(rows.source.get(i));
        picked.metric.push(rows.metric.get(i));
        picked.kind.push(rows.kind[i]);
        picked.value.push(rows.value[i]);
        picked.timestamp.push(rows.timestamp[i]);
        picked.idempotency_key.push(rows.idempotency_key.get(i));
        picked.resource_id.push(rows.resource_id[i]);
        picked.resource_type.push(rows.resource_type.get(i));
        picked.subject_id.push(rows.subject_id[i]);
        picked.subject_type.push(rows.subject_type.get(i));
        picked.metadata.push(rows.metadata.get(i));
    }
    picked
}
