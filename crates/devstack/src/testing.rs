//! Addresses of the run's shared stack, for tests; `cargo xtask test` starts it and sets them.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn required(name: &str) -> String {
    match env::var(name) {
        Ok(value) if !value.is_empty() => value,
        _ => panic!(
            "{name} is not set: this test needs the real servers. Run `cargo xtask test`, or `cargo xtask up` and \
             `. target/stack/env` before `cargo test`"
        ),
    }
}

/// `host:port` of Kafka.
#[must_use]
pub fn kafka_brokers() -> String {
    required("USAGE_KAFKA_BROKERS")
}

/// A command that runs one of Kafka's own tools, as `bin/*.sh` would, whoever started the brokers.
///
/// # Errors
/// Kafka is not installed and can't be.
pub fn kafka_tool(class: &str) -> anyhow::Result<Command> {
    crate::kafka::tool(&crate::install::kafka::home()?, class)
}

/// ClickHouse over HTTP.
#[must_use]
pub fn clickhouse_url() -> String {
    required("USAGE_CLICKHOUSE_URL")
}

/// The control database; its role may create databases.
#[must_use]
pub fn control_database_url() -> String {
    required("USAGE_CONTROL_DATABASE_URL")
}

/// The source database; its role may create databases.
#[must_use]
pub fn source_database_url() -> String {
    required("USAGE_SOURCE_DATABASE_URL")
}

/// Where the case files are: `$USAGE_CASES_DIR`, else `tests/cases` of this checkout.
#[must_use]
pub fn cases_dir() -> PathBuf {
    match env::var_os("USAGE_CASES_DIR") {
        Some(dir) if !dir.is_empty() => dir.into(),
        _ => PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cases")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_variable_names_the_command() {
        let panic = std::panic::catch_unwind(|| required("USAGE_NO_SUCH_VARIABLE")).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("USAGE_NO_SUCH_VARIABLE") && text.contains("cargo xtask test"), "{text}");
    }

    #[test]
    fn the_case_files_are_there() {
        assert!(cases_dir().join("values.tsv").is_file());
    }
}
