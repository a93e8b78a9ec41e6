//! Growing the topic, step by step as `usagectl topics grow` does it.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::Producer as _;
use usage_devstack::testing::kafka_tool;
use usage_storage::Storage as _;

use super::{Pipeline, eventually};

impl Pipeline {
    /// An operator adds partitions with Kafka's own tool, to the topic of records only.
    pub async fn alter_by_hand(&self, partitions: i32) {
        let mut tool = kafka_tool("org.apache.kafka.tools.TopicCommand").expect("kafka is installed");
        tool.args(["--bootstrap-server", &self.brokers, "--alter", "--topic", &self.topic]);
        tool.args(["--partitions", &partitions.to_string()]);
        let output = tokio::task::spawn_blocking(move || tool.output()).await.expect("no panic");
        let output = output.expect("the tool runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        eventually("the partitions are there", || async { self.partitions_in_kafka().await == partitions })
            .await;
    }

    /// More partitions of both topics in Kafka.
    pub async fn alter(&self, partitions: i32) {
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", &self.brokers).create().expect("an admin client");
        let count = usize::try_from(partitions).expect("a count");
        let wanted = [&self.topic, &self.dead_letters].map(|topic| NewPartitions::new(topic, count));
        let results = admin.create_partitions(&wanted, &AdminOptions::new()).await.expect("kafka answers");
        for result in results {
            result.expect("the partitions are added");
        }
        eventually("the partitions are there", || async { self.partitions_in_kafka().await == partitions })
            .await;
    }

    /// As the test's producer sees it, which so learns of new ones.
    async fn partitions_in_kafka(&self) -> i32 {
        let (producer, topic) = (self.producer.clone(), self.topic.clone());
        let look = move || {
            let within = Duration::from_secs(10);
            let metadata = producer.client().fetch_metadata(Some(&topic), within).expect("kafka answers");
            let partitions = metadata.topics()[0].partitions();
            partitions.iter().filter(|partition| partition.leader() >= 0).count() as i32
        };
        tokio::task::spawn_blocking(look).await.expect("no panic")
    }

    /// The offset behind the last message of a partition.
    pub async fn end_of(&self, partition: i32) -> i64 {
        let (producer, topic) = (self.producer.clone(), self.topic.clone());
        let look = move || {
            let within = Duration::from_secs(10);
            producer.client().fetch_watermarks(&topic, partition, within).expect("kafka answers").1
        };
        tokio::task::spawn_blocking(look).await.expect("no panic")
    }

    /// Grows the topic; there are no readers to be waited for. Producers of the test go on by the count that they knew.
    pub async fn grow(&self, partitions: i32) {
        let in_kafka = self.partitions_in_kafka().await;
        self.control.announce_partitions(partitions, in_kafka).await.expect("the count is listed");
        if in_kafka < partitions {
            self.alter(partitions).await;
        }
        assert!(self.control.begin_growing(partitions).await.expect("it is marked"));
        let all: Vec<i32> = (0..partitions).collect();
        self.storage.writer().fence(&all).await.expect("all are fenced");
        assert!(self.control.end_growing(partitions).await.expect("it is recorded"));
    }
}
