//! Step 1 of a large question: whole clean buckets and the horizons, in one scan of the rollups.
//!
//! One scan, because rows and the horizon that vouches for them lie in one part: whatever set of parts a scan sees, its
//! horizons speak of exactly the rows it sees. Two scans could see two sets.

use uuid::Uuid;

use super::{
    question::Question,
    session::Session,
    spans::{BUCKET, Cut, Horizons, Span, months, start_of_month},
    sql::Sql,
};
use crate::{StorageError, query::AggregateRow};

/// What the rollups say.
#[derive(Debug)]
pub(super) struct Rolled {
    /// The first rows after the query's key.
    pub(super) rows: Vec<AggregateRow>,
    pub(super) horizons: Horizons,
}

/// Plain sums first; only if a bucket was rolled up anew (generation > 0) the dearer form that counts its highest
/// generation. The second scan replaces the first one whole, horizons too.
pub(super) async fn read(
    session: &Session,
    question: &Question<'_>,
    cut: &Cut,
) -> Result<Rolled, StorageError> {
    let (rolled, generation) = scan(session, question, cut, false).await?;
    if generation == 0 {
        return Ok(rolled);
    }
    Ok(scan(session, question, cut, true).await?.0)
}

async fn scan(
    session: &Session,
    question: &Question<'_>,
    cut: &Cut,
    by_generation: bool,
) -> Result<(Rolled, u32), StorageError> {
    let sql = statement(question, cut, by_generation);
    let mut rolled = Rolled { rows: Vec::new(), horizons: Horizons::new() };
    let mut highest = 0;
    session
        .ask(&sql, |line| {
            let is_horizon = line.u8()? == 1;
            let (partition, month) = (line.i32()?, line.u32()?);
            let (horizon, generation) = (line.i64()?, line.u32()?);
            let row = question.read_row(line)?;
            if is_horizon {
                rolled.horizons.insert((partition, month), horizon);
            } else {
                highest = highest.max(generation);
                rolled.rows.push(row);
            }
            Ok(())
        })
        .await?;
    Ok((rolled, highest))
}

/// Horizons sort before all rows, so that the limit never cuts them off.
fn statement(question: &Question<'_>, cut: &Cut, by_generation: bool) -> Sql {
    let measure = question.query.measure;
    let mut sql = Sql::new();
    sql.push("SELECT is_horizon, partition, month, max(beyond), max(generation), ");
    question.push_key(&mut sql);
    sql.push(", sum(counted), sum(total)");
    if measure.min_max {
        sql.push(", min(lowest), max(highest)");
    }
    if measure.latest {
        sql.push(", max(last)");
    }
    sql.push(" FROM (SELECT toUInt8(tenant_id = ").uuid(Uuid::nil()).push(
        ") AS is_horizon, if(is_horizon, kafka_partition, toInt32(0)) AS partition, \
         if(is_horizon, toYYYYMM(bucket), toUInt32(0)) AS month, if(is_horizon, toInt64(0), ",
    );
    question.push_window(&mut sql, "(toInt64(toUnixTimestamp(bucket)) * 1000000)");
    sql.push(") AS window_start");
    question.push_columns(&mut sql);
    sql.push(", counted, total, lowest, highest, last, beyond, generation FROM (");
    push_source(&mut sql, question, cut, by_generation);
    sql.push(")) WHERE is_horizon OR ");
    question.push_after(&mut sql);
    question.push_group_by(&mut sql);
    sql.push(
        ", is_horizon, partition, month HAVING is_horizon OR sum(counted) > 0 ORDER BY is_horizon DESC, ",
    );
    question.push_order(&mut sql);
    let horizons = question.partitions.len() * months(whole_months(cut.clean)).count();
    sql.push_fmt(format_args!(" LIMIT {}", question.query.limit.saturating_add(horizons)));
    sql
}

/// The rows of the table, or for each key only those of its highest generation.
fn push_source(sql: &mut Sql, question: &Question<'_>, cut: &Cut, by_generation: bool) {
    const KEY: &str = "tenant_id, metric, source, kind, bucket, kafka_partition";
    sql.push("SELECT ").push(KEY).push(", generation, ");
    sql.push(if by_generation {
        "sum(record_count) AS counted, sum(value_sum) AS total, min(value_min) AS lowest, max(value_max) AS highest, \
         max(latest) AS last, max(horizon) AS beyond"
    } else {
        "record_count AS counted, value_sum AS total, value_min AS lowest, value_max AS highest, latest AS last, \
         horizon AS beyond"
    });
    sql.push(" FROM usage_rollups WHERE ");
    push_conditions(sql, question, cut);
    if by_generation {
        sql.push(" GROUP BY ").push(KEY).push(", generation ORDER BY generation DESC LIMIT 1 BY ").push(KEY);
    }
}

fn push_conditions(sql: &mut Sql, question: &Question<'_>, cut: &Cut) {
    let query = question.query;
    let within = whole_months(cut.clean);
    // Said for both kinds of rows, so that other months' parts are left out.
    push_buckets(sql, within);
    sql.push(" AND (tenant_id = ").uuid(query.tenant_id);
    sql.and_texts("metric", &query.metrics);
    sql.and_texts("source", &query.sources);
    sql.push(" AND ");
    push_buckets(sql, cut.clean);
    if !cut.dirty.is_empty() {
        sql.push(" AND intDiv(toUnixTimestamp(bucket), 900) NOT IN (");
        for (index, bucket) in cut.dirty.iter().enumerate() {
            let separator = if index > 0 { "," } else { "" };
            sql.push_fmt(format_args!("{separator}{}", bucket / BUCKET));
        }
        sql.push(")");
    }
    sql.push(" OR tenant_id = ").uuid(Uuid::nil()).push(" AND kafka_partition IN (");
    for (index, partition) in question.partitions.iter().enumerate() {
        let separator = if index > 0 { "," } else { "" };
        sql.push_fmt(format_args!("{separator}{partition}"));
    }
    sql.push("))");
}

/// From the first instant of the first month, where its horizon rows are.
fn whole_months(clean: Span) -> Span {
    Span { from: start_of_month(clean.from), to: clean.to }
}

fn push_buckets(sql: &mut Sql, span: Span) {
    sql.push("bucket >= ").instant_of_seconds(span.from / 1_000_000);
    sql.push(" AND bucket < ").instant_of_seconds(span.to / 1_000_000);
}
