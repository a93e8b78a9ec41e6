//! What went wrong elsewhere, as inputs here.

mod support;

use support::lanes::SETTINGS;
use support::workload::Workload;
use support::{Message, Pipeline, Process, Servers, Totals, eventually, logs};
use usage_devstack::ClickHouse;
use usage_schemas::{Timestamp, UsageRecord};
use uuid::Uuid;

const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_5_one_worker_becomes_four_and_the_lag_falls_to_nothing() {
    logs();
    let pipeline = Pipeline::start(8).await;
    let mut workload = Workload::new(&pipeline, 5);
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(Process::start(&pipeline, &SETTINGS));
        workload.send(&pipeline, 400).await;
        pipeline.settled().await;
    }
    let all_hold = || async { workers.iter().all(|worker| worker.log_contains("partition taken over")) };
    eventually("each holds a partition", all_hold).await;
    for worker in workers {
        worker.stop().await;
    }
    workload.check(&pipeline, "after all").await;
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_32_the_first_message_fails_and_schemas_change_while_it_consumes() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = pipeline.tenant_of(0);
    let mut broken = pipeline.message(&pipeline.record(tenant, "broken", 1));
    broken.value = Some(vec![0xc3]);
    pipeline.send(&[broken]).await;
    let worker = Process::start(&pipeline, &SETTINGS);
    pipeline.settled().await;
    // Statements that either database has prepared meet other columns.
    for round in 0..3 {
        let records: Vec<_> =
            (0..50).map(|i| pipeline.record(tenant, &format!("key-{round}-{i}"), 1)).collect();
        pipeline.send_records(&records).await;
        let column = format!("added_{round}");
        let alter = format!("ALTER TABLE usage_records ADD COLUMN {column} UInt8 DEFAULT 7");
        pipeline.maintenance().query(&alter).execute().await.unwrap();
        for table in ["consumer_progress", "usage_types", "source_keys"] {
            pipeline
                .database
                .execute(&format!("ALTER TABLE {table} ADD COLUMN {column} integer DEFAULT 7"))
                .await;
        }
        // A type that is not known yet makes it read the registry.
        let mut unheard = pipeline.record(tenant, &format!("unheard-{round}"), 1);
        unheard.metric = "llm.unheard".into();
        pipeline.send_records(&[unheard]).await;
        pipeline.settled().await;
    }
    worker.stop().await;
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(150, 150));
    assert_eq!(pipeline.dead_letters().await.len(), 4);
    pipeline.end().await;
}

/// Times on both sides of an edge of a day and a month: the identity has no time in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_69_a_retry_with_a_time_over_the_edge_of_a_period_counts_once() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = pipeline.tenant_of(0);
    // 2026-01-31T23:59:59Z and two seconds later.
    let edge = 1_769_903_999_000_000;
    let at = |micros: i64| {
        let mut record = pipeline.record(tenant, "once", 5);
        record.timestamp = Timestamp::from_micros(micros);
        record
    };
    pipeline.send_records(&[at(edge), at(edge + 2_000_000), at(edge)]).await;
    let worker = pipeline.worker(&[]);
    pipeline.settled().await;
    pipeline.send_records(&[at(edge + 2_000_000), at(edge)]).await;
    pipeline.settled().await;
    worker.stop().await;
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(1, 5));
    assert_eq!(pipeline.stored(tenant).await[0].timestamp, edge);
    let letters = pipeline.dead_letters().await;
    let found: Vec<_> =
        letters.iter().map(|letter| (letter.reason(), letter.dlq["dlq-offset"].as_str())).collect();
    assert_eq!(found, [("conflict", "1"), ("conflict", "3")]);
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_91_records_of_a_source_far_behind_are_counted_and_of_one_ahead_are_named() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = pipeline.tenant_of(0);
    let shifted = |key: &str, micros: i64| {
        let mut record = pipeline.record(tenant, key, 1);
        record.timestamp = Timestamp::from_micros(record.timestamp.micros() + micros);
        record
    };
    let late: Vec<UsageRecord> =
        [27 * HOUR, 40 * DAY, 400 * DAY].iter().map(|age| shifted(&age.to_string(), -age)).collect();
    pipeline.send_records(&late).await;
    pipeline.send_records(&[shifted("soon", 4 * 60_000_000), shifted("ahead", 10 * 60_000_000)]).await;
    let worker = pipeline.worker(&[]);
    pipeline.settled().await;
    worker.stop().await;
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(4, 4));
    let letters = pipeline.dead_letters().await;
    assert_eq!(letters.iter().map(|letter| letter.reason()).collect::<Vec<_>>(), ["in_future"]);
    pipeline.end().await;
}

/// A new version of the schema, and a symbol that its enum did not have, between messages of the known one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_95_two_schema_versions_interleaved_stop_nobody() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = pipeline.tenant_of(0);
    let known = |i: usize| pipeline.message(&pipeline.record(tenant, &format!("key-{i}"), 1));
    let newer = |i: usize| {
        let mut message = known(i);
        message.value.as_mut().unwrap()[9] ^= 0xff;
        message
    };
    // Signed by its source as it is: only the symbol is unknown.
    let unknown_symbol = |i: usize| {
        let record = pipeline.record(tenant, &format!("key-{i}"), 1);
        let mut value = pipeline.message(&record).value.unwrap();
        // Frame, two UUIDs and two texts of one length byte each come before the enum.
        let symbol = 10 + 16 + 16 + 1 + record.source.len() + 1 + record.metric.len();
        assert_eq!(value[symbol], 0, "counter");
        value[symbol] = 2 << 1;
        pipeline.signed(tenant, value)
    };
    let messages: Vec<Message> = (0..60)
        .map(|i| match i % 3 {
            0 => known(i),
            1 => newer(i),
            _ => unknown_symbol(i),
        })
        .collect();
    pipeline.send(&messages).await;
    let worker = Process::start(&pipeline, &[]);
    pipeline.settled().await;
    // The same one goes on with what it knows.
    pipeline.send(&[known(60)]).await;
    pipeline.settled().await;
    worker.stop().await;
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(21, 21));
    let letters = pipeline.dead_letters().await;
    let of = |reason: &str| letters.iter().filter(|letter| letter.reason() == reason).count();
    assert_eq!((of("unknown_schema"), of("undecodable"), letters.len()), (20, 20, 40));
    pipeline.end().await;
}

/// Storage stands still while 576 MB lie in the log: what the worker takes in does not depend on that. Its 40 partitions hold one message of
/// 0.9 MB each, more than the budget; measured: some 300 MB with what is fetched, encoded and sent of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_103_a_storage_that_stands_still_does_not_fill_the_workers_memory() {
    logs();
    let dir = tempfile::tempdir().unwrap();
    let clickhouse = ClickHouse::start(dir.path()).unwrap();
    let servers = Servers { clickhouse: clickhouse.url(), ..Servers::shared() };
    let pipeline = Pipeline::on(&servers, 40).await;
    let tenants: Vec<Uuid> = (0..40).map(|partition| pipeline.tenant_of(partition)).collect();
    let settings = [
        "consumer.budget_bytes=16MiB",
        "consumer.batch_bytes=2MiB",
        "consumer.metadata_bytes=1MiB",
        "consumer.session_timeout=60s",
        "clickhouse.write_timeout=1s",
    ];
    let worker = Process::start(&pipeline, &settings);
    eventually("it holds all partitions", || async { worker.log_count("partition taken over") == 40 }).await;
    let idle = worker.peak_bytes();
    clickhouse.pause();
    for round in 0..16 {
        let large = |tenant: &Uuid| {
            let mut record = pipeline.record(*tenant, &format!("key-{round}"), 1);
            record.metadata = Some(format!("{{\"x\":\"{}\"}}", "y".repeat(900_000)));
            pipeline.message(&record)
        };
        pipeline.send(&tenants.iter().map(large).collect::<Vec<_>>()).await;
    }
    eventually("writes have failed", || async { worker.log_contains("batch is cared for alone") }).await;
    let peak = worker.peak_bytes();
    assert!(peak < idle + (400 << 20), "{} MiB, {} before", peak >> 20, idle >> 20);
    clickhouse.resume();
    pipeline.settled().await;
    worker.stop().await;
    assert_eq!(pipeline.stored_rows().await, 640);
    assert_eq!(pipeline.dead_letters().await, []);
    pipeline.end().await;
    clickhouse.stop().unwrap();
}
