//! How fast batches go into ClickHouse: `cargo run --release -p usage-storage --example write_speed -- [rows per batch] [batches]`.
//! Needs `USAGE_CLICKHOUSE_URL`; makes a database of its own and drops it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use usage_schemas::{Kind, Quantity, RecordRef, Timestamp};
use usage_storage::clickhouse::{ClickHouseConfig, ClickHouseStorage};
use usage_storage::{PlannedBatch, Rows, Storage};
use uuid::Uuid;

/// 2026-11-10T00:00:00Z.
const START: i64 = 1_794_268_800_000_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let rows: usize = arguments.next().unwrap_or(100_000);
    let batches: usize = arguments.next().unwrap_or(10);
    let url = std::env::var("USAGE_CLICKHOUSE_URL")?;
    let database = format!("bench_{}", Uuid::new_v4().simple());
    let mut config = ClickHouseConfig::new(&url, &database).with_dev_passwords();
    config.flush_age = Duration::ZERO;
    let storage = ClickHouseStorage::connect(config);
    storage.migrate().await?;
    let writer = storage.writer();
    writer.open(0).await?;
    writer.recover(0).await?;
    let mut rng = StdRng::seed_from_u64(1);
    let tenants: Vec<Uuid> = (0..200).map(|_| Uuid::from_u128(rng.random())).collect();
    let (mut writing, mut flushing) = (Duration::ZERO, Duration::ZERO);
    for batch_seq in 1..=batches {
        let batch = Arc::new(PlannedBatch {
            partition: 0,
            batch_seq: i64::try_from(batch_seq)?,
            rows: fill(&mut rng, &tenants, rows, batch_seq),
        });
        let started = Instant::now();
        writer.write(&[batch]).await?;
        let wrote = started.elapsed();
        writer.tick(&[0]).await?;
        writing += wrote;
        flushing += started.elapsed() - wrote;
    }
    let total = (rows * batches) as u128 * 1_000_000;
    println!("{batches} batches of {rows} rows");
    println!(
        "write  {writing:>10.1?}  {:>9} rows/s (encode, compress, insert, fold)",
        total / writing.as_micros()
    );
    println!("flush  {flushing:>10.1?}  {:>9} rows/s", total / flushing.as_micros());
    clickhouse::Client::default()
        .with_url(&url)
        .query(&format!("DROP DATABASE {database} SYNC"))
        .execute()
        .await?;
    Ok(())
}

fn fill(rng: &mut StdRng, tenants: &[Uuid], count: usize, batch: usize) -> Rows {
    let mut rows = Rows::default();
    let from = START + batch as i64 * 60_000_000;
    for i in 0..count {
        let metric = format!("llm.tokens.{}", rng.random_range(0..10));
        let key = format!("request-{batch}-{i}");
        let metadata = format!(r#"{{"model":"gpt-{}","region":"eu-1"}}"#, i % 7);
        let record = RecordRef {
            record_id: Uuid::from_u128(rng.random()),
            tenant_id: tenants[rng.random_range(0..tenants.len())],
            source: "llm-gateway",
            metric: &metric,
            kind: Kind::Counter,
            value: Quantity::from_unscaled(rng.random_range(1..5000) * 1_000_000_000_000_000_000)
                .expect("in range"),
            timestamp: Timestamp::from_micros(from + rng.random_range(0..60_000_000)),
            idempotency_key: Some(&key),
            resource_id: Some(tenants[i % 100]),
            resource_type: Some("deployment"),
            subject_id: None,
            subject_type: None,
            metadata: Some(&metadata),
        };
        rows.push(&record, rng.random(), i as i64, from);
    }
    rows
}
