//! `usagectl dead-letters show`: everything about a letter, its values and metadata too: whoever calls it has asked for them.

use serde_json::{Map, Value, json};
use usage_schemas::codec::Decoder;
use usage_service::config::KafkaConfig;

use super::letter::Letter;
use super::list::{millis, plain, summary};
use super::message::Message;
use super::survey::{Met, State, Survey};
use super::topic::Topic;
use crate::arguments::ShowLetters;
use crate::{output, parse};

pub(super) fn run(kafka: &KafkaConfig, options: &ShowLetters) -> anyhow::Result<()> {
    let survey = if options.places.is_empty() {
        super::survey(kafka, &options.filter, false)?
    } else {
        options.filter.check()?;
        let named = |partition| options.places.iter().any(|place| place.partition == partition);
        Survey::begin(Topic::open(kafka)?, named, true)?
    };
    let (mut shown, mut more) = (Vec::new(), 0_u64);
    survey.each(|met, _, _| {
        let found = match met {
            Met::Letter(letter, state) => {
                let named = options.places.contains(&letter.message.place);
                let wanted = if options.places.is_empty() { state == State::Open } else { named };
                (wanted && options.filter.fits(&letter)).then(|| of_letter(&letter, state, options.bytes))
            }
            Met::Foreign(message, why) if options.places.contains(&message.place) => {
                Some(of_foreign(&message, why, options.bytes))
            }
            _ => None,
        };
        match found {
            Some(_) if shown.len() >= options.limit => more += 1,
            Some(found) => shown.push(found),
            None => {}
        }
        Ok(())
    })?;
    if options.json {
        output::json(&shown)?;
    } else {
        for (position, letter) in shown.iter().enumerate() {
            print!("{}{}", if position > 0 { "\n" } else { "" }, text(letter, 0));
        }
    }
    if shown.is_empty() {
        eprintln!("no letter fits");
    }
    if more > 0 {
        eprintln!("{more} more letters; --limit shows more of them");
    }
    Ok(())
}

fn of_letter(letter: &Letter, state: State, limit: usize) -> Value {
    let Value::Object(mut object) = summary(letter, state) else { return Value::Null };
    object.append(&mut of_message(&letter.message, limit));
    Value::Object(object)
}

fn of_foreign(message: &Message, why: &str, limit: usize) -> Value {
    let mut object = of_message(message, limit);
    object.insert("place".into(), json!(message.place.to_string()));
    object.insert("state".into(), json!(format!("no letter: {why}")));
    object.insert("written_at".into(), json!(millis(message.timestamp)));
    Value::Object(object)
}

fn of_message(message: &Message, limit: usize) -> Map<String, Value> {
    let mut object = Map::new();
    let headers = message.headers.iter().map(|(name, value)| {
        let name = name.as_deref().unwrap_or("(a name that is not text)");
        json!({ "name": name, "value": bytes(value.as_deref(), limit) })
    });
    object.insert("headers".into(), headers.collect());
    object.insert("key".into(), bytes(message.key.as_deref(), limit));
    match message.value.as_deref().and_then(record) {
        Some(record) => object.insert("record".into(), record),
        None => object.insert("value".into(), bytes(message.value.as_deref(), limit)),
    };
    object
}

/// The fields of the record, if it is one.
fn record(value: &[u8]) -> Option<Value> {
    let record = Decoder::new().decode(value).ok()?;
    Some(json!({
        "record_id": record.record_id,
        "tenant_id": record.tenant_id,
        "source": record.source,
        "metric": record.metric,
        "kind": record.kind,
        "value": record.value.to_string(),
        "timestamp": record.timestamp.to_string(),
        "idempotency_key": record.idempotency_key,
        "resource_id": record.resource_id,
        "resource_type": record.resource_type,
        "subject_id": record.subject_id,
        "subject_type": record.subject_type,
        "metadata": record.metadata,
    }))
}

/// Text as it is; anything else in hex, at most `limit` bytes of it.
fn bytes(bytes: Option<&[u8]>, limit: usize) -> Value {
    let Some(bytes) = bytes else { return Value::Null };
    match std::str::from_utf8(bytes) {
        Ok(text) if text.len() <= limit => json!(text),
        _ => {
            let hex = parse::to_hex(&bytes[..bytes.len().min(limit)]);
            json!({ "bytes": bytes.len(), "hex": hex })
        }
    }
}

/// Indented lines `name  value`.
fn text(value: &Value, indent: usize) -> String {
    let Value::Object(object) = value else { return String::new() };
    let mut lines = String::new();
    for (name, value) in object {
        let head = format!("{:indent$}{}", "", plain(name));
        match value {
            Value::Null => lines.push_str(&format!("{head:<20} -\n")),
            Value::String(text) => lines.push_str(&format!("{head:<20} {}\n", plain(text))),
            Value::Array(headers) => {
                lines.push_str(&format!("{head}\n"));
                for header in headers {
                    let name = header["name"].as_str().unwrap_or_default();
                    let one = Map::from_iter([(name.to_owned(), header["value"].clone())]);
                    lines.push_str(&text(&Value::Object(one), indent + 2));
                }
            }
            Value::Object(_) => lines.push_str(&format!("{head}\n{}", text(value, indent + 2))),
            other => lines.push_str(&format!("{head:<20} {other}\n")),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::dead_letters::testing::letter;

    #[test]
    fn what_is_not_text_is_hex_and_bounded() {
        assert_eq!(bytes(None, 4), Value::Null);
        assert_eq!(bytes(Some(b""), 4), json!(""));
        assert_eq!(bytes(Some("ä1".as_bytes()), 4), json!("ä1"));
        assert_eq!(bytes(Some(&[0xff; 9]), 4), json!({ "hex": "ffffffff", "bytes": 9 }));
        assert_eq!(bytes(Some(b"abcde"), 4), json!({ "hex": "61626364", "bytes": 5 }));
    }

    #[test]
    fn lines_are_indented_and_harmless() {
        let mut letter = letter(3, 17);
        letter.message.headers = vec![(Some("x\u{7}".into()), Some(vec![0xff])), (None, None)];
        letter.message.value = None;
        let text = text(&of_letter(&letter, State::Open, 16), 0);
        for part in [
            "place                3:17\n",
            "headers\n  x\\u{7}\n    bytes",
            "    hex              ff\n",
            "value                -\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        assert!(text.contains("(a name that is not text) -"), "{text}");
    }
}
