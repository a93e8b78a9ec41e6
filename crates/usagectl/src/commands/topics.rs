//! `usagectl topics create`: both topics with the settings the protocol relies on (design section 4); `topics grow`.

mod expected;
mod grow;

use std::time::Duration;

use anyhow::{Context as _, bail};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::metadata::Metadata;
use rdkafka::types::RDKafkaErrorCode;
use usage_control::ControlError;
use usage_schemas::names::DEFAULT_PARTITIONS;
use usage_service::config::{KafkaConfig, Resolved};

use crate::WrongInput;
use crate::arguments::TopicsCreate;
use expected::{Found, Topic};

pub(super) use grow::grow;

const KAFKA_WITHIN: Duration = Duration::from_secs(30);
/// Copies in production; a stack with fewer brokers has as many as it can.
const REPLICATION: i32 = 3;

type Admin = AdminClient<DefaultClientContext>;

/// Creates what is missing, checks what is there, records the count. Safe to repeat: nothing that exists is changed.
pub(super) async fn create(config: &Resolved, options: &TopicsCreate) -> anyhow::Result<()> {
    let control = super::control(config).await?;
    // The count is recorded there, so the tables must be.
    control.migrate().await?;
    let recorded = match control.partition_counts().await {
        Ok(counts) => Some(counts.current),
        Err(ControlError::NoPartitionCount) => None,
        Err(error) => return Err(error.into()),
    };
    if let (Some(recorded), Some(asked)) = (recorded, options.partitions)
        && recorded != asked
    {
        let error = ControlError::OtherPartitionCount { recorded, asked };
        let detail = if asked > recorded {
            format!("{error}: run `usagectl topics grow --partitions {asked}`")
        } else {
            format!("{error}, and Kafka can't take any away")
        };
        return Err(WrongInput { argument: "--partitions", detail }.into());
    }
    let kafka: KafkaConfig = config.section("kafka")?;
    let admin = client(&kafka)?;
    let brokers = metadata(&admin, None)?.brokers().len();
    let topics = Topic::both(
        options.records.as_ref().unwrap_or(&kafka.records_topic),
        options.dead_letters.as_ref().unwrap_or(&kafka.dead_letters_topic),
        options.partitions.or(recorded).unwrap_or(DEFAULT_PARTITIONS),
        options
            .replication
            .unwrap_or_else(|| REPLICATION.min(i32::try_from(brokers).unwrap_or(REPLICATION)).max(1)),
    );
    let mut differences = Vec::new();
    for topic in &topics {
        let created = create_one(&admin, topic).await?;
        let found = look(&admin, topic).await?;
        differences.extend(topic.differences(&found));
        println!(
            "{} {}: {} partitions",
            if created { "created" } else { "found" },
            topic.name,
            found.partitions
        );
    }
    if !differences.is_empty() {
        bail!("topics have other settings than the protocol needs:\n  {}", differences.join("\n  "));
    }
    control.init_partitions(topics[0].partitions).await?;
    Ok(())
}

fn client(kafka: &KafkaConfig) -> anyhow::Result<Admin> {
    let mut client = ClientConfig::new();
    for (name, value) in kafka.client_properties() {
        client.set(name, value);
    }
    client.create().context("the settings of section kafka are not valid")
}

fn metadata(admin: &Admin, topic: Option<&str>) -> anyhow::Result<Metadata> {
    admin.inner().fetch_metadata(topic, KAFKA_WITHIN).context("no Kafka broker answers")
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(KAFKA_WITHIN)).operation_timeout(Some(KAFKA_WITHIN))
}

/// True if the topic is new, false if it was there.
async fn create_one(admin: &Admin, topic: &Topic) -> anyhow::Result<bool> {
    let mut new = NewTopic::new(&topic.name, topic.partitions, TopicReplication::Fixed(topic.replication));
    for (name, value) in &topic.settings {
        new = new.set(name, value);
    }
    let results = admin.create_topics([&new], &options()).await.context("no Kafka broker answers")?;
    match results.into_iter().next() {
        Some(Ok(_)) => Ok(true),
        Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(false),
        Some(Err((name, code))) => bail!("Kafka does not create topic {name}: {code}"),
        None => bail!("Kafka gave no answer about topic {}", topic.name),
    }
}

/// What the topic is like. A new topic may be unknown to the asked broker for a moment.
async fn look(admin: &Admin, topic: &Topic) -> anyhow::Result<Found> {
    let mut backoff = usage_service::retry::Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
    let (partitions, replication) = loop {
        let metadata = metadata(admin, Some(&topic.name))?;
        let found =
            metadata.topics().iter().find(|found| found.name() == topic.name && found.error().is_none());
        let found = found.filter(|found| !found.partitions().is_empty());
        if let Some(found) = found {
            let replicas = found.partitions().iter().map(|partition| partition.replicas().len()).min();
            break (found.partitions().len(), replicas.unwrap_or_default());
        }
        if backoff.attempts() > 30 {
            bail!("Kafka does not know topic {} although it created it", topic.name);
        }
        tokio::time::sleep(backoff.next()).await;
    };
    let described = admin.describe_configs([&ResourceSpecifier::Topic(&topic.name)], &options()).await?;
    let resource = described.into_iter().next().context("Kafka gave no answer")?.map_err(|code| {
        anyhow::anyhow!("Kafka does not tell the settings of topic {}: {code}", topic.name)
    })?;
    let setting = |name: &str| resource.get(name).and_then(|entry| entry.value.clone());
    Ok(Found {
        partitions: i32::try_from(partitions).unwrap_or(i32::MAX),
        replication: i32::try_from(replication).unwrap_or(i32::MAX),
        settings: topic.settings.iter().map(|(name, _)| (*name, setting(name))).collect(),
    })
}
