//! One question to the server: its settings, its deadline, and what its errors mean to a reader.

use std::time::Duration;

use bytes::Bytes;

use super::sql::Sql;
use crate::{
    StorageError,
    clickhouse::{
        client::{CallError, Client},
        rowbinary::RowReader,
    },
};

/// Sent with every question.
const SETTINGS: &[(&str, &str)] = &[
    // The whole answer is made before its status is sent: an error in the middle can't hide behind a 200.
    ("wait_end_of_query", "1"),
    // All legs of a UNION ALL see one set of parts.
    ("enable_shared_storage_snapshot_in_query", "1"),
    // A caller that went away ends its query.
    ("cancel_http_readonly_queries_on_client_close", "1"),
    // Thousands of window starts stand in the text.
    ("max_query_size", "16777216"),
    ("max_ast_elements", "200000"),
    ("max_expanded_ast_elements", "2000000"),
];

/// Exceptions that say that the statement itself is wrong; asking again can't help. TYPE_MISMATCH and its like,
/// BAD_ARGUMENTS, UNKNOWN_FUNCTION, SYNTAX_ERROR, NOT_AN_AGGREGATE, TYPE_MISMATCH of unions.
const BROKEN_STATEMENT: &[u32] = &[36, 42, 43, 44, 46, 47, 53, 62, 215, 258, 386, 407];

/// A client of the reading user, with the deadline of a call.
#[derive(Clone)]
pub(super) struct Session {
    client: Client,
    timeout: Duration,
}

impl Session {
    pub(super) fn new(client: Client, timeout: Duration) -> Self {
        let mut client = client.with_timeout(timeout);
        // Whole seconds and a bit later than our own deadline: it only ends what our closed connection did not.
        client = client.with_setting("max_execution_time", (timeout.as_secs() + 1).to_string());
        for (name, value) in SETTINGS {
            client = client.with_setting(name, *value);
        }
        Self { client, timeout }
    }

    /// Bounds a whole call, which may ask several questions.
    pub(super) async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, StorageError>>,
    ) -> Result<T, StorageError> {
        tokio::time::timeout(self.timeout, call).await.unwrap_or(Err(StorageError::Timeout))
    }

    /// All rows of an answer.
    pub(super) async fn ask<T>(
        &self,
        sql: &Sql,
        mut row: impl FnMut(&mut RowReader<'_>) -> Result<T, CallError>,
    ) -> Result<Vec<T>, StorageError> {
        let bytes = self.fetch(sql).await.map_err(|error| classify(self.client.named(error)))?;
        let mut reader = RowReader::new(&bytes);
        let mut rows = Vec::new();
        while !reader.is_empty() {
            rows.push(row(&mut reader)?);
        }
        Ok(rows)
    }

    async fn fetch(&self, sql: &Sql) -> Result<Bytes, CallError> {
        let mut query = self.client.driver().query_raw(sql.as_str());
        for (name, value) in sql.params() {
            query = query.with_setting(name, value);
        }
        Ok(query.fetch_bytes("RowBinary")?.collect().await?)
    }
}

fn classify(error: CallError) -> StorageError {
    match error {
        CallError::Exception { code, message } if BROKEN_STATEMENT.contains(&code) => {
            StorageError::Final { code, message }
        }
        other => other.of_read(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_statement_is_not_asked_again() {
        let classified = |code| classify(CallError::Exception { code, message: String::new() });
        assert!(matches!(classified(62), StorageError::Final { code: 62, .. }));
        assert!(matches!(classified(159), StorageError::Timeout));
        for passing in [202, 241, 209, 210, 394, 999_999] {
            assert!(classified(passing).may_pass(), "{passing}");
        }
    }
}
