//! Two processes of 500 callers each on one hot row, beside what is usually done instead; and a sweep of many expired rows.
//!
//! ```text
//! cargo bench -p usage-limits                  # the hot row
//! cargo bench -p usage-limits -- sweep 10000000
//! ```
//! Starts a Postgres of its own, with fsync as it comes. `redis-server` is measured where it is installed.

mod callers;
mod redis;
mod sweep;

use std::io::BufRead as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use usage_devstack::Postgres;

use callers::{CALLERS, SPENDS, Variant};

const PROCESSES: u64 = 2;
/// Half of what is asked for, so that both outcomes are measured.
const LIMIT: i64 = (PROCESSES * CALLERS * SPENDS) as i64 / 2;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => hot_row(),
        ["sweep", rows] => sweep::run(rows.parse().context("the number of rows")?),
        ["callers", variant, target] => callers::run(Variant::named(variant)?, target),
        other => anyhow::bail!("no arguments, or `sweep ROWS`, not {other:?}"),
    }
}

fn hot_row() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let server = Postgres::start(dir.path())?;
    server.ensure_database("bench")?;
    let url = server.url("bench");
    println!("{PROCESSES} processes × {CALLERS} callers × {SPENDS} calls, limit {LIMIT}");
    println!(
        "{:<28} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "admitted", "counted", "calls/s", "p50 ms", "p99 ms"
    );
    for variant in Variant::OF_POSTGRES {
        callers::prepare(variant, &url)?;
        let outcome = race(variant, &url)?;
        report(variant, &outcome, callers::counted(variant, &url)?);
        if variant.is_exact() {
            ensure!(outcome.admitted == LIMIT, "{variant:?} admitted {}", outcome.admitted);
        }
    }
    server.stop()?;
    match redis::Server::start()? {
        Some(redis) => {
            let outcome = race(Variant::Redis, &redis.address)?;
            report(Variant::Redis, &outcome, redis.counted()?);
        }
        None => println!("redis-server is not installed: INCR + EXPIRE is not measured"),
    }
    Ok(())
}

struct Outcome {
    admitted: i64,
    /// Microseconds, ascending.
    latencies: Vec<u64>,
    took: Duration,
}

/// Runs the callers in processes of their own and collects a line of each call: `1 350` is admitted after 350 µs.
fn race(variant: Variant, target: &str) -> Result<Outcome> {
    let program = std::env::current_exe()?;
    let started = Instant::now();
    let children: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let arguments = ["callers", variant.name(), target];
            Command::new(&program).args(arguments).stdout(Stdio::piped()).spawn()
        })
        .collect::<Result<_, _>>()?;
    let mut outcome = Outcome { admitted: 0, latencies: Vec::new(), took: Duration::ZERO };
    for child in children {
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "a process of callers failed");
        for line in output.stdout.lines() {
            let line = line?;
            let (admitted, micros) = line.split_once(' ').context("two numbers")?;
            outcome.admitted += admitted.parse::<i64>()?;
            outcome.latencies.push(micros.parse()?);
        }
    }
    outcome.took = started.elapsed();
    outcome.latencies.sort_unstable();
    Ok(outcome)
}

fn report(variant: Variant, outcome: &Outcome, counted: i64) {
    let calls = outcome.latencies.len() as u128;
    println!(
        "{:<28} {:>9} {:>9} {:>9} {:>9} {:>9}",
        variant.title(),
        outcome.admitted,
        counted,
        calls * 1_000 / outcome.took.as_millis().max(1),
        tenths(callers::percentile(&outcome.latencies, 50)),
        tenths(callers::percentile(&outcome.latencies, 99)),
    );
}

/// Microseconds as milliseconds with one digit.
fn tenths(micros: u64) -> String {
    format!("{}.{}", micros / 1_000, micros % 1_000 / 100)
}
