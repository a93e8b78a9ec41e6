//! `usagectl dead-letters count`: open letters in groups.
//!
//! Counted is each refused message, by its origin: once, if a recovery wrote its letter twice; not at all once it was replayed or
//! discarded. A replayed record that is refused again is a new message and counts as that.

use std::collections::BTreeMap;

use serde_json::json;
use usage_service::config::KafkaConfig;

use super::letter::Letter;
use super::list::{millis, plain};
use super::survey::{Met, State};
use crate::arguments::{CountBy, CountLetters};
use crate::output;

/// Letters of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Group {
    letters: u64,
    /// By the broker's time of the refused messages, milliseconds since the Unix epoch.
    oldest: i64,
    newest: i64,
}

type Groups = BTreeMap<Vec<String>, Group>;

pub(super) fn run(kafka: &KafkaConfig, options: &CountLetters) -> anyhow::Result<()> {
    let survey = super::survey(kafka, &options.filter, false)?;
    let (mut groups, mut foreign) = (Groups::new(), 0_u64);
    survey.each(|met, _, _| {
        match met {
            Met::Letter(letter, State::Open) if options.filter.fits(&letter) => {
                add(&mut groups, &options.by, &letter);
            }
            Met::Foreign(..) => foreign += 1,
            _ => {}
        }
        Ok(())
    })?;
    let letters: u64 = groups.values().map(|group| group.letters).sum();
    let words: Vec<&str> = options.by.iter().map(|by| word(*by)).collect();
    if options.json {
        let groups = groups.iter().map(|(key, group)| {
            let mut object: serde_json::Map<String, serde_json::Value> =
                words.iter().zip(key).map(|(word, value)| (word.to_string(), json!(value))).collect();
            object.insert("letters".into(), json!(group.letters));
            object.insert("oldest".into(), json!(millis(group.oldest)));
            object.insert("newest".into(), json!(millis(group.newest)));
            object
        });
        let groups: Vec<_> = groups.collect();
        return output::json(&json!({ "letters": letters, "foreign": foreign, "groups": groups }));
    }
    let mut headings: Vec<String> = words.iter().map(|word| word.to_uppercase()).collect();
    headings.extend(["LETTERS", "OLDEST", "NEWEST"].map(str::to_owned));
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let rows = groups.into_iter().map(|(mut key, group)| {
        key.iter_mut().for_each(|text| *text = plain(text));
        key.extend([group.letters.to_string(), millis(group.oldest), millis(group.newest)]);
        key
    });
    output::table(&headings, rows);
    println!("{letters} open letters");
    if foreign > 0 {
        println!("{foreign} messages that are no letters were passed over");
    }
    Ok(())
}

fn word(by: CountBy) -> &'static str {
    match by {
        CountBy::Reason => "reason",
        CountBy::Severity => "severity",
        CountBy::Tenant => "tenant_id",
        CountBy::Source => "source",
        CountBy::Metric => "metric",
        CountBy::Attempt => "attempt",
    }
}

fn add(groups: &mut Groups, by: &[CountBy], letter: &Letter) {
    let claimed = |claim: Option<String>| claim.unwrap_or_else(|| "-".into());
    let key = by.iter().map(|by| match by {
        CountBy::Reason => letter.reason.clone(),
        CountBy::Severity => letter.severity().into(),
        CountBy::Tenant => claimed(letter.claims.tenant.map(|tenant| tenant.to_string())),
        CountBy::Source => claimed(letter.claims.source.clone()),
        CountBy::Metric => claimed(letter.claims.metric.clone()),
        CountBy::Attempt => letter.attempt.to_string(),
    });
    let at = letter.origin.timestamp;
    let group = groups.entry(key.collect()).or_insert(Group { letters: 0, oldest: at, newest: at });
    group.letters += 1;
    group.oldest = group.oldest.min(at);
    group.newest = group.newest.max(at);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::dead_letters::testing::letter;

    #[test]
    fn groups_know_their_first_and_last() {
        let mut groups = Groups::new();
        let by = [CountBy::Reason, CountBy::Source];
        for (offset, source, at) in [(1, Some("mail"), 300), (2, Some("mail"), 100), (3, None, 200)] {
            let mut letter = letter(0, offset);
            letter.origin.timestamp = at;
            letter.claims.source = source.map(str::to_owned);
            add(&mut groups, &by, &letter);
        }
        let key = |source: &str| vec!["undecodable".to_string(), source.to_string()];
        assert_eq!(groups[&key("mail")], Group { letters: 2, oldest: 100, newest: 300 });
        assert_eq!(groups[&key("-")], Group { letters: 1, oldest: 200, newest: 200 });
        assert_eq!(groups.len(), 2);
    }
}
