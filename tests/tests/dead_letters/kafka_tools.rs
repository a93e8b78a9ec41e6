//! Kafka's own tools on the topic of dead letters and its group.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::bail;
use usage_devstack::{Kafka, testing};
use usage_tests::topic;

use crate::support::*;

const GROUPS: &str = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand";
const CONSOLE: &str = "org.apache.kafka.tools.consumer.ConsoleConsumer";
const GROUP: &str = "usage-dead-letters";

fn run(class: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let brokers = testing::kafka_brokers();
    let mut command: Command = Kafka::installed_tool(class)?;
    let output = command.args(["--bootstrap-server", &brokers]).args(arguments).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() || text.contains("Error:") {
        bail!("{class} {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

fn reset(topic: &str, to: &[&str]) -> anyhow::Result<()> {
    let line = ["--group", GROUP, "--topic", topic, "--reset-offsets", "--execute"];
    run(GROUPS, &line.iter().chain(to).copied().collect::<Vec<_>>()).map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn consumer_groups_chooses_where_a_replay_starts() -> anyhow::Result<()> {
    let pipeline = desk().await?;
    let letters = pipeline.dead_letters_topic();
    for offset in 100..106 {
        write_letter(&pipeline, offset, "unknown_source", &[]).await?;
    }
    assert_eq!(settled(&ask(&pipeline, &["discard", "--offsets", "5..6"])?), 1);
    assert_eq!(settled(&ask(&pipeline, &["replay"])?), 5);
    assert_eq!(open(&pipeline, &[])?, 0);

    // Back: what was replayed from there on is open again, what was discarded is not.
    reset(letters, &["--to-offset", "3"])?;
    assert_eq!(open(&pipeline, &[])?, 2);
    dies(&pipeline, &["dead-letters", "replay", "--rate", "1"], "dead_letters.marked=kill@1")?;
    assert_eq!(open(&pipeline, &[])?, 1, "a mark since the reset counts");
    assert_eq!(settled(&ask(&pipeline, &["replay"])?), 1);
    assert_eq!(replayed(&pipeline)?, [100, 101, 102, 103, 104, 103, 104]);

    // Forward: what lies before is passed over until it is asked for.
    for offset in 106..109 {
        write_letter(&pipeline, offset, "unknown_source", &[]).await?;
    }
    reset(letters, &["--to-latest"])?;
    write_letter(&pipeline, 109, "unknown_source", &[]).await?;
    assert_eq!(settled(&ask(&pipeline, &["replay"])?), 1);
    assert_eq!(replayed(&pipeline)?.last(), Some(&109));
    let mut expected = vec!["replayed"; 5];
    expected.extend(["discarded", "passed", "passed", "passed", "replayed"]);
    assert_eq!(states(&pipeline)?, expected);

    // The group shows how far it is.
    let described = run(GROUPS, &["--describe", "--group", GROUP])?;
    let line = described.lines().find(|line| line.contains(letters)).unwrap_or_default();
    let lag = line.split_whitespace().nth(5);
    assert_eq!(lag, Some("0"), "{described}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_consumer_reads_letters_with_their_headers() -> anyhow::Result<()> {
    let (pipeline, _running, tenants) = refused(2).await?;
    let formatting = ["print.headers=true", "print.key=true", "print.partition=true"];
    let mut line = vec!["--topic", pipeline.dead_letters_topic(), "--from-beginning", "--max-messages", "2"];
    line.extend(["--timeout-ms", "60000"]);
    for property in formatting {
        line.extend(["--property", property]);
    }
    let read = run(CONSOLE, &line)?;
    for tenant in &tenants[..2] {
        assert!(read.contains(&tenant.to_string()), "{read}");
    }
    for header in [
        "payload-type:usage-collector.record.v1",
        "usage-source:demo",
        "dlq-reason:unknown_usage_type",
        "dlq-error:metric: not registered",
        "dlq-attempt:1",
        &format!("dlq-topic:{}", pipeline.records_topic()),
    ] {
        assert_eq!(read.matches(header).count(), 2, "{header}: {read}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_producers_copy_of_a_letter_is_stored_and_counted_once() -> anyhow::Result<()> {
    let (pipeline, running, tenants) = refused(3).await?;
    register(&pipeline)?;
    for letter in topic::read_all(pipeline.dead_letters_topic())? {
        let from = (pipeline.dead_letters_topic(), letter.partition, letter.offset);
        for _ in 0..2 {
            topic::copy(from, (pipeline.records_topic(), letter.partition)).await?;
        }
    }
    judge(&pipeline, &running, &tenants).await?;
    // usagectl does not know of it; its own replay counts nothing twice.
    assert_eq!(open(&pipeline, &[])?, 3);
    assert_eq!(settled(&ask(&pipeline, &["replay"])?), 3);
    judge(&pipeline, &running, &tenants).await?;
    let messages = topic::read_all(pipeline.dead_letters_topic())?;
    let refused: BTreeSet<_> = messages.iter().filter_map(topic::Letter::origin).collect();
    assert_eq!(refused.len(), 3, "{messages:?}");
    Ok(())
}
