//! `usagectl dead-letters replay`: letters go onto the topic of records again, byte for byte, with the next attempt.

use tokio::runtime::Handle;
use usage_service::config::KafkaConfig;

use super::outbound::Outbound;
use super::settle::{self, Action, Options, Tally};
use crate::arguments::ReplayLetters;
use crate::output;

/// `partitions`: how many the topic of records has by the control database.
pub(super) fn run(kafka: &KafkaConfig, partitions: i32, options: &ReplayLetters) -> anyhow::Result<()> {
    let survey = super::survey(kafka, &options.filter, options.again)?;
    let outbound = if options.dry_run { None } else { Some(Outbound::new(kafka, Handle::current())?) };
    let settle = Options {
        filter: &options.filter,
        action: Action::Replay {
            topic: kafka.records_topic.clone(),
            partitions,
            max_attempts: options.max_attempts,
        },
        again: options.again,
        rate: options.rate,
    };
    let tally = settle::run(&survey, &settle, outbound.as_ref())?;
    if options.json {
        return output::json(&tally);
    }
    print(if options.dry_run { "would replay" } else { "replayed" }, &tally);
    if tally.exhausted > 0 {
        println!(
            "{} left alone: refused {} times or more (--max-attempts)",
            tally.exhausted, options.max_attempts
        );
    }
    for (why, letters) in &tally.unreplayable {
        println!("{letters} can't be replayed: {why}");
    }
    Ok(())
}

/// The part that `discard` prints, too.
pub(super) fn print(done: &str, tally: &Tally) {
    println!("{done} {} letters", tally.total());
    for (reason, letters) in &tally.settled {
        println!("  {letters} {}", super::list::plain(reason));
    }
    if tally.others > 0 {
        println!("{} open letters do not fit the filter", tally.others);
    }
    if tally.foreign > 0 {
        println!("{} messages that are no letters were passed over", tally.foreign);
    }
}
