//! Holds the rollups against the records (`usagectl verify`).
//!
//! Workers may run meanwhile: rollups and horizons come from one scan, so the horizons speak of exactly those rows; then the
//! records of the batches up to these horizons are grouped, which are all there and never change. Months come one after
//! another, and within one as many tenants at a time as have about [`CHUNK_ROWS`] rows.

mod buckets;
mod identities;

use std::fmt::Write as _;

use uuid::Uuid;

use super::client::{Client, push_literal};
use super::months::{BUCKET_SECONDS, Month};
use super::rowbinary::RowReader;
use crate::StorageError;
use crate::maintenance::{Difference, Scope, Verified};

/// With every statement: groups that don't fit into 500 MB go to the server's disk.
pub(super) const SETTINGS: &[(&str, &str)] = &[
    ("max_bytes_before_external_group_by", "500000000"),
    ("max_bytes_before_external_sort", "500000000"),
    ("max_query_size", "4194304"),
    // A condition on the partition of a tenant is evaluated once per tenant, not for every row.
    ("query_plan_filter_push_down", "0"),
    ("wait_end_of_query", "1"),
];

/// Rows of both tables that are looked at together; a tenant with more is looked at alone.
const CHUNK_ROWS: u64 = 500_000;
const CHUNK_TENANTS: usize = 1_000;

pub(super) async fn verify(
    client: &Client,
    scope: &Scope,
    sink: &mut (dyn FnMut(Difference) + Send),
) -> Result<Verified, StorageError> {
    let mut verified = Verified::default();
    for month in months(client).await?.into_iter().filter(|month| touches(scope, *month)) {
        verified.months += 1;
        let tenants = tenants(client, scope, Tables::Both(month)).await?;
        for tenants in chunks(&tenants) {
            buckets::compare(client, scope, month, &tenants, &mut verified, sink).await?;
        }
        tracing::debug!(month = month.0, tenants = tenants.len(), buckets = verified.buckets, "compared");
    }
    identities::verify(client, scope, &mut verified, sink).await?;
    Ok(verified)
}

/// Months that either table has rows of.
async fn months(client: &Client) -> Result<Vec<Month>, StorageError> {
    let sql = "SELECT DISTINCT toUInt32(partition) FROM system.parts WHERE database = currentDatabase() \
               AND table IN ('usage_records', 'usage_rollups') AND active ORDER BY 1";
    let bytes = client.fetch(sql).await?;
    let mut rows = RowReader::new(&bytes);
    let mut months = Vec::new();
    while !rows.is_empty() {
        months.push(Month(rows.u32()?));
    }
    Ok(months)
}

fn touches(scope: &Scope, month: Month) -> bool {
    let (first, end) = (month.start_seconds(), month.next().start_seconds());
    scope.from.is_none_or(|from| from < end * 1_000_000) && scope.to.is_none_or(|to| to > first * 1_000_000)
}

/// Where tenants are looked for.
#[derive(Clone, Copy)]
enum Tables {
    /// Records and rollups of a month, by whole buckets.
    Both(Month),
    /// Records of the range.
    Records,
}

/// Tenants with the number of their rows, ascending.
async fn tenants(client: &Client, scope: &Scope, tables: Tables) -> Result<Vec<(Uuid, u64)>, StorageError> {
    let sql = match tables {
        Tables::Records => format!(
            "SELECT tenant_id, count() FROM usage_records WHERE 1{} GROUP BY tenant_id ORDER BY tenant_id",
            records_in_range(scope)
        ),
        Tables::Both(month) => format!(
            "SELECT tenant_id, sum(n) FROM (\
             SELECT tenant_id, count() AS n FROM usage_records WHERE toYYYYMM(timestamp) = {month}{} GROUP BY tenant_id \
             UNION ALL SELECT tenant_id, count() AS n FROM usage_rollups \
             WHERE toYYYYMM(bucket) = {month} AND tenant_id != '{}'{} GROUP BY tenant_id) \
             GROUP BY tenant_id ORDER BY tenant_id",
            records_in_buckets(scope),
            Uuid::nil(),
            rollups_in_buckets(scope),
            month = month.0,
        ),
    };
    let bytes = client.fetch(&sql).await?;
    let mut rows = RowReader::new(&bytes);
    let mut tenants = Vec::new();
    while !rows.is_empty() {
        tenants.push((rows.uuid()?, rows.u64()?));
    }
    Ok(tenants)
}

/// Tenants that are looked at together, and their rows.
#[derive(Debug, PartialEq, Eq)]
struct Tenants {
    ids: Vec<Uuid>,
    rows: u64,
}

impl Tenants {
    /// As a list for `IN`.
    fn list(&self) -> String {
        let ids: Vec<String> = self.ids.iter().map(|id| format!("'{}'", id.hyphenated())).collect();
        ids.join(", ")
    }
}

fn chunks(tenants: &[(Uuid, u64)]) -> Vec<Tenants> {
    let mut chunks: Vec<Tenants> = Vec::new();
    for &(id, rows) in tenants {
        match chunks.last_mut() {
            Some(last) if last.rows + rows <= CHUNK_ROWS && last.ids.len() < CHUNK_TENANTS => {
                last.ids.push(id);
                last.rows += rows;
            }
            _ => chunks.push(Tenants { ids: vec![id], rows }),
        }
    }
    chunks
}

/// ` AND …` for tenant and metric, in both tables.
fn of_whom(scope: &Scope) -> String {
    let mut sql = String::new();
    if let Some(tenant) = scope.tenant_id {
        write!(sql, " AND tenant_id = '{}'", tenant.hyphenated()).expect("to a String");
    }
    if let Some(metric) = &scope.metric {
        sql.push_str(" AND metric = ");
        push_literal(&mut sql, metric);
    }
    sql
}

/// ` AND …` for the records of exactly the range.
fn records_in_range(scope: &Scope) -> String {
    let mut sql = of_whom(scope);
    for (sign, bound) in [(">=", scope.from), ("<", scope.to)] {
        if let Some(micros) = bound {
            write!(sql, " AND timestamp {sign} fromUnixTimestamp64Micro({micros}, 'UTC')")
                .expect("to a String");
        }
    }
    sql
}

/// The range in seconds, widened to whole buckets.
fn whole_buckets(scope: &Scope) -> (Option<i64>, Option<i64>) {
    let width = i64::from(BUCKET_SECONDS) * 1_000_000;
    let start = |micros: i64| micros.div_euclid(width) * i64::from(BUCKET_SECONDS);
    (scope.from.map(start), scope.to.map(|to| start(to.saturating_add(width - 1))))
}

fn records_in_buckets(scope: &Scope) -> String {
    let (from, to) = whole_buckets(scope);
    let micros = |seconds: Option<i64>| seconds.map(|seconds| seconds.saturating_mul(1_000_000));
    records_in_range(&Scope { from: micros(from), to: micros(to), ..scope.clone() })
}

fn rollups_in_buckets(scope: &Scope) -> String {
    let (from, to) = whole_buckets(scope);
    let mut sql = of_whom(scope);
    for (sign, bound) in [(">=", from), ("<", to)] {
        if let Some(seconds) = bound {
            write!(sql, " AND toInt64(toUnixTimestamp(bucket)) {sign} {seconds}").expect("to a String");
        }
    }
    sql
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PartitionCounts;

    fn scope(from: i64, to: i64) -> Scope {
        Scope {
            from: Some(from),
            to: Some(to),
            tenant_id: None,
            metric: None,
            partition_counts: PartitionCounts { current: 4, known: vec![4] },
        }
    }

    #[test]
    fn small_tenants_share_a_look_and_large_ones_have_their_own() {
        let tenant = |n: u128, rows| (Uuid::from_u128(n), rows);
        let tenants = [
            tenant(1, 10),
            tenant(2, CHUNK_ROWS - 10),
            tenant(3, 1),
            tenant(4, 3 * CHUNK_ROWS),
            tenant(5, 7),
        ];
        let ids: Vec<Vec<u128>> =
            chunks(&tenants).iter().map(|chunk| chunk.ids.iter().map(Uuid::as_u128).collect()).collect();
        assert_eq!(ids, [vec![1, 2], vec![3], vec![4], vec![5]]);
        let many: Vec<_> = (1..=2_500).map(|n| tenant(n, 0)).collect();
        let sizes: Vec<usize> = chunks(&many).iter().map(|chunk| chunk.ids.len()).collect();
        assert_eq!(sizes, [1_000, 1_000, 500]);
        assert!(chunks(&[]).is_empty());
    }

    #[test]
    fn a_range_is_widened_to_whole_buckets() {
        let second = 1_000_000;
        assert_eq!(whole_buckets(&scope(900 * second, 1_800 * second)), (Some(900), Some(1_800)));
        assert_eq!(whole_buckets(&scope(901 * second, 1_800 * second + 1)), (Some(900), Some(2_700)));
        assert_eq!(whole_buckets(&scope(-1, 1)), (Some(-900), Some(900)));
    }

    #[test]
    fn months_outside_of_the_range_are_left_alone() {
        let month = Month(202611);
        let (first, end) = (month.start_seconds() * 1_000_000, month.next().start_seconds() * 1_000_000);
        assert!(touches(&scope(first - 5, first + 1), month) && touches(&scope(end - 1, end + 1), month));
        assert!(!touches(&scope(first - 5, first), month) && !touches(&scope(end, end + 5), month));
    }

    #[test]
    fn a_metric_is_a_value_and_never_sql() {
        let scope = Scope { metric: Some("x' OR '1".into()), ..scope(0, 1) };
        assert!(of_whom(&scope).ends_with(r"metric = 'x\' OR \'1'"));
    }
}
