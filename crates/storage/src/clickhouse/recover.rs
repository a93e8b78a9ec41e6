//! Reads back what a partition's owner must know: the last batch, horizons, generations, and the records beyond the horizons.

use std::collections::BTreeMap;
use std::time::Duration;

use usage_schemas::Kind;
use uuid::Uuid;

use super::aggregate::{Aggregate, Group, Totals};
use super::client::{CallError, Client};
use super::fence::{Held, guard};
use super::months::Month;
use super::rollup::Generations;
use super::rowbinary::RowReader;
use crate::StorageError;

/// A takeover may read more than a question does, but never for ever; doubles at each repeat.
pub(crate) const RECOVERY_TIMEOUT: Duration = Duration::from_secs(120);

/// Horizons by month.
pub(crate) type Horizons = BTreeMap<Month, i64>;

/// The greatest `batch_seq` among records and horizons of a partition; 0 if there is none.
pub(crate) async fn last_batch_seq(client: &Client, partition: i32) -> Result<i64, StorageError> {
    let (horizons, _) = horizons(client, partition).await?;
    let horizon = horizons.values().copied().max().unwrap_or(0);
    // Numbers up to the greatest horizon are not greater than it, so that only the newest granules are read.
    let sql = format!(
        "SELECT max(batch_seq) FROM usage_records WHERE kafka_partition = {partition} AND batch_seq > {horizon}"
    );
    let bytes = client.fetch(&sql).await?;
    Ok(horizon.max(RowReader::new(&bytes).i64()?))
}

/// Horizons and generations in one scan (rule 9).
pub(crate) async fn horizons(
    client: &Client,
    partition: i32,
) -> Result<(Horizons, Generations), StorageError> {
    let nil = Uuid::nil();
    let sql = format!(
        "SELECT tenant_id, metric, toUInt32(bucket), max(horizon), max(generation) FROM usage_rollups \
         WHERE kafka_partition = {partition} AND (tenant_id = '{nil}' OR generation > 0) \
         GROUP BY tenant_id, metric, bucket"
    );
    let bytes = client.fetch(&sql).await?;
    let mut rows = RowReader::new(&bytes);
    let (mut horizons, mut generations) = (Horizons::new(), Generations::new());
    while !rows.is_empty() {
        let (tenant, metric, bucket) = (rows.uuid()?, rows.str()?, rows.u32()?);
        let (horizon, generation) = (rows.i64()?, rows.u32()?);
        if tenant.is_nil() {
            horizons.insert(Month::of_seconds(i64::from(bucket)), horizon);
        } else {
            generations.insert((tenant, metric.into(), bucket), generation);
        }
    }
    Ok((horizons, generations))
}

/// Months that hold records of any partition.
pub(crate) async fn months(client: &Client) -> Result<Vec<Month>, StorageError> {
    let sql = "SELECT DISTINCT toUInt32(partition) FROM system.parts \
               WHERE database = currentDatabase() AND table = 'usage_records' AND active ORDER BY 1";
    let bytes = client.fetch(sql).await?;
    let mut rows = RowReader::new(&bytes);
    let mut months = Vec::new();
    while !rows.is_empty() {
        months.push(Month(rows.u32()?));
    }
    Ok(months)
}

/// Adds the active ones of the records to the aggregate.
pub(crate) async fn add_beyond(
    client: &Client,
    beyond: Beyond,
    aggregate: &mut Aggregate,
) -> Result<(), StorageError> {
    let sql = grouped(beyond);
    let bytes = client.fetch(&sql).await?;
    let mut rows = RowReader::new(&bytes);
    while !rows.is_empty() {
        let tenant = rows.uuid()?;
        let (metric, source) = (aggregate.names.number(rows.str()?), aggregate.names.number(rows.str()?));
        let group = Group { tenant, metric, source, kind: kind(rows.u8()?)?, bucket: rows.u32()? };
        let totals = Totals {
            count: rows.u64()?,
            sum: rows.i256()?,
            min: rows.i128()?,
            max: rows.i128()?,
            latest: (rows.i64()?, Uuid::from_bytes(rows.array()?), rows.i128()?),
        };
        aggregate.add(group, &totals);
    }
    Ok(())
}

/// Records of a partition in a month: those of the batches after `horizon` up to `through`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Beyond {
    pub(crate) partition: i32,
    pub(crate) month: Month,
    pub(crate) horizon: i64,
    pub(crate) through: i64,
}

impl std::fmt::Display for Beyond {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { partition, month, horizon, through } = self;
        let month = month.0;
        write!(
            f,
            "toYYYYMM(timestamp) = {month} AND kafka_partition = {partition} \
             AND batch_seq > {horizon} AND batch_seq <= {through}"
        )
    }
}

pub(crate) async fn count(client: &Client, beyond: Beyond) -> Result<u64, StorageError> {
    let bytes = client.fetch(&format!("SELECT count() FROM usage_records WHERE {beyond}")).await?;
    Ok(RowReader::new(&bytes).u64()?)
}

/// The batch with which the first `rows` of the records end.
pub(crate) async fn end_of_slice(client: &Client, beyond: Beyond, rows: u64) -> Result<i64, StorageError> {
    let sql = format!(
        "SELECT max(batch_seq) FROM (SELECT batch_seq FROM usage_records WHERE {beyond} ORDER BY batch_seq LIMIT {rows})"
    );
    let bytes = client.fetch(&sql).await?;
    Ok(RowReader::new(&bytes).i64()?)
}

/// Groups the records; the columns are those of [`add_beyond`].
fn grouped(beyond: Beyond) -> String {
    format!(
        "SELECT tenant_id, metric, source, kind, toStartOfFifteenMinutes(timestamp) AS bucket, count() AS record_count, \
         sum(toDecimal256(value, 18)) AS value_sum, min(value) AS value_min, max(value) AS value_max, \
         max((timestamp, UUIDToNum(record_id), value)) AS latest \
         FROM usage_records WHERE {beyond} AND status = 'active' GROUP BY tenant_id, metric, source, kind, bucket"
    )
}

/// The statement by which the server itself rolls records up, with the horizon row of `through`, as one part.
pub(crate) fn roll_up_statement(held: Held, beyond: Beyond) -> String {
    let Beyond { partition, month, through, .. } = beyond;
    format!(
        "INSERT INTO usage_rollups (tenant_id, metric, source, kind, bucket, kafka_partition, generation, record_count, \
         value_sum, value_min, value_max, latest, horizon) \
         SELECT tenant_id, metric, source, kind, bucket, {partition}, 0, record_count, \
         value_sum, value_min, value_max, latest, horizon FROM (\
         SELECT *, toInt64(0) AS horizon FROM ({grouped}) UNION ALL \
         SELECT toUUID('{nil}'), '', '', CAST('counter', '{KIND_LITERAL}'), toDateTime({start}, 'UTC'), toUInt64(0), \
         toDecimal256(0, 18), NULL, NULL, {NO_LATEST}, toInt64({through})) WHERE {guard}",
        grouped = grouped(beyond),
        nil = Uuid::nil(),
        start = month.start_seconds(),
        guard = guard(&[held]),
    )
}

/// [`KIND`](super::insert::KIND) within a literal.
const KIND_LITERAL: &str = "Enum8(\\'counter\\' = 1, \\'gauge\\' = 2)";

/// `latest` of a row without records.
const NO_LATEST: &str =
    "(toDateTime64('1900-01-01 00:00:00', 6, 'UTC'), toFixedString('', 16), toDecimal128(0, 18))";

pub(crate) fn kind(number: u8) -> Result<Kind, CallError> {
    match number {
        1 => Ok(Kind::Counter),
        2 => Ok(Kind::Gauge),
        other => Err(CallError::Lost(format!("unknown kind {other}").into())),
    }
}
