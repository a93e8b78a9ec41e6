//! The dead letters of an outbox: rows that could not be produced, and what an operator decides about them.
//!
//! A dead letter is open until somebody decides. `retry` puts its row into the outbox again, as it was, with a new id; if it can't be produced
//! this time either, the relay makes a new dead letter of it. `resolve` says that it was dealt with in another way, `discard` that it shall
//! never be counted. The row stays with who decided and when; its payload is emptied by a retry and a discard, and kept by a resolve.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::pg_time::PgTime;

/// Rows that are decided in one transaction.
const BATCH: i64 = 1_000;

/// The words of [`Filter::reason`].
pub const REASONS: [&str; 3] = crate::relay::encode::REASONS;

/// Which dead letters; what is empty or absent does not restrict.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Of the dead letters, not of the rows.
    pub ids: Vec<i64>,
    pub source: Option<Of>,
    pub tenant: Option<Uuid>,
    pub reason: Option<String>,
}

/// Whose rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Of {
    Source(String),
    /// Rows that name no source, as `usage_emit` writes them: the relay's `default_source`.
    Default,
}

/// What became of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Open,
    Retried,
    Resolved,
    Discarded,
}

impl State {
    pub const ALL: [Self; 4] = [Self::Open, Self::Retried, Self::Resolved, Self::Discarded];

    /// The word in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Retried => "retried",
            Self::Resolved => "resolved",
            Self::Discarded => "discarded",
        }
    }
}

/// What is decided about open dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Retry,
    Resolve,
    Discard,
}

impl Decision {
    /// The state that it leads to.
    pub fn state(self) -> State {
        match self {
            Self::Retry => State::Retried,
            Self::Resolve => State::Resolved,
            Self::Discard => State::Discarded,
        }
    }
}

/// One of them. Times are RFC 3339.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub dead_letter_id: i64,
    pub state: String,
    pub reason: String,
    pub error: String,
    /// Absent: the relay's `default_source`.
    pub source: Option<String>,
    pub tenant_id: Uuid,
    pub payload_type: String,
    pub payload_bytes: i32,
    pub emitted_at: String,
    pub failed_at: String,
    pub decided_at: Option<String>,
    pub decided_by: Option<String>,
    pub note: Option<String>,
}

/// The database does not answer, or has no dead letters of this version.
#[derive(Debug, thiserror::Error)]
#[error("cannot read or change the outbox's dead letters")]
pub struct DeadLettersError(#[from] sqlx::Error);

/// The conditions of a [`Filter`]: parameters $1 to $5.
const CONDITIONS: &str = "(cardinality($1::bigint[]) = 0 OR dead_letter_id = ANY ($1)) AND ($2::text IS NULL OR source = $2) \
     AND (NOT $3 OR source IS NULL) AND ($4::uuid IS NULL OR tenant_id = $4) AND ($5::text IS NULL OR reason = $5)";

macro_rules! filtered {
    ($query:expr, $filter:expr) => {{
        let source = match &$filter.source {
            Some(Of::Source(name)) => Some(name.as_str()),
            _ => None,
        };
        $query
            .bind(&$filter.ids)
            .bind(source)
            .bind($filter.source == Some(Of::Default))
            .bind($filter.tenant)
            .bind(&$filter.reason)
    }};
}

#[derive(sqlx::FromRow)]
struct Found {
    dead_letter_id: i64,
    state: String,
    reason: String,
    error: String,
    source: Option<String>,
    tenant_id: Uuid,
    payload_type: String,
    payload_bytes: i32,
    emitted_at: PgTime,
    failed_at: PgTime,
    decided_at: Option<PgTime>,
    decided_by: Option<String>,
    note: Option<String>,
}

/// The dead letters of these states, oldest first, at most `limit` of them.
///
/// # Errors
/// See [`DeadLettersError`].
pub async fn list(
    connection: &mut PgConnection,
    filter: &Filter,
    states: &[State],
    limit: i64,
) -> Result<Vec<DeadLetter>, DeadLettersError> {
    let sql = format!(
        "SELECT dead_letter_id, state, reason, error, source, tenant_id, payload_type, octet_length(payload) AS payload_bytes, \
         emitted_at, failed_at, decided_at, decided_by, note FROM usage_outbox_dead_letters \
         WHERE {CONDITIONS} AND state = ANY ($6) ORDER BY dead_letter_id LIMIT $7"
    );
    let states: Vec<&str> = states.iter().map(|state| state.as_str()).collect();
    let query = sqlx::query_as::<_, Found>(sqlx::AssertSqlSafe(sql));
    let found = filtered!(query, filter).bind(states).bind(limit).fetch_all(connection).await?;
    Ok(found.into_iter().map(DeadLetter::from).collect())
}

/// How many open ones there are.
///
/// # Errors
/// See [`DeadLettersError`].
pub async fn count_open(connection: &mut PgConnection, filter: &Filter) -> Result<i64, DeadLettersError> {
    let sql = format!("SELECT count(*) FROM usage_outbox_dead_letters WHERE {CONDITIONS} AND state = 'open'");
    let query = sqlx::query_scalar(sqlx::AssertSqlSafe(sql));
    Ok(filtered!(query, filter).fetch_one(connection).await?)
}

/// Decides about the open ones that are there now; those that come meanwhile, a retried row's own successor among them, stay open. Returns
/// how many there were. `by` is the database's session user unless given.
///
/// Batches of rows are decided in one transaction each, so that what is done stays done when the connection breaks; the rest is still open.
///
/// # Errors
/// See [`DeadLettersError`].
pub async fn decide(
    connection: &mut PgConnection,
    decision: Decision,
    filter: &Filter,
    by: Option<&str>,
    note: Option<&str>,
) -> Result<u64, DeadLettersError> {
    let last: i64 =
        sqlx::query_scalar("SELECT coalesce(max(dead_letter_id), 0) FROM usage_outbox_dead_letters")
            .fetch_one(&mut *connection)
            .await?;
    let columns = "part, tenant_id, emitted_at, payload_type, source, traceparent, payload";
    let send = match decision {
        Decision::Retry => format!(
            "sent AS (INSERT INTO usage_outbox ({columns}) SELECT {columns} FROM picked ORDER BY dead_letter_id), "
        ),
        Decision::Resolve | Decision::Discard => String::new(),
    };
    let payload = if decision == Decision::Resolve { "d.payload" } else { "''::bytea" };
    let sql = format!(
        "WITH picked AS (SELECT dead_letter_id, {columns} FROM usage_outbox_dead_letters \
         WHERE {CONDITIONS} AND state = 'open' AND dead_letter_id <= $6 ORDER BY dead_letter_id LIMIT $7 \
         FOR UPDATE SKIP LOCKED), {send}\
         decided AS (UPDATE usage_outbox_dead_letters AS d SET state = $8, decided_at = clock_timestamp(), \
         decided_by = coalesce($9, session_user), note = $10, payload = {payload} \
         FROM picked WHERE d.dead_letter_id = picked.dead_letter_id RETURNING 1) SELECT count(*) FROM decided"
    );
    let mut all = 0;
    loop {
        let query = sqlx::query_scalar::<_, i64>(sqlx::AssertSqlSafe(sql.clone()));
        let decided = filtered!(query, filter)
            .bind(last)
            .bind(BATCH)
            .bind(decision.state().as_str())
            .bind(by)
            .bind(note)
            .fetch_one(&mut *connection)
            .await?;
        if decided == 0 {
            return Ok(all);
        }
        all += decided.unsigned_abs();
    }
}

impl From<Found> for DeadLetter {
    fn from(found: Found) -> Self {
        Self {
            dead_letter_id: found.dead_letter_id,
            state: found.state,
            reason: found.reason,
            error: found.error,
            source: found.source,
            tenant_id: found.tenant_id,
            payload_type: found.payload_type,
            payload_bytes: found.payload_bytes,
            emitted_at: found.emitted_at.to_string(),
            failed_at: found.failed_at.to_string(),
            decided_at: found.decided_at.map(|time| time.to_string()),
            decided_by: found.decided_by,
            note: found.note,
        }
    }
}
