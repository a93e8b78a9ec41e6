//! One line for an error and everything that caused it.

use std::error::Error;

use sqlx::postgres::PgDatabaseError;
use tokio::task::JoinError;

/// The messages of `error` and of its sources, joined by `: `. A message that its cause repeats word for word comes once. What Postgres
/// says of data that it refuses is withheld, since it quotes them; the state, table and constraint are not. So is what a task said that
/// panicked.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = joined(error);
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(refused) =
            error.downcast_ref::<PgDatabaseError>().filter(|error| quotes_data(error.code()))
        {
            let place = [refused.table(), refused.column(), refused.constraint()];
            let place: Vec<&str> = place.into_iter().flatten().collect();
            text =
                text.replace(refused.message(), &format!("SQLSTATE {} {}", refused.code(), place.join(" ")));
        }
        if let Some(panicked) = error.downcast_ref::<JoinError>().filter(|error| error.is_panic()) {
            text = text.replace(&panicked.to_string(), "a task panicked");
        }
        cause = error.source();
    }
    text
}

/// Data exceptions, violated constraints and what functions raise; everything else speaks of connections, names and statements.
fn quotes_data(code: &str) -> bool {
    ["22", "23", "44", "P0"].iter().any(|class| code.starts_with(class))
}

fn joined(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut last = text.clone();
    let mut source = error.source();
    while let Some(cause) = source {
        let message = cause.to_string();
        if message != last {
            text.push_str(": ");
            text.push_str(&message);
        }
        last = message;
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Middle);

    #[derive(Debug, thiserror::Error)]
    #[error("middle")]
    struct Middle(#[source] std::io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Repeats(#[source] std::io::Error);

    #[test]
    fn names_every_cause_in_order() {
        let error = Outer(Middle(std::io::Error::other("inner")));
        assert_eq!(error_chain(&error), "outer: middle: inner");
    }

    /// Its text may have been put together of anything; the panic itself has its line in the log.
    #[tokio::test]
    async fn what_a_task_panicked_with_is_withheld() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Failed(#[source] Box<dyn Error + Send + Sync>);

        let secret = "hunter2";
        let ended = tokio::task::spawn_blocking(move || panic!("row {secret}")).await.unwrap_err();
        assert!(ended.to_string().contains(secret), "else there is nothing to withhold: {ended}");
        assert_eq!(error_chain(&Failed(Box::new(ended))), "outer: a task panicked");
        let cancelled = tokio::spawn(std::future::pending::<()>());
        cancelled.abort();
        assert!(error_chain(&cancelled.await.unwrap_err()).contains("cancelled"));
    }

    #[test]
    fn leaves_out_a_repetition() {
        assert_eq!(error_chain(&Repeats(std::io::Error::other("inner"))), "inner");
    }
}
