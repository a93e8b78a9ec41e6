//! What the topics must be like.

use std::collections::HashMap;

use usage_schemas::names::{DEAD_LETTER_MESSAGE_BYTES, RECORDS_MESSAGE_BYTES, RECORDS_MESSAGE_BYTES_MOST};

/// A topic as the protocol needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Topic {
    pub name: String,
    pub partitions: i32,
    pub replication: i32,
    pub settings: Vec<(&'static str, String)>,
}

/// A topic as it is; `None` for a setting that Kafka does not tell.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub partitions: i32,
    pub replication: i32,
    pub settings: HashMap<&'static str, Option<String>>,
}

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;
const RECORDS_RETENTION_MS: i64 = 14 * DAY_MS;
const FOR_EVER: i64 = -1;
const MESSAGE_BYTES: &str = "max.message.bytes";

impl Topic {
    /// The topic of records and the topic of dead letters.
    pub fn both(records: &str, dead_letters: &str, partitions: i32, replication: i32) -> [Self; 2] {
        let topic = |name: &str, retention_ms: i64, more: &[(&'static str, i64)]| {
            let mut settings = vec![
                ("cleanup.policy", "delete".to_string()),
                // The broker's clock judges keys, quotas, "in future" and retention; a record of the past is not old to Kafka.
                ("message.timestamp.type", "LogAppendTime".to_string()),
                ("retention.ms", retention_ms.to_string()),
                // A broker's default could delete by size what is to be kept by time.
                ("retention.bytes", FOR_EVER.to_string()),
                // With one copy fewer than all, one broker may be away and no acknowledged message is on a single disk.
                ("min.insync.replicas", if replication >= 3 { "2" } else { "1" }.to_string()),
            ];
            settings.extend(more.iter().map(|(name, value)| (*name, value.to_string())));
            Self { name: name.into(), partitions, replication, settings }
        };
        [
            // Set, so that no broker's default makes the topic of records take what the other one does not: a dead letter is the
            // message as it was, with more headers.
            topic(records, RECORDS_RETENTION_MS, &[(MESSAGE_BYTES, RECORDS_MESSAGE_BYTES)]),
            topic(dead_letters, FOR_EVER, &[(MESSAGE_BYTES, DEAD_LETTER_MESSAGE_BYTES)]),
        ]
    }

    /// Whether the bound of a message's bytes, which an operator may raise, is one that the consumer works with.
    fn may_take(&self, bytes: i64) -> bool {
        let letters = (MESSAGE_BYTES, DEAD_LETTER_MESSAGE_BYTES.to_string());
        if self.settings.contains(&letters) {
            bytes >= DEAD_LETTER_MESSAGE_BYTES
        } else {
            (RECORDS_MESSAGE_BYTES..=RECORDS_MESSAGE_BYTES_MOST).contains(&bytes)
        }
    }

    /// One line for each thing that is other than it must be.
    pub fn differences(&self, found: &Found) -> Vec<String> {
        let mut lines = Vec::new();
        let mut compare = |what: &str, is: String, must: String| {
            if is != must {
                lines.push(format!("{}: {what} is {is}, must be {must}", self.name));
            }
        };
        compare("partitions", found.partitions.to_string(), self.partitions.to_string());
        compare("replication", found.replication.to_string(), self.replication.to_string());
        for (name, must) in &self.settings {
            let is = found.settings.get(name).cloned().flatten().unwrap_or_else(|| "not told".into());
            if *name == MESSAGE_BYTES && is.parse().is_ok_and(|bytes| self.may_take(bytes)) {
                continue;
            }
            compare(name, is, must.clone());
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn as_it_must_be(topic: &Topic) -> Found {
        Found {
            partitions: topic.partitions,
            replication: topic.replication,
            settings: topic.settings.iter().map(|(name, value)| (*name, Some(value.clone()))).collect(),
        }
    }

    #[test]
    fn settings_are_those_of_the_design() {
        let [records, dead_letters] = Topic::both("r", "d", 12, 3);
        let value = |topic: &Topic, name: &str| {
            topic.settings.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone()).unwrap()
        };
        for topic in [&records, &dead_letters] {
            assert_eq!((topic.partitions, topic.replication), (12, 3));
            assert_eq!(value(topic, "cleanup.policy"), "delete");
            assert_eq!(value(topic, "message.timestamp.type"), "LogAppendTime");
            assert_eq!(value(topic, "min.insync.replicas"), "2");
        }
        assert_eq!(value(&records, "retention.ms"), "1209600000");
        assert_eq!(value(&dead_letters, "retention.ms"), "-1");
        assert_eq!(value(&records, "max.message.bytes"), "1048588");
        assert_eq!(value(&dead_letters, "max.message.bytes"), "16777216");
        let [single, _] = Topic::both("r", "d", 12, 1);
        assert_eq!(value(&single, "min.insync.replicas"), "1");
    }

    /// `relay.max_message_bytes` may be raised, and the topic with it, as far as letters still fit.
    #[test]
    fn a_topic_may_take_more_while_its_letters_fit() {
        let [records, dead_letters] = Topic::both("r", "d", 12, 1);
        let differences = |topic: &Topic, bytes: i64| {
            let mut found = as_it_must_be(topic);
            found.settings.insert("max.message.bytes", Some(bytes.to_string()));
            topic.differences(&found).len()
        };
        assert_eq!(
            [1_048_587, 1_048_588, 8 << 20, (8 << 20) + 1].map(|b| differences(&records, b)),
            [1, 0, 0, 1]
        );
        assert_eq!([2 << 20, 16 << 20, 32 << 20].map(|bytes| differences(&dead_letters, bytes)), [1, 0, 0]);
    }

    #[test]
    fn each_difference_has_a_line() {
        let [records, _] = Topic::both("r", "d", 12, 1);
        let mut found = as_it_must_be(&records);
        assert!(records.differences(&found).is_empty());
        found.partitions = 6;
        found.settings.insert("message.timestamp.type", Some("CreateTime".into()));
        found.settings.insert("retention.ms", None);
        assert_eq!(
            records.differences(&found),
            [
                "r: partitions is 6, must be 12",
                "r: message.timestamp.type is CreateTime, must be LogAppendTime",
                "r: retention.ms is not told, must be 1209600000",
            ]
        );
    }
}
