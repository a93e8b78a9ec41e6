//! `usagectl topics grow`: more partitions under load, with exact answers all the time (protocol 5.4).
//!
//! Every step may be repeated and none is remembered but by what it changed: killed anywhere and called again, it ends the same.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rdkafka::admin::NewPartitions;
use usage_control::{Control, ControlError, Partitions};
use usage_service::config::{KafkaConfig, Resolved};
use usage_service::{error_chain, fail_point};
use usage_storage::clickhouse::{ClickHouseConfig, ClickHouseStorage};
use usage_storage::{Storage as _, StorageError};

use super::{Admin, client, metadata, options};
use crate::WrongInput;
use crate::arguments::TopicsGrow;

/// How often a step is tried again whose failure may pass, with a second between: workers wait meanwhile.
const TRIES: u32 = 120;
const AGAIN: Duration = Duration::from_secs(1);

/// A topic and the partitions that Kafka says it has.
#[derive(Debug)]
struct Topic {
    name: String,
    partitions: i32,
}

pub(in crate::commands) async fn grow(config: &Resolved, given: &TopicsGrow) -> anyhow::Result<()> {
    let count = given.partitions;
    let control = super::super::control(config).await?;
    let counts = control.partition_counts().await?;
    let kafka: KafkaConfig = config.section("kafka")?;
    let admin = client(&kafka)?;
    let topics = [look(&admin, &kafka.records_topic)?, look(&admin, &kafka.dead_letters_topic)?];
    check(count, &counts, &topics)?;
    let short: Vec<&Topic> = topics.iter().filter(|topic| topic.partitions < count).collect();
    let grows = count > counts.current;
    if !grows && short.is_empty() {
        println!("the topics have {count} partitions already");
        return Ok(());
    }
    if given.dry_run {
        for (number, step) in steps(count, &counts, &short, given.readers_within).iter().enumerate() {
            println!("{}. would {step}", number + 1);
        }
        return Ok(());
    }
    if !grows {
        // Made anew with fewer than it had: everybody works by the count already.
        return add(&admin, count, &short).await;
    }
    let storage: ClickHouseConfig = config.section("clickhouse")?;
    let storage = ClickHouseStorage::connect(storage);
    storage.check().await?;
    let growth = Growth { control, admin, storage, count, readers_within: given.readers_within };
    growth.run(topics[0].partitions, &short).await.with_context(|| {
        format!("growing has not ended: run `usagectl topics grow --partitions {count}` again, it goes on where it was")
    })
}

/// What can't be done, with the way out.
fn check(count: i32, counts: &Partitions, topics: &[Topic]) -> anyhow::Result<()> {
    if count < counts.current {
        let error = ControlError::Shrinks { recorded: counts.current, asked: count };
        return Err(WrongInput { argument: "--partitions", detail: error.to_string() }.into());
    }
    if let Some(topic) =
        topics.iter().max_by_key(|topic| topic.partitions).filter(|topic| topic.partitions > count)
    {
        let Topic { name, partitions } = topic;
        bail!(
            "topic {name} has {partitions} partitions in Kafka, which can't take any away: \
             run `usagectl topics grow --partitions {partitions}`"
        );
    }
    match counts.known.iter().copied().max() {
        Some(begun) if begun > count => Err(ControlError::OtherGrowth { begun, asked: count }.into()),
        _ => Ok(()),
    }
}

/// What is to be done, as a person reads it.
fn steps(count: i32, counts: &Partitions, short: &[&Topic], readers_within: Duration) -> Vec<String> {
    let mut steps = Vec::new();
    let grows = count > counts.current;
    if grows {
        let listed = if counts.known.contains(&count) { " (it is)" } else { "" };
        steps.push(format!("list {count} as a known count beside {}{listed}", counts.current));
        steps.push(format!("wait {readers_within:?} for readers to know it"));
    }
    for topic in short {
        steps.push(format!(
            "raise topic {} from {} to {count} partitions in Kafka",
            topic.name, topic.partitions
        ));
    }
    if grows {
        let marked = if counts.growing { " (they do)" } else { "" };
        steps.push(format!("have workers that take a partition over wait{marked}"));
        steps.push(format!("fence all {count} partitions in storage"));
        steps.push(format!("record {count} as the current count, by which workers go on"));
    }
    steps
}

struct Growth {
    control: Control,
    admin: Admin,
    storage: ClickHouseStorage,
    count: i32,
    readers_within: Duration,
}

impl Growth {
    async fn run(&self, in_kafka: i32, short: &[&Topic]) -> anyhow::Result<()> {
        let count = self.count;
        patiently("listing the count", || self.control.announce_partitions(count, in_kafka)).await?;
        println!("{count} is listed as a known count");
        fail_point!("grow.listed");
        // Whole, also when it was listed long ago: by whose clock would one know?
        println!("waiting {:?} for readers to know it", self.readers_within);
        tokio::time::sleep(self.readers_within).await;
        fail_point!("grow.waited");
        add(&self.admin, count, short).await?;
        fail_point!("grow.added");
        if !patiently("marking", || self.control.begin_growing(count)).await? {
            return self.done_by_another().await;
        }
        println!("workers that take a partition over wait");
        fail_point!("grow.marked");
        // After the mark: who took a partition over before it loses it here, who does later sees the mark.
        let partitions: Vec<i32> = (0..count).collect();
        let writer = self.storage.writer();
        patiently("fencing", || writer.fence(&partitions)).await?;
        println!("all {count} partitions are fenced: nobody stores by another count");
        fail_point!("grow.fenced");
        if !patiently("recording the count", || self.control.end_growing(count)).await? {
            return self.done_by_another().await;
        }
        println!("{count} is the current count: workers go on");
        fail_point!("grow.recorded");
        Ok(())
    }

    async fn done_by_another(&self) -> anyhow::Result<()> {
        let current = self.control.partition_counts().await?.current;
        println!("the topic was grown to {current} by another call meanwhile");
        Ok(())
    }
}

/// Adds partitions in Kafka until all topics have `count`.
async fn add(admin: &Admin, count: i32, short: &[&Topic]) -> anyhow::Result<()> {
    for topic in short {
        let partitions = usize::try_from(count).context("a positive count")?;
        let wanted = NewPartitions::new(&topic.name, partitions);
        let results =
            admin.create_partitions([&wanted], &options()).await.context("no Kafka broker answers")?;
        let refused = results.into_iter().find_map(Result::err).map(|(_, code)| code);
        // Its metadata may lag behind what it did; and it refuses what another call was faster with.
        let mut tries = 0;
        while look(admin, &topic.name)?.partitions < count {
            tries += 1;
            if let Some(code) = refused.filter(|_| tries > 3) {
                bail!("Kafka does not add partitions to topic {}: {code}", topic.name);
            }
            if tries > TRIES {
                bail!("topic {} does not show {count} partitions with a leader each", topic.name);
            }
            tokio::time::sleep(AGAIN).await;
        }
        println!("topic {} has {count} partitions", topic.name);
    }
    Ok(())
}

/// The partitions of a topic that are there and have a leader.
fn look(admin: &Admin, name: &str) -> anyhow::Result<Topic> {
    let metadata = metadata(admin, Some(name))?;
    let topic = metadata.topics().iter().find(|topic| topic.name() == name && topic.error().is_none());
    let led =
        topic.into_iter().flat_map(|topic| topic.partitions()).filter(|partition| partition.leader() >= 0);
    let partitions = led.map(|partition| partition.id()).collect::<BTreeSet<_>>().len();
    if partitions == 0 {
        bail!("Kafka has no topic {name}: run `usagectl topics create`");
    }
    Ok(Topic { name: name.into(), partitions: i32::try_from(partitions)? })
}

trait MayPass: std::error::Error + Send + Sync + 'static {
    fn may_pass(&self) -> bool;
}

impl MayPass for ControlError {
    fn may_pass(&self) -> bool {
        self.may_pass()
    }
}

impl MayPass for StorageError {
    fn may_pass(&self) -> bool {
        self.may_pass()
    }
}

/// Tries a step again while its failure may pass.
async fn patiently<T, E: MayPass, F: Future<Output = Result<T, E>>>(
    what: &str,
    step: impl Fn() -> F,
) -> anyhow::Result<T> {
    let mut tries = 1;
    loop {
        match step().await {
            Ok(value) => return Ok(value),
            Err(error) if error.may_pass() && tries < TRIES => {
                if tries == 1 {
                    eprintln!("{what} is tried again: {}", error_chain(&error));
                }
                tries += 1;
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(current: i32, known: &[i32]) -> Partitions {
        Partitions { current, known: known.to_vec(), growing: false }
    }

    fn topics(records: i32, dead_letters: i32) -> [Topic; 2] {
        [("r", records), ("d", dead_letters)]
            .map(|(name, partitions)| Topic { name: name.into(), partitions })
    }

    #[test]
    fn what_cant_be_done_is_refused_with_the_way_out() {
        let refused = |count, counts: Partitions, topics: [Topic; 2]| {
            check(count, &counts, &topics).unwrap_err().to_string()
        };
        assert!(refused(3, counts(4, &[4]), topics(4, 4)).contains("can't take any away: 3 is too few"));
        let exceeded = refused(5, counts(4, &[4]), topics(6, 4));
        assert!(exceeded.contains("topic r has 6") && exceeded.contains("grow --partitions 6"), "{exceeded}");
        let exceeded = refused(6, counts(4, &[4]), topics(6, 8));
        assert!(exceeded.contains("topic d has 8") && exceeded.contains("grow --partitions 8"), "{exceeded}");
        let other = refused(6, counts(4, &[4, 8]), topics(4, 4));
        assert!(other.contains("finish it with `usagectl topics grow --partitions 8`"), "{other}");
        for (count, counts, topics) in [
            (6, counts(4, &[4]), topics(4, 4)),
            (6, counts(4, &[4, 6]), topics(6, 4)),
            (8, counts(4, &[4, 6]), topics(8, 8)),
            (4, counts(4, &[2, 4]), topics(3, 4)),
        ] {
            check(count, &counts, &topics).unwrap();
        }
    }

    #[test]
    fn steps_tell_what_is_done_already() {
        let [records, dead_letters] = topics(4, 6);
        let text = steps(6, &counts(4, &[4]), &[&records], Duration::from_secs(20)).join("\n");
        assert_eq!(
            text,
            "list 6 as a known count beside 4\nwait 20s for readers to know it\n\
             raise topic r from 4 to 6 partitions in Kafka\nhave workers that take a partition over wait\n\
             fence all 6 partitions in storage\nrecord 6 as the current count, by which workers go on"
        );
        let marked = Partitions { growing: true, ..counts(4, &[4, 6]) };
        let text = steps(6, &marked, &[], Duration::from_secs(20)).join("\n");
        assert!(text.contains("beside 4 (it is)") && text.contains("wait (they do)"), "{text}");
        let again = steps(8, &counts(8, &[8]), &[&records, &dead_letters], Duration::from_secs(20));
        assert_eq!(again.len(), 2, "only Kafka lacks something: {again:?}");
    }
}
