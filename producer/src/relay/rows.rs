//! Reading outbox rows and taking them out again.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};
use usage_service::fail_point;
use uuid::Uuid;

use super::session::{STATEMENT, bounded};
use crate::pg_time::PgTime;

/// A page stops with the row that reaches this, whatever its number of rows, so that large payloads don't fill the memory.
const PAGE_BYTES: i64 = 16 << 20;

/// What names a row when it is taken out: a promoted standby may hand out an id again, but not at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RowKey {
    pub id: i64,
    pub emitted_at: PgTime,
    pub segment: i16,
}

/// One row of the outbox.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub key: RowKey,
    pub tenant_id: Uuid,
    pub payload_type: String,
    pub source: Option<String>,
    pub traceparent: Option<String>,
    /// Absent: larger than was asked for.
    pub payload: Option<Vec<u8>>,
    pub payload_bytes: i32,
    /// How long ago it was written when it was read, on the database's clock.
    pub age: Duration,
}

/// A page of a partition, in the order of the ids.
pub(crate) struct Page {
    pub rows: Vec<Row>,
    /// There may be more.
    pub full: bool,
}

#[derive(sqlx::FromRow)]
struct Scanned {
    id: i64,
    tenant_id: Uuid,
    emitted_at: PgTime,
    segment: i16,
    payload_type: String,
    source: Option<String>,
    traceparent: Option<String>,
    payload: Option<Vec<u8>>,
    payload_bytes: i32,
    read_at: PgTime,
}

/// Reads the rows of a partition above `floor`, at most `limit` of them, payloads of at most `max_bytes`.
///
/// A page never ends between rows of the same id, which a restored outbox may have: the next one has the ids above it, and a walk that passed
/// the second of them would take its partition for complete. So both bounds may be exceeded by the rows of one id.
///
/// The server adds up the bytes: rows that are sent and not wanted would have to be read all the same before the connection can do anything else.
pub(crate) async fn scan(
    connection: &mut PgConnection,
    part: i16,
    floor: i64,
    limit: i64,
    max_bytes: i32,
) -> Result<Page, sqlx::Error> {
    let work = async {
        let scanned: Vec<Scanned> = sqlx::query_as(
            "SELECT id, tenant_id, emitted_at, segment, payload_type, source, traceparent, \
             CASE WHEN payload_bytes <= $4 THEN payload END AS payload, payload_bytes, clock_timestamp() AS read_at \
             FROM (SELECT *, octet_length(payload) AS payload_bytes, \
             sum(CASE WHEN octet_length(payload) <= $4 THEN octet_length(payload) ELSE 0 END) \
             OVER (ORDER BY id GROUPS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before \
             FROM usage_outbox WHERE part = $1 AND id > $2 ORDER BY id FETCH FIRST ($3) ROWS WITH TIES) AS page \
             WHERE bytes_before IS NULL OR bytes_before < $5 ORDER BY id",
        )
        .bind(part)
        .bind(floor)
        .bind(limit)
        .bind(max_bytes)
        .bind(PAGE_BYTES)
        .fetch_all(connection)
        .await?;
        let read: usize = scanned.iter().filter_map(|row| row.payload.as_ref()).map(Vec::len).sum();
        let whole = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let full = whole(scanned.len()) >= limit || whole(read) >= PAGE_BYTES;
        Ok(Page { rows: scanned.into_iter().map(Row::from).collect(), full })
    };
    bounded(STATEMENT, work).await
}

impl From<Scanned> for Row {
    fn from(row: Scanned) -> Self {
        let age_micros = row.read_at.0.saturating_sub(row.emitted_at.0);
        Self {
            key: RowKey { segment: row.segment, id: row.id, emitted_at: row.emitted_at },
            tenant_id: row.tenant_id,
            payload_type: row.payload_type,
            source: row.source,
            traceparent: row.traceparent,
            payload: row.payload,
            payload_bytes: row.payload_bytes,
            age: Duration::from_micros(u64::try_from(age_micros).unwrap_or_default()),
        }
    }
}

/// Deletes rows that Kafka has acknowledged. Rows that somebody else deleted before are no error.
pub(crate) async fn delete(
    connection: &mut PgConnection,
    part: i16,
    keys: &[RowKey],
) -> Result<(), sqlx::Error> {
    for (segment, keys) in by_segment(keys.iter().map(|key| (*key, ()))) {
        let sql = format!(
            "DELETE FROM usage_outbox_{segment} AS o USING unnest($2::bigint[], $3::timestamptz[]) AS k (id, emitted_at) \
             WHERE o.part = $1 AND o.id BETWEEN $4 AND $5 AND o.id = ANY ($2) AND o.id = k.id AND o.emitted_at = k.emitted_at"
        );
        let named = Named::from(&keys[..]);
        let work = sqlx::query(AssertSqlSafe(sql))
            .bind(part)
            .bind(named.ids)
            .bind(named.times)
            .bind(named.low)
            .bind(named.high)
            .execute(&mut *connection);
        bounded(STATEMENT, work).await?;
    }
    Ok(())
}

/// Moves up to `limit` waiting rows of the given sources and payload types back into the outbox, in one transaction. Returns how many.
///
/// They get new ids, since the floor has passed their old ones; their time stays. So what a partition says of its completeness does not
/// speak of them: their sources are held back until every partition is complete beyond `returned_at`, which is read under the outbox's lock,
/// as the time of an emit is.
pub(crate) async fn unpark(
    connection: &mut PgConnection,
    sources: &[String],
    without_source: bool,
    payload_types: &[&str],
    limit: i64,
) -> Result<u64, sqlx::Error> {
    fail_point!("relay.return");
    // The index has hashes; the texts decide.
    let work = sqlx::query(
        "WITH back AS (DELETE FROM usage_outbox_waiting WHERE waiting_id IN (SELECT waiting_id FROM usage_outbox_waiting \
         WHERE (hashtextextended(source, 0) = ANY (ARRAY(SELECT hashtextextended(s, 0) FROM unnest($1::text[]) AS s)) \
         AND source = ANY ($1) OR $2 AND hashtextextended(source, 0) IS NULL) \
         AND hashtextextended(payload_type, 0) = ANY (ARRAY(SELECT hashtextextended(t, 0) FROM unnest($4::text[]) AS t)) \
         AND payload_type = ANY ($4) ORDER BY waiting_id LIMIT $3 FOR UPDATE SKIP LOCKED) RETURNING *), \
         noted AS (INSERT INTO usage_outbox_returned (source, oldest, returned_at) \
         SELECT source, min(emitted_at), clock_timestamp() FROM back GROUP BY source) \
         INSERT INTO usage_outbox (part, tenant_id, emitted_at, payload_type, source, traceparent, payload) \
         SELECT part, tenant_id, emitted_at, payload_type, source, traceparent, payload FROM back ORDER BY waiting_id",
    )
    .bind(sources)
    .bind(without_source)
    .bind(limit)
    .bind(payload_types)
    .execute(connection);
    let returned = bounded(STATEMENT, work).await?.rows_affected();
    if returned > 0 {
        fail_point!("relay.returned");
    }
    Ok(returned)
}

/// Forgets returned rows of which the partitions speak by now.
pub(crate) async fn forget_returned(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let sql = "DELETE FROM usage_outbox_returned \
         WHERE returned_at < (SELECT min(complete_until) FROM usage_outbox_partitions)";
    bounded(STATEMENT, sqlx::query(sql).execute(connection)).await.map(|_| ())
}

/// Waiting rows by source; counting ends at `most` rows.
pub(crate) async fn waiting(
    connection: &mut PgConnection,
    most: i64,
) -> Result<Vec<(Option<String>, i64)>, sqlx::Error> {
    let work = sqlx::query_as(
        "SELECT source, count(*) FROM (SELECT source FROM usage_outbox_waiting LIMIT $1) AS rows GROUP BY source",
    )
    .bind(most)
    .fetch_all(connection);
    bounded(STATEMENT, work).await
}

/// Rows by leaf: each statement names one leaf, so that its plan is an index scan of that leaf.
pub(super) fn by_segment<T>(keys: impl Iterator<Item = (RowKey, T)>) -> BTreeMap<i16, Vec<(RowKey, T)>> {
    let mut segments: BTreeMap<i16, Vec<(RowKey, T)>> = BTreeMap::new();
    for (key, rest) in keys {
        segments.entry(key.segment).or_default().push((key, rest));
    }
    segments
}

/// The parameters that name rows of a leaf. The bounds keep a generic plan from walking the whole partition.
pub(super) struct Named {
    pub ids: Vec<i64>,
    pub times: Vec<PgTime>,
    pub low: i64,
    pub high: i64,
}

impl<T> From<&[(RowKey, T)]> for Named {
    fn from(keys: &[(RowKey, T)]) -> Self {
        let ids: Vec<i64> = keys.iter().map(|(key, _)| key.id).collect();
        let low = ids.iter().copied().min().unwrap_or_default();
        let high = ids.iter().copied().max().unwrap_or_default();
        Self { ids, times: keys.iter().map(|(key, _)| key.emitted_at).collect(), low, high }
    }
}
