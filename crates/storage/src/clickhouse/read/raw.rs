//! Records themselves: pages in the order of time, single ones by id.

use uuid::Uuid;

use super::{dimensions::read_id, question::read_quantity, session::Session, spans::Span, sql::Sql};
use crate::{
    StorageError,
    clickhouse::{client::CallError, rowbinary::RowReader},
    query::{RawQuery, StatusFilter, StoredRecord},
};
use usage_schemas::Kind;

const HOUR: i64 = 3_600_000_000;

/// First stretch of time that a page is looked for in. The table is ordered by metric before time: with one metric the
/// server reads in the order of time and stops early; without, it reads every metric's share of the stretch.
const FIRST_STRETCH: i64 = HOUR;
const FIRST_STRETCH_OF_A_METRIC: i64 = 32 * 24 * HOUR;
/// Growth of the stretch after one that held nothing, and after one that did not fill the page.
const GROWTH_IF_EMPTY: i64 = 8;
const GROWTH: i64 = 4;

/// Columns in the order of [`read_record`].
const COLUMNS: &str = "UUIDToNum(record_id), UUIDToNum(tenant_id), source, metric, kind, value, timestamp, idempotency_key, \
     UUIDToNum(resource_id), resource_type, UUIDToNum(subject_id), subject_type, metadata, status, ingested_at, inactive_at, \
     version";

/// One page. Looked for in stretches that grow while they don't fill it, so that no question is unbounded.
pub(super) async fn page(session: &Session, query: &RawQuery) -> Result<Vec<StoredRecord>, StorageError> {
    let mut page = Vec::new();
    let mut from = query.after.map_or(query.from, |(timestamp, _)| query.from.max(timestamp));
    let mut stretch = if query.metrics.len() == 1 { FIRST_STRETCH_OF_A_METRIC } else { FIRST_STRETCH };
    while from < query.to && page.len() < query.limit {
        let to = query.to.min(from.saturating_add(stretch));
        let found =
            session.ask(&statement(query, Span { from, to }, query.limit - page.len()), read_record).await?;
        stretch = stretch.saturating_mul(if found.is_empty() { GROWTH_IF_EMPTY } else { GROWTH });
        page.extend(found);
        from = to;
    }
    Ok(page)
}

fn statement(query: &RawQuery, span: Span, limit: usize) -> Sql {
    let mut sql = Sql::new();
    sql.push("SELECT ").push(COLUMNS).push(" FROM usage_records WHERE tenant_id = ").uuid(query.tenant_id);
    sql.and_texts("metric", &query.metrics).and_span(span.from, span.to);
    match query.status {
        StatusFilter::Active => sql.push(" AND status = 'active'"),
        StatusFilter::Inactive => sql.push(" AND status = 'inactive'"),
        StatusFilter::All => &mut sql,
    };
    sql.and_texts("source", &query.sources);
    sql.and_uuids("subject_id", &query.subject_ids).and_texts("subject_type", &query.subject_types);
    sql.and_uuids("resource_id", &query.resource_ids).and_texts("resource_type", &query.resource_types);
    if let Some((timestamp, id)) = query.after {
        sql.push(" AND (timestamp > ").instant(timestamp);
        sql.push(" OR timestamp = ").instant(timestamp);
        sql.push(" AND UUIDToNum(record_id) > ").ordered_uuid(id).push(")");
    }
    sql.push_fmt(format_args!(" ORDER BY timestamp, UUIDToNum(record_id) LIMIT {limit}"));
    sql
}

/// One record of the tenant, whatever its status. The projection by id only knows where a row lies, and the row is read from
/// there: reading whole rows through the projection, or by the tenant, costs several times as much. Both reads see one set
/// of parts (see [`super::session`]), so positions mean the same rows.
pub(super) async fn record(
    session: &Session,
    tenant_id: Uuid,
    record_id: Uuid,
) -> Result<Option<StoredRecord>, StorageError> {
    const POSITION: &str = "_part_starting_offset + _part_offset";
    let mut sql = Sql::new();
    sql.push("SELECT ").push(COLUMNS).push(" FROM usage_records WHERE ").push(POSITION);
    sql.push(" IN (SELECT ").push(POSITION).push(" FROM usage_records WHERE record_id = ").uuid(record_id);
    sql.push(") AND tenant_id = ").uuid(tenant_id).push(" AND record_id = ").uuid(record_id).push(" LIMIT 2");
    let mut found = session.ask(&sql, read_record).await?;
    if found.len() > 1 {
        return Err(StorageError::Inconsistent(format!("record {record_id} is stored twice")));
    }
    Ok(found.pop())
}

fn read_record(row: &mut RowReader<'_>) -> Result<StoredRecord, CallError> {
    Ok(StoredRecord {
        record_id: read_id(row)?,
        tenant_id: read_id(row)?,
        source: row.str()?.into(),
        metric: row.str()?.into(),
        kind: read_kind(row)?,
        value: read_quantity(row)?,
        timestamp: row.i64()?,
        idempotency_key: read_text(row)?,
        resource_id: row.nullable(read_id)?,
        resource_type: read_text(row)?,
        subject_id: row.nullable(read_id)?,
        subject_type: read_text(row)?,
        metadata: read_text(row)?,
        active: row.u8()? == 1,
        ingested_at: row.i64()?,
        inactive_at: row.nullable(RowReader::i64)?,
        version: row.u32()?,
    })
}

fn read_text(row: &mut RowReader<'_>) -> Result<Option<String>, CallError> {
    Ok(row.nullable(RowReader::str)?.map(Into::into))
}

fn read_kind(row: &mut RowReader<'_>) -> Result<Kind, CallError> {
    match row.u8()? {
        1 => Ok(Kind::Counter),
        2 => Ok(Kind::Gauge),
        other => Err(CallError::Lost(format!("an unknown kind {other}").into())),
    }
}
