//! The statements of rate limits.

use super::rule::{Algorithm, Quota, Rule};
use crate::identifier::TableName;
use crate::retry::Sql;

/// How long an expired row is left alone. A statement that read the clock just before the edge of a window and then waited for
/// its row still finds it.
const GRACE: &str = "interval '1 minute'";

/// What the statements read the time from. Of the database: it is the one clock that all instances share.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Once a decision, after the wait for a connection.
    pub decide: &'static str,
    /// The same within a statement, or no index could be searched by it.
    pub sweep: &'static str,
}

pub const DATABASE_CLOCK: Clock = Clock { decide: "clock_timestamp()", sweep: "statement_timestamp()" };

/// One statement for all windows of a rule: $1 cost, then the bucket of each window.
///
/// First everything is looked at without a lock, so that a flood of refused requests writes nothing. Then the windows are counted
/// from the shortest to the longest, each only if the one before was: the order of the locks is the same for everybody. What
/// decides is the condition of `DO UPDATE`, which sees the row as it is when its lock is had, not as it was when the statement
/// began; the weight of the window before is of the statement's begin. That window is over by the clock, but statements that read
/// the clock before the edge and still wait for its row add to it without being weighed by those that read theirs after the edge:
/// k units so under way at an edge are k more than a sliding limit says, at most. A fixed limit holds for each window exactly.
///
/// Columns of its one row, for window k: `elapsed_k` (microseconds since its start), `seen_k` and `previous_k` (counts when the
/// statement began), `counted_k` (the new count; NULL if this window, or one before it, had no room).
pub fn decide(table: &TableName, rule: &Rule, clock: Clock) -> Sql {
    let table = table.quoted();
    let windows = || rule.quotas().iter().enumerate();
    let list = |of: &dyn Fn(usize) -> String, between: &str| {
        windows().map(|(k, _)| of(k)).collect::<Vec<_>>().join(between)
    };
    let looks: String = windows().map(|(k, quota)| look(&table, k, quota, rule.algorithm())).collect();
    let counts: String = windows().map(|(k, quota)| count(&table, k, quota, rule.algorithm())).collect();
    let from = list(&|k| format!("w{k}"), ", ");
    let room =
        list(&|k| format!("w{k}.seen + w{k}.before + $1::bigint <= {}", rule.quotas()[k].limit), " AND ");
    let columns = list(
        &|k| {
            format!(
                "w{k}.elapsed AS elapsed_{k}, w{k}.seen AS seen_{k}, w{k}.previous AS previous_{k}, \
                 (SELECT count FROM t{k}) AS counted_{k}"
            )
        },
        ", ",
    );
    format!(
        "WITH clock AS MATERIALIZED (SELECT {now} AS now){looks}, \
         room AS MATERIALIZED (SELECT {room} AS found FROM {from}){counts} SELECT {columns} FROM {from}",
        now = clock.decide
    )
    .into()
}

/// Window k as it is when the statement begins.
fn look(table: &str, k: usize, quota: &Quota, algorithm: Algorithm) -> String {
    let (bucket, seconds, micros) = (bucket(k), quota.seconds(), quota.micros());
    let (previous, before) = match algorithm {
        Algorithm::Fixed => ("0".to_owned(), "0::bigint".to_owned()),
        // Whole numbers, rounded up: numeric's div() is exact where a division would be cut off somewhere.
        Algorithm::Sliding => (
            format!(
                "COALESCE((SELECT p.count FROM {table} p WHERE p.bucket = {bucket} \
                 AND p.window_start = v.start - interval '{seconds} seconds'), 0)"
            ),
            format!("div(previous::numeric * ({micros} - elapsed) + {micros} - 1, {micros})::bigint"),
        ),
    };
    format!(
        ", w{k} AS MATERIALIZED (SELECT start, elapsed, seen, previous, {before} AS before FROM (\
         SELECT v.start, (extract(epoch FROM v.now - v.start) * 1000000)::bigint AS elapsed, \
         COALESCE((SELECT c.count FROM {table} c WHERE c.bucket = {bucket} AND c.window_start = v.start), 0) AS seen, \
         {previous} AS previous FROM (\
         SELECT now, date_bin(interval '{seconds} seconds', now, timestamptz 'epoch') AS start FROM clock) v) u)"
    )
}

/// Window k counted, if it and all shorter ones have room.
fn count(table: &str, k: usize, quota: &Quota, algorithm: Algorithm) -> String {
    let (bucket, limit) = (bucket(k), quota.limit);
    let lifetime = match algorithm {
        Algorithm::Fixed => quota.seconds(),
        Algorithm::Sliding => 2 * quota.seconds(),
    };
    let after_shorter =
        k.checked_sub(1).map_or(String::new(), |shorter| format!(" AND EXISTS (SELECT FROM t{shorter})"));
    format!(
        ", t{k} AS (INSERT INTO {table} AS r (bucket, window_start, count, expires_at) \
         SELECT {bucket}, start, $1::integer, start + interval '{lifetime} seconds' \
         FROM w{k}, room WHERE room.found{after_shorter} \
         ON CONFLICT (bucket, window_start) DO UPDATE SET count = r.count + $1::integer \
         WHERE r.count + (SELECT before FROM w{k}) + $1::bigint <= {limit} RETURNING count)"
    )
}

fn bucket(k: usize) -> String {
    format!("${}::text", k + 2)
}

/// Two statements for one fixed window that only counts: $1 bucket, and for the first $2 units. The first adds and gives what is there
/// then, the second only looks. Columns of their one row: `count`, `start_micros` and `elapsed` (microseconds).
pub fn tally(table: &TableName, quota: &Quota, clock: Clock) -> (Sql, Sql) {
    let (table, seconds, now) = (table.quoted(), quota.seconds(), clock.decide);
    let window = format!(
        "WITH clock AS MATERIALIZED (SELECT {now} AS now), \
         w AS MATERIALIZED (SELECT start, (extract(epoch FROM now - start) * 1000000)::bigint AS elapsed, \
         (extract(epoch FROM start) * 1000000)::bigint AS start_micros FROM (\
         SELECT now, date_bin(interval '{seconds} seconds', now, timestamptz 'epoch') AS start FROM clock) v)"
    );
    // A total that does not fit stays at the greatest number: it is over every limit as well.
    let add = format!(
        "{window}, added AS (INSERT INTO {table} AS r (bucket, window_start, count, expires_at) \
         SELECT $1::text, start, $2::integer, start + interval '{seconds} seconds' FROM w \
         ON CONFLICT (bucket, window_start) DO UPDATE \
         SET count = LEAST(r.count::bigint + $2::bigint, 2147483647)::integer RETURNING count) \
         SELECT added.count, w.start_micros, w.elapsed FROM added, w"
    );
    let read = format!(
        "{window} SELECT COALESCE((SELECT r.count FROM {table} r WHERE r.bucket = $1::text \
         AND r.window_start = w.start), 0) AS count, w.start_micros, w.elapsed FROM w"
    );
    (add.into(), read.into())
}

/// Deletes expired rows: $1 the `expires_at` where the batch before ended, or NULL, $2 most rows. Its row: how many, and where
/// this batch ended. Without $1 each batch would step over all index entries of the rows that went before it, which stay while
/// some transaction might still see them.
pub fn sweep(table: &TableName, clock: Clock) -> Sql {
    let (table, now) = (table.quoted(), clock.sweep);
    format!(
        "WITH gone AS (DELETE FROM {table} WHERE ctid = ANY(ARRAY(\
         SELECT ctid FROM {table} WHERE expires_at >= COALESCE($1::timestamptz, '-infinity') \
         AND expires_at < {now} - {GRACE} ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)) \
         RETURNING expires_at) SELECT count(*), max(expires_at) FROM gone"
    )
    .into()
}

/// The table and its index. May run again.
pub fn migration(table: &TableName) -> String {
    let (quoted, name) = (table.quoted(), table.table());
    format!(
        r#"CREATE TABLE IF NOT EXISTS {quoted} (
  bucket       text        NOT NULL,
  window_start timestamptz NOT NULL,
  count        integer     NOT NULL DEFAULT 0,
  expires_at   timestamptz NOT NULL,
  PRIMARY KEY (bucket, window_start),
  CONSTRAINT "{name}_count_non_negative" CHECK (count >= 0),
  CONSTRAINT "{name}_expires_after_window" CHECK (expires_at > window_start)
) WITH (fillfactor = 60);

CREATE INDEX IF NOT EXISTS "{name}_expires_idx" ON {quoted} (expires_at);

COMMENT ON TABLE {quoted} IS
  'Counters of rate limits, shared by all instances: one row per bucket and window.';
COMMENT ON COLUMN {quoted}.bucket IS
  'Scope, seconds of the window, and the hash of the subject. Never a token, address or name itself.';
COMMENT ON COLUMN {quoted}.window_start IS
  'A new window is a new row: nothing is ever set back to zero.';
"#
    )
}
