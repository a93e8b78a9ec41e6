//! What keeps the outbox small and seen: truncating emptied leaves, looking at locks for the floor, counting rows.

use std::collections::HashSet;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::floor::{Holder, Look};
use super::session::{SERVER_COLUMNS, STATEMENT, ServerId, bounded};
use crate::outbox::SEGMENTS;
use crate::pg_time::PgTime;

/// The last id that was handed out.
pub(crate) const HIGH: &str =
    "(SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM usage_outbox_id_seq)";

/// Reads clock and sequence, then who holds the outbox's lock: two statements, since their order is the proof. A holder without a
/// process is a prepared transaction.
pub(crate) async fn look(
    connection: &mut PgConnection,
    bound: Duration,
) -> Result<(ServerId, Look), sqlx::Error> {
    let sequence = format!("SELECT {SERVER_COLUMNS}, clock_timestamp(), {HIGH}");
    let locks = format!(
        "SELECT {SERVER_COLUMNS}, held.live, held.prepared FROM (SELECT \
         coalesce(array_agg(virtualtransaction) FILTER (WHERE pid IS NOT NULL), '{{}}') AS live, \
         coalesce(array_agg(virtualtransaction) FILTER (WHERE pid IS NULL), '{{}}') AS prepared \
         FROM pg_locks WHERE locktype = 'relation' \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
         AND relation = 'usage_outbox'::regclass AND mode = 'RowExclusiveLock' AND granted) AS held"
    );
    bounded(bound, async {
        let (started, timeline, clock, high): (i64, String, PgTime, i64) =
            sqlx::query_as(AssertSqlSafe(sequence)).fetch_one(&mut *connection).await?;
        let (started_then, timeline_then, live, prepared): (i64, String, Vec<String>, Vec<String>) =
            sqlx::query_as(AssertSqlSafe(locks)).fetch_one(&mut *connection).await?;
        let server = ServerId::from((started, timeline));
        if server != ServerId::from((started_then, timeline_then)) {
            // Behind a pooler the two may have gone to different servers: proof of nothing.
            return Err(sqlx::Error::Protocol("the server changed between two statements".into()));
        }
        let named = |prepared: bool| move |transaction: String| Holder { transaction, prepared };
        let holders: HashSet<Holder> =
            live.into_iter().map(named(false)).chain(prepared.into_iter().map(named(true))).collect();
        Ok((server, Look { clock, high, holders }))
    })
    .await
}

/// Truncates the leaves that nobody writes now or next and that have no row. Returns how many.
///
/// TRUNCATE gives space back whatever snapshot is held somewhere. It is refused at once while an emitter is open in the leaf or somebody reads the
/// table; the other leaves go on.
pub(crate) async fn truncate_empty_leaves(connection: &mut PgConnection) -> Result<usize, sqlx::Error> {
    let current: i16 = bounded(
        STATEMENT,
        sqlx::query_scalar("SELECT ((extract(epoch FROM clock_timestamp())::bigint / 60) % 4)::smallint")
            .fetch_one(&mut *connection),
    )
    .await?;
    let mut truncated = 0;
    for segment in (0..SEGMENTS).filter(|segment| *segment != current && *segment != (current + 1) % SEGMENTS)
    {
        if bounded(STATEMENT, truncate(connection, segment)).await? {
            truncated += 1;
        }
    }
    Ok(truncated)
}

async fn truncate(connection: &mut PgConnection, segment: i16) -> Result<bool, sqlx::Error> {
    let leaf = format!("usage_outbox_{segment}");
    // Before the lock, so that nobody waits while a leaf of dead rows is walked.
    let probe = format!("SELECT pg_relation_size('{leaf}') > 0 AND NOT EXISTS (SELECT FROM {leaf})");
    if !sqlx::query_scalar::<_, bool>(AssertSqlSafe(probe)).fetch_one(&mut *connection).await? {
        return Ok(false);
    }
    let mut tx = connection.begin().await?;
    let lock = format!("LOCK TABLE {leaf} IN ACCESS EXCLUSIVE MODE NOWAIT");
    match sqlx::query(AssertSqlSafe(lock)).execute(&mut *tx).await {
        Ok(_) => {}
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(LOCK_NOT_AVAILABLE) => {
            tx.rollback().await?;
            return Ok(false);
        }
        Err(error) => return Err(error),
    }
    let empty = format!("SELECT NOT EXISTS (SELECT FROM {leaf})");
    if !sqlx::query_scalar::<_, bool>(AssertSqlSafe(empty)).fetch_one(&mut *tx).await? {
        tx.rollback().await?;
        return Ok(false);
    }
    sqlx::query(AssertSqlSafe(format!("TRUNCATE {leaf}"))).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(true)
}

/// SQLSTATE lock_not_available.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// Rows of the outbox by source; counting ends at `most` rows.
pub(crate) async fn pending(
    connection: &mut PgConnection,
    most: i64,
) -> Result<Vec<(Option<String>, i64)>, sqlx::Error> {
    let work = sqlx::query_as(
        "SELECT source, count(*) FROM (SELECT source FROM usage_outbox LIMIT $1) AS rows GROUP BY source",
    )
    .bind(most)
    .fetch_all(connection);
    bounded(STATEMENT, work).await
}
