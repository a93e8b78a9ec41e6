//! Records from Kafka to storage on real servers.

mod support;

use support::{Pipeline, eventually, logs};
use uuid::Uuid;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_record_arrives_and_is_committed() {
    logs();
    let pipeline = Pipeline::start(3).await;
    let tenant = Uuid::new_v4();
    let record = pipeline.record(tenant, "a", 7);
    let partition = pipeline.message(&record).partition;
    let offsets = pipeline.send_records(std::slice::from_ref(&record)).await;
    let worker = pipeline.worker(&[]);
    eventually("the record is stored", || async { pipeline.stored(tenant).await.len() == 1 }).await;
    let stored = pipeline.stored(tenant).await.remove(0);
    assert_eq!(stored.record_id, record.record_id);
    assert_eq!((stored.value, stored.timestamp), (record.value, record.timestamp.micros()));
    assert_eq!(stored.metadata, record.metadata);
    let done = (offsets[0] + 1, "d1;1".to_string());
    eventually("the commit says that nothing is in hand", || async {
        pipeline.committed(partition).await.as_ref() == Some(&done)
    })
    .await;
    worker.ready().await;
    worker.stop().await;
    pipeline.end().await;
}
