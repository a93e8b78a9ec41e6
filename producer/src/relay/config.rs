//! What a relay can be told.

use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use usage_schemas::validate;
use usage_service::config::{DatabaseConfig, KAFKA, KafkaConfig, SOURCE_DATABASE, Setting, TELEMETRY};
use usage_service::settings;

use super::RelayError;
use super::lease::working_time;
use super::session::Database;

/// Storage must be full again within 15 minutes of an outage's end, so no wait between two attempts may be that long.
const BACKOFF_BOUND: Duration = Duration::from_secs(15 * 60);

/// What librdkafka may compress messages with.
const COMPRESSIONS: [&str; 5] = ["none", "lz4", "zstd", "snappy", "gzip"];

/// Everything a relay needs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayConfig {
    pub source_database: DatabaseConfig,
    pub kafka: KafkaConfig,
    pub relay: RelaySettings,
}

/// `[relay]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RelaySettings {
    /// Source of the rows that name none, as `usage_emit` writes them.
    pub default_source: Option<String>,
    /// The sources and their signing keys.
    pub sources: Vec<SourceConfig>,
    /// More of them as `NAME:KEY_ID:HEX`, for configurations without a file.
    pub source_keys: Vec<SecretString>,
    /// Schema of the outbox, if not the search path's.
    pub schema: Option<String>,
    /// Name among the relays of one outbox; a random one by default. It has to be unique.
    pub instance: Option<String>,
    /// Rows of one poll.
    pub batch_rows: i64,
    /// Pause after a poll that found rows.
    #[serde(with = "humantime_serde")]
    pub poll_min: Duration,
    /// Pause that empty polls grow to.
    #[serde(with = "humantime_serde")]
    pub poll_max: Duration,
    /// Lease of a partition.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// How long Kafka may take for a message before it counts as failed.
    #[serde(with = "humantime_serde")]
    pub message_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub backoff_base: Duration,
    #[serde(with = "humantime_serde")]
    pub backoff_max: Duration,
    /// Messages larger than this are dead letters.
    pub max_message_bytes: i64,
    /// How long a message waits for others to share a request with.
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
    /// `none`, `lz4`, `zstd`, `snappy` or `gzip`.
    pub compression: String,
}

/// A source and the key that signs its messages.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceConfig {
    pub name: String,
    pub key_id: String,
    /// Hexadecimal digits; 32 bytes are right.
    pub key: SecretString,
}

impl Default for RelaySettings {
    fn default() -> Self {
        Self {
            default_source: None,
            sources: Vec::new(),
            source_keys: Vec::new(),
            schema: None,
            instance: None,
            batch_rows: 2_000,
            poll_min: Duration::from_millis(5),
            poll_max: Duration::from_millis(50),
            lease: Duration::from_secs(10),
            message_timeout: Duration::from_secs(5),
            backoff_base: Duration::from_secs(1),
            backoff_max: Duration::from_secs(60),
            max_message_bytes: 1_000_000,
            linger: Duration::from_millis(5),
            compression: "lz4".into(),
        }
    }
}

/// Everything that the program `usage-relay` can be told.
pub const SETTINGS: &[Setting] = settings![TELEMETRY, KAFKA, SOURCE_DATABASE, RELAY];

/// Settings of `[relay]`; a process adds telemetry, `[kafka]` and `[source_database]`.
pub const RELAY: &[Setting] = &[
    Setting::text("relay.default_source", "Source of the rows that name none: those of usage_emit.")
        .optional(),
    Setting::tables("relay.sources", "The sources whose rows this relay sends."),
    Setting::text("relay.sources[].name", "The source's name."),
    Setting::text("relay.sources[].key_id", "Id of its signing key."),
    Setting::text("relay.sources[].key", "Its signing key in hexadecimal digits.").secret(),
    Setting::list(
        "relay.source_keys",
        "More sources, each as NAME:KEY_ID:HEX, for a configuration without a file.",
    )
    .optional()
    .secret(),
    Setting::text("relay.schema", "Schema of the outbox, if it is not in the role's search path.").optional(),
    Setting::text("relay.instance", "Unique name among the relays of this outbox; a random one if absent.")
        .optional(),
    Setting::integer("relay.batch_rows", "Rows of one poll of a partition.").default("2000"),
    Setting::duration("relay.poll_min", "Pause after a poll that found rows.").default("5ms"),
    Setting::duration("relay.poll_max", "Pause that empty polls grow to; 250ms spares a small database.")
        .default("50ms"),
    Setting::duration(
        "relay.lease",
        "Lease of an outbox partition on the database's clock; work stops at 80 % of it.",
    )
    .default("10s"),
    Setting::duration(
        "relay.message_timeout",
        "How long Kafka may take for a message; at most 80 % of the lease.",
    )
    .default("5s"),
    Setting::duration("relay.backoff_base", "Bound of the first wait after a failed delivery.").default("1s"),
    Setting::duration("relay.backoff_max", "Bound of every wait; under 15 minutes.").default("60s"),
    Setting::size("relay.max_message_bytes", "Larger messages are dead letters; what the topic takes.")
        .default("1000000"),
    Setting::duration("relay.linger", "How long a message waits for others to share a request with.")
        .default("5ms"),
    Setting::text("relay.compression", "none, lz4, zstd, snappy or gzip.").default("lz4"),
];

impl RelayConfig {
    /// Refuses what would not work, as [`super::Relay::new`] does. Nothing has to be reachable.
    ///
    /// # Errors
    /// [`RelayError::Config`] names the setting, and never holds a key.
    pub fn validate(&self) -> Result<(), RelayError> {
        let relay = &self.relay;
        let refuse = |text: &str| Err(RelayError::Config(text.into()));
        self.kafka.transport().map_err(|error| RelayError::Config(format!("kafka.brokers {error}")))?;
        if relay.backoff_max >= BACKOFF_BOUND {
            return refuse("relay.backoff_max has to be under 15 minutes");
        }
        if relay.backoff_base.is_zero() {
            return refuse("relay.backoff_base has to be above 0");
        }
        for (setting, name) in [("relay.instance", &relay.instance), ("relay.schema", &relay.schema)] {
            if name.as_ref().is_some_and(|name| name.trim().is_empty()) {
                return refuse(&format!("{setting} is empty"));
            }
        }
        if relay.backoff_base > relay.backoff_max {
            return refuse("relay.backoff_base is greater than relay.backoff_max");
        }
        if relay.lease < Duration::from_millis(300) {
            return refuse("relay.lease is shorter than 300 ms");
        }
        if relay.message_timeout > working_time(relay.lease)
            || relay.message_timeout < Duration::from_millis(100)
        {
            return refuse("relay.message_timeout has to be between 100 ms and 80 % of relay.lease");
        }
        if relay.linger >= relay.message_timeout {
            return refuse("relay.linger has to be under relay.message_timeout");
        }
        if !(1..=100_000).contains(&relay.batch_rows) {
            return refuse("relay.batch_rows is not between 1 and 100000");
        }
        if relay.poll_min.is_zero() || relay.poll_min > relay.poll_max {
            return refuse("relay.poll_min has to be above 0 and at most relay.poll_max");
        }
        if !(1_000..=1_000_000_000).contains(&relay.max_message_bytes) {
            return refuse("relay.max_message_bytes is not between 1 kB and 1 GB");
        }
        if !COMPRESSIONS.contains(&relay.compression.as_str()) {
            return refuse(&format!("relay.compression is none of {}", COMPRESSIONS.join(", ")));
        }
        self.database()?;
        relay.keys().map(drop)
    }

    /// How the source's database is reached.
    pub(crate) fn database(&self) -> Result<Database, RelayError> {
        Database::new(&self.source_database, self.relay.schema.as_deref())
    }
}

impl RelaySettings {
    /// The configured sources with their keys in bytes.
    pub(crate) fn keys(&self) -> Result<Vec<(String, String, Vec<u8>)>, RelayError> {
        let mut keys = Vec::new();
        for source in &self.sources {
            keys.push((
                source.name.clone(),
                source.key_id.clone(),
                unhex(&source.name, source.key.expose_secret())?,
            ));
        }
        for (index, entry) in self.source_keys.iter().enumerate() {
            let mut parts = entry.expose_secret().splitn(3, ':');
            let (Some(name), Some(key_id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
                return Err(RelayError::Config(format!("relay.source_keys[{index}] is not NAME:KEY_ID:HEX")));
            };
            keys.push((name.into(), key_id.into(), unhex(name, key)?));
        }
        for (index, (name, key_id, _)) in keys.iter().enumerate() {
            validate::name("name", name)
                .map_err(|fault| RelayError::Config(format!("relay.sources: {name:?}: {fault}")))?;
            if key_id.is_empty() {
                return Err(RelayError::Config(format!("relay.sources: {name}: key_id is empty")));
            }
            if keys[..index].iter().any(|(other, ..)| other == name) {
                return Err(RelayError::Config(format!("relay.sources: {name} is there twice")));
            }
        }
        if let Some(default) = &self.default_source
            && !keys.iter().any(|(name, ..)| name == default)
        {
            return Err(RelayError::Config(format!(
                "relay.default_source: {default:?} is not one of relay.sources"
            )));
        }
        Ok(keys)
    }
}

/// The bytes of a key; the error names the source, never the key.
fn unhex(source: &str, text: &str) -> Result<Vec<u8>, RelayError> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    match digits {
        Some(digits) if digits.len() >= 32 && digits.len().is_multiple_of(2) => {
            Ok(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
        }
        Some(_) => Err(RelayError::Config(format!(
            "relay.sources: {source}: the key has fewer than 16 bytes or half a byte"
        ))),
        None => Err(RelayError::Config(format!("relay.sources: {source}: the key is not hexadecimal"))),
    }
}

#[cfg(test)]
mod tests;
