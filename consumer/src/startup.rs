//! What must hold before the first partition is taken, each waited for under an alarm: the topics and their settings, the recorded
//! partition count, storage and its server settings.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio_util::sync::CancellationToken;
use usage_control::{Control, ControlError};
use usage_schemas::names::{DEAD_LETTER_MESSAGE_BYTES, RECORDS_MESSAGE_BYTES_MOST};
use usage_service::error_chain::error_chain;
use usage_service::retry::Backoff;
use usage_storage::{Storage, StorageError};

use crate::config::Config;
use crate::counts::OtherCount;
use crate::plan::METADATA_LIMIT;
use crate::side_reader::{SideReadError, SideReader};

const CALL_WITHIN: Duration = Duration::from_secs(10);

/// What the checks found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked {
    /// Partitions of the topic of dead letters.
    pub dead_letter_partitions: i32,
    /// Greatest length of a commit's metadata.
    pub metadata_limit: usize,
}

/// Why the consumer does not start yet.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    #[error("kafka")]
    Kafka(#[from] KafkaError),
    #[error("kafka")]
    Read(#[from] SideReadError),
    #[error("control database: run `usagectl control migrate`, `usagectl topics create` if it is new")]
    Control(#[from] ControlError),
    #[error("the wrong workers")]
    OtherWorkers(#[source] ControlError),
    #[error("storage")]
    Storage(#[from] StorageError),
    #[error(
        "topic {topic}: `{setting}` is `{found}` and must be {wanted}: `usagectl topics create` makes new topics right, \
         `kafka-configs --alter` those that are there"
    )]
    Setting { topic: String, setting: &'static str, found: String, wanted: String },
    #[error("topic {0} does not exist: run `usagectl topics create`")]
    NoTopic(String),
    #[error(transparent)]
    Count(#[from] OtherCount),
}

/// Waits until everything holds; `None` when the process is to stop before.
pub async fn wait(
    config: &Config,
    storage: &dyn Storage,
    control: &Control,
    shutdown: &CancellationToken,
) -> Option<Checked> {
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(15));
    loop {
        match check(config, storage, control).await {
            Ok(checked) => return Some(checked),
            Err(error) => {
                let wait = backoff.next();
                let backoff_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                tracing::warn!(error = %error_chain(&error), backoff_ms, "not ready to start");
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = shutdown.cancelled() => return None,
                }
            }
        }
    }
}

/// Checks everything once.
pub async fn check(config: &Config, storage: &dyn Storage, control: &Control) -> Result<Checked, NotReady> {
    storage.check().await?;
    let recorded = control.partition_counts().await?.current;
    let records = &config.kafka.records_topic;
    let reader = SideReader::new(config.side_reader(), records)?;
    let kafka = reader.partition_count().await.map_err(|error| no_topic(error, records))?;
    if kafka != recorded {
        return Err(OtherCount { kafka, recorded }.into());
    }
    let dead_letters = &config.kafka.dead_letters_topic;
    let dead_letter_reader = SideReader::new(config.side_reader(), dead_letters)?;
    let counted = dead_letter_reader.partition_count().await;
    let dead_letter_partitions = counted.map_err(|error| no_topic(error, dead_letters))?;

    let admin: AdminClient<DefaultClientContext> = config.admin().create()?;
    let broker = first_broker(config).await?;
    let resources = [
        ResourceSpecifier::Topic(records),
        ResourceSpecifier::Topic(dead_letters),
        ResourceSpecifier::Broker(broker),
    ];
    let options = AdminOptions::new().request_timeout(Some(CALL_WITHIN));
    let described = admin.describe_configs(&resources, &options).await?;
    let described = described.into_iter().collect::<Result<Vec<_>, RDKafkaErrorCode>>();
    let described = described.map_err(KafkaError::AdminOp)?;
    let [of_records, of_dead_letters, of_broker] = &described[..] else {
        return Err(KafkaError::AdminOp(RDKafkaErrorCode::UnknownTopicOrPartition).into());
    };
    // A clock of the producer's would judge "future" and key validity; a compacted topic loses records.
    require(of_records, records, "message.timestamp.type", "LogAppendTime")?;
    require(of_records, records, "cleanup.policy", "delete")?;
    require(of_dead_letters, dead_letters, "cleanup.policy", "delete")?;
    // What can be refused must fit among the dead letters, or it stops its partition.
    let most = RECORDS_MESSAGE_BYTES_MOST;
    require_bytes(of_records, records, format!("at most {most}"), |bytes| bytes <= most)?;
    let least = DEAD_LETTER_MESSAGE_BYTES;
    require_bytes(of_dead_letters, dead_letters, format!("at least {least}"), |bytes| bytes >= least)?;
    let limit = value(of_broker, "offset.metadata.max.bytes").and_then(|text| text.parse::<usize>().ok());
    let metadata_limit = limit.map_or(METADATA_LIMIT, |limit| limit.saturating_sub(1).min(METADATA_LIMIT));
    // Last: a worker that could not work anyhow claims nothing.
    control.belong_to(&config.consumer.group, records).await.map_err(|error| match error {
        ControlError::OtherWorkers { .. } => NotReady::OtherWorkers(error),
        error => error.into(),
    })?;
    Ok(Checked { dead_letter_partitions, metadata_limit })
}

fn no_topic(error: SideReadError, topic: &str) -> NotReady {
    match error {
        SideReadError::Kafka(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicOrPartition)) => {
            NotReady::NoTopic(topic.into())
        }
        error => error.into(),
    }
}

async fn first_broker(config: &Config) -> Result<i32, NotReady> {
    let consumer: BaseConsumer = config.side_reader().create()?;
    let topic = config.kafka.records_topic.clone();
    let fetch = move || {
        let metadata = consumer.fetch_metadata(Some(&topic), CALL_WITHIN)?;
        let broker = metadata.brokers().first().map(|broker| broker.id());
        broker.ok_or(KafkaError::MetadataFetch(RDKafkaErrorCode::BrokerNotAvailable))
    };
    let id = tokio::task::spawn_blocking(fetch).await.map_err(|_| SideReadError::Thread)?;
    Ok(id?)
}

fn value<'a>(resource: &'a ConfigResource, setting: &str) -> Option<&'a str> {
    resource.get(setting)?.value.as_deref()
}

fn require(
    resource: &ConfigResource,
    topic: &str,
    setting: &'static str,
    wanted: &'static str,
) -> Result<(), NotReady> {
    let found = value(resource, setting).unwrap_or_default();
    if found == wanted {
        return Ok(());
    }
    Err(NotReady::Setting {
        topic: topic.into(),
        setting,
        found: found.into(),
        wanted: format!("`{wanted}`"),
    })
}

fn require_bytes(
    resource: &ConfigResource,
    topic: &str,
    wanted: String,
    holds: impl Fn(i64) -> bool,
) -> Result<(), NotReady> {
    let setting = "max.message.bytes";
    let found = value(resource, setting).unwrap_or_default();
    if found.parse().is_ok_and(holds) {
        return Ok(());
    }
    Err(NotReady::Setting { topic: topic.into(), setting, found: found.into(), wanted })
}
