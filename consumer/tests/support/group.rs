//! The group's offsets, as its coordinator has them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use usage_schemas::names::RECORDS_MESSAGE_BYTES;

use super::{Message, Pipeline, WITHIN, create_topics, eventually};

impl Pipeline {
    /// Committed offset and metadata of a partition.
    pub async fn committed(&self, partition: i32) -> Option<(i64, String)> {
        let (brokers, topic, group) = (self.brokers.clone(), self.topic.clone(), self.group.clone());
        let read = move || {
            let consumer = group_consumer(&brokers, &group);
            let mut list = TopicPartitionList::new();
            list.add_partition(&topic, partition);
            let list = committed(&consumer, &list);
            let elements = list.elements();
            match elements[0].offset() {
                Offset::Offset(offset) => Some((offset, elements[0].metadata().to_string())),
                _ => None,
            }
        };
        tokio::task::spawn_blocking(read).await.expect("no panic")
    }

    /// Waits until the messages at these offsets are done and nothing is in hand.
    pub async fn all_done(&self, messages: &[Message], offsets: &[i64]) {
        let mut last = BTreeMap::new();
        for (message, offset) in messages.iter().zip(offsets) {
            last.insert(message.partition, *offset);
        }
        for (partition, offset) in last {
            eventually("everything is done", || async {
                self.committed(partition)
                    .await
                    .is_some_and(|(next, text)| next > offset && text.starts_with("d1;"))
            })
            .await;
        }
    }

    /// Committed offsets of all partitions, -1 where there is none, once the group has done everything that is in the log and has
    /// nothing in hand.
    pub async fn settled(&self) -> Vec<i64> {
        let consumer = Arc::new(group_consumer(&self.brokers, &self.group));
        eventually("everything in the log is done", || async {
            let (consumer, topic, partitions) = (consumer.clone(), self.topic.clone(), self.partitions);
            tokio::task::spawn_blocking(move || is_settled(&consumer, &topic, partitions))
                .await
                .expect("no panic")
        })
        .await;
        self.offsets().await
    }

    /// Committed offsets of all partitions, -1 where there is none.
    pub async fn offsets(&self) -> Vec<i64> {
        let mut offsets = Vec::new();
        for partition in 0..self.partitions {
            offsets.push(self.committed(partition).await.map_or(-1, |(offset, _)| offset));
        }
        offsets
    }

    /// Runs Kafka's own `kafka-consumer-groups` on the group.
    pub async fn group_tool(&self, arguments: &[&str]) {
        let class = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand";
        let mut command = usage_devstack::testing::kafka_tool(class).expect("kafka's tools are installed");
        command.args(["--bootstrap-server", &self.brokers, "--group", &self.group]).args(arguments);
        let output =
            tokio::task::spawn_blocking(move || command.output()).await.expect("no panic").expect("it runs");
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !text.contains("Error"), "{text}");
    }

    /// Deletes the topic of records and makes it again.
    pub async fn make_anew(&self) {
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", &self.brokers).create().expect("an admin client");
        let deleted = admin.delete_topics(&[&self.topic], &AdminOptions::new()).await.expect("kafka answers");
        deleted.into_iter().for_each(|result| drop(result.expect("the topic is deleted")));
        create_topics(&self.brokers, &[(&self.topic, RECORDS_MESSAGE_BYTES)], self.partitions).await;
    }

    /// Commits for the group while none of its members lives, as an operator or a dead worker did.
    pub async fn commit(&self, partition: i32, offset: i64, metadata: &str) {
        let (brokers, topic, group) = (self.brokers.clone(), self.topic.clone(), self.group.clone());
        let metadata = metadata.to_string();
        let write = move || {
            let consumer = group_consumer(&brokers, &group);
            let mut list = TopicPartitionList::new();
            {
                let mut element = list.add_partition(&topic, partition);
                element.set_offset(Offset::Offset(offset)).expect("an offset");
                element.set_metadata(&metadata);
            }
            consumer
                .commit(&list, rdkafka::consumer::CommitMode::Sync)
                .expect("the empty group takes a commit");
        };
        tokio::task::spawn_blocking(write).await.expect("no panic");
    }
}

/// What the group has committed. A coordinator that has just been elected, or loads, refuses for a moment (NotCoordinator).
fn committed(consumer: &BaseConsumer, partitions: &TopicPartitionList) -> TopicPartitionList {
    let started = Instant::now();
    loop {
        match consumer.committed_offsets(partitions.clone(), WITHIN) {
            Ok(list) => return list,
            Err(error) if started.elapsed() > WITHIN => panic!("the group does not answer: {error}"),
            // Serves the client's own events, the new coordinator among them.
            Err(_) => drop(consumer.poll(Duration::from_millis(50))),
        }
    }
}

/// The ends of the logs are read after the commits: what a commit has passed may have been forwarded before.
fn is_settled(consumer: &BaseConsumer, topic: &str, partitions: i32) -> bool {
    let mut list = TopicPartitionList::new();
    (0..partitions).for_each(|partition| {
        list.add_partition(topic, partition);
    });
    let list = committed(consumer, &list);
    list.elements().iter().all(|element| {
        // A broker that has just come back, or a topic that was just made, is asked again.
        let Ok((_, end)) = consumer.fetch_watermarks(topic, element.partition(), WITHIN) else {
            return false;
        };
        end == 0 || (element.offset() == Offset::Offset(end) && element.metadata().starts_with("d1;"))
    })
}

fn group_consumer(brokers: &str, group: &str) -> BaseConsumer {
    ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .create()
        .expect("a consumer")
}
