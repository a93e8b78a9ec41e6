//! `usagectl dead-letters discard`: letters are marked, so that nothing lists, counts or replays them any more. They stay in the topic.

use tokio::runtime::Handle;
use usage_service::config::KafkaConfig;

use super::outbound::Outbound;
use super::settle::{self, Action, Options};
use crate::arguments::DiscardLetters;
use crate::{WrongInput, output};

pub(super) fn run(kafka: &KafkaConfig, options: &DiscardLetters) -> anyhow::Result<()> {
    if options.filter.is_empty() && !options.all {
        let detail = "give one, or --all for every open letter".into();
        return Err(WrongInput { argument: "filter", detail }.into());
    }
    let survey = super::survey(kafka, &options.filter, false)?;
    let outbound = if options.dry_run { None } else { Some(Outbound::new(kafka, Handle::current())?) };
    let settle =
        Options { filter: &options.filter, action: Action::Discard, again: false, rate: options.rate };
    let tally = settle::run(&survey, &settle, outbound.as_ref())?;
    if options.json {
        return output::json(&tally);
    }
    super::replay::print(if options.dry_run { "would discard" } else { "discarded" }, &tally);
    Ok(())
}
