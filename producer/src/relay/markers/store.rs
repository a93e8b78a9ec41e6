//! The statements of completeness. Each of them looks at the server itself: behind a pooler any of them may go to another one.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use uuid::Uuid;

use super::rules::State;
use crate::pg_time::PgTime;
use crate::relay::encode::{Source, Sources};
use crate::relay::housekeeping::HIGH;
use crate::relay::lease::Held;
use crate::relay::session::{SERVER_COLUMNS, STATEMENT, ServerId, bounded};

/// What has to be known before anything is stored or sent.
///
/// The sequence is read after the snapshot was taken, so no row that is seen has an id above it unless it lags. Rows above it are looked for
/// in the index's order; the statement is planned each time, since a plan that was made for an empty leaf would read a full one.
pub(super) async fn state(connection: &mut PgConnection, server: &ServerId) -> Result<State, sqlx::Error> {
    let sql = format!(
        "SELECT {SERVER_COLUMNS}, clock_timestamp(), {HIGH}, (SELECT max(row.id) FROM usage_outbox_partitions AS p \
         CROSS JOIN LATERAL (SELECT o.id FROM usage_outbox AS o WHERE o.part = p.part AND o.id > {HIGH} \
         ORDER BY o.id DESC LIMIT 1) AS row), \
         (SELECT min(complete_until) FROM usage_outbox_partitions), \
         (SELECT max(complete_until) FROM usage_outbox_partitions), \
         (SELECT hold_until FROM usage_outbox_identity)"
    );
    let work = sqlx::query_as(AssertSqlSafe(sql)).persistent(false).fetch_one(connection);
    type Columns = (i64, String, PgTime, i64, Option<i64>, PgTime, PgTime, PgTime);
    let (started, timeline, clock, high, beyond, least, greatest, hold_until): Columns =
        bounded(STATEMENT, work).await?;
    same(server, (started, timeline))?;
    Ok(State { clock, high, beyond, least, greatest, hold_until })
}

/// Remembers that the clock was behind.
pub(super) async fn hold(connection: &mut PgConnection, until: PgTime) -> Result<(), sqlx::Error> {
    let work = sqlx::query("UPDATE usage_outbox_identity SET hold_until = greatest(hold_until, $1)")
        .bind(until)
        .execute(connection);
    bounded(STATEMENT, work).await.map(|_| ())
}

/// Stores how far partitions are complete, if they are still held. What the clock has not reached is no proof of this server's.
pub(super) async fn complete(
    connection: &mut PgConnection,
    server: &ServerId,
    owner: &str,
    complete: &[(Held, PgTime)],
) -> Result<(), sqlx::Error> {
    let sql = format!(
        "UPDATE usage_outbox_partitions AS p SET complete_until = greatest(p.complete_until, c.until) \
         FROM unnest($1::smallint[], $2::bigint[], $3::timestamptz[]) AS c (part, epoch, until), \
         (SELECT {SERVER_COLUMNS}) AS s (started, timeline) \
         WHERE p.part = c.part AND p.epoch = c.epoch AND p.owner = $4 AND p.expires_at > clock_timestamp() \
         AND c.until < clock_timestamp() AND s.started = $5 AND s.timeline = $6"
    );
    let parts: Vec<i16> = complete.iter().map(|(held, _)| held.part).collect();
    let epochs: Vec<i64> = complete.iter().map(|(held, _)| held.epoch).collect();
    let until: Vec<PgTime> = complete.iter().map(|(_, until)| *until).collect();
    let (started, timeline) = server.columns();
    let work = sqlx::query(AssertSqlSafe(sql))
        .bind(parts)
        .bind(epochs)
        .bind(until)
        .bind(owner)
        .bind(started)
        .bind(timeline)
        .execute(connection);
    bounded(STATEMENT, work).await.map(|_| ())
}

/// What markers say, read in one snapshot.
pub(super) struct Told {
    pub outbox: Uuid,
    pub clock: PgTime,
    /// All partitions are complete until here.
    pub partitions: PgTime,
    /// The configured sources, with the time of the oldest row that waits or has just come back from waiting.
    pub sources: Vec<(Arc<Source>, Option<PgTime>)>,
}

/// Reads how far the partitions are complete and what waits.
///
/// One statement, so one snapshot: a row goes from the outbox to the waiting ones, and back, in one transaction, and is seen in one of the
/// two places or as returned.
pub(super) async fn read(
    connection: &mut PgConnection,
    server: &ServerId,
    sources: &Sources,
) -> Result<Told, sqlx::Error> {
    let sql = format!(
        "SELECT {SERVER_COLUMNS}, clock_timestamp(), i.outbox_id, p.until, least( \
         (SELECT min(w.emitted_at) FROM usage_outbox_waiting AS w \
          WHERE hashtextextended(w.source, 0) = hashtextextended(s.name, 0) AND w.source = s.name), \
         (SELECT min(w.emitted_at) FROM usage_outbox_waiting AS w \
          WHERE s.is_default AND hashtextextended(w.source, 0) IS NULL), \
         (SELECT min(r.oldest) FROM usage_outbox_returned AS r \
          WHERE r.returned_at >= p.until AND (r.source = s.name OR s.is_default AND r.source IS NULL))) \
         FROM unnest($1::text[], $2::boolean[]) WITH ORDINALITY AS s (name, is_default, place), usage_outbox_identity AS i, \
         (SELECT min(complete_until) AS until FROM usage_outbox_partitions) AS p ORDER BY s.place"
    );
    let all: Vec<&Arc<Source>> = sources.all().collect();
    let names: Vec<&str> = all.iter().map(|source| source.name.as_str()).collect();
    let defaults: Vec<bool> = names.iter().map(|name| sources.is_default(name)).collect();
    let work = sqlx::query(AssertSqlSafe(sql)).bind(names).bind(defaults).fetch_all(connection);
    let rows = bounded(STATEMENT, work).await?;
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    same(server, (first.try_get(0)?, first.try_get(1)?))?;
    let (clock, outbox, partitions) = (first.try_get(2)?, first.try_get(3)?, first.try_get(4)?);
    let sources = all
        .into_iter()
        .zip(&rows)
        .map(|(source, row)| Ok((source.clone(), row.try_get(5)?)))
        .collect::<Result<_, sqlx::Error>>()?;
    Ok(Told { outbox, clock, partitions, sources })
}

fn same(server: &ServerId, columns: (i64, String)) -> Result<(), sqlx::Error> {
    if *server == ServerId::from(columns) {
        return Ok(());
    }
    Err(sqlx::Error::Protocol("the connection leads to another server now".into()))
}
