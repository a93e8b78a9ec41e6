//! `usagectl dead-letters`: what the consumer refused, and what becomes of it. The rules are in `docs/dead-letters.md`.

mod count;
mod discard;
mod filter;
mod letter;
mod list;
mod mark;
mod message;
mod outbound;
mod position;
mod replay;
mod settle;
mod show;
mod survey;
#[cfg(test)]
mod testing;
mod topic;

use usage_service::config::{KafkaConfig, Resolved};

use crate::WrongInput;
use crate::arguments::{DeadLetters, LetterFilter};
use survey::Survey;
use topic::Topic;

pub(super) async fn run(config: &Resolved, command: DeadLetters) -> anyhow::Result<()> {
    let kafka: KafkaConfig = config.section("kafka")?;
    match command {
        DeadLetters::List(options) => blocking(move || list::run(&kafka, &options)).await,
        DeadLetters::Show(options) => blocking(move || show::run(&kafka, &options)).await,
        DeadLetters::Count(options) => blocking(move || count::run(&kafka, &options)).await,
        DeadLetters::Replay(options) => {
            let partitions = super::control(config).await?.partition_counts().await?.current;
            blocking(move || replay::run(&kafka, partitions, &options)).await
        }
        DeadLetters::Discard(options) => blocking(move || discard::run(&kafka, &options)).await,
    }
}

/// Reading Kafka blocks its thread.
async fn blocking(work: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> anyhow::Result<()> {
    tokio::task::spawn_blocking(work).await?
}

/// The topic as it is now, with the partitions that the filter allows.
fn survey(kafka: &KafkaConfig, filter: &LetterFilter, whole: bool) -> anyhow::Result<Survey> {
    filter.check()?;
    let topic = Topic::open(kafka)?;
    if let Some(absent) = filter.partition.iter().find(|wanted| !topic.partitions.contains(wanted)) {
        let detail = format!("{} has no partition {absent}", topic.name);
        return Err(WrongInput { argument: "--partition", detail }.into());
    }
    Survey::begin(topic, |partition| filter.has_partition(partition), whole)
}
