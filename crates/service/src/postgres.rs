//! What errors of Postgres mean for whoever asked.

use sqlx::Error;

/// True when the same statement may succeed later: the server is away, busy, in failover or another transaction was in the way.
/// After a true it may have been carried out all the same.
pub fn may_pass(error: &Error) -> bool {
    match error {
        // A connection that breaks in the middle of an answer is a protocol error to sqlx.
        Error::Io(_) | Error::Protocol(_) | Error::Tls(_) => true,
        Error::PoolTimedOut | Error::WorkerCrashed | Error::BeginFailed => true,
        error => sqlstate(error).is_some_and(|code| sqlstate_may_pass(&code)),
    }
}

/// True when a schema, table, column or function is missing: migrations have not run, only those of an older version, or the address
/// is another database's.
pub fn lacks_tables(error: &Error) -> bool {
    sqlstate(error).is_some_and(|code| sqlstate_lacks_tables(&code))
}

fn sqlstate(error: &Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

fn sqlstate_may_pass(code: &str) -> bool {
    match code {
        // serialization_failure, deadlock_detected, lock_not_available, query_canceled (by the statement timeout),
        // read_only_sql_transaction (a primary that just became a standby), idle_in_transaction_session_timeout
        "40001" | "40P01" | "55P03" | "57014" | "25006" | "25P03" => true,
        // connection, insufficient resources, operator intervention (shutdown, crash, starting up), input and output
        _ => ["08", "53", "57P0", "58"].iter().any(|class| code.starts_with(class)),
    }
}

/// invalid_schema_name, undefined_table, undefined_column, undefined_function
fn sqlstate_lacks_tables(code: &str) -> bool {
    ["3F000", "42P01", "42703", "42883"].contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstates_are_sorted() {
        for code in [
            "08006", "08001", "53300", "53100", "57P01", "57P02", "57P03", "40001", "40P01", "55P03", "57014",
        ] {
            assert!(sqlstate_may_pass(code) && !sqlstate_lacks_tables(code), "{code}");
        }
        for code in ["23505", "23514", "42501", "28P01", "3D000", "22003", "XX000", "25P02", ""] {
            assert!(!sqlstate_may_pass(code) && !sqlstate_lacks_tables(code), "{code}");
        }
        for code in ["3F000", "42P01", "42703", "42883"] {
            assert!(!sqlstate_may_pass(code) && sqlstate_lacks_tables(code), "{code}");
        }
    }

    #[test]
    fn errors_without_a_sqlstate_are_sorted() {
        assert!(may_pass(&Error::Io(std::io::ErrorKind::ConnectionRefused.into())));
        assert!(may_pass(&Error::PoolTimedOut));
        assert!(!may_pass(&Error::RowNotFound) && !lacks_tables(&Error::RowNotFound));
        assert!(!may_pass(&Error::PoolClosed) && !lacks_tables(&Error::PoolClosed));
    }
}
