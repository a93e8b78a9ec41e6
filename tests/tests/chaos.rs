//! The short run of the chaos: two seeds, a minute each; and that its looks into storage see what is wrong there.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use usage_devstack::process::{Life, spawn};
use usage_devstack::testing;
use usage_tests::chaos::oracle::Details;
use usage_tests::chaos::schedule::Kind;
use usage_tests::chaos::{prepare_disk, storage};
use usage_tests::pipeline::{Options, Pipeline};
use uuid::Uuid;

/// Seeds whose schedules have every kind of fault within the minute (each minute has: see the schedule's tests).
const SEEDS: [u64; 2] = [4, 17];

#[test]
fn two_minutes_of_faults_lose_double_and_misreport_nothing() {
    let mut happened = BTreeSet::new();
    // One after the other: each runs a dozen processes.
    for seed in SEEDS {
        happened.extend(run(seed, &["--minutes", "1"]));
    }
    // A schedule is only a plan: on a slow machine a kind may not get its turn. What was skipped in both is tried alone.
    let possible: BTreeSet<String> = possible().into_iter().map(|kind| kind.to_string()).collect();
    for seed in 1..5 {
        let missing: Vec<String> = possible.difference(&happened).cloned().collect();
        if !missing.is_empty() {
            happened.extend(run(seed, &["--minutes", "0.5", "--faults", &missing.join(",")]));
        }
    }
    assert_eq!(possible.difference(&happened).collect::<Vec<_>>(), [""; 0]);
}

/// A run without a difference; the kinds of faults that took effect.
fn run(seed: u64, more: &[&str]) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_usage-chaos"));
    command.args(["--seed", &seed.to_string(), "--rate", "40"]).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = spawn(command, Life::Attached(Signal::SIGTERM)).unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}");
    assert!(said.contains(&format!("seed {seed}: no difference")), "{said}");
    faults(&said)
}

/// The kinds that took effect, from the line `faults: kill 3, network 5`.
fn faults(said: &str) -> Vec<String> {
    let counts = said.lines().filter_map(|line| Some(line.split_once("  faults: ")?.1));
    counts.flat_map(|line| line.split(", ")).filter_map(|kind| Some(kind.split_once(' ')?.0.into())).collect()
}

/// All kinds, but for the full disk where none can be mounted.
fn possible() -> Vec<Kind> {
    // A namespace belongs to a thread.
    let disk = std::thread::spawn(prepare_disk).join().is_ok_and(|prepared| prepared.is_ok());
    Kind::ALL.into_iter().filter(|kind| disk || *kind != Kind::Disk).collect()
}

#[test]
fn faults_are_those_that_took_effect() {
    let said = "  61.0 s    kill relay-0: skipped, late\n  62.1 s  faults: clock 1, network 12\nseed 4: no difference";
    assert_eq!(faults(said), ["clock", "network"]);
    assert_eq!(faults("  62.1 s  faults: none"), [""; 0]);
}

#[test]
fn a_seed_prints_its_schedule_and_what_is_asked_wrongly_is_refused() {
    let chaos = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_usage-chaos")).args(arguments).output().unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    };
    let (good, schedule) = chaos(&["--plan", "--seed", "4", "--minutes", "1"]);
    assert!(good && schedule.starts_with("seed 4\n"), "{schedule}");
    assert!(schedule.lines().count() > 12, "{schedule}");
    assert_eq!(chaos(&["--plan", "--seed", "4", "--minutes", "1"]).1, schedule);
    assert!(!chaos(&["--minutes", "0"]).0);
    let (good, refusal) = chaos(&["--faults", "fire"]);
    assert!(!good && refusal.contains("kill"), "{refusal}");
}

/// One rollup row of tenant 1's two records below: what it counts, their sum, least and greatest.
fn rollup(database: &str, count: u32, sum: &str, least: &str, greatest: &str) -> String {
    format!(
        "INSERT INTO {database}.usage_rollups VALUES (toUUID('00000000-0000-0000-0000-000000000001'), 'm', 's', 'counter',
         '2026-11-30 10:15:00', 3, 0, {count}, '{sum}', '{least}', '{greatest}', ('1900-01-01', unhex('00'), 0), 0)"
    )
}

fn record(database: &str, number: u32, value: &str, at: &str) -> String {
    format!(
        "INSERT INTO {database}.usage_records (record_id, tenant_id, source, metric, kind, value, timestamp, ingested_at,
         content_hash, kafka_partition, kafka_offset, batch_seq) VALUES (toUUID('00000000-0000-0000-0000-0000000001{number:02}'),
         toUUID('00000000-0000-0000-0000-000000000001'), 's', 'm', 'counter', '{value}', '{at}', '{at}', unhex('00'), 3, {number}, 1)"
    )
}

/// Gives the one record these details.
fn with_details(database: &str, details: &Details) -> String {
    let text = |text: &Option<String>| {
        let hex = |byte: u8| format!("{byte:02x}");
        format!("unhex('{}')", text.iter().flat_map(|text| text.bytes()).map(hex).collect::<String>())
    };
    let id = |id: Option<Uuid>| format!("toUUID('{}')", id.unwrap_or_default());
    format!(
        "ALTER TABLE {database}.usage_records UPDATE idempotency_key = {}, resource_type = {}, subject_type = {}, metadata = {},
         resource_id = {}, subject_id = {} WHERE 1 SETTINGS mutations_sync = 2",
        text(&details.idempotency_key),
        text(&details.resource_type),
        text(&details.subject_type),
        text(&details.metadata),
        id(details.resource_id),
        id(details.subject_id),
    )
}

#[tokio::test]
async fn records_and_wrong_rollups_are_seen_in_storage() -> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options::default()).await?;
    let (url, database) = (testing::clickhouse_url(), pipeline.clickhouse_database());
    let wrong = async || storage::wrong_rollups(&url, database).await.map(|found| found.len());
    assert_eq!(wrong().await?, 0);
    storage::ask(&url, record(database, 1, "1.5", "2026-11-30 10:15:00")).await?;
    let found = storage::records(&url, database).await?.remove(0).content.details;
    let bare = Details { source: "s".into(), ..Details::default() };
    assert_eq!(found, bare);
    let details = Details {
        idempotency_key: Some("k\t\"\\N".into()),
        resource_id: Some(Uuid::from_u128(3)),
        resource_type: Some("vm".into()),
        subject_id: Some(Uuid::from_u128(4)),
        subject_type: Some("user".into()),
        metadata: Some("{\"a\":\n1.10, \"a\": \"é\\u00e9\\/\"}".into()),
        ..bare
    };
    storage::ask(&url, with_details(database, &details)).await?;
    assert_eq!(storage::records(&url, database).await?.remove(0).content.details, details);
    storage::ask(&url, record(database, 2, "2", "2026-11-30 10:29:59.999999")).await?;
    assert_eq!(wrong().await?, 1, "there is no rollup");
    storage::ask(&url, rollup(database, 1, "1.5", "1.5", "1.5")).await?;
    assert_eq!(wrong().await?, 1, "it lacks a record");
    assert_eq!(storage::counts(&url, database).await?, (2, 1));
    storage::ask(&url, rollup(database, 1, "2", "2", "2")).await?;
    assert_eq!(wrong().await?, 0);
    let values: Vec<String> =
        storage::records(&url, database).await?.iter().map(|row| row.content.value.to_string()).collect();
    assert!(values.len() == 2 && values.contains(&"1.5".into()), "{values:?}");
    for (count, sum, least, greatest) in [
        (1, "0", "1.5", "2"),
        (0, "0.000000000000000001", "1.5", "2"),
        (0, "0", "1.4", "2"),
        (0, "0", "1.5", "2.1"),
    ] {
        storage::ask(&url, rollup(database, count, sum, least, greatest)).await?;
        assert_eq!(wrong().await?, 1, "{count} {sum} {least} {greatest}");
        storage::ask(&url, format!("TRUNCATE TABLE {database}.usage_rollups")).await?;
        storage::ask(&url, rollup(database, 2, "3.5", "1.5", "2")).await?;
        assert_eq!(wrong().await?, 0);
    }
    // A rollup of nothing.
    storage::ask(&url, format!("TRUNCATE TABLE {database}.usage_records")).await?;
    assert_eq!(wrong().await?, 1);
    Ok(())
}
