//! Settings of the ClickHouse plugin.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;
use usage_service::transport::TlsFiles;

/// The `[clickhouse]` section: one server, one database, a user for each kind of work.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClickHouseConfig {
    /// `http://host:port` or `https://…`. All writers of a database must use the same server: fences and kills are local to it.
    pub url: String,
    /// Created by `migrate` if it is missing.
    #[serde(default = "default_database")]
    pub database: String,
    #[serde(default = "default_writer_user")]
    pub writer_user: String,
    #[serde(default)]
    pub writer_password: SecretString,
    #[serde(default = "default_reader_user")]
    pub reader_user: String,
    #[serde(default)]
    pub reader_password: SecretString,
    #[serde(default = "default_maintenance_user")]
    pub maintenance_user: String,
    #[serde(default)]
    pub maintenance_password: SecretString,
    /// First deadline of an insert; doubles at each repeat, up to 10 minutes.
    #[serde(with = "humantime_serde", default = "default_write_timeout")]
    pub write_timeout: Duration,
    /// Deadline of a query.
    #[serde(with = "humantime_serde", default = "default_read_timeout")]
    pub read_timeout: Duration,
    /// Rows in the range of a question from which the rollups are asked too; below, the records alone are faster. 0 = always.
    #[serde(default = "default_rollup_rows")]
    pub rollup_rows: u64,
    /// A partition's aggregate is rolled up once its oldest row is this old.
    #[serde(with = "humantime_serde", default = "default_flush_age")]
    pub flush_age: Duration,
    /// A partition's aggregate is rolled up once it has this many groups (some 250 bytes of memory each).
    #[serde(default = "default_flush_rows")]
    pub flush_rows: usize,
    /// A month of which a new owner finds more records beyond the horizon is rolled up by the server, not in memory.
    #[serde(default = "default_rebuild_rows")]
    pub rebuild_rows: u64,
    /// Whether `url` may be plaintext beyond loopback; whoever reads the configuration has looked.
    #[serde(default)]
    pub allow_plaintext: bool,
    /// Certificates (PEM) of the authorities to trust; the system's if absent.
    pub ca_file: Option<PathBuf>,
    /// This client's certificate (PEM).
    pub client_certificate: Option<PathBuf>,
    /// Private key (PEM) of that certificate.
    pub client_key: Option<PathBuf>,
}

impl ClickHouseConfig {
    /// Defaults for everything but the address and the database.
    pub fn new(url: impl Into<String>, database: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            database: database.into(),
            writer_user: default_writer_user(),
            writer_password: SecretString::default(),
            reader_user: default_reader_user(),
            reader_password: SecretString::default(),
            maintenance_user: default_maintenance_user(),
            maintenance_password: SecretString::default(),
            write_timeout: default_write_timeout(),
            read_timeout: default_read_timeout(),
            rollup_rows: default_rollup_rows(),
            rebuild_rows: default_rebuild_rows(),
            flush_age: default_flush_age(),
            flush_rows: default_flush_rows(),
            allow_plaintext: false,
            ca_file: None,
            client_certificate: None,
            client_key: None,
        }
    }

    pub(crate) fn tls_files(&self) -> TlsFiles {
        TlsFiles {
            ca_file: self.ca_file.clone(),
            client_certificate: self.client_certificate.clone(),
            client_key: self.client_key.clone(),
        }
    }

    /// The three users of the dev stacks with their common password.
    pub fn with_dev_passwords(mut self) -> Self {
        self.writer_password = SecretString::from("usage");
        self.reader_password = SecretString::from("usage");
        self.maintenance_password = SecretString::from("usage");
        self
    }
}

fn default_database() -> String {
    "usage".into()
}

fn default_writer_user() -> String {
    "usage_writer".into()
}

fn default_reader_user() -> String {
    "usage_reader".into()
}

fn default_maintenance_user() -> String {
    "usage_maintenance".into()
}

fn default_write_timeout() -> Duration {
    Duration::from_secs(30)
}

fn default_read_timeout() -> Duration {
    Duration::from_secs(5)
}

fn default_rollup_rows() -> u64 {
    500_000
}

fn default_flush_age() -> Duration {
    Duration::from_secs(10)
}

fn default_flush_rows() -> usize {
    20_000
}

fn default_rebuild_rows() -> u64 {
    200_000
}
