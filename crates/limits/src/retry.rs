//! What a statement of its own does about other transactions in its way.

use std::sync::Arc;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};

/// Rounds in an explicit READ COMMITTED transaction, where one statement can fail only by a deadlock with other work.
const ROUNDS: usize = 5;

/// A statement's text: shared, and made of checked names only.
pub type Sql = Arc<str>;

pub fn safe(sql: &Sql) -> AssertSqlSafe<Sql> {
    AssertSqlSafe(sql.clone())
}

/// Runs a statement in a transaction of its own and gives its row.
///
/// If the sessions' default isolation level lets a concurrent change of the row fail it, it is run again in READ COMMITTED:
/// there the decision, being one statement, waits for the row and then sees it as it is.
pub async fn alone(pool: &PgPool, sql: &Sql, arguments: PgArguments) -> Result<Option<PgRow>, sqlx::Error> {
    let mut connection = pool.acquire().await?;
    let mut outcome = fetch(&mut connection, sql, arguments.clone()).await;
    for _ in 0..ROUNDS {
        if !outcome.as_ref().is_err_and(may_repeat) {
            break;
        }
        let mut tx = connection.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        outcome = fetch(&mut tx, sql, arguments.clone()).await;
        if outcome.is_ok() {
            tx.commit().await?;
        } else {
            tx.rollback().await?;
        }
    }
    outcome
}

/// Runs a statement in whatever transaction the connection is in and gives its row.
pub async fn fetch(
    connection: &mut PgConnection,
    sql: &Sql,
    arguments: PgArguments,
) -> Result<Option<PgRow>, sqlx::Error> {
    sqlx::query_with(safe(sql), arguments).fetch_optional(connection).await
}

/// Serialization failure or deadlock: nothing happened, and the same again may pass.
fn may_repeat(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("40001" | "40P01"))
}
