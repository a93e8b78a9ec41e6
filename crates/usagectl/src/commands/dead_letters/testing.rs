//! Letters for tests.

use super::letter::{Claims, Letter, Origin};
use super::message::Message;
use crate::arguments::Place;

pub(crate) fn message(partition: i32, offset: i64, headers: &[(&str, &[u8])]) -> Message {
    let headers = headers.iter().map(|(name, value)| (Some(name.to_string()), Some(value.to_vec())));
    Message {
        place: Place { partition, offset },
        timestamp: 1_700_000_000_999,
        key: Some(b"key".to_vec()),
        value: Some(b"value".to_vec()),
        headers: headers.collect(),
    }
}

pub(crate) fn letter(partition: i32, offset: i64) -> Letter {
    let origin = Origin {
        topic: "usage.records.v1".into(),
        partition,
        offset: offset + 1_000,
        timestamp: 1_700_000_000_123,
    };
    Letter {
        message: message(partition, offset, &[]),
        origin,
        reason: "undecodable".into(),
        error: "not a single-object frame".into(),
        attempt: 1,
        claims: Claims::default(),
    }
}
