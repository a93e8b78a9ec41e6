//! Messages as large as the topics take, and larger: none of them stops its partition.

mod support;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{FutureProducer, FutureRecord};
use sha2::{Digest, Sha256};
use support::{DeadLetter, Message, Pipeline, WITHIN, eventually, logs};
use usage_consumer::startup::{self, NotReady};
use uuid::Uuid;

/// Sets a topic's greatest message.
async fn bound(pipeline: &Pipeline, topic: &str, bytes: &str) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &pipeline.brokers).create().unwrap();
    // What is not named falls back to the broker's default.
    let change = AlterConfig::new(ResourceSpecifier::Topic(topic))
        .set("message.timestamp.type", "LogAppendTime")
        .set("cleanup.policy", "delete")
        .set("max.message.bytes", bytes);
    for result in admin.alter_configs(&[change], &AdminOptions::new()).await.unwrap() {
        result.unwrap();
    }
    // The controller has it; the broker that judges messages by it hears of it a moment later.
    eventually("the broker knows the bound", || async {
        let asked = [ResourceSpecifier::Topic(topic)];
        let shown = admin.describe_configs(&asked, &AdminOptions::new()).await.unwrap().remove(0).unwrap();
        shown.get("max.message.bytes").and_then(|entry| entry.value.as_deref()) == Some(bytes)
    })
    .await;
}

/// Writes a value of zeros that is small on the wire.
async fn send_compressed(pipeline: &Pipeline, bytes: usize) {
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", &pipeline.brokers)
        .set("compression.type", "zstd")
        .set("message.max.bytes", "100000000")
        .create()
        .unwrap();
    let value = vec![0; bytes];
    let record = FutureRecord::<[u8], _>::to(&pipeline.topic).partition(0).payload(&value);
    producer.send(record, WITHIN).await.map_err(|(error, _)| error).unwrap();
}

/// A message that nobody can read and no compression makes smaller.
fn noise(bytes: usize) -> Message {
    let value = (0..bytes.div_ceil(16)).flat_map(|_| Uuid::new_v4().into_bytes()).collect();
    Message { partition: 0, key: Some(b"k".to_vec()), value: Some(value), headers: Vec::new() }
}

/// Waits for what comes behind everything else, then gives all dead letters.
async fn letters(pipeline: &Pipeline) -> Vec<DeadLetter> {
    let tenant = pipeline.tenant_of(0);
    pipeline.send_records(&[pipeline.record(tenant, "last", 1)]).await;
    eventually("the partition goes on", || async { pipeline.stored(tenant).await.len() == 1 }).await;
    pipeline.dead_letters().await
}

fn truncated(letter: &DeadLetter) -> (Option<&str>, Option<&str>) {
    (letter.dlq.get("dlq-truncated").map(String::as_str), letter.dlq.get("dlq-sha256").map(String::as_str))
}

fn sha256(value: &[u8]) -> String {
    Sha256::digest(value).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_that_was_small_only_on_the_wire_is_a_letter_like_any_other() {
    logs();
    let pipeline = Pipeline::start(1).await;
    send_compressed(&pipeline, 3_000_000).await;
    let worker = pipeline.worker(&[]);
    let letters = letters(&pipeline).await;
    worker.stop().await;
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].reason(), truncated(&letters[0])), ("undecodable", (None, None)));
    assert_eq!(letters[0].value, Some(vec![0; 3_000_000]));
    pipeline.end().await;
}

/// One is too large for the client, one only for the broker, which refuses it together with small ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_what_no_topic_takes_the_place_is_kept_and_the_partition_goes_on() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let worker = pipeline.worker(&[]);
    worker.ready().await;
    bound(&pipeline, &pipeline.dead_letters, "3000").await;
    send_compressed(&pipeline, 17 << 20).await;
    let messages = [noise(160), noise(10_000), noise(320)];
    pipeline.send(&messages).await;
    let letters = letters(&pipeline).await;
    worker.stop().await;

    let mut letters: Vec<(usize, DeadLetter)> =
        letters.into_iter().map(|letter| (letter.dlq["dlq-offset"].parse().unwrap(), letter)).collect();
    letters.sort_by_key(|(offset, _)| *offset);
    letters.dedup_by_key(|(offset, _)| *offset);
    assert_eq!(letters.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(letters.iter().all(|(_, letter)| letter.reason() == "undecodable"));
    for (at, value) in [(0, &vec![0; 17 << 20]), (2, messages[1].value.as_ref().unwrap())] {
        let (letter, bytes, hash) = (&letters[at].1, value.len().to_string(), sha256(value));
        assert_eq!((&letter.value, truncated(letter)), (&None, (Some(&*bytes), Some(&*hash))));
        assert_eq!(letter.dlq["dlq-topic"], pipeline.topic);
    }
    for (at, message) in [(1, &messages[0]), (3, &messages[2])] {
        let letter = &letters[at].1;
        assert_eq!((&letter.value, truncated(letter)), (&message.value, (None, None)));
    }
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_too_large_to_be_forwarded_is_a_letter() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let mut record = pipeline.record(pipeline.tenant_of(1), "a", 1);
    let noise: String = (0..120).map(|_| Uuid::new_v4().to_string()).collect();
    record.metadata = Some(format!("{{\"x\":\"{noise}\"}}"));
    let astray = Message { partition: 0, ..pipeline.message(&record) };
    // It was sent while the topic still took it.
    pipeline.send(std::slice::from_ref(&astray)).await;
    bound(&pipeline, &pipeline.topic, "2000").await;
    let worker = pipeline.worker(&[]);
    let letters = letters(&pipeline).await;
    worker.stop().await;
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].reason(), truncated(&letters[0])), ("wrong_partition", (None, None)));
    assert_eq!((&letters[0].value, &letters[0].headers), (&astray.value, &astray.headers));
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_consumer_does_not_start_on_topics_whose_letters_may_not_fit() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let config = pipeline.config(&[]);
    let refused = async || match startup::check(&config, &*pipeline.storage, &pipeline.control).await {
        Err(NotReady::Setting { topic, setting, found, .. }) => Some((topic, setting, found)),
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    };
    assert_eq!(refused().await, None);
    for (topic, bad, good) in
        [(&pipeline.topic, "8388609", "8388608"), (&pipeline.dead_letters, "16777215", "16777216")]
    {
        bound(&pipeline, topic, bad).await;
        let expected = (topic.clone(), "max.message.bytes", bad.to_string());
        eventually("the setting is refused", || async { refused().await.as_ref() == Some(&expected) }).await;
        bound(&pipeline, topic, good).await;
        eventually("the setting is taken", || async { refused().await.is_none() }).await;
    }
    pipeline.end().await;
}

/// Another group would read the log anew and take every partition from the one that is at work; another topic's offsets mean other rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_consumer_does_not_start_on_the_control_database_of_another_group_or_topic() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let check = async |more: &[&str]| {
        startup::check(&pipeline.config(more), &*pipeline.storage, &pipeline.control).await
    };
    // Who can't work claims nothing.
    assert!(matches!(check(&["kafka.dead_letters_topic=none"]).await, Err(NotReady::NoTopic(_))));
    assert!(check(&[]).await.is_ok());
    let refused = check(&[&format!("consumer.group={}-2", pipeline.group)]).await.unwrap_err();
    let said = usage_service::error_chain(&refused);
    assert!(matches!(refused, NotReady::OtherWorkers(_)) && said.contains(&pipeline.group), "{said}");
    assert!(check(&[]).await.is_ok());
    pipeline.end().await;
}
