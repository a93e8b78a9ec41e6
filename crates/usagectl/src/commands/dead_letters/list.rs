//! `usagectl dead-letters list`: one line a letter. Values, metadata and keys are not in it: `show` has them.

use serde_json::json;
use usage_service::config::KafkaConfig;

use super::letter::Letter;
use super::survey::{Met, State};
use crate::arguments::ListLetters;
use crate::output;

pub(super) fn run(kafka: &KafkaConfig, options: &ListLetters) -> anyhow::Result<()> {
    let survey = super::survey(kafka, &options.filter, options.settled)?;
    let (mut rows, mut more) = (Vec::new(), 0_u64);
    survey.each(|met, _, _| {
        if let Met::Letter(letter, state) = met {
            let wanted = state == State::Open || options.settled;
            if wanted && options.filter.fits(&letter) {
                if rows.len() < options.limit {
                    rows.push((summary(&letter, state), line(&letter, state)));
                } else {
                    more += 1;
                }
            }
        }
        Ok(())
    })?;
    if options.json {
        output::json(&rows.into_iter().map(|(json, _)| json).collect::<Vec<_>>())?;
    } else {
        let headings = [
            "PLACE", "STATE", "REASON", "SEVERITY", "TENANT", "SOURCE", "METRIC", "REFUSED", "ATTEMPT",
            "ERROR",
        ];
        output::table(&headings, rows.into_iter().map(|(_, line)| line));
    }
    if more > 0 {
        eprintln!("{more} more letters; --limit shows more of them");
    }
    Ok(())
}

/// What may be printed of a letter without being asked for it.
pub(super) fn summary(letter: &Letter, state: State) -> serde_json::Value {
    json!({
        "place": letter.message.place.to_string(),
        "state": state.as_str(),
        "reason": letter.reason,
        "severity": letter.severity(),
        "error": letter.error,
        "tenant_id": letter.claims.tenant,
        "source": letter.claims.source,
        "metric": letter.claims.metric,
        "attempt": letter.attempt,
        "origin": {
            "topic": letter.origin.topic,
            "partition": letter.origin.partition,
            "offset": letter.origin.offset,
            "timestamp": millis(letter.origin.timestamp),
        },
        "written_at": millis(letter.message.timestamp),
    })
}

fn line(letter: &Letter, state: State) -> Vec<String> {
    let claims = &letter.claims;
    let text = |claim: &Option<String>| claim.as_deref().map_or_else(|| "-".into(), plain);
    vec![
        letter.message.place.to_string(),
        state.as_str().into(),
        plain(&letter.reason),
        letter.severity().into(),
        claims.tenant.map_or_else(|| "-".into(), |tenant| tenant.to_string()),
        text(&claims.source),
        text(&claims.metric),
        millis(letter.origin.timestamp),
        letter.attempt.to_string(),
        plain(&letter.error),
    ]
}

/// Milliseconds since the Unix epoch as RFC 3339.
pub(super) fn millis(millis: i64) -> String {
    output::time(millis.saturating_mul(1_000))
}

/// Text of anybody's without what a terminal would obey.
pub(super) fn plain(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::dead_letters::testing::letter;

    #[test]
    fn a_terminal_obeys_nothing_of_a_letter() {
        let mut letter = letter(3, 17);
        letter.claims.source = Some("a\u{1b}[2J\nb".into());
        letter.error = "ä\r".into();
        let line = line(&letter, State::Open);
        assert_eq!((line[5].as_str(), line[9].as_str()), ("a\\u{1b}[2J\\nb", "ä\\r"));
        assert_eq!((line[0].as_str(), line[7].as_str()), ("3:17", "2023-11-14T22:13:20.123000Z"));
    }

    #[test]
    fn a_list_has_no_value_and_no_key() {
        let mut letter = letter(3, 17);
        letter.message.value = Some(b"secret value".to_vec());
        letter.message.key = Some(b"secret key".to_vec());
        let text = summary(&letter, State::Open).to_string() + &line(&letter, State::Open).join(" ");
        assert!(!text.contains("secret"), "{text}");
    }
}
