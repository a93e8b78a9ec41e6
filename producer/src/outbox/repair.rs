//! Setting the id sequence right after a restore or a copy has left it behind the rows.

use sqlx::PgConnection;

use crate::pg_time::PgTime;

/// How far beyond the greatest id the sequence is set. An id that somebody draws between the look and the setting is far below.
const MARGIN: i64 = 1_000;

/// Serialises repairs: "usagefix" in ASCII.
const REPAIR_LOCK: i64 = 0x7573_6167_6566_6978;

/// What was found, and what was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The last id that the sequence had handed out.
    pub stood_at: i64,
    /// The greatest id of a row of the outbox, or of one that waits; 0 without rows.
    pub greatest_id: i64,
    /// Where the sequence was set to; absent if it was ahead.
    pub set_to: Option<i64>,
    /// The database's clock is behind this time, until which the outbox has said to be complete. It passes by itself.
    pub clock_behind: Option<String>,
}

/// The outbox could not be looked at or repaired.
#[derive(Debug, thiserror::Error)]
#[error("cannot repair the outbox")]
pub struct RepairError(#[from] sqlx::Error);

/// Sets the sequence after the greatest id of the outbox and of the waiting rows, if it is behind. Emitters may go on meanwhile.
///
/// # Errors
/// The database is away, has no outbox, or the role may not set the sequence (it has to have UPDATE on it).
pub async fn repair(connection: &mut PgConnection) -> Result<Repair, RepairError> {
    let mut tx = sqlx::Connection::begin(connection).await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(REPAIR_LOCK).execute(&mut *tx).await?;
    let greatest_id: i64 = sqlx::query_scalar(
        "SELECT greatest((SELECT max(id) FROM usage_outbox), (SELECT max(id) FROM usage_outbox_waiting), 0)",
    )
    .fetch_one(&mut *tx)
    .await?;
    let stood_at: i64 = sqlx::query_scalar(
        "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM usage_outbox_id_seq",
    )
    .fetch_one(&mut *tx)
    .await?;
    // One statement looks again and sets: nobody draws more ids in between than the margin has.
    let set_to: Option<i64> = sqlx::query_scalar(
        "SELECT setval('usage_outbox_id_seq', $1 + $2) FROM usage_outbox_id_seq \
         WHERE CASE WHEN is_called THEN last_value ELSE last_value - 1 END < $1",
    )
    .bind(greatest_id)
    .bind(MARGIN)
    .fetch_optional(&mut *tx)
    .await?;
    let behind: Option<PgTime> = sqlx::query_scalar(
        "SELECT nullif(greatest(hold_until, (SELECT max(complete_until) FROM usage_outbox_partitions)), '-infinity') \
         FROM usage_outbox_identity",
    )
    .fetch_one(&mut *tx)
    .await?;
    let clock: PgTime = sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(&mut *tx).await?;
    tx.commit().await?;
    let clock_behind = behind.filter(|until| clock < *until).map(|until| until.to_string());
    Ok(Repair { stood_at, greatest_id, set_to, clock_behind })
}
