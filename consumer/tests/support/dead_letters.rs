//! What lies in the topic of dead letters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Headers as _;
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use uuid::Uuid;

use super::WITHIN;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    /// Without those that start with `dlq-`.
    pub headers: Vec<(String, Vec<u8>)>,
    pub dlq: BTreeMap<String, String>,
}

impl DeadLetter {
    pub fn reason(&self) -> &str {
        &self.dlq["dlq-reason"]
    }

    /// Where it came from: its identity.
    pub fn origin(&self) -> (String, String) {
        (self.dlq["dlq-partition"].clone(), self.dlq["dlq-offset"].clone())
    }
}

/// Everything in the topic.
pub fn read_all(brokers: &str, topic: &str, partitions: i32) -> Vec<DeadLetter> {
    read_each(brokers, topic, partitions, letter)
}

impl super::Pipeline {
    /// The broker's times of the records of a partition, milliseconds since the Unix epoch, in the order of offsets.
    pub async fn broker_times(&self, partition: i32) -> Vec<i64> {
        let (brokers, topic, partitions) = (self.brokers.clone(), self.topic.clone(), self.partitions);
        let of = move |message: &rdkafka::message::BorrowedMessage<'_>| {
            (message.partition() == partition).then(|| message.timestamp().to_millis().expect("the broker's"))
        };
        let read = move || read_each(&brokers, &topic, partitions, of);
        tokio::task::spawn_blocking(read).await.expect("no panic").into_iter().flatten().collect()
    }
}

fn read_each<T>(
    brokers: &str,
    topic: &str,
    partitions: i32,
    each: impl Fn(&rdkafka::message::BorrowedMessage<'_>) -> T,
) -> Vec<T> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", format!("read-{}", Uuid::new_v4()))
        .set("enable.partition.eof", "true")
        .set("enable.auto.commit", "false")
        .create()
        .expect("a consumer");
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition, Offset::Beginning).expect("an offset");
    }
    consumer.assign(&list).expect("assigned");
    // An end is told again when more came meanwhile.
    let (mut letters, mut ended) = (Vec::new(), BTreeSet::new());
    let deadline = Instant::now() + WITHIN;
    while (ended.len() as i32) < partitions {
        assert!(Instant::now() < deadline, "the topic of dead letters ends");
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(message)) => letters.push(each(&message)),
            Some(Err(rdkafka::error::KafkaError::PartitionEOF(partition))) => {
                ended.insert(partition);
            }
            // What librdkafka reports beside messages it tries again by itself; the deadline decides.
            Some(Err(_)) | None => {}
        }
    }
    letters
}

fn letter(message: &rdkafka::message::BorrowedMessage<'_>) -> DeadLetter {
    let mut letter = DeadLetter {
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers: Vec::new(),
        dlq: BTreeMap::new(),
    };
    for header in message.headers().into_iter().flat_map(|headers| headers.iter()) {
        let value = header.value.unwrap_or_default().to_vec();
        if header.key.starts_with("dlq-") {
            letter.dlq.insert(header.key.into(), String::from_utf8(value).expect("text"));
        } else {
            letter.headers.push((header.key.into(), value));
        }
    }
    letter
}
