//! The consumer group: nobody may be in it, and its offsets are set as `kafka-consumer-groups --reset-offsets` sets them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use usage_service::config::KafkaConfig;

use super::plan::{Log, Reset};

const KAFKA_WITHIN: Duration = Duration::from_secs(30);

pub(super) struct Group {
    consumer: Arc<BaseConsumer>,
    topic: String,
    name: String,
}

impl Group {
    pub(super) fn connect(kafka: &KafkaConfig, name: &str) -> anyhow::Result<Self> {
        let mut client = ClientConfig::new();
        for (name, value) in kafka.client_properties() {
            client.set(name, value);
        }
        client.set("group.id", name).set("enable.auto.commit", "false");
        let consumer = client.create().context("the settings of section kafka are not valid")?;
        Ok(Self { consumer: Arc::new(consumer), topic: kafka.records_topic.clone(), name: name.into() })
    }

    pub(super) async fn refuse_members(&self) -> anyhow::Result<()> {
        let name = self.name.clone();
        let members = self
            .blocking(move |consumer| {
                let groups = consumer.fetch_group_list(Some(&name), KAFKA_WITHIN)?;
                Ok(groups.groups().iter().map(|group| group.members().len()).sum::<usize>())
            })
            .await?;
        if members > 0 {
            bail!("group {} has {members} members: stop all consumers first", self.name);
        }
        Ok(())
    }

    pub(super) async fn log_bounds(&self, partitions: i32) -> anyhow::Result<Vec<Log>> {
        let topic = self.topic.clone();
        self.blocking(move |consumer| {
            let bounds = |partition| {
                let (low, high) = consumer.fetch_watermarks(&topic, partition, KAFKA_WITHIN)?;
                Ok(Log { partition, low, high })
            };
            (0..partitions).map(bounds).collect()
        })
        .await
    }

    /// Sets the offsets without metadata, which clears the plans. The broker takes this only while the group is empty.
    pub(super) async fn reset(&self, resets: &[Reset]) -> anyhow::Result<()> {
        let mut list = TopicPartitionList::with_capacity(resets.len());
        for reset in resets {
            list.add_partition_offset(&self.topic, reset.partition, Offset::Offset(reset.offset))?;
        }
        let name = self.name.clone();
        self.blocking(move |consumer| consumer.commit(&list, CommitMode::Sync)).await.with_context(|| {
            format!("the offsets of group {name} can't be set: is a consumer running? Then stop it and run this again")
        })
    }

    async fn blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&BaseConsumer) -> rdkafka::error::KafkaResult<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let consumer = Arc::clone(&self.consumer);
        Ok(tokio::task::spawn_blocking(move || call(&consumer)).await??)
    }
}
