use std::collections::BTreeSet;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::OwnedHeaders;
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{Message as _, Offset, TopicPartitionList};

use super::*;

const TOPIC: &str = "records";
const WITHIN: Duration = Duration::from_secs(20);

fn message(text: &str) -> Message<'static> {
    Message { key: "k".into(), value: text.as_bytes().to_vec().into(), headers: OwnedHeaders::new() }
}

/// What the mock cluster has stored.
fn stored(brokers: &str, count: usize) -> BTreeSet<i64> {
    let consumer: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", brokers).set("group.id", "g").create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(TOPIC, 0, Offset::Beginning).unwrap();
    consumer.assign(&list).unwrap();
    let mut ids = BTreeSet::new();
    while ids.len() < count {
        let Some(message) = consumer.poll(Duration::from_secs(3)) else { break };
        ids.insert(String::from_utf8(message.unwrap().payload().unwrap().into()).unwrap().parse().unwrap());
    }
    ids
}

/// librdkafka takes a batch for delivered whose successor was, also if the broker had refused it: with two requests on their way, the
/// first refused and the second taken, it reports both as delivered. A partition that has just got its leader does that to a new producer,
/// since it takes any first sequence number. Rows would be deleted that are nowhere.
#[tokio::test]
async fn what_is_reported_as_delivered_is_stored() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, 2, 1).unwrap();
    let brokers = cluster.bootstrap_servers();
    let kafka = KafkaConfig { records_topic: TOPIC.into(), ..KafkaConfig::plaintext(brokers.as_str()) };
    let settings = RelaySettings { linger: Duration::ZERO, ..RelaySettings::default() };
    let sender = Sender::new(&kafka, &settings).unwrap();
    let (reports, mut reported) = mpsc::unbounded_channel();
    // The producer is connected and has its id once a message to another partition has arrived.
    let ticket = Ticket { id: -1, serial: 1, reports: reports.clone() };
    sender.send(message("-1"), 1, Via::Batch, ticket).await.unwrap();
    tokio::time::timeout(WITHIN, reported.recv()).await.unwrap().unwrap();
    // Long enough for the second request to leave before the answer to the first one.
    cluster.broker_round_trip_time(1, Duration::from_millis(300)).unwrap();
    cluster
        .request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART]);
    for id in 0..6 {
        let ticket = Ticket { id, serial: 1, reports: reports.clone() };
        sender.send(message(&id.to_string()), 0, Via::Batch, ticket).await.unwrap();
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    let mut delivered = BTreeSet::new();
    for _ in 0..6 {
        let report = tokio::time::timeout(WITHIN, reported.recv()).await.unwrap().unwrap();
        assert_eq!(report.outcome, Ok(()));
        delivered.insert(report.id);
    }
    assert_eq!(tokio::task::spawn_blocking(move || stored(&brokers, 6)).await.unwrap(), delivered);
}
