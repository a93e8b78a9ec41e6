//! What a statement of its own does about other transactions in its way.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};

/// Rounds in an explicit READ COMMITTED transaction, where one statement can fail only by a deadlock with other work.
const ROUNDS: usize = 5;

/// A statement's text: shared, and made of checked names only.
pub type Sql = Arc<str>;

pub fn safe(sql: &Sql) -> AssertSqlSafe<Sql> {
    AssertSqlSafe(sql.clone())
}

/// Serialization failure or deadlock: nothing happened, and the same again may pass.
pub fn may_repeat(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("40001" | "40P01"))
}

/// Runs `work` as a statement of its own. If the sessions' default isolation level lets a concurrent change of the row fail it,
/// it is run again in READ COMMITTED: there the decision, being one statement, waits for the row and then sees it as it is.
pub async fn in_one_statement<T>(
    pool: &PgPool,
    work: impl AsyncFn(&mut PgConnection) -> Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    let mut connection = pool.acquire().await?;
    let mut outcome = work(&mut connection).await;
    for _ in 0..ROUNDS {
        match outcome {
            Err(error) if may_repeat(&error) => {
                let mut tx = connection.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
                outcome = work(&mut tx).await;
                if outcome.is_ok() {
                    tx.commit().await?;
                } else {
                    tx.rollback().await?;
                }
            }
            settled => return settled,
        }
    }
    outcome
}
