//! Sections that several processes share.

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::Setting;

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
pub const KAFKA: &[Setting] = &[
    Setting::text("kafka.brokers", "Brokers to start from: host:port, separated by commas."),
    Setting::text("kafka.records_topic", "Topic of usage records.").default("usage.records.v1"),
    Setting::text("kafka.dead_letters_topic", "Topic of dead letters.").default("usage.dead-letters.v1"),
    Setting::text("kafka.security.protocol", "`plaintext`, `ssl`, `sasl_plaintext` or `sasl_ssl`.")
        .default("plaintext"),
    Setting::text("kafka.security.sasl_mechanism", "For example SCRAM-SHA-512.").optional(),
    Setting::text("kafka.security.sasl_username", "User for SASL.").optional(),
    Setting::text("kafka.security.sasl_password", "Password for SASL.").optional().secret(),
    Setting::text(
        "kafka.security.ssl_ca_location",
        "File with the certificates of the authorities to trust.",
    )
    .optional(),
    Setting::text("kafka.security.ssl_certificate_location", "File with the client's certificate.")
        .optional(),
    Setting::text("kafka.security.ssl_key_location", "File with the client's private key.").optional(),
    Setting::text("kafka.security.ssl_key_password", "Password of the private key.").optional().secret(),
];

/// `[clickhouse]`: the settings of the ClickHouse storage plugin, read into its own config.
pub const CLICKHOUSE: &[Setting] = &[
    Setting::text("clickhouse.url", "HTTP address of the server."),
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
    .default("30s"),
    Setting::duration("clickhouse.read_timeout", "Bound of one question.").default("5s"),
    Setting::integer(
        "clickhouse.rollup_rows",
        "Rows in the range of a question from which the rollups are asked too; below, the records alone are faster. 0 = always.",
    )
    .default("500000"),
    Setting::duration("clickhouse.flush_age", "A partition's aggregate is rolled up once its oldest row is this old.")
        .default("10s"),
    Setting::integer("clickhouse.flush_rows", "A partition's aggregate is rolled up once it has this many groups.")
        .default("20000"),
    Setting::integer(
        "clickhouse.rebuild_rows",
        "Records beyond a month's horizon above which a new owner lets the server roll the month up, instead of doing it in memory.",
    )
    .default("200000"),
];

/// `[control_database]`; read into [`DatabaseConfig`].
pub const CONTROL_DATABASE: &[Setting] = &[Setting::text(
    "control_database.url",
    "The control database: postgres://user:password@host:port/name.",
)
.secret()];

/// `[source_database]`; read into [`DatabaseConfig`].
pub const SOURCE_DATABASE: &[Setting] =
    &[Setting::text("source_database.url", "The source's database, which holds the outbox.").secret()];

/// How to reach Kafka.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KafkaConfig {
    pub brokers: String,
    pub records_topic: String,
    pub dead_letters_topic: String,
    pub security: KafkaSecurity,
}

/// Passed through to librdkafka.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KafkaSecurity {
    pub protocol: String,
    pub sasl_mechanism: Option<String>,
    pub sasl_username: Option<String>,
    pub sasl_password: Option<SecretString>,
    pub ssl_ca_location: Option<String>,
    pub ssl_certificate_location: Option<String>,
    pub ssl_key_location: Option<String>,
    pub ssl_key_password: Option<SecretString>,
}

impl KafkaConfig {
    /// Without security, as tests and dev stacks have it.
    pub fn plaintext(brokers: impl Into<String>) -> Self {
        let security = KafkaSecurity {
            protocol: "plaintext".into(),
            sasl_mechanism: None,
            sasl_username: None,
            sasl_password: None,
            ssl_ca_location: None,
            ssl_certificate_location: None,
            ssl_key_location: None,
            ssl_key_password: None,
        };
        Self {
            brokers: brokers.into(),
            records_topic: "usage.records.v1".into(),
            dead_letters_topic: "usage.dead-letters.v1".into(),
            security,
        }
    }

    /// Names and values for librdkafka's client configuration.
    pub fn client_properties(&self) -> Vec<(&'static str, String)> {
        let security = &self.security;
        let exposed =
            |secret: &Option<SecretString>| secret.as_ref().map(|text| text.expose_secret().to_string());
        let optional = [
            ("sasl.mechanism", security.sasl_mechanism.clone()),
            ("sasl.username", security.sasl_username.clone()),
            ("sasl.password", exposed(&security.sasl_password)),
            ("ssl.ca.location", security.ssl_ca_location.clone()),
            ("ssl.certificate.location", security.ssl_certificate_location.clone()),
            ("ssl.key.location", security.ssl_key_location.clone()),
            ("ssl.key.password", exposed(&security.ssl_key_password)),
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
}
