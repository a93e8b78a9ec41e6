//! Rolls buckets up anew (rule 10): one insert of rows with a higher generation, which covers every key that a bucket ever had.
//!
//! The partition is taken over for it, as an owner does: whoever holds it is fenced at its next write and takes it over again, with
//! the new generations. The horizon stays where it is, so the buckets are recomputed exactly up to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ethnum::I256;
use usage_service::retry::Backoff;
use uuid::Uuid;

use super::aggregate::{Frozen, Group, Groups, Names, Totals};
use super::client::{CallError, Client, push_literal};
use super::codes;
use super::fence::{Fences, Held, query_id};
use super::insert;
use super::months::Month;
use super::recover::{self, kind};
use super::rollup::{self, Generations, NO_TIME, Share};
use super::rowbinary::RowReader;
use crate::StorageError;
use crate::maintenance::BucketKey;

/// Buckets of one insert.
const BUCKETS_PER_INSERT: usize = 1_000;

/// A running owner takes its partition back as soon as it notices, which is at its next write: of some attempts one comes between
/// two of them.
const ATTEMPTS: u32 = 30;

/// Tenant, metric, start of the quarter of an hour in seconds: what has a generation.
type Bucket = (Uuid, String, u32);
type Buckets = BTreeMap<Month, BTreeSet<Bucket>>;

pub(super) async fn reroll(
    client: &Client,
    fences: &Fences,
    keys: &[BucketKey],
    timeout: Duration,
) -> Result<(), StorageError> {
    let mut partitions: BTreeMap<i32, Buckets> = BTreeMap::new();
    for key in keys {
        let month = Month::of_seconds(i64::from(key.bucket));
        let buckets = partitions.entry(key.partition).or_default().entry(month).or_default();
        buckets.insert((key.tenant_id, key.metric.clone(), key.bucket));
    }
    for (partition, buckets) in &partitions {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        // What an attempt may have left behind has a higher generation, which the next one reads and goes above.
        while let Err(error) = reroll_partition(client, fences, *partition, buckets, timeout).await {
            let may_pass = error.may_pass() || matches!(error, StorageError::Fenced { .. });
            if !may_pass || backoff.attempts() + 1 >= ATTEMPTS {
                return Err(error);
            }
            tracing::warn!(partition, error = %usage_service::error_chain(&error), "will be tried again");
            tokio::time::sleep(backoff.next()).await;
        }
    }
    Ok(())
}

async fn reroll_partition(
    client: &Client,
    fences: &Fences,
    partition: i32,
    buckets: &Buckets,
    timeout: Duration,
) -> Result<(), StorageError> {
    let held = fences.raise(&[partition]).await?;
    fences.end_older(&held).await?;
    let (horizons, generations) = recover::horizons(client, partition).await?;
    for (month, buckets) in buckets {
        // Without a horizon nothing is rolled up, and what is there stands for nothing.
        let through = horizons.get(month).copied().unwrap_or(0);
        let buckets: Vec<&Bucket> = buckets.iter().collect();
        for buckets in buckets.chunks(BUCKETS_PER_INSERT) {
            let share = recompute(client, partition, *month, through, buckets, &generations).await?;
            insert_share(client, &held, *month, share, timeout).await?;
        }
    }
    Ok(())
}

async fn insert_share(
    client: &Client,
    held: &[Held],
    month: Month,
    share: Share,
    timeout: Duration,
) -> Result<(), StorageError> {
    let body = rollup::encode(month, &[share])?;
    match insert::send(client, &rollup::insert_statement(held), &query_id(held), body, timeout).await {
        Ok(()) => Ok(()),
        Err(CallError::Exception { code: codes::FENCED, .. }) => {
            Err(StorageError::Fenced { partitions: held.iter().map(|held| held.partition).collect() })
        }
        Err(error) => Err(error.of_write()),
    }
}

/// What the records say of the buckets up to batch `through`, and nothing for the keys that only the rollups know.
async fn recompute(
    client: &Client,
    partition: i32,
    month: Month,
    through: i64,
    buckets: &[&Bucket],
    generations: &Generations,
) -> Result<Share, StorageError> {
    let mut names = Names::default();
    let mut groups = Groups::default();
    let month = month.0;
    let known = format!(
        "SELECT DISTINCT tenant_id, metric, source, kind, toUInt32(bucket) FROM usage_rollups \
         WHERE toYYYYMM(bucket) = {month} AND kafka_partition = {partition} AND {}",
        within(buckets, "toUInt32(bucket)")
    );
    let bytes = client.fetch(&known).await?;
    let mut rows = RowReader::new(&bytes);
    while !rows.is_empty() {
        groups.insert(read_group(&mut rows, &mut names)?, NOTHING);
    }
    let counted = format!(
        "SELECT tenant_id, metric, source, kind, toUInt32(toStartOfFifteenMinutes(timestamp)) AS start, count(), \
         sum(toDecimal256(value, 18)), min(value), max(value), max((timestamp, UUIDToNum(record_id), value)) \
         FROM usage_records WHERE toYYYYMM(timestamp) = {month} AND kafka_partition = {partition} \
         AND batch_seq <= {through} AND status = 'active' AND {} GROUP BY tenant_id, metric, source, kind, start",
        within(buckets, "toUInt32(toStartOfFifteenMinutes(timestamp))")
    );
    let bytes = client.fetch(&counted).await?;
    let mut rows = RowReader::new(&bytes);
    while !rows.is_empty() {
        let group = read_group(&mut rows, &mut names)?;
        let totals = Totals {
            count: rows.u64()?,
            sum: rows.i256()?,
            min: rows.i128()?,
            max: rows.i128()?,
            latest: (rows.i64()?, Uuid::from_bytes(rows.array()?), rows.i128()?),
        };
        groups.insert(group, totals);
    }
    Ok(Share {
        partition,
        names: names.texts(),
        frozen: Arc::new(Frozen { through, groups }),
        generations: Arc::new(next_generations(buckets, generations)),
    })
}

fn next_generations(buckets: &[&Bucket], generations: &Generations) -> Generations {
    let next = |(tenant, metric, bucket): &&Bucket| {
        let key: (Uuid, Box<str>, u32) = (*tenant, metric.as_str().into(), *bucket);
        let generation = generations.get(&key).copied().unwrap_or(0) + 1;
        (key, generation)
    };
    buckets.iter().map(next).collect()
}

/// A row of a key without records: see [`rollup::encode`].
const NOTHING: Totals =
    Totals { count: 0, sum: I256::ZERO, min: 0, max: 0, latest: (NO_TIME, Uuid::nil(), 0) };

fn read_group(rows: &mut RowReader<'_>, names: &mut Names) -> Result<Group, CallError> {
    let tenant = rows.uuid()?;
    let (metric, source) = (names.number(rows.str()?), names.number(rows.str()?));
    Ok(Group { tenant, metric, source, kind: kind(rows.u8()?)?, bucket: rows.u32()? })
}

/// The condition that a row lies in one of the buckets, whose start is `start`. The tenants are said by themselves too, for the
/// primary key.
fn within(buckets: &[&Bucket], start: &str) -> String {
    let tenants: BTreeSet<Uuid> = buckets.iter().map(|(tenant, _, _)| *tenant).collect();
    let tenants: Vec<String> = tenants.iter().map(|tenant| format!("'{}'", tenant.hyphenated())).collect();
    let mut sql = format!("tenant_id IN ({}) AND (tenant_id, metric, {start}) IN (", tenants.join(", "));
    for (i, (tenant, metric, bucket)) in buckets.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        write!(sql, "{comma}('{}', ", tenant.hyphenated()).expect("to a String");
        push_literal(&mut sql, metric);
        write!(sql, ", {bucket})").expect("to a String");
    }
    sql.push(')');
    sql
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_goes_above_the_last_one() {
        let (one, other) =
            ((Uuid::from_u128(1), "m".to_owned(), 900), (Uuid::from_u128(1), "m".to_owned(), 1_800));
        let known = Generations::from([((one.0, "m".into(), 900), 3)]);
        let next = next_generations(&[&one, &other], &known);
        assert_eq!(next[&(one.0, "m".into(), 900)], 4);
        assert_eq!(next[&(one.0, "m".into(), 1_800)], 1);
    }

    #[test]
    fn buckets_are_values() {
        let bucket = (Uuid::from_u128(1), "it's".to_owned(), 900);
        let sql = within(&[&bucket, &bucket], "b");
        assert!(sql.ends_with(
            r"(tenant_id, metric, b) IN (('00000000-0000-0000-0000-000000000001', 'it\'s', 900), ('00000000-0000-0000-0000-000000000001', 'it\'s', 900))"
        ), "{sql}");
    }
}
