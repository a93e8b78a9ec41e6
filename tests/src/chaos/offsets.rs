//! The consumer group's offsets: set back with Kafka's own tool, compared with the topic's ends.

use std::time::Duration;

use anyhow::{Context as _, bail};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::time::{Instant, interval};

use super::cluster::{Cluster, blocking};
use super::inject::consumers;
use super::schedule::Back;

const TOOL: &str = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand";
const CALL_WITHIN: Duration = Duration::from_secs(20);
/// A member that was killed counts as one until its session is over.
const INACTIVE_WITHIN: Duration = Duration::from_secs(60);

/// Stops the group, sets its offsets back, starts it again.
pub async fn reset(cluster: &Cluster, back: Back) -> anyhow::Result<String> {
    let mut members = Vec::new();
    for actor in consumers(cluster) {
        members.push(cluster.member(actor).await);
    }
    let members = blocking(move || {
        for member in &mut members {
            member.terminate()?;
        }
        Ok(members)
    })
    .await?;
    let kafka = cluster.kafka.clone().lock_owned().await;
    let topic = cluster.pipeline.records_topic().to_string();
    let group = cluster.pipeline.group().to_string();
    let said = blocking(move || {
        let tool = |to: &[&str]| -> anyhow::Result<(bool, String)> {
            let mut command = kafka.tool(TOOL)?;
            command.args(["--bootstrap-server", &kafka.brokers(), "--group", &group, "--topic", &topic]);
            let output = command.args(["--reset-offsets", "--execute"]).args(to).output()?;
            let text = [output.stdout, output.stderr].concat();
            Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
        };
        let deadline = Instant::now() + INACTIVE_WITHIN;
        let by = match back {
            Back::By(count) => format!("-{count}"),
            Back::Earliest => String::new(),
        };
        let mut to: Vec<&str> = if by.is_empty() { vec!["--to-earliest"] } else { vec!["--shift-by", &by] };
        loop {
            let (succeeded, text) = tool(&to)?;
            if succeeded && text.contains("NEW-OFFSET") && !text.contains("Error") {
                return Ok(format!("done with {}", to.join(" ")));
            }
            // Nothing was committed for some partition yet: there is nothing to count from.
            if text.contains("no current committed offset") {
                to = vec!["--to-earliest"];
            } else if Instant::now() > deadline {
                bail!("kafka's tool does not set the offsets back: {text}");
            }
        }
    })
    .await;
    for mut member in members {
        member.start()?;
    }
    said
}

/// First offset that is not done and the topic's end, per partition.
fn positions(reader: &BaseConsumer, topic: &str) -> anyhow::Result<Vec<(i32, i64, i64)>> {
    let metadata = reader.fetch_metadata(Some(topic), CALL_WITHIN).context("metadata")?;
    let partitions = metadata.topics().iter().flat_map(|topic| topic.partitions()).map(|found| found.id());
    let mut asked = TopicPartitionList::new();
    for partition in partitions {
        asked.add_partition(topic, partition);
    }
    let committed = reader.committed_offsets(asked, CALL_WITHIN).context("committed offsets")?;
    let mut positions = Vec::new();
    for element in committed.elements() {
        let (low, high) =
            reader.fetch_watermarks(topic, element.partition(), CALL_WITHIN).context("watermarks")?;
        let done = match element.offset() {
            Offset::Offset(offset) => offset,
            _ => low,
        };
        positions.push((element.partition(), done, high));
    }
    Ok(positions)
}

/// Waits until the group has passed everything that was in the topic when this was called.
async fn pass_the_ends(cluster: &Cluster, deadline: Instant) -> anyhow::Result<()> {
    let (brokers, topic) = (cluster.brokers.clone(), cluster.pipeline.records_topic().to_string());
    let group = cluster.pipeline.group().to_string();
    let ends = blocking(move || {
        let reader: BaseConsumer =
            ClientConfig::new().set("bootstrap.servers", brokers).set("group.id", group).create()?;
        let ends = positions(&reader, &topic)?;
        Ok((reader, topic, ends))
    });
    let (mut reader, mut topic, ends) = ends.await?;
    let mut every = interval(Duration::from_millis(500));
    loop {
        every.tick().await;
        let now;
        (reader, topic, now) = blocking(move || {
            let now = positions(&reader, &topic)?;
            Ok((reader, topic, now))
        })
        .await?;
        let behind: Vec<String> = ends
            .iter()
            .filter_map(|(partition, _, end)| {
                let (_, done, _) = now.iter().find(|(other, ..)| other == partition)?;
                (done < end).then(|| format!("partition {partition} is at {done} of {end}"))
            })
            .collect();
        if behind.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("the consumers did not come to the topic's end: {}", behind.join(", "));
        }
    }
}

/// The same as often as a record can be forwarded, and once more: each time it is behind the end that was seen before.
pub async fn drained(cluster: &Cluster, within: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + within;
    for _ in 0..4 {
        pass_the_ends(cluster, deadline).await?;
    }
    Ok(())
}
