//! Plays a workload into a running stack and prints the source's own truth beside the API's answers.
//!
//! `cargo xtask demo` starts the stack and runs this; the addresses come from its environment. Exit status 1 if anything differs.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use usage_producer::{Freshness, ScopedCollector};
use usage_tests::answers::Api;
use usage_tests::pipeline::{RelayAgain, stack_api};
use usage_tests::source::{self, Work};
use usage_tests::workload::{self, Played, Workload};
use usage_tests::{report, trace};
use uuid::Uuid;

/// Everything that a demo emits lies in this range, traces of former years too.
const RANGE: (&str, &str) = ("2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z");
const PROBES: usize = 10;

#[derive(Parser)]
#[command(about = "Plays a workload and compares the API's answers with the source's own truth")]
struct Args {
    /// Play this trace of LLM requests instead of a generated workload.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// How many transactions to generate.
    #[arg(long, default_value_t = 3_000)]
    transactions: usize,
    /// How many transactions run at once.
    #[arg(long, default_value_t = 8)]
    workers: usize,
    /// How long the answers may take to become equal, in seconds.
    #[arg(long, default_value_t = 120)]
    patience: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let url = std::env::var("USAGE_SOURCE_DATABASE_URL").context("USAGE_SOURCE_DATABASE_URL is not set")?;
    let connections = u32::try_from(args.workers + 2)?;
    let pool =
        PgPoolOptions::new().max_connections(connections).connect(&url).await.context("source database")?;
    let api = stack_api()?;

    let relay = RelayAgain::start()?;
    let module = workload::collector(api.types(Freshness::default())?);
    let played = play(&pool, &module, &args).await;
    let restarts = relay.stop();
    let mut played = played?;

    let committed = Instant::now();
    let truth = source::truth(&pool).await?;
    let answers = api.settle(&truth, RANGE.0, RANGE.1, Duration::from_secs(args.patience)).await?;
    let settled = committed.elapsed();
    let mut visible = probe(&pool, &api, args.patience).await?;

    let (table, different) = report::compare(&truth, &answers);
    println!("{table}");
    print_numbers(&mut played, restarts, settled, &mut visible);
    if different > 0 {
        println!("{different} totals differ");
        return Ok(ExitCode::FAILURE);
    }
    println!("difference 0 in all {} totals", truth.len());
    Ok(ExitCode::SUCCESS)
}

async fn play(pool: &PgPool, module: &ScopedCollector, args: &Args) -> anyhow::Result<Played> {
    // A new seed each time, so that a second demo on the same data adds to it.
    let seed = u64::from(rand::random::<u32>());
    if let Some(path) = &args.trace {
        let requests = trace::read(path)?;
        let bar = bar(requests.len(), "requests of the trace");
        let tick = bar.clone();
        let tick = move || tick.inc(1);
        let played = workload::play_trace(pool, module, &requests, seed, 8, args.workers, tick).await;
        bar.finish();
        return played;
    }
    let bar = bar(args.transactions, "transactions");
    let tick = bar.clone();
    let workload =
        Workload { transactions: args.transactions, workers: args.workers, seed, ..Workload::default() };
    let played = workload::play(pool, module, &workload, move || tick.inc(1)).await;
    bar.finish();
    played
}

fn bar(length: usize, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg} ({per_sec}, {eta} to go)");
    ProgressBar::new(length as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(what)
}

/// Time from a commit until the API's answer shows the record, for a tenant of its own.
async fn probe(pool: &PgPool, api: &Api, patience: u64) -> anyhow::Result<Vec<Duration>> {
    let tenant = Uuid::new_v4();
    let mut visible = Vec::new();
    let mut every = tokio::time::interval(Duration::from_millis(20));
    for number in 1..=PROBES {
        let work = Work {
            tenant_id: tenant,
            metric: "llm.requests".into(),
            value: "1".into(),
            key: Some(format!("probe-{number}")),
        };
        let mut tx = pool.begin().await?;
        source::remember(&mut tx, &work).await?;
        let now = usage_schemas::Timestamp::from_micros(usage_service::clock::now_micros());
        workload::usage_emit(&mut tx, &work, now, "counter").await?;
        tx.commit().await?;
        let committed = Instant::now();
        loop {
            every.tick().await;
            let totals = api.totals(tenant, RANGE.0, RANGE.1).await?;
            if totals.values().any(|total| total.sum == number.to_string()) {
                break;
            }
            if committed.elapsed() > Duration::from_secs(patience) {
                bail!("probe {number} did not become visible: {totals:?}");
            }
        }
        visible.push(committed.elapsed());
    }
    Ok(visible)
}

fn print_numbers(played: &mut Played, restarts: usize, settled: Duration, visible: &mut [Duration]) {
    let per_second = |count: usize| {
        let millis = played.elapsed.as_millis().max(1);
        count as u128 * 1_000 / millis
    };
    println!(
        "{} transactions committed, {} rolled back, {} requests sent again, {} relay restarts",
        played.committed, played.rolled_back, played.repeated, restarts
    );
    println!(
        "{} records emitted in {:.1?}: {} transactions/s, {} records/s",
        played.records,
        played.elapsed,
        per_second(played.committed),
        per_second(played.records)
    );
    println!(
        "emit p50 {:.1?}, p95 {:.1?}; all answers right {:.1?} after the last commit; one record visible p50 {:.1?}, p95 {:.1?}",
        report::percentile(&mut played.emits, 50),
        report::percentile(&mut played.emits, 95),
        settled,
        report::percentile(visible, 50),
        report::percentile(visible, 95)
    );
}
