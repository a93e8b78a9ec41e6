//! Measurements on real servers; `cargo xtask bench NAME` starts them and runs this.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use usage_tests::backlog::{self, Backlog};
use usage_tests::flood::{self, Flood};
use usage_tests::pipeline::{Options, Pipeline};
use usage_tests::recovery::{self, Outage};
use usage_tests::report::percentile;
use usage_tests::usage_of::ProcessUsage;

#[derive(Parser)]
#[command(about = "Measures the pipeline on real servers")]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// A backlog in Kafka drains into records and rollups.
    Drain {
        /// Records in the backlog.
        #[arg(long, default_value_t = 3_000_000)]
        records: u64,
        /// Tenants that they are spread over.
        #[arg(long, default_value_t = 200)]
        tenants: usize,
        /// Give up after so many seconds.
        #[arg(long, default_value_t = 600)]
        patience: u64,
    },
    /// Storage is away under a steady load and comes back.
    Recovery {
        /// Records a second.
        #[arg(long, default_value_t = 2_000)]
        rate: u64,
        /// Records of one transaction.
        #[arg(long, default_value_t = 5)]
        per_transaction: u64,
        /// Seconds of load before the outage.
        #[arg(long, default_value_t = 60)]
        before: u64,
        /// Seconds without storage.
        #[arg(long, default_value_t = 600)]
        down: u64,
        /// Give up so many seconds after the return.
        #[arg(long, default_value_t = 900)]
        patience: u64,
    },
    /// A tenant floods its partition over its quota; what a quiet one beside it feels.
    Quota {
        /// Records a second of the quiet tenant.
        #[arg(long, default_value_t = 50)]
        quiet: u64,
        /// Records a second of the flooding one.
        #[arg(long, default_value_t = 3_000)]
        flood: u64,
        /// Records that it may have kept.
        #[arg(long, default_value_t = 1_000)]
        quota: u64,
        /// Seconds of a turn.
        #[arg(long, default_value_t = 20)]
        turn: u64,
        /// Turns alone, and as many beside the flood.
        #[arg(long, default_value_t = 3)]
        turns: u32,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Args::parse().what {
        What::Drain { records, tenants, patience } => {
            drain(records, tenants, Duration::from_secs(patience)).await
        }
        What::Recovery { rate, per_transaction, before, down, patience } => {
            let [before, down, patience] = [before, down, patience].map(Duration::from_secs);
            let outage = Outage { rate, per_transaction, before, down, patience };
            let mut recovered = recovery::run(outage).await?;
            println!("{} records; {} waited when storage came back", recovered.records, recovered.backlog);
            println!("all of them stored and queryable {:.1?} later", recovered.caught_up);
            println!("{}\nevery total equals the source's own truth", recovery::table(&mut recovered));
            Ok(())
        }
        What::Quota { quiet, flood, quota, turn, turns } => {
            let turn = Duration::from_secs(turn);
            quotas(Flood { quiet, flood, quota, turn, turns }).await
        }
    }
}

async fn quotas(flood: Flood) -> anyhow::Result<()> {
    let mut felt = flood::run(flood).await?;
    let line = |name: &str, times: &mut Vec<Duration>| {
        let [p50, p99] = [50, 99].map(|percent| percentile(times, percent));
        println!("quiet tenant {name:>6}: {} records, p50 {p50:.1?}, p99 {p99:.1?}", times.len());
        [p50, p99].map(|time| time.as_micros().max(1))
    };
    println!("from commit to queryable, {} records a second; the flood had {}:", flood.quiet, felt.flooded);
    let alone = line("alone", &mut felt.alone);
    let beside = line("beside", &mut felt.beside);
    let [p50, p99] = [0, 1].map(|i| beside[i] * 100 / alone[i]);
    println!("beside the flood / alone: p50 {p50} %, p99 {p99} %");
    println!("no quiet record was lost or refused; the flood was held to its quota");
    Ok(())
}

async fn drain(records: u64, tenants: usize, patience: Duration) -> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options::default()).await?;
    println!("producing {records} records of {tenants} tenants");
    let bar = bar(records);
    let backlog = Backlog { records, tenants };
    let produced = Instant::now();
    backlog::produce(pipeline.records_topic(), &backlog, |done| bar.set_position(done))?;
    bar.finish();
    println!("produced in {:.1?}", produced.elapsed());

    let servers = backlog::servers()?;
    let before: Vec<ProcessUsage> =
        servers.iter().map(|(_, pid)| ProcessUsage::of(*pid)).collect::<Result<_, _>>()?;
    let started = Instant::now();
    let consumer = pipeline.consumer()?;
    let ready = started.elapsed();
    let bar = self::bar(records);
    let mut every = tokio::time::interval(Duration::from_millis(200));
    let mut first = None;
    let drained = loop {
        every.tick().await;
        let stored = backlog::stored(&pipeline).await?;
        bar.set_position(stored.records);
        if stored.records > 0 && first.is_none() {
            first = Some(started.elapsed());
        }
        if stored.records >= records {
            break started.elapsed();
        }
        if started.elapsed() > patience {
            bail!("only {} of {records} records were stored in {patience:?}", stored.records);
        }
    };
    bar.finish();
    let rolled_up = loop {
        let stored = backlog::stored(&pipeline).await?;
        if stored.rolled_up >= records {
            break started.elapsed();
        }
        if started.elapsed() > patience {
            bail!("only {} of {records} records were rolled up in {patience:?}", stored.rolled_up);
        }
        every.tick().await;
    };

    let after = ProcessUsage::of(consumer.pid()).context("the consumer's usage")?;
    let millis = u64::try_from(drained.as_millis())?.max(1);
    println!(
        "{records} records stored in {drained:.1?} (ready after {ready:.1?}, first rows after {:.1?})",
        first.unwrap_or_default()
    );
    println!("{} records/s; rolled up after {rolled_up:.1?}", records * 1_000 / millis);
    println!("consumer: {} CPU ms, peak resident {} MiB", after.cpu_millis, after.peak_resident_kib / 1_024);
    for ((name, pid), before) in servers.iter().zip(before) {
        let after = ProcessUsage::of(*pid)?;
        let cpu = after.cpu_millis - before.cpu_millis;
        println!("{name}: {cpu} CPU ms, peak resident {} MiB", after.peak_resident_kib / 1_024);
    }
    Ok(())
}

fn bar(length: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} ({per_sec}, {eta} to go)");
    ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
