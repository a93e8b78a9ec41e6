//! Writes aggregates as rows of `usage_rollups`, together with the horizon that proves them (protocol 6.2).

use std::collections::HashMap;
use std::sync::Arc;

use usage_schemas::Kind;
use uuid::Uuid;

use super::aggregate::{Frozen, Totals};
use super::fence::{Held, guard};
use super::insert::{KIND, kind_number, statement};
use super::months::Month;
use super::native::{BlockWriter, Body};
use crate::StorageError;

const LATEST: &str = "Tuple(DateTime64(6, 'UTC'), FixedString(16), Decimal(38, 18))";

const COLUMNS: &[(&str, &str)] = &[
    ("tenant_id", "UUID"),
    ("metric", "String"),
    ("source", "String"),
    ("kind", KIND),
    ("bucket", "DateTime('UTC')"),
    ("kafka_partition", "Int32"),
    ("generation", "UInt32"),
    ("record_count", "UInt64"),
    ("value_sum", "Decimal(76, 18)"),
    ("value_min", "Nullable(Decimal(38, 18))"),
    ("value_max", "Nullable(Decimal(38, 18))"),
    ("latest", LATEST),
    ("horizon", "Int64"),
];

/// 1900-01-01, the least time that ClickHouse knows: `latest` of a row without records.
pub(crate) const NO_TIME: i64 = -2_208_988_800_000_000;

/// Current generations of re-rolled buckets; all others have generation 0 (rule 11).
pub(crate) type Generations = HashMap<(Uuid, Box<str>, u32), u32>;

/// A partition's share of a flush, which is encoded without the partition's lock.
pub(crate) struct Share {
    pub(crate) partition: i32,
    pub(crate) names: Vec<Arc<str>>,
    pub(crate) frozen: Arc<Frozen>,
    pub(crate) generations: Arc<Generations>,
}

struct Row<'a> {
    tenant: Uuid,
    metric: &'a str,
    source: &'a str,
    kind: Kind,
    bucket: u32,
    partition: i32,
    generation: u32,
    /// `None` in a horizon row, and where no record is left to be counted.
    totals: Option<&'a Totals>,
    horizon: i64,
}

/// The insert's statement, guarded by the fences of `held`.
pub(crate) fn insert_statement(held: &[Held]) -> String {
    statement("usage_rollups", COLUMNS, &guard(held))
}

/// Encodes the rows of one month as one block, with a horizon row for each partition.
pub(crate) fn encode(month: Month, shares: &[Share]) -> Result<Body, StorageError> {
    let mut rows = Vec::with_capacity(shares.iter().map(|share| share.frozen.groups.len() + 1).sum());
    for share in shares {
        rows.push(horizon_row(month, share));
        rows.extend(group_rows(share));
    }
    let rows = &rows[..];
    let mut w = BlockWriter::new(COLUMNS.len(), rows.len());
    let mut columns = COLUMNS.iter();
    let mut start = |w: &mut BlockWriter| {
        let (name, kind) = columns.next().expect("as many columns as declared");
        w.column(name, kind);
    };
    macro_rules! fixed {
        ($value:expr) => {
            start(&mut w);
            rows.iter().for_each(|row| w.fixed(&$value(row)));
        };
    }
    macro_rules! optional {
        ($value:expr) => {
            start(&mut w);
            rows.iter().for_each(|row: &Row<'_>| w.fixed(&u8::from(row.totals.is_none())));
            rows.iter().for_each(|row| w.fixed(&row.totals.map_or(0, $value)));
        };
    }
    fixed!(|row: &Row<'_>| row.tenant);
    start(&mut w);
    rows.iter().for_each(|row| w.text(row.metric));
    start(&mut w);
    rows.iter().for_each(|row| w.text(row.source));
    fixed!(|row: &Row<'_>| kind_number(row.kind));
    fixed!(|row: &Row<'_>| row.bucket);
    fixed!(|row: &Row<'_>| row.partition);
    fixed!(|row: &Row<'_>| row.generation);
    fixed!(|row: &Row<'_>| row.totals.map_or(0, |totals| totals.count));
    fixed!(|row: &Row<'_>| row.totals.map_or(ethnum::I256::ZERO, |totals| totals.sum));
    optional!(|totals: &Totals| totals.min);
    optional!(|totals: &Totals| totals.max);
    // A tuple is its elements' columns one after another.
    fixed!(|row: &Row<'_>| row.totals.map_or(NO_TIME, |totals| totals.latest.0));
    rows.iter().for_each(|row| w.fixed(&row.totals.map_or([0; 16], |totals| *totals.latest.1.as_bytes())));
    rows.iter().for_each(|row| w.fixed(&row.totals.map_or(0, |totals| totals.latest.2)));
    fixed!(|row: &Row<'_>| row.horizon);
    w.finish()
}

fn horizon_row(month: Month, share: &Share) -> Row<'static> {
    Row {
        tenant: Uuid::nil(),
        metric: "",
        source: "",
        kind: Kind::Counter,
        bucket: u32::try_from(month.start_seconds()).expect("a month of the tables"),
        partition: share.partition,
        generation: 0,
        totals: None,
        horizon: share.frozen.through,
    }
}

fn group_rows(share: &Share) -> impl Iterator<Item = Row<'_>> {
    let Share { partition, names, generations, .. } = share;
    share.frozen.groups.iter().map(move |(group, totals)| {
        let metric = &*names[group.metric as usize];
        let generation = if generations.is_empty() {
            0
        } else {
            generations.get(&(group.tenant, metric.into(), group.bucket)).copied().unwrap_or(0)
        };
        Row {
            tenant: group.tenant,
            metric,
            source: &names[group.source as usize],
            kind: group.kind,
            bucket: group.bucket,
            partition: *partition,
            generation,
            totals: (totals.count > 0).then_some(totals),
            horizon: 0,
        }
    })
}
