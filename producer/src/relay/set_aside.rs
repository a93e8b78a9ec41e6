//! Moving rows out of the way: to the dead letters for good, or to the waiting rows for a while.
//!
//! Whatever is in a row, it must not hold up the others: when the database refuses a move for its data, the rows are moved one by
//! one, those that are refused still stay in the outbox, and the relay goes on without them.

use sqlx::postgres::PgQueryResult;
use sqlx::{AssertSqlSafe, PgConnection};

use super::rows::{Named, RowKey, by_segment};
use super::session::{STATEMENT, bounded};

/// Where a row goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Aside {
    /// It can never be produced.
    Dead { reason: &'static str, error: String },
    /// It can't be produced yet.
    Waiting,
}

/// Why a row could not be moved.
pub(crate) struct Refused {
    pub key: RowKey,
    pub error: sqlx::Error,
}

/// What stands in for an error text that the database does not take.
const FIXED_ERROR: &str = "the database refused the text of the error";

/// Moves rows, those of a leaf in one transaction. Returns the rows that the database refuses to move.
///
/// # Errors
/// Only those that are not the rows' fault, so a lost connection above all.
pub(crate) async fn move_rows(
    connection: &mut PgConnection,
    part: i16,
    rows: Vec<(RowKey, Aside)>,
) -> Result<Vec<Refused>, sqlx::Error> {
    let (dead, waiting): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|(_, aside)| matches!(aside, Aside::Dead { .. }));
    let mut refused = Vec::new();
    for rows in [dead, waiting] {
        for (segment, mut rows) in by_segment(rows.into_iter()) {
            match statement(connection, part, segment, &rows).await {
                Err(error) if is_refusal(&error) => {}
                Err(error) => return Err(error),
                Ok(_) => continue,
            }
            for row in &mut rows {
                if let Some(error) = move_one(connection, part, segment, row).await? {
                    refused.push(Refused { key: row.0, error });
                }
            }
        }
    }
    Ok(refused)
}

/// Moves a row, if need be without what the relay says of it. Returns why the database refuses.
async fn move_one(
    connection: &mut PgConnection,
    part: i16,
    segment: i16,
    row: &mut (RowKey, Aside),
) -> Result<Option<sqlx::Error>, sqlx::Error> {
    loop {
        match statement(connection, part, segment, std::slice::from_ref(row)).await {
            Ok(_) => return Ok(None),
            Err(refusal) if is_refusal(&refusal) => match &mut row.1 {
                Aside::Dead { error, .. } if error != FIXED_ERROR => *error = FIXED_ERROR.into(),
                _ => return Ok(Some(refusal)),
            },
            Err(error) => return Err(error),
        }
    }
}

/// Moves rows of one leaf to one table.
async fn statement(
    connection: &mut PgConnection,
    part: i16,
    segment: i16,
    rows: &[(RowKey, Aside)],
) -> Result<PgQueryResult, sqlx::Error> {
    let why: Vec<(&str, &str)> = rows
        .iter()
        .filter_map(|(_, aside)| match aside {
            Aside::Dead { reason, error } => Some((*reason, error.as_str())),
            Aside::Waiting => None,
        })
        .collect();
    let (table, more, of_row, of_key) = if why.is_empty() {
        ("usage_outbox_waiting", "", "k (id, emitted_at)", "")
    } else {
        (
            "usage_outbox_dead_letters",
            ", reason, error",
            "k (id, emitted_at, reason, error)",
            ", $6::text[], $7::text[]",
        )
    };
    let columns = "part, id, tenant_id, emitted_at, payload_type, source, traceparent, payload";
    let given = if why.is_empty() { "" } else { ", k.reason, k.error" };
    let sql = format!(
        "WITH gone AS (DELETE FROM usage_outbox_{segment} AS o \
         USING unnest($2::bigint[], $3::timestamptz[]{of_key}) AS {of_row} \
         WHERE o.part = $1 AND o.id BETWEEN $4 AND $5 AND o.id = ANY ($2) AND o.id = k.id AND o.emitted_at = k.emitted_at \
         RETURNING o.*{given}) \
         INSERT INTO {table} ({columns}{more}) SELECT {columns}{more} FROM gone ORDER BY id"
    );
    let named = Named::from(rows);
    let mut query = sqlx::query(AssertSqlSafe(sql))
        .bind(part)
        .bind(named.ids)
        .bind(named.times)
        .bind(named.low)
        .bind(named.high);
    if !why.is_empty() {
        let (reasons, errors): (Vec<&str>, Vec<&str>) = why.into_iter().unzip();
        query = query.bind(reasons).bind(errors);
    }
    bounded(STATEMENT, query.execute(connection)).await
}

/// Whether the database is well and refuses what it was asked to do: data (22), constraints (23), rights and names (42), limits (54), a
/// trigger's exception (P0). Asking again over another connection would not help.
pub(crate) fn is_refusal(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    error
        .code()
        .is_some_and(|code| ["22", "23", "42", "54", "P0"].iter().any(|class| code.starts_with(class)))
}

/// A text of a row for the log: names are not longer than this, but anybody may write anything.
pub(crate) fn label(text: Option<&str>) -> String {
    text.map_or_else(|| "(none)".into(), |text| text.chars().take(128).collect())
}
