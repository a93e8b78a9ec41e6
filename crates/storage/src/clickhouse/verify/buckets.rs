//! The rolled-up buckets of a month and some tenants, held against the records that they stand for.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use super::{Tenants, records_in_buckets, rollups_in_buckets};
use crate::StorageError;
use crate::clickhouse::client::{CallError, Client};
use crate::clickhouse::months::Month;
use crate::clickhouse::recover::kind;
use crate::clickhouse::rowbinary::RowReader;
use crate::maintenance::{BucketKey, BucketTotals, Difference, Scope, Verified};

/// Horizons by partition.
type Horizons = BTreeMap<i32, i64>;

pub(super) async fn compare(
    client: &Client,
    scope: &Scope,
    month: Month,
    tenants: &Tenants,
    verified: &mut Verified,
    sink: &mut (dyn FnMut(Difference) + Send),
) -> Result<(), StorageError> {
    let (horizons, mut rolled) = rolled_up(client, scope, month, tenants).await?;
    if !horizons.is_empty() {
        let bytes = client.fetch(&records(scope, month, tenants, &horizons)).await?;
        let mut rows = RowReader::new(&bytes);
        while !rows.is_empty() {
            let key = read_key(&mut rows)?;
            let expected = read_expected(&mut rows)?;
            verified.buckets += 1;
            verified.records += expected.count;
            let found = rolled.remove(&key);
            if found != Some(expected) {
                let (expected, found) = (Some(expected.into()), found.map(Box::new));
                sink(Difference::Bucket { key, expected, found });
            }
        }
    }
    for (key, found) in rolled {
        verified.buckets += 1;
        sink(Difference::Bucket { key, expected: None, found: Some(found.into()) });
    }
    Ok(())
}

/// Horizons and what is counted of each key (the rows of its highest generation), in one scan.
async fn rolled_up(
    client: &Client,
    scope: &Scope,
    month: Month,
    tenants: &Tenants,
) -> Result<(Horizons, HashMap<BucketKey, BucketTotals>), StorageError> {
    let sql = format!(
        "SELECT tenant_id, metric, source, kind, toUInt32(bucket), kafka_partition, sum(record_count), sum(value_sum), \
         min(value_min), max(value_max), max(latest), max(horizon) FROM usage_rollups \
         WHERE toYYYYMM(bucket) = {} AND (tenant_id = '{}' OR tenant_id IN ({}){}) \
         GROUP BY tenant_id, metric, source, kind, bucket, kafka_partition, generation \
         ORDER BY generation DESC LIMIT 1 BY tenant_id, metric, source, kind, bucket, kafka_partition",
        month.0,
        Uuid::nil(),
        tenants.list(),
        rollups_in_buckets(scope),
    );
    let bytes = client.fetch(&sql).await?;
    let mut rows = RowReader::new(&bytes);
    let (mut horizons, mut rolled) = (Horizons::new(), HashMap::new());
    while !rows.is_empty() {
        let key = read_key(&mut rows)?;
        let totals = read_found(&mut rows)?;
        let horizon = rows.i64()?;
        if key.tenant_id.is_nil() {
            horizons.insert(key.partition, horizon);
        } else if !counts_nothing(&totals) {
            rolled.insert(key, totals);
        }
    }
    Ok((horizons, rolled))
}

/// True of a key whose records are gone: a bucket that was rolled up anew keeps a row for each of its keys.
fn counts_nothing(totals: &BucketTotals) -> bool {
    totals.count == 0 && totals.sum == 0 && totals.min.is_none() && totals.max.is_none()
}

/// The active records of each key in the batches up to the horizons.
fn records(scope: &Scope, month: Month, tenants: &Tenants, horizons: &Horizons) -> String {
    let list = |values: Vec<String>| values.join(", ");
    format!(
        "SELECT tenant_id, metric, source, kind, toUInt32(toStartOfFifteenMinutes(timestamp)) AS bucket, kafka_partition, \
         count(), sum(toDecimal256(value, 18)), min(value), max(value), max((timestamp, UUIDToNum(record_id), value)) \
         FROM usage_records WHERE toYYYYMM(timestamp) = {} AND tenant_id IN ({}){} AND status = 'active' \
         AND batch_seq <= transform(kafka_partition, CAST([{}], 'Array(Int32)'), CAST([{}], 'Array(Int64)'), toInt64(0)) \
         GROUP BY tenant_id, metric, source, kind, bucket, kafka_partition",
        month.0,
        tenants.list(),
        records_in_buckets(scope),
        list(horizons.keys().map(i32::to_string).collect()),
        list(horizons.values().map(i64::to_string).collect()),
    )
}

fn read_key(rows: &mut RowReader<'_>) -> Result<BucketKey, CallError> {
    Ok(BucketKey {
        tenant_id: rows.uuid()?,
        metric: rows.str()?.to_owned(),
        source: rows.str()?.to_owned(),
        kind: kind(rows.u8()?)?,
        bucket: rows.u32()?,
        partition: rows.i32()?,
    })
}

fn read_latest(rows: &mut RowReader<'_>) -> Result<(i64, Uuid, i128), CallError> {
    Ok((rows.i64()?, Uuid::from_bytes(rows.array()?), rows.i128()?))
}

fn read_expected(rows: &mut RowReader<'_>) -> Result<BucketTotals, CallError> {
    Ok(BucketTotals {
        count: rows.u64()?,
        sum: rows.i256()?,
        min: Some(rows.i128()?),
        max: Some(rows.i128()?),
        latest: Some(read_latest(rows)?),
    })
}

fn read_found(rows: &mut RowReader<'_>) -> Result<BucketTotals, CallError> {
    let count = rows.u64()?;
    let sum = rows.i256()?;
    let (min, max) = (rows.nullable(RowReader::i128)?, rows.nullable(RowReader::i128)?);
    // Where nothing is counted it means nothing.
    let latest = read_latest(rows).map(|latest| (count > 0).then_some(latest))?;
    Ok(BucketTotals { count, sum, min, max, latest })
}
