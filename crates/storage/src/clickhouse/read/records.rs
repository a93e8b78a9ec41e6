//! Aggregates from the records: the truth, row by row.

use super::{
    question::Question,
    session::Session,
    spans::{BUCKET, Leg, Span},
    sql::Sql,
};
use crate::{StorageError, query::AggregateRow};

/// Records that one leg of the SELECT reads. Legs of one answer are disjoint by timestamp, bucket and batch number, which
/// never change: a record that a correction touches meanwhile still counts once.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part<'a> {
    /// All of a span.
    All(Span),
    /// What lies beyond a horizon, but for the buckets that other legs read.
    Beyond { leg: Leg, except: &'a [i64] },
}

/// The first rows after the query's key, from all parts in one SELECT. Separate legs, because conditions joined by OR prune
/// nothing.
pub(super) async fn read(
    session: &Session,
    question: &Question<'_>,
    parts: &[Part<'_>],
    limit: usize,
) -> Result<Vec<AggregateRow>, StorageError> {
    if parts.is_empty() {
        return Ok(Vec::new());
    }
    session.ask(&statement(question, parts, limit), |row| question.read_row(row)).await
}

/// Rows that the server expects to read for a span, by its primary index alone.
pub(super) async fn estimate(session: &Session, question: &Question<'_>) -> Result<u64, StorageError> {
    let mut sql = Sql::new();
    sql.push("EXPLAIN ESTIMATE SELECT value FROM usage_records WHERE ");
    push_span(&mut sql, question, question.range);
    // One row per table: database, table, parts, rows, marks. No row if nothing matches.
    let rows = session
        .ask(&sql, |row| {
            row.str()?;
            row.str()?;
            row.u64()?;
            let rows = row.u64()?;
            row.u64()?;
            Ok(rows)
        })
        .await?;
    Ok(rows.iter().sum())
}

fn statement(question: &Question<'_>, parts: &[Part<'_>], limit: usize) -> Sql {
    let measure = question.query.measure;
    let mut sql = Sql::new();
    sql.push("SELECT ");
    question.push_key(&mut sql);
    // Wider before it is summed: a sum of Decimal(38) wraps silently.
    sql.push(", count(), sum(toDecimal256(value, 18))");
    if measure.min_max {
        sql.push(", toNullable(min(value)), toNullable(max(value))");
    }
    if measure.latest {
        sql.push(", max((timestamp, UUIDToNum(record_id), value))");
    }
    sql.push(" FROM (");
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            sql.push(" UNION ALL ");
        }
        push_part(&mut sql, question, *part);
    }
    sql.push(") WHERE ");
    question.push_after(&mut sql);
    question.push_group_by(&mut sql);
    sql.push(" ORDER BY ");
    question.push_order(&mut sql);
    sql.push_fmt(format_args!(" LIMIT {limit}"));
    sql
}

fn push_part(sql: &mut Sql, question: &Question<'_>, part: Part<'_>) {
    sql.push("SELECT ");
    question.push_window(sql, "toUnixTimestamp64Micro(timestamp)");
    sql.push(" AS window_start");
    question.push_columns(sql);
    sql.push(", value");
    if question.query.measure.latest {
        sql.push(", timestamp, record_id");
    }
    sql.push(" FROM usage_records WHERE ");
    match part {
        Part::All(span) => push_span(sql, question, span),
        Part::Beyond { leg, except } => {
            push_span(sql, question, leg.span);
            sql.push_fmt(format_args!(
                " AND kafka_partition = {} AND batch_seq > {}",
                leg.partition, leg.beyond
            ));
            if !except.is_empty() {
                sql.push_fmt(format_args!(
                    " AND intDiv(toUnixTimestamp64Micro(timestamp), {BUCKET}) NOT IN ("
                ));
                for (index, bucket) in except.iter().enumerate() {
                    let separator = if index > 0 { "," } else { "" };
                    sql.push_fmt(format_args!("{separator}{}", bucket / BUCKET));
                }
                sql.push(")");
            }
        }
    }
}

fn push_span(sql: &mut Sql, question: &Question<'_>, span: Span) {
    let query = question.query;
    sql.push("tenant_id = ").uuid(query.tenant_id);
    sql.and_texts("metric", &query.metrics);
    sql.and_span(span.from, span.to);
    sql.push(" AND status = 'active'");
    sql.and_texts("source", &query.sources);
    sql.and_uuids("subject_id", &query.subject_ids);
    sql.and_texts("subject_type", &query.subject_types);
    sql.and_uuids("resource_id", &query.resource_ids);
    sql.and_texts("resource_type", &query.resource_types);
}
