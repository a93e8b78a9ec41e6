//! What is open, replayed and discarded, with letters that the test writes itself.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use usage_tests::topic;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_that_a_recovery_wrote_twice_counts_once() -> anyhow::Result<()> {
    let pipeline = desk().await?;
    for offset in [1, 2, 1, 2, 3] {
        write_letter(&pipeline, offset, "conflict", &[]).await?;
    }
    // The same offset of a topic that was made anew.
    write_letter(&pipeline, 1, "conflict", &[("dlq-timestamp", "1700000000001")]).await?;
    assert_eq!(open(&pipeline, &[])?, 4);
    assert_eq!(ask(&pipeline, &["list"])?.as_array().map(Vec::len), Some(4));
    assert_eq!(settled(&ask(&pipeline, &["replay"])?), 4);
    assert_eq!(replayed(&pipeline)?, [1, 2, 3, 1]);
    // The worker that died long ago comes back and writes its batch's letters again: they are settled.
    for offset in [1, 2, 3] {
        write_letter(&pipeline, offset, "conflict", &[]).await?;
    }
    assert_eq!(open(&pipeline, &[])?, 0);
    assert_eq!(settled(&ask(&pipeline, &["replay"])?), 0);
    Ok(())
}

/// The same offset of two partitions is two letters (svix-webhooks 2429).
#[tokio::test(flavor = "multi_thread")]
async fn problem_98_one_offset_of_two_partitions_is_two_letters() -> anyhow::Result<()> {
    let pipeline = desk().await?;
    for partition in ["0", "1"] {
        write_letter(&pipeline, 7, "conflict", &[("dlq-partition", partition)]).await?;
    }
    assert_eq!(open(&pipeline, &[])?, 2);
    assert_eq!(settled(&ask(&pipeline, &["discard", "--offsets", "0..1"])?), 1);
    assert_eq!(states(&pipeline)?, ["discarded", "open"]);
    assert_eq!(settled(&ask(&pipeline, &["replay"])?), 1);
    assert_eq!(replayed(&pipeline)?, [7]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kafka_refuses_stays_open_and_takes_nothing_along() -> anyhow::Result<()> {
    let pipeline = desk().await?;
    // Kafka judges compressed bytes, so nothing that compresses well; hexadecimal digits become half as many bytes.
    let noise = |digits: usize| -> String {
        (0..digits / 32).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect()
    };
    let padding = noise(10_000);
    for offset in 0..20 {
        write_letter(&pipeline, offset, "conflict", &[("padding", &padding)]).await?;
    }
    write_letter(&pipeline, 20, "conflict", &[("padding", &noise(200_000))]).await?;
    write_letter(&pipeline, 21, "conflict", &[]).await?;
    // Less than the letters together, and less than one of them.
    topic::set(pipeline.records_topic(), "max.message.bytes", "50000").await?;
    let tally = ask(&pipeline, &["replay"])?;
    assert_eq!(settled(&tally), 21, "{tally}");
    let refused = tally["unreplayable"].as_object().and_then(|refused| refused.iter().next());
    assert!(
        refused.is_some_and(|(why, letters)| why.contains("Kafka refuses it") && letters == 1),
        "{tally}"
    );
    let mut expected: Vec<i64> = (0..20).collect();
    expected.push(21);
    let mut replayed = replayed(&pipeline)?;
    replayed.sort_unstable();
    assert_eq!((replayed, open(&pipeline, &[])?), (expected, 1));

    topic::set(pipeline.records_topic(), "max.message.bytes", "1000000").await?;
    assert_eq!(settled(&ask(&pipeline, &["replay"])?), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_input_ends_with_2_and_changes_nothing() -> anyhow::Result<()> {
    let pipeline = desk().await?;
    write_letter(&pipeline, 0, "conflict", &[]).await?;
    for (line, part) in [
        (&["discard"][..], "--all"),
        (&["count", "--partition", "1"], "--partition"),
        (&["list", "--from", "2026-01-02T00:00:00Z", "--to", "2026-01-01T00:00:00Z"], "--to"),
    ] {
        let line: Vec<&str> = ["dead-letters"].iter().chain(line).copied().collect();
        let output = pipeline.usagectl_command(&line).output()?;
        let said = String::from_utf8(output.stderr)?;
        assert!(output.status.code() == Some(2) && said.contains(part), "{line:?}: {said}");
    }
    let output = pipeline.usagectl_command(&["dead-letters", "count"]).output()?;
    let count = String::from_utf8(output.stdout)?;
    assert!(count.contains("conflict  error     1") && count.contains("1 open letters"), "{count}");
    // No terminal, no progress bar, and the end of a partition is no error.
    assert_eq!(String::from_utf8(output.stderr)?, "");
    let replayed = pipeline.usagectl(&["dead-letters", "replay"])?;
    assert_eq!(replayed, "replayed 1 letters\n  1 conflict\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_settle_some_and_leave_the_others_open() -> anyhow::Result<()> {
    let pipeline = desk().await?;
    for offset in 0..6 {
        let reason = if offset % 2 == 0 { "too_old" } else { "unknown_source" };
        let at = (1_700_000_000_000_i64 + offset).to_string();
        write_letter(&pipeline, offset, reason, &[("dlq-timestamp", &at)]).await?;
    }
    let dry = ask(&pipeline, &["discard", "--reason", "too_old", "--dry-run"])?;
    assert_eq!((settled(&dry), open(&pipeline, &[])?), (3, 6));
    let discarded = ask(&pipeline, &["discard", "--reason", "too_old", "--offsets", "0:2.."])?;
    assert_eq!((settled(&discarded), discarded["others"].as_u64()), (2, Some(4)));
    assert_eq!(open(&pipeline, &[])?, 4);
    // dlq-timestamp 1 to 3, the last one excluded.
    let range = ["--from", "2023-11-14T22:13:20.001Z", "--to", "2023-11-14T22:13:20.003Z"];
    assert_eq!(open(&pipeline, &range)?, 1);
    let replay: Vec<&str> = ["replay"].iter().chain(&range).copied().collect();
    assert_eq!(settled(&ask(&pipeline, &replay)?), 1);
    assert_eq!(states(&pipeline)?, ["open", "replayed", "discarded", "open", "discarded", "open"]);
    // A replay of everything takes what is open and nothing else.
    assert_eq!(settled(&ask(&pipeline, &["replay"])?), 3);
    assert_eq!(replayed(&pipeline)?, [1, 0, 3, 5]);
    assert_eq!(settled(&ask(&pipeline, &["replay", "--again", "--offsets", "2..3"])?), 1);
    assert_eq!(replayed(&pipeline)?, [1, 0, 3, 5, 2]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_keeps_key_value_and_headers() -> anyhow::Result<()> {
    let pipeline = desk().await?;
    let more = [("dlq-attempt", "4"), ("traceparent", "00-1-2-03"), ("x", "1"), ("dlq-later", "?")];
    write_letter(&pipeline, 8, "storage_refused", &more).await?;
    write_letter(&pipeline, 9, "storage_refused", &[("dlq-attempt", "5")]).await?;
    write_letter(&pipeline, 10, "bad_signature", &[("payload-type", "usage-collector.marker.v1")]).await?;
    let tally = ask(&pipeline, &["replay"])?;
    assert_eq!((settled(&tally), tally["exhausted"].as_u64()), (1, Some(1)));
    assert_eq!(tally["unreplayable"].as_object().map(serde_json::Map::len), Some(1), "{tally}");
    let records = topic::read_all(pipeline.records_topic())?;
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].key.as_deref(), Some(b"key".as_slice()));
    assert_eq!(records[0].value.as_deref(), Some([0xff, 0, b'8'].as_slice()));
    let headers: Vec<(&str, &str)> =
        records[0].headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let expected = [
        ("dlq-attempt", "5"),
        ("payload-type", "usage-collector.record.v1"),
        ("traceparent", "00-1-2-03"),
        ("usage-source", "mail"),
        ("x", "1"),
    ];
    assert_eq!(headers, expected);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_moves_the_offsets_meanwhile_is_not_overruled() -> anyhow::Result<()> {
    let pipeline = desk().await?;
    for offset in 0..4 {
        write_letter(&pipeline, offset, "conflict", &[]).await?;
    }
    // Two letters, then it freezes; another replay does all; then it goes on.
    let mut first = pipeline
        .usagectl_command(&["dead-letters", "replay", "--rate", "2"])
        .env("USAGE_FAIL_POINT", "dead_letters.marked=stop@1")
        .stderr(std::process::Stdio::piped())
        .spawn()?;
    let pid = Pid::from_raw(i32::try_from(first.id())?);
    await_stop(pid).await?;
    assert_eq!(settled(&ask(&pipeline, &["replay"])?), 2);
    kill(pid, Signal::SIGCONT)?;
    assert_eq!(first.wait()?.code(), Some(1));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut first.stderr.take().expect("it is piped"), &mut said)?;
    assert!(said.contains("somebody else moved the offsets"), "{said}");
    assert_eq!((open(&pipeline, &[])?, replayed(&pipeline)?.len()), (0, 4));
    Ok(())
}

async fn await_stop(pid: Pid) -> anyhow::Result<()> {
    let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match waitid(nix::sys::wait::Id::Pid(pid), flags)? {
            WaitStatus::Stopped(..) => return Ok(()),
            WaitStatus::StillAlive if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other => anyhow::bail!("it did not freeze: {other:?}"),
        }
    }
}
