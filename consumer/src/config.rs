//! What the consumer can be told.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use serde::Deserialize;
use usage_access::policy::{PolicyConfig, PolicyConfigError, PolicyDecisionPoint};
use usage_control::{ControlError, MasterKeys};
use usage_schemas::Bounds;
use usage_schemas::names::DEAD_LETTER_MESSAGE_BYTES;
use usage_service::config::{
    CLICKHOUSE, CONTROL_DATABASE, DatabaseConfig, KAFKA, KafkaConfig, MASTER_KEY, Setting, TELEMETRY,
};
use usage_service::error_chain;
use usage_service::settings;
use usage_service::telemetry::TelemetryConfig;
use usage_storage::clickhouse::ClickHouseConfig;

use crate::batch::Limits;
use crate::budget::Charge;
use crate::plan::{METADATA_LIMIT, not_kept_limit};

/// Every setting of `usage-consumer`.
pub const SETTINGS: &[Setting] = settings![
    TELEMETRY,
    KAFKA,
    CONTROL_DATABASE,
    MASTER_KEY,
    CLICKHOUSE,
    usage_access::policy::SETTINGS,
    &[
        Setting::text("consumer.group", "Consumer group of all workers.").default("usage-consumer"),
        Setting::integer("consumer.batch_rows", "Messages of one partition at which its batch ends.")
            .default("10000").positive(),
        Setting::size("consumer.batch_bytes", "Bytes of one partition's messages at which its batch ends.")
            .default("8MiB").positive(),
        Setting::duration("consumer.batch_age", "Age at which a batch ends, however small it is.")
            .default("200ms").positive(),
        Setting::integer("consumer.budget_records", "Messages in hand at which intake rests.")
            .default("120000").positive(),
        Setting::size("consumer.budget_bytes", "Bytes of messages in hand at which intake rests.")
            .default("64MiB").positive(),
        Setting::size("consumer.fetch_ahead", "Bytes that are fetched from Kafka ahead of their turn.")
            .default("8MiB").positive(),
        Setting::duration(
            "consumer.session_timeout",
            "Silence after which Kafka gives a worker's partitions away."
        )
        .default("10s").positive(),
        Setting::duration("consumer.retry_max", "Greatest wait between attempts while a dependency is away.")
            .default("10s").positive(),
        Setting::duration(
            "consumer.registry_refresh",
            "Age at which usage types, sources and their keys are read again."
        )
        .default("30s").positive(),
        Setting::duration(
            "consumer.policy_refresh",
            "Age at which the permission of a source to emit for a tenant ends, unless it was given again; `policy.cache` is not used for it."
        )
        .default("30s").positive(),
        Setting::duration("consumer.quota_refresh", "Age at which the quotas are read again.").default("5s").positive(),
        Setting::duration(
            "consumer.quota_keep",
            "How long counters of quotas stay after their window's end, by the broker's clock."
        )
        .default("7d").positive(),
        Setting::size("consumer.metadata_bytes", "Greatest length of a record's metadata.").default("8KiB").positive(),
        Setting::duration("consumer.future", "How far a record's time may lie after the broker's; 0s: not at all.")
            .default("5m"),
        Setting::duration("consumer.past", "How far a record's time may lie before the broker's.")
            .default("2557d").positive(),
    ]
];

/// The configuration of `usage-consumer`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub telemetry: TelemetryConfig,
    pub kafka: KafkaConfig,
    pub control_database: DatabaseConfig,
    pub clickhouse: ClickHouseConfig,
    pub policy: PolicyConfig,
    pub consumer: ConsumerConfig,
}

/// `[consumer]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsumerConfig {
    pub group: String,
    pub batch_rows: usize,
    pub batch_bytes: usize,
    #[serde(with = "humantime_serde")]
    pub batch_age: Duration,
    pub budget_records: usize,
    pub budget_bytes: usize,
    pub fetch_ahead: usize,
    #[serde(with = "humantime_serde")]
    pub session_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub retry_max: Duration,
    #[serde(with = "humantime_serde")]
    pub registry_refresh: Duration,
    #[serde(with = "humantime_serde")]
    pub quota_refresh: Duration,
    #[serde(with = "humantime_serde")]
    pub quota_keep: Duration,
    #[serde(with = "humantime_serde")]
    pub policy_refresh: Duration,
    pub metadata_bytes: usize,
    #[serde(with = "humantime_serde")]
    pub future: Duration,
    #[serde(with = "humantime_serde")]
    pub past: Duration,
}

impl ConsumerConfig {
    /// When the batches of a partition end.
    pub fn limits(&self) -> Limits {
        Limits {
            rows: self.batch_rows,
            bytes: self.batch_bytes,
            age: self.batch_age,
            not_kept: not_kept_limit(METADATA_LIMIT),
            deferred: self.batch_rows.min(20_000),
        }
    }

    pub fn budget(&self) -> Charge {
        Charge { records: self.budget_records, bytes: self.budget_bytes }
    }

    pub fn bounds(&self) -> Bounds {
        let micros = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Bounds {
            metadata_bytes: self.metadata_bytes,
            future_micros: micros(self.future),
            past_micros: micros(self.past),
        }
    }
}

impl Config {
    /// What no single setting can say. Reads the files of the master keys.
    ///
    /// # Errors
    /// A sentence that names the setting, and never holds a key.
    pub fn validate(&self) -> Result<(), String> {
        self.master_keys().map_err(|error| error_chain(&error))?;
        self.policy.validate()
    }

    /// The master keys, without which no source's key opens.
    ///
    /// # Errors
    /// [`ControlError`] names the setting.
    pub fn master_keys(&self) -> Result<MasterKeys, ControlError> {
        MasterKeys::configured(&self.control_database)?.ok_or(ControlError::NoMasterKey)
    }

    /// The policy point, without a cache of its own: a refusal is asked again with the next batch, permissions are remembered by the
    /// worker. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`PolicyConfigError`] names the setting, or the policies' file and line.
    pub fn policy_point(&self) -> Result<Arc<dyn PolicyDecisionPoint>, PolicyConfigError> {
        let uncached = PolicyConfig { cache: Duration::ZERO, ..self.policy.clone() };
        self.policy.validate().map_err(PolicyConfigError::Setting)?;
        uncached.decision_point()
    }

    fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        for (name, value) in self.kafka.client_properties() {
            client.set(name, value);
        }
        client.set("client.id", "usage-consumer").set("topic.metadata.refresh.interval.ms", "10000");
        client.set("socket.timeout.ms", "10000");
        client
    }

    fn reader(&self) -> ClientConfig {
        let mut client = self.client();
        // The isolation level is part of a plan's meaning; an offset that is gone is an alarm, never a silent jump.
        client
            .set("group.id", &self.consumer.group)
            .set("isolation.level", "read_committed")
            .set("auto.offset.reset", "error")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("check.crcs", "true");
        client
    }

    /// The group member.
    pub fn member(&self) -> ClientConfig {
        let mut client = self.reader();
        let fetch_ahead = self.consumer.fetch_ahead.max(64 << 10);
        // A request's answer beside the queue counts as memory too.
        let fetch = (fetch_ahead / 2).clamp(64 << 10, 32 << 20);
        let session = self.consumer.session_timeout.as_millis();
        client
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", session.to_string())
            .set("heartbeat.interval.ms", (session / 4).max(1).to_string())
            .set("max.poll.interval.ms", "300000")
            .set("queued.min.messages", "100000")
            .set("queued.max.messages.kbytes", (fetch_ahead / 1024).to_string())
            .set("fetch.max.bytes", fetch.max(1 << 20).to_string())
            .set("max.partition.fetch.bytes", (1 << 20).to_string())
            .set("fetch.wait.max.ms", "100")
            // By default a full queue rests for a second, in which it runs empty.
            .set("fetch.queue.backoff.ms", "10")
            .set("fetch.error.backoff.ms", "100")
            .set("statistics.interval.ms", "5000");
        client
    }

    /// Reads beside the group: committed offsets, log bounds, the rows of a plan.
    pub fn side_reader(&self) -> ClientConfig {
        let mut client = self.reader();
        client.set("enable.partition.eof", "true");
        client.set("queued.max.messages.kbytes", "8192").set("fetch.wait.max.ms", "50");
        client
    }

    /// Writes dead letters and forwards.
    pub fn producer(&self) -> ClientConfig {
        let mut client = self.client();
        // A dead letter is the message and its headers: more than what the records topic took must fit. That was perhaps compressed.
        client
            .set("acks", "all")
            .set("enable.idempotence", "true")
            // More than one, and librdkafka may report a refused message as delivered: docs/adr/0002.
            .set("max.in.flight", "1")
            .set("message.max.bytes", DEAD_LETTER_MESSAGE_BYTES.to_string())
            .set("compression.type", "zstd")
            .set("linger.ms", "2")
            .set("delivery.timeout.ms", "30000");
        client
    }

    pub fn admin(&self) -> ClientConfig {
        self.client()
    }
}

#[cfg(test)]
mod tests {
    use usage_service::config::{Cli, ConfigError, load, verify};

    use super::*;

    fn config(set: &[&str]) -> Config {
        let required = [
            "kafka.brokers=127.0.0.1:9092",
            "clickhouse.url=http://127.0.0.1:8123",
            "control_database.url=postgres://usage@127.0.0.1/usage",
        ];
        resolve(&[&required[..], set].concat()).expect("the defaults fill the rest")
    }

    fn resolve(set: &[&str]) -> Result<Config, ConfigError> {
        let set = set.iter().map(|argument| argument.to_string()).collect();
        load(SETTINGS, &Cli { set, ..Cli::default() })
    }

    #[test]
    fn zeros_and_empty_names_are_refused_by_name() {
        for set in [
            "consumer.group=",
            "consumer.batch_rows=0",
            "consumer.batch_bytes=0",
            "consumer.batch_age=0s",
            "consumer.policy_refresh=0s",
            "consumer.quota_keep=0s",
            "consumer.budget_records=0",
            "consumer.budget_bytes=0B",
            "consumer.fetch_ahead=0",
            "consumer.session_timeout=0s",
            "consumer.retry_max=0s",
            "consumer.registry_refresh=0s",
            "consumer.quota_refresh=0s",
            "consumer.metadata_bytes=0",
            "consumer.past=0s",
            "clickhouse.write_timeout=0s",
            "clickhouse.flush_rows=0",
            "clickhouse.flush_age=0s",
            "clickhouse.writer_user=",
            "kafka.records_topic=",
            "kafka.dead_letters_topic=",
            "kafka.brokers=",
        ] {
            let error = resolve(&[set]).expect_err(set).to_string();
            assert!(error.contains(&format!("`{}`", set.split('=').next().unwrap())), "{error}");
        }
    }

    #[test]
    fn the_declaration_is_sound_and_fills_the_struct() {
        verify(SETTINGS).expect("a sound declaration");
        let config = config(&["consumer.batch_bytes=1MiB", "consumer.past=365d"]);
        assert_eq!(config.consumer.limits().bytes, 1 << 20);
        assert_eq!(config.consumer.bounds().past_micros, 365 * 86_400 * 1_000_000);
        assert_eq!(config.consumer.bounds().future_micros, Bounds::default().future_micros);
        assert_eq!(self::config(&[]).consumer.bounds(), Bounds::default());
    }

    #[test]
    fn a_master_key_that_is_none_and_policies_that_contradict_are_named() {
        let key = format!("control_database.master_key={}", "5a".repeat(32));
        config(&[&key]).validate().unwrap();
        for (set, part) in [
            (&[][..], "`control_database.master_key`"),
            (
                &["control_database.master_key=c0ffee"],
                "control_database.master_key: expected 32 bytes in hex",
            ),
            (
                &[&key, "control_database.other_master_key=c0ffee"],
                "control_database.other_master_key: expected",
            ),
            (
                &["control_database.master_key_file=/nonexistent"],
                "control_database.master_key_file: /nonexistent",
            ),
            (
                &[&key, "control_database.master_key_file=/nonexistent"],
                "control_database.master_key_file: not",
            ),
            (&[&key, "policy.token=c0ffee"], "policy.token"),
        ] {
            let error = config(set).validate().unwrap_err();
            assert!(error.contains(part) && !error.contains("c0ffee"), "{set:?}: {error}");
        }
    }

    #[test]
    fn nothing_is_committed_or_reset_behind_the_protocols_back() {
        let member = config(&[]).member();
        for (name, value) in [
            ("enable.auto.commit", "false"),
            ("enable.auto.offset.store", "false"),
            ("auto.offset.reset", "error"),
            ("isolation.level", "read_committed"),
            ("partition.assignment.strategy", "cooperative-sticky"),
        ] {
            assert_eq!(member.get(name), Some(value));
        }
    }
}
