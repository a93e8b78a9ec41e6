//! A dead letter, and what else lies in its topic.

use rdkafka::message::{Header, OwnedHeaders};
use serde::{Deserialize, Serialize};
use usage_schemas::codec::Decoder;
use usage_schemas::{Reason, names};
use uuid::Uuid;

use super::mark::Mark;
use super::message::Message;

/// The refused message: a letter's identity. A recovery may write a letter again, and then there are two messages with one origin.
///
/// The broker's time is part of it, because a topic that was deleted and made anew counts its offsets from 0 again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Origin {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    /// Milliseconds since the Unix epoch.
    pub timestamp: i64,
}

/// A message that the consumer refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Letter {
    pub message: Message,
    pub origin: Origin,
    /// The word; a later consumer may know more of them.
    pub reason: String,
    pub error: String,
    /// How often the consumer has refused it, at least.
    pub attempt: u32,
    pub claims: Claims,
}

/// What a refused message says of itself; nobody has verified it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Claims {
    pub tenant: Option<Uuid>,
    pub source: Option<String>,
    pub metric: Option<String>,
}

/// A message of the topic.
#[derive(Debug)]
pub(super) enum Content {
    Letter(Letter),
    Mark(Mark),
    /// Neither; why not.
    Foreign(Message, &'static str),
}

/// Takes a message for what it is. Nothing is refused: whoever may write to the topic must not be able to stop its tools.
pub(super) fn read(message: Message, decoder: &Decoder) -> Content {
    if message.text(names::HEADER_PAYLOAD_TYPE) == Some(names::PAYLOAD_DEAD_LETTER_MARK) {
        // A marked message that was copied to the records topic and refused there is a letter like any other.
        if message.text(names::HEADER_DLQ_REASON).is_none() {
            return match message.value.as_deref().map(Mark::decode) {
                Some(Some((settled, letters))) => {
                    Content::Mark(Mark { place: message.place, settled, letters })
                }
                _ => Content::Foreign(message, "a mark that can't be read"),
            };
        }
    }
    let number = |name| message.text(name).and_then(|text| text.parse::<i64>().ok());
    let origin = || {
        Some(Origin {
            topic: message.text(names::HEADER_DLQ_TOPIC)?.to_owned(),
            partition: i32::try_from(number(names::HEADER_DLQ_PARTITION)?).ok()?,
            offset: number(names::HEADER_DLQ_OFFSET)?,
            timestamp: number(names::HEADER_DLQ_TIMESTAMP)?,
        })
    };
    let Some(reason) = message.text(names::HEADER_DLQ_REASON).map(str::to_owned) else {
        return Content::Foreign(message, "no dlq-reason");
    };
    let Some(origin) = origin() else {
        return Content::Foreign(message, "no dlq-topic, dlq-partition, dlq-offset or dlq-timestamp");
    };
    let error = message.header(names::HEADER_DLQ_ERROR).unwrap_or_default();
    let error = String::from_utf8_lossy(error).into_owned();
    // As the consumer reads it.
    let attempt = message.text(names::HEADER_DLQ_ATTEMPT).and_then(|text| text.parse().ok()).unwrap_or(1);
    let claims = claims(&message, decoder);
    Content::Letter(Letter { message, origin, reason, error, attempt, claims })
}

fn claims(message: &Message, decoder: &Decoder) -> Claims {
    if let Some(record) = message.value.as_deref().and_then(|value| decoder.decode(value).ok()) {
        return Claims {
            tenant: Some(record.tenant_id),
            source: Some(record.source.into()),
            metric: Some(record.metric.into()),
        };
    }
    let key = message.key.as_deref().and_then(|key| std::str::from_utf8(key).ok());
    Claims {
        tenant: key.and_then(|key| Uuid::try_parse(key).ok()),
        source: message.text(names::HEADER_SOURCE).map(str::to_owned),
        metric: None,
    }
}

impl Letter {
    /// `error` or `info`; a word that this version does not know may be anything, so somebody should look.
    pub fn severity(&self) -> &'static str {
        Reason::parse(&self.reason).map_or("error", |reason| reason.severity().as_str())
    }

    /// Why it can't be put back, whatever is repaired.
    pub fn unreplayable(&self) -> Option<&'static str> {
        if self.message.headers.iter().any(|(name, _)| name.is_none()) {
            return Some("a header's name is not text");
        }
        if self.message.header(names::HEADER_DLQ_TRUNCATED).is_some() {
            return Some("its value was too large to be kept");
        }
        let payload = self.message.text(names::HEADER_PAYLOAD_TYPE);
        (payload == Some(names::PAYLOAD_MARKER))
            .then_some("a completeness marker, which the next one replaces")
    }

    /// The headers for the topic of records: the message's own, and the attempt that it will be.
    pub fn replay_headers(&self) -> OwnedHeaders {
        let own = self.message.headers.iter().filter_map(|(name, value)| Some((name.as_deref()?, value)));
        let own =
            own.filter(|(name, _)| !name.starts_with(names::DLQ_PREFIX) && *name != names::HEADER_FORWARDED);
        let headers = own.fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: value.as_ref() })
        });
        let attempt = self.attempt.saturating_add(1).to_string();
        headers.insert(Header { key: names::HEADER_DLQ_ATTEMPT, value: Some(&attempt) })
    }
}

#[cfg(test)]
mod tests;
