//! Sections that several processes share.

use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;

use super::{Endpoint, Setting};
use crate::transport::{self, AddressError, TlsFiles, Transport};
use crate::{settings, tls_settings};

/// `[telemetry]`; read into [`crate::telemetry::TelemetryConfig`].
pub const TELEMETRY: &[Setting] = &[
    Setting::text("telemetry.listen", "Address of /metrics, /health/live and /health/ready; port 0 takes a free one.")
        .default("127.0.0.1:9400"),
    Setting::text("telemetry.format", "Log lines for people (`human`) or for machines (`json`).").default("human"),
    Setting::text("telemetry.filter", "What is logged: a level, or directives like `info,usage_consumer=debug`.")
        .default("info"),
    Setting::integer(
        "telemetry.tenant_labels",
        "How many tenants get a series of their own in metrics with the label tenant_id; later ones count as `other`.",
    )
    .default("100"),
];

/// `[kafka]`; read into [`KafkaConfig`].
pub const KAFKA: &[Setting] = settings![
    &[
        Setting::text("kafka.brokers", "Brokers to start from: host:port, separated by commas.")
            .endpoint(Endpoint::Kafka),
        Setting::text("kafka.records_topic", "Topic of usage records.").default("usage.records.v1"),
        Setting::text("kafka.dead_letters_topic", "Topic of dead letters.").default("usage.dead-letters.v1"),
        Setting::text("kafka.security.protocol", "`plaintext`, `ssl`, `sasl_plaintext` or `sasl_ssl`.")
            .default("plaintext"),
        Setting::text("kafka.security.sasl_mechanism", "For example SCRAM-SHA-512.").optional(),
        Setting::text("kafka.security.sasl_username", "User for SASL.").optional(),
        Setting::text("kafka.security.sasl_password", "Password for SASL.").optional().secret(),
    ],
    tls_settings!("kafka"),
    &[Setting::text("kafka.client_key_password", "Password of `kafka.client_key`, if it is encrypted.")
        .optional()
        .secret()],
];

/// `[clickhouse]`: the settings of the ClickHouse storage plugin, read into its own config.
pub const CLICKHOUSE: &[Setting] = settings![&[
    Setting::text("clickhouse.url", "Address of the server: https://host:port, or http:// on loopback.")
        .endpoint(Endpoint::Http),
    Setting::text("clickhouse.database", "Database of records and rollups.").default("usage"),
    Setting::text("clickhouse.writer_user", "User that inserts.").default("usage_writer"),
    Setting::text("clickhouse.writer_password", "Its password.").default("").secret(),
    Setting::text("clickhouse.reader_user", "User that answers queries, read-only.").default("usage_reader"),
    Setting::text("clickhouse.reader_password", "Its password.").default("").secret(),
    Setting::text("clickhouse.maintenance_user", "User that migrates and deletes.")
        .default("usage_maintenance"),
    Setting::text("clickhouse.maintenance_password", "Its password.").default("").secret(),
    Setting::duration(
        "clickhouse.write_timeout",
        "Bound of one insert; doubles at each repeat up to 10 minutes.",
    )
    .default("30s").positive(),
    Setting::duration("clickhouse.read_timeout", "Bound of one question.").default("5s").positive(),
    Setting::integer(
        "clickhouse.rollup_rows",
        "Rows in the range of a question from which the rollups are asked too; below, the records alone are faster. 0 = always.",
    )
    .default("500000"),
    Setting::duration("clickhouse.flush_age", "A partition's aggregate is rolled up once its oldest row is this old.")
        .default("10s").positive(),
    Setting::integer("clickhouse.flush_rows", "A partition's aggregate is rolled up once it has this many groups.")
        .default("20000").positive(),
    Setting::integer(
        "clickhouse.rebuild_rows",
        "Records beyond a month's horizon above which a new owner lets the server roll the month up, instead of doing it in memory.",
    )
    .default("200000"),
], tls_settings!("clickhouse")];

/// `[control_database]`; read into [`DatabaseConfig`].
pub const CONTROL_DATABASE: &[Setting] = settings![
    &[Setting::text(
        "control_database.url",
        "The control database: postgres://user:password@host:port/name?sslmode=verify-full."
    )
    .secret()
    .endpoint(Endpoint::Postgres)],
    tls_settings!("control_database"),
];

/// The rest of `[control_database]`, for processes that read or write source keys; read into [`DatabaseConfig`].
pub const MASTER_KEY: &[Setting] = &[
    Setting::text(
        "control_database.master_key",
        "Master key under which the keys of sources are sealed: 32 random bytes in hex, the same for all processes that have it.",
    )
    .optional()
    .secret(),
    Setting::text("control_database.master_key_file", "File with the master key, instead of the key itself.")
        .optional(),
    Setting::text(
        "control_database.other_master_key",
        "A second master key, with which keys are only opened: while one is exchanged for the other.",
    )
    .optional()
    .secret(),
    Setting::text("control_database.other_master_key_file", "File with the second master key.").optional(),
];

/// `[source_database]`; read into [`DatabaseConfig`].
pub const SOURCE_DATABASE: &[Setting] = settings![
    &[Setting::text("source_database.url", "The source's database, which holds the outbox.")
        .secret()
        .endpoint(Endpoint::Postgres)],
    tls_settings!("source_database"),
];

/// How to reach Kafka.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KafkaConfig {
    pub brokers: String,
    pub records_topic: String,
    pub dead_letters_topic: String,
    pub security: KafkaSecurity,
    #[serde(default)]
    pub allow_plaintext: bool,
    pub ca_file: Option<PathBuf>,
    pub client_certificate: Option<PathBuf>,
    pub client_key: Option<PathBuf>,
    pub client_key_password: Option<SecretString>,
}

/// How the brokers and this client prove who they are.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KafkaSecurity {
    pub protocol: String,
    pub sasl_mechanism: Option<String>,
    pub sasl_username: Option<String>,
    pub sasl_password: Option<SecretString>,
}

impl KafkaConfig {
    /// Without security, as tests and dev stacks have it.
    pub fn plaintext(brokers: impl Into<String>) -> Self {
        let security = KafkaSecurity {
            protocol: "plaintext".into(),
            sasl_mechanism: None,
            sasl_username: None,
            sasl_password: None,
        };
        Self {
            brokers: brokers.into(),
            records_topic: "usage.records.v1".into(),
            dead_letters_topic: "usage.dead-letters.v1".into(),
            security,
            allow_plaintext: false,
            ca_file: None,
            client_certificate: None,
            client_key: None,
            client_key_password: None,
        }
    }

    /// How messages travel; plaintext beyond loopback only if it is allowed. For whoever fills the struct: [`super::load`] has looked.
    ///
    /// # Errors
    /// The brokers or the protocol.
    pub fn transport(&self) -> Result<Transport, AddressError> {
        transport::kafka(&self.brokers, &self.security.protocol)?.permit(self.allow_plaintext, transport::SSL)
    }

    /// Names and values for librdkafka's client configuration. It checks certificate and host name of a broker by itself.
    pub fn client_properties(&self) -> Vec<(&'static str, String)> {
        let security = &self.security;
        let exposed =
            |secret: &Option<SecretString>| secret.as_ref().map(|text| text.expose_secret().to_string());
        let path = |path: &Option<PathBuf>| path.as_deref().map(Path::display).map(|path| path.to_string());
        let optional = [
            ("sasl.mechanism", security.sasl_mechanism.clone()),
            ("sasl.username", security.sasl_username.clone()),
            ("sasl.password", exposed(&security.sasl_password)),
            ("ssl.ca.location", path(&self.ca_file)),
            ("ssl.certificate.location", path(&self.client_certificate)),
            ("ssl.key.location", path(&self.client_key)),
            ("ssl.key.password", exposed(&self.client_key_password)),
        ];
        let mut properties = vec![
            ("bootstrap.servers", self.brokers.clone()),
            ("security.protocol", security.protocol.clone()),
        ];
        properties.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
        properties
    }
}

/// How to reach a Postgres database.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatabaseConfig {
    pub url: SecretString,
    #[serde(default)]
    pub allow_plaintext: bool,
    pub ca_file: Option<PathBuf>,
    pub client_certificate: Option<PathBuf>,
    pub client_key: Option<PathBuf>,
    /// Only where [`MASTER_KEY`] is declared, like the following ones.
    #[serde(default)]
    pub master_key: Option<SecretString>,
    #[serde(default)]
    pub master_key_file: Option<PathBuf>,
    #[serde(default)]
    pub other_master_key: Option<SecretString>,
    #[serde(default)]
    pub other_master_key_file: Option<PathBuf>,
}

impl DatabaseConfig {
    /// An address with nothing beside it.
    pub fn new(url: impl Into<SecretString>) -> Self {
        let url = url.into();
        Self {
            url,
            allow_plaintext: false,
            ca_file: None,
            client_certificate: None,
            client_key: None,
            master_key: None,
            master_key_file: None,
            other_master_key: None,
            other_master_key_file: None,
        }
    }

    /// What sqlx needs to connect; plaintext beyond loopback only if it is allowed. Statements are not logged, slow ones neither.
    ///
    /// # Errors
    /// The address, without a part of it.
    pub fn options(&self) -> Result<PgConnectOptions, AddressError> {
        let files = TlsFiles {
            ca_file: self.ca_file.clone(),
            client_certificate: self.client_certificate.clone(),
            client_key: self.client_key.clone(),
        };
        let options = transport::postgres_options(self.url.expose_secret(), &files)?;
        transport::postgres(&options).permit(self.allow_plaintext, transport::VERIFY_FULL)?;
        Ok(options.disable_statement_logging())
    }
}
