//! How fast a backlog drains, on one worker: `cargo test --release -p usage-consumer --test drain -- --ignored --nocapture`.

mod support;

use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};
use support::{Pipeline, Process, Totals, logs};
use uuid::Uuid;

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: needs a release build and a quiet machine"]
async fn a_backlog_drains() {
    logs();
    let records = setting("DRAIN_RECORDS", 3_000_000);
    let tenants = setting("DRAIN_TENANTS", 200);
    let pipeline = Pipeline::start(12).await;
    let tenants: Vec<Uuid> = (0..tenants).map(|_| Uuid::new_v4()).collect();
    let each = records / tenants.len();
    produce(&pipeline, &tenants, each);

    let more = std::env::var("DRAIN_SET").unwrap_or_default();
    let more: Vec<&str> = more.split_whitespace().collect();
    let started = Instant::now();
    let worker = Process::start(&pipeline, &more);
    println!("log: {}", worker.log.display());
    let mut first = None;
    let all = (each * tenants.len()) as u64;
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let stored = pipeline.stored_rows().await;
        if stored > 0 {
            first.get_or_insert((Instant::now(), stored));
        }
        assert!(started.elapsed() < Duration::from_secs(600), "see {}", worker.log.display());
        if stored == all {
            break;
        }
    }
    let (at, before) = first.expect("rows were stored");
    let seconds = at.elapsed().as_millis() as u64;
    println!(
        "{all} records in {:?} from start, {} records/s after the first batch; {}",
        started.elapsed(),
        (all - before) * 1_000 / seconds.max(1),
        worker.usage()
    );
    worker.stop().await;
    let expected = Totals::exactly(each as u64, (1..=each as i64).sum());
    for tenant in &tenants[..5] {
        assert_eq!(pipeline.totals(*tenant).await, expected);
    }
    pipeline.end().await;
}

fn produce(pipeline: &Pipeline, tenants: &[Uuid], each: usize) {
    let producer: ThreadedProducer<rdkafka::producer::DefaultProducerContext> = ClientConfig::new()
        .set("bootstrap.servers", &pipeline.brokers)
        .set("linger.ms", "20")
        .set("batch.size", "1000000")
        .set("compression.type", "lz4")
        .set("queue.buffering.max.messages", "500000")
        .create()
        .expect("a producer");
    for i in 0..each {
        for tenant in tenants {
            let message = pipeline.message(&pipeline.record(*tenant, &format!("key-{i}"), 1 + i as i64));
            let headers = || {
                message.headers.iter().fold(OwnedHeaders::new(), |all, (key, value)| {
                    all.insert(Header { key, value: Some(value) })
                })
            };
            let (key, value) = (message.key.clone().unwrap(), message.value.clone().unwrap());
            let mut record =
                BaseRecord::to(&pipeline.topic).partition(message.partition).key(&key).payload(&value);
            record = record.headers(headers());
            while let Err((error, back)) = producer.send(record) {
                assert!(error.to_string().contains("Queue full"), "{error}");
                producer.flush(Duration::from_secs(1)).ok();
                record = back;
            }
        }
    }
    producer.flush(Duration::from_secs(120)).expect("everything is acknowledged");
}
