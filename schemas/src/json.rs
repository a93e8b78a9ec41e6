//! The JSON payload that `usage_emit` writes into the outbox (payload type `usage-collector.record.v1+json`).
//!
//! One object in UTF-8. Members, in any order; all but the first six may be missing or null:
//!
//! | member | JSON | content |
//! |---|---|---|
//! | `record_id` | string | UUID: [`crate::ids::record_id`] of tenant and key, UUIDv7 for a gauge without a key |
//! | `tenant_id` | string | UUID |
//! | `metric` | string | usage type |
//! | `kind` | string | `counter` or `gauge` |
//! | `value` | string (or number) | decimal in JSON's number grammar: in SQL `value::text`; NaN and infinities are refused |
//! | `timestamp` | string | RFC 3339, any offset: in SQL `to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`, whose text does not depend on the session's zone or date style |
//! | `idempotency_key` | string or null | required for a counter |
//! | `resource_id` | string or null | UUID |
//! | `resource_type` | string or null | |
//! | `subject_id` | string or null | UUID |
//! | `subject_type` | string or null | |
//! | `metadata` | string or null | the text of the JSON object, byte for byte: in SQL `metadata::text` |
//!
//! In SQL build it with `json_build_object(…)::text` or `json_object`, never with `jsonb`: jsonb refuses `\u0000` and lone surrogates and
//! rewrites numbers and member order, and metadata is kept as it was written. Another member is an error, so that nothing is
//! lost silently; so is one that appears twice. There is no `source`: it is a column of the row. Bounds are for
//! [`crate::validate`], whether the record id is the right one for the consumer.

use std::borrow::Cow;
use std::str::FromStr;

use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::serde_text::{Text, object};
use crate::{Invalid, Kind, Quantity, Timestamp, UsageRecord};

/// The members as they stand, so that an error can name the one it is about.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Payload<'a> {
    #[serde(borrow)]
    record_id: Option<&'a RawValue>,
    #[serde(borrow)]
    tenant_id: Option<&'a RawValue>,
    #[serde(borrow)]
    metric: Option<&'a RawValue>,
    #[serde(borrow)]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    value: Option<&'a RawValue>,
    #[serde(borrow)]
    timestamp: Option<&'a RawValue>,
    #[serde(borrow)]
    idempotency_key: Option<&'a RawValue>,
    #[serde(borrow)]
    resource_id: Option<&'a RawValue>,
    #[serde(borrow)]
    resource_type: Option<&'a RawValue>,
    #[serde(borrow)]
    subject_id: Option<&'a RawValue>,
    #[serde(borrow)]
    subject_type: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
}

/// Reads a JSON payload; `source` is the row's, `record_id` is part of the payload.
pub fn decode(payload: &[u8], source: &str) -> Result<UsageRecord, Invalid> {
    let payload: Payload<'_> =
        object(payload).map_err(|error| Invalid::record("payload", error.to_string()))?;
    let record_id = Member("record_id", payload.record_id).uuid()?;
    let tenant_id = Member("tenant_id", payload.tenant_id).uuid()?;
    let metric = Member("metric", payload.metric).text()?;
    let kind = Member("kind", payload.kind).text()?;
    let timestamp = Member("timestamp", payload.timestamp).text()?;
    Ok(UsageRecord {
        record_id: required("record_id", record_id)?,
        tenant_id: required("tenant_id", tenant_id)?,
        source: source.into(),
        metric: required("metric", metric)?.into_owned(),
        kind: parse("kind", &required("kind", kind)?)?,
        value: parse_value(required("value", payload.value)?)?,
        timestamp: parse::<Timestamp>("timestamp", &required("timestamp", timestamp)?)?,
        idempotency_key: Member("idempotency_key", payload.idempotency_key).owned()?,
        resource_id: Member("resource_id", payload.resource_id).uuid()?,
        resource_type: Member("resource_type", payload.resource_type).owned()?,
        subject_id: Member("subject_id", payload.subject_id).uuid()?,
        subject_type: Member("subject_type", payload.subject_type).owned()?,
        metadata: Member("metadata", payload.metadata).owned()?,
    })
}

/// A member's name and text; `Option` already took null away.
struct Member<'a>(&'static str, Option<&'a RawValue>);

impl<'a> Member<'a> {
    fn text(self) -> Result<Option<Cow<'a, str>>, Invalid> {
        let Self(field, Some(raw)) = self else {
            return Ok(None);
        };
        // Escapes that stand for no text (lone surrogates) are refused here.
        serde_json::from_str::<Text<'a>>(raw.get())
            .map(|text| Some(text.0))
            .map_err(|_| Invalid::record(field, "is not a string"))
    }

    fn owned(self) -> Result<Option<String>, Invalid> {
        Ok(self.text()?.map(Cow::into_owned))
    }

    fn uuid(self) -> Result<Option<Uuid>, Invalid> {
        let field = self.0;
        self.text()?.map(|text| parse_uuid(field, &text)).transpose()
    }
}

fn required<T>(field: &'static str, value: Option<T>) -> Result<T, Invalid> {
    value.ok_or_else(|| Invalid::record(field, "missing"))
}

fn parse<T: FromStr<Err: std::fmt::Display>>(field: &'static str, text: &str) -> Result<T, Invalid> {
    text.parse().map_err(|error: T::Err| Invalid::record(field, error.to_string()))
}

fn parse_value(raw: &RawValue) -> Result<Quantity, Invalid> {
    Quantity::from_raw_json(raw).map_err(|error| Invalid::record("value", error.to_string()))
}

/// The hyphenated form only: the others (braces, URN) are not what a database writes.
fn parse_uuid(field: &'static str, text: &str) -> Result<Uuid, Invalid> {
    let id = uuid::fmt::Hyphenated::from_str(text).map_err(|_| Invalid::record(field, "is not a UUID"))?;
    Ok(id.into_uuid())
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "counter" => Ok(Self::Counter),
            "gauge" => Ok(Self::Gauge),
            _ => Err(UnknownKind),
        }
    }
}

/// A kind that this version does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is neither counter nor gauge")]
pub struct UnknownKind;

#[cfg(test)]
mod tests;
