//! A dependency that is away: everything waits, nothing is lost, doubled or dead-lettered. Each test has its own server to kill.

mod support;

use support::{Message, Pipeline, Process, Servers, Totals, eventually, logs};
use usage_devstack::{ClickHouse, Kafka, Postgres};
use uuid::Uuid;

const SETTINGS: [&str; 3] =
    ["consumer.batch_rows=200", "consumer.batch_age=20ms", "clickhouse.flush_age=500ms"];

/// Messages of ten tenants, `each` records a tenant from number `from` on.
fn load(pipeline: &Pipeline, tenants: &[Uuid], from: usize, each: usize) -> Vec<Message> {
    let numbers = from..from + each;
    let one = |i| {
        tenants
            .iter()
            .map(move |tenant| pipeline.message(&pipeline.record(*tenant, &format!("key-{i}"), 1 + i as i64)))
    };
    numbers.flat_map(one).collect()
}

fn tenants() -> Vec<Uuid> {
    (0..10).map(|_| Uuid::new_v4()).collect()
}

async fn assert_exact(pipeline: &Pipeline, tenants: &[Uuid], each: usize) {
    let expected = Totals::exactly(each as u64, (1..=each as i64).sum());
    let all = (each * tenants.len()) as u64;
    eventually("everything is stored", || async { pipeline.rows(tenants).await >= all }).await;
    for tenant in tenants {
        assert_eq!(pipeline.totals(*tenant).await, expected, "tenant {tenant}");
    }
    assert_eq!(pipeline.dead_letters().await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_42_clickhouse_is_away_for_a_while() {
    logs();
    let dir = tempfile::tempdir().unwrap();
    let mut clickhouse = ClickHouse::start(dir.path()).unwrap();
    let servers = Servers { clickhouse: clickhouse.url(), ..Servers::shared() };
    let pipeline = Pipeline::on(&servers, 3).await;
    let tenants = tenants();
    let worker = Process::start(&pipeline, &SETTINGS);
    pipeline.send(&load(&pipeline, &tenants, 0, 200)).await;
    eventually("it is in the middle", || async { pipeline.rows(&tenants).await > 0 }).await;

    clickhouse.kill9();
    let offsets = pipeline.send(&load(&pipeline, &tenants, 200, 200)).await;
    let restarted = tokio::task::spawn_blocking(move || {
        // Long enough for several attempts of each batch.
        #[allow(clippy::disallowed_methods, reason = "an outage is a length of time")]
        std::thread::sleep(std::time::Duration::from_secs(4));
        clickhouse.restart().unwrap();
        clickhouse
    });
    let clickhouse = restarted.await.unwrap();
    assert!(!offsets.is_empty());
    assert_exact(&pipeline, &tenants, 400).await;

    // A frozen server answers nothing: whether a write was stored is not known until it is looked for.
    clickhouse.pause();
    pipeline.send(&load(&pipeline, &tenants, 400, 100)).await;
    eventually("the worker has tried", || async { worker.log_contains("cared for alone") }).await;
    clickhouse.resume();
    assert_exact(&pipeline, &tenants, 500).await;
    worker.stop().await;
    pipeline.end().await;
    clickhouse.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_restarted_under_load() {
    logs();
    let dir = tempfile::tempdir().unwrap();
    let mut postgres = Postgres::start(dir.path()).unwrap();
    postgres.ensure_database("usage_control").unwrap();
    let servers = Servers { control_database: postgres.url("usage_control"), ..Servers::shared() };
    let pipeline = Pipeline::on(&servers, 3).await;
    let tenants = tenants();
    let worker = Process::start(&pipeline, &SETTINGS);
    for round in 0..4 {
        let stored = pipeline.rows(&tenants).await;
        pipeline.send(&load(&pipeline, &tenants, round * 100, 100)).await;
        eventually("it is in the middle", || async { pipeline.rows(&tenants).await > stored }).await;
        if round % 2 == 0 {
            postgres.restart_immediate().unwrap();
        } else {
            postgres.kill9();
            postgres.restart().unwrap();
        }
    }
    assert_exact(&pipeline, &tenants, 400).await;
    worker.stop().await;
    pipeline.end().await;
    postgres.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_is_killed_and_comes_back() {
    logs();
    let dir = tempfile::tempdir().unwrap();
    let mut kafka = Kafka::start(dir.path()).unwrap();
    let servers = Servers { brokers: kafka.brokers(), ..Servers::shared() };
    let pipeline = Pipeline::on(&servers, 3).await;
    let tenants = tenants();
    let worker = Process::start(&pipeline, &SETTINGS);
    for round in 0..2 {
        let stored = pipeline.rows(&tenants).await;
        pipeline.send(&load(&pipeline, &tenants, round * 100, 100)).await;
        eventually("it is in the middle", || async { pipeline.rows(&tenants).await > stored }).await;
        kafka.kill9();
        kafka.restart().unwrap();
    }
    pipeline.send(&load(&pipeline, &tenants, 200, 100)).await;
    assert_exact(&pipeline, &tenants, 300).await;
    worker.stop().await;
    pipeline.end().await;
    kafka.stop().unwrap();
}
