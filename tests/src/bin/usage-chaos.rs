//! Breaks a whole pipeline of its own with faults drawn from a seed and judges it; `cargo xtask chaos` builds and runs this.
//!
//! Exit status 1 if anything differs, with the seed that does it again.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use usage_devstack::{Postgres, interrupt};
use usage_tests::chaos::cluster::Load;
use usage_tests::chaos::schedule::Kind;
use usage_tests::chaos::{self, Run, Verdict, emitter};

/// Differences that are printed; the rest is in the file.
const SHOWN: usize = 20;

#[derive(Parser)]
#[command(
    about = "Breaks a pipeline with faults drawn from a seed and judges it by what its source committed"
)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Subcommand)]
enum Part {
    /// Emits: a process of the run, not for people.
    #[command(name = emitter::COMMAND, hide = true)]
    Emit(emitter::Arguments),
}

#[derive(clap::Args)]
struct RunArgs {
    /// What the schedule is drawn from; a random one by default.
    #[arg(long)]
    seed: Option<u64>,
    /// How long faults happen, fractions allowed.
    #[arg(long, default_value = "5", value_parser = minutes)]
    minutes: Duration,
    /// Transactions per second.
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// Records of a transaction, at most; half of the larger ones say much of one metric.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    records: u32,
    /// Only faults of these kinds.
    #[arg(long, value_delimiter = ',', value_enum)]
    faults: Vec<Kind>,
    /// Data and logs; removed after a good run. A directory for temporary files by default.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print the schedule of the seed and end.
    #[arg(long)]
    plan: bool,
}

/// Thousandths of a minute are enough.
fn minutes(text: &str) -> Result<Duration, String> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.chars().all(|digit| digit.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 3 {
        return Err("not a number of minutes with at most 3 decimal places".into());
    }
    let thousandths: u64 = format!("{whole}{fraction:0<3}").parse().map_err(|_| "too many minutes")?;
    Some(Duration::from_millis(thousandths * 60))
        .filter(|time| !time.is_zero())
        .ok_or("no time at all".into())
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    if let Some(Part::Emit(arguments)) = args.part {
        tracing_to_stderr();
        return runtime()?.block_on(emitter::run(arguments)).map(|()| ExitCode::SUCCESS);
    }
    let args = args.run;
    let seed = args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let kinds = if args.faults.is_empty() { Kind::ALL.to_vec() } else { args.faults.clone() };
    println!("seed {seed}");
    if args.plan {
        for step in chaos::schedule::plan(seed, args.minutes, &kinds) {
            println!("{:>6.1?}  {}", step.at, step.fault);
        }
        return Ok(ExitCode::SUCCESS);
    }
    // Before any thread is started: signals and mounts.
    interrupt::handle()?;
    let disk = chaos::prepare_disk();
    if let (Err(reason), true) = (&disk, args.faults.contains(&Kind::Disk)) {
        anyhow::bail!("no full disk is possible here: {reason}");
    }
    let (dir, mut temporary) = directory(args.dir.as_deref())?;
    let run = Run {
        load: Load { seed, rate: args.rate, workers: 8, records: args.records },
        lasts: args.minutes,
        kinds,
    };
    let runtime = runtime()?;
    let outcome = runtime.block_on(chaos::run(&run, &dir, disk));
    // The cluster is gone, so nothing runs in there any more.
    runtime.shutdown_timeout(Duration::from_secs(5));
    let good = outcome.as_ref().is_ok_and(|verdict| verdict.differences.is_empty());
    remove_data(&dir)?;
    if good {
        std::fs::remove_dir_all(&dir)?;
    } else if let Some(temporary) = temporary.take() {
        // Logs stay.
        let _ = temporary.keep();
    }
    let again = format!(
        "cargo xtask chaos --seed {seed} --minutes {} --rate {} --records {}",
        text_of(args.minutes),
        args.rate,
        args.records
    );
    let verdict = outcome.with_context(|| format!("seed {seed}, logs in {}", dir.display()))?;
    print(&verdict);
    if good {
        println!("seed {seed}: no difference");
        return Ok(ExitCode::SUCCESS);
    }
    let all: Vec<String> = verdict.differences.iter().map(ToString::to_string).collect();
    std::fs::write(dir.join("differences.txt"), all.join("\n"))?;
    for difference in all.iter().take(SHOWN) {
        println!("DIFFERENCE {difference}");
    }
    println!("seed {seed}: {} differences; logs in {}; again: {again}", all.len(), dir.display());
    Ok(ExitCode::FAILURE)
}

fn print(verdict: &Verdict) {
    let letters: Vec<String> =
        verdict.dead_letters.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    println!("records: {} stored of {} committed", verdict.records, verdict.emitted);
    println!("dead letters: {}", if letters.is_empty() { "none".into() } else { letters.join(", ") });
    println!(
        "answers checked: {}, {} of them with complete_until; greatest lag {:.1?}",
        verdict.answers, verdict.complete, verdict.max_lag
    );
}

fn text_of(time: Duration) -> String {
    let thousandths = time.as_millis() / 60;
    format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000)
        .trim_end_matches('0')
        .trim_end_matches('.')
        .into()
}

fn directory(given: Option<&Path>) -> anyhow::Result<(PathBuf, Option<tempfile::TempDir>)> {
    if let Some(dir) = given {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        return Ok((dir.canonicalize()?, None));
    }
    let dir = tempfile::Builder::new().prefix("usage-chaos-").tempdir()?;
    Ok((dir.path().to_path_buf(), Some(dir)))
}

/// Data is large, and nothing can be learnt from it that is not in logs and differences.
fn remove_data(dir: &Path) -> anyhow::Result<()> {
    let logs = dir.join("logs");
    for (server, postgres) in [("kafka", false), ("clickhouse", false), ("source", true), ("control", true)] {
        let own = dir.join(server);
        for log in ["kafka.log", "clickhouse.log", "postgres.log"] {
            if own.join(log).exists() {
                std::fs::create_dir_all(&logs)?;
                std::fs::copy(own.join(log), logs.join(format!("{server}.log")))?;
            }
        }
        if postgres {
            Postgres::purge(&own)?;
        } else if own.exists() {
            std::fs::remove_dir_all(&own)?;
        }
    }
    Ok(())
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime")
}

fn tracing_to_stderr() {
    // An emitter's log is its standard error; a second subscriber can't be there yet.
    let _ = tracing::subscriber::set_global_default(
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).finish(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_may_be_fractions_and_are_printed_as_they_were_given() {
        for (text, millis) in [("5", 300_000), ("0.5", 30_000), ("1.25", 75_000), ("0.001", 60)] {
            assert_eq!(minutes(text).unwrap(), Duration::from_millis(millis));
            assert_eq!(text_of(minutes(text).unwrap()), text);
        }
        for text in ["", "-1", "1e3", "0", "0.0001", ".5", "five", "99999999999999999999"] {
            assert!(minutes(text).is_err(), "{text}");
        }
    }
}
