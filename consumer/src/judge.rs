//! The decision about one message, without its duplicates: decode and headers, signature, key and partition, id, bounds, type, and
//! whether its source may emit for its tenant.
//!
//! Pure: everything it needs comes with the call, so that a record that could not be decided at once is judged again the same
//! way with fresher knowledge.

use std::collections::HashMap;
use std::sync::Arc;

use usage_control::{Attribution, Quotas};
use usage_schemas::codec::{DecodeError, Decoder};
use usage_schemas::partition::partition_of;
use usage_schemas::{Bounds, CompiledType, Reason, RecordRef, Timestamp, ids, names, validate};
use uuid::Uuid;

use crate::attribution::Permissions;
use crate::authenticate::{Signed, SourceKeys};
use crate::batch::Whose;
use crate::marker::{self, Heard};
use crate::message::{Envelope, KnownHeaders};

/// How often a record may be forwarded.
pub const FORWARD_LIMIT: u32 = 3;

/// The registered usage types by name, ready for judging.
pub type Types = HashMap<Arc<str>, Arc<CompiledType>>;

/// What the control database says, as last read.
#[derive(Default)]
pub struct Registry {
    /// Grows with each reading, by when it began.
    pub reading: u64,
    pub keys: SourceKeys,
    pub types: Types,
    /// Whose usage sources emit, where it was said.
    pub sources: HashMap<String, Attribution>,
}

impl Registry {
    /// Whose usage the source emits.
    pub fn attribution(&self, source: &str) -> Attribution {
        self.sources.get(source).copied().unwrap_or_default()
    }
}

/// What judging needs besides the message.
pub struct Judge {
    pub decoder: Decoder,
    pub bounds: Bounds,
    pub registry: Arc<Registry>,
    /// The registry is so old that nothing is decided by it: its keys may have been revoked.
    pub stale: bool,
    /// What each source's tenants may have kept; asked for only where a record would be kept.
    pub quotas: Arc<Quotas>,
    /// What the policy point has permitted.
    pub permissions: Permissions,
}

/// Where a message was read: its partition, and how many the topic has by the control database.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub partition: i32,
    pub count: i32,
}

/// A verdict about one message.
#[derive(Debug)]
pub enum Verdict<'a> {
    /// Valid; kept unless it is a duplicate or a conflict.
    Record {
        record: RecordRef<'a>,
        content_hash: [u8; 16],
    },
    /// The same, if the policy point permits its source to emit for a tenant that is not its home.
    OnBehalf {
        record: RecordRef<'a>,
        content_hash: [u8; 16],
    },
    /// A completeness marker of a known source.
    Marker(Heard),
    /// Valid as far as the signature goes, but on the wrong partition.
    Forward {
        partition: i32,
        hops: u32,
    },
    Refused(Refusal),
}

/// Why a message becomes a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    /// For people; bounded, and without the record's values.
    pub error: String,
    /// True if a fresher registry could judge otherwise.
    pub by_registry: bool,
}

impl Refusal {
    fn new(reason: Reason, error: impl Into<String>) -> Self {
        Self { reason, error: error.into(), by_registry: false }
    }

    fn by_registry(reason: Reason, error: impl Into<String>) -> Self {
        Self { reason, error: error.into(), by_registry: true }
    }
}

impl Judge {
    pub fn judge<'a>(&self, message: &Envelope<'a>, place: Place) -> Verdict<'a> {
        self.try_judge(message, place).unwrap_or_else(Verdict::Refused)
    }

    fn try_judge<'a>(&self, message: &Envelope<'a>, place: Place) -> Result<Verdict<'a>, Refusal> {
        let undecodable = |what: &str| Refusal::new(Reason::Undecodable, what);
        let headers = message.headers.as_ref().ok_or_else(|| undecodable("a header's name is not text"))?;
        let value = message.value.ok_or_else(|| undecodable("the message has no value"))?;
        let key = message.key.ok_or_else(|| undecodable("the message has no key"))?;
        let signature =
            headers.signature.ok_or_else(|| undecodable("the header usage-signature is missing"))?;
        let source = text(headers.source, names::HEADER_SOURCE)?;
        let key_id = text(headers.key_id, names::HEADER_KEY_ID)?;
        let at = message.timestamp.saturating_mul(1_000);
        let signed = Signed { source, key_id, signature, message_key: key, value, at };
        match text(headers.payload_type, names::HEADER_PAYLOAD_TYPE)? {
            names::PAYLOAD_RECORD => {}
            names::PAYLOAD_MARKER => {
                let heard = marker::read(message).map_err(|(reason, error)| Refusal::new(reason, error))?;
                self.authenticate(&signed)?;
                return Ok(Verdict::Marker(heard));
            }
            _ => return Err(undecodable("the header payload-type names an unknown type")),
        }

        let record = self.decoder.decode(value).map_err(|error| match error {
            DecodeError::UnknownSchema(_) => Refusal::new(Reason::UnknownSchema, error.to_string()),
            _ => Refusal::new(Reason::Undecodable, error.to_string()),
        })?;
        self.authenticate(&signed)?;
        if record.source != source {
            return Err(Refusal::new(
                Reason::UnknownSource,
                "the record names another source than the one that signed it",
            ));
        }
        if !is_text_of(key, record.tenant_id) {
            return Err(Refusal::new(Reason::WrongPartition, "the key is not the tenant's id as text"));
        }
        let right = partition_of(record.tenant_id, place.count);
        if right != place.partition {
            return forward(headers, right);
        }
        check_id(&record)?;
        validate::validate(&record, &self.bounds, Timestamp::from_micros(at))
            .map_err(|invalid| Refusal::new(invalid.reason, invalid.to_string()))?;
        match self.registry.types.get(record.metric) {
            Some(usage_type) => usage_type
                .check(&record)
                .map_err(|violation| Refusal::by_registry(Reason::SchemaViolation, violation.to_string()))?,
            None => return Err(Refusal::by_registry(Reason::UnknownUsageType, "metric: not registered")),
        }
        let content_hash = ids::content_hash(&record);
        let attribution = self.registry.attribution(source);
        let (tenant, metric) = (record.tenant_id, record.metric);
        // Another metric than those that were permitted is asked about again before it is refused.
        if attribution.home_tenant() == Some(tenant)
            || self.permissions.allows(source, attribution, tenant, metric) == Some(true)
        {
            Ok(Verdict::Record { record, content_hash })
        } else {
            Ok(Verdict::OnBehalf { record, content_hash })
        }
    }

    fn authenticate(&self, signed: &Signed<'_>) -> Result<(), Refusal> {
        self.registry.keys.verify(signed).map_err(|(reason, error)| Refusal::by_registry(reason, error))
    }

    /// Takes a registry, unless the one at hand was read later.
    pub fn refresh(&mut self, registry: Arc<Registry>) {
        if registry.reading > self.registry.reading {
            self.registry = registry;
        }
    }

    /// The record of a message that might be kept, if the registry allowed it; without that it may be anybody's.
    pub fn candidate<'a>(&self, message: &Envelope<'a>) -> Option<RecordRef<'a>> {
        let record = self.decoder.decode(message.value?).ok()?;
        check_id(&record).ok()?;
        let at = Timestamp::from_micros(message.timestamp.saturating_mul(1_000));
        validate::validate(&record, &self.bounds, at).ok()?;
        Some(record)
    }

    /// Whose record it is. A metric that is not registered is none, so that a source can't make labels at will.
    pub fn whose(&self, record: &RecordRef<'_>) -> Whose {
        let registered = self.registry.types.get_key_value(record.metric);
        Whose { tenant_id: Some(record.tenant_id), metric: registered.map(|(name, _)| name.clone()) }
    }

    /// Whose record a refused message claims to be; nobody's, if it was refused before anything in it could be looked at.
    pub fn claims(&self, message: &Envelope<'_>, refusal: &Refusal) -> Whose {
        let claimed = || self.claimed(message).map(|record| self.whose(&record));
        if refusal.reason == Reason::Undecodable { Whose::default() } else { claimed().unwrap_or_default() }
    }

    /// The record that a message claims to be, whether it is valid or not.
    pub fn claimed<'a>(&self, message: &Envelope<'a>) -> Option<RecordRef<'a>> {
        self.decoder.decode(message.value?).ok()
    }
}

fn text<'a>(header: Option<&'a [u8]>, name: &str) -> Result<&'a str, Refusal> {
    let value =
        header.ok_or_else(|| Refusal::new(Reason::Undecodable, format!("the header {name} is missing")))?;
    std::str::from_utf8(value)
        .map_err(|_| Refusal::new(Reason::Undecodable, format!("the header {name} is not text")))
}

fn is_text_of(key: &[u8], id: Uuid) -> bool {
    let mut buffer = Uuid::encode_buffer();
    id.hyphenated().encode_lower(&mut buffer).as_bytes() == key
}

/// A misplaced record goes to its partition, so that all copies of an identity have one decider.
fn forward<'a>(headers: &KnownHeaders<'_>, partition: i32) -> Result<Verdict<'a>, Refusal> {
    let hops = match headers.forwarded {
        None => 0,
        // What is not a number counts as too often: nobody but a consumer writes this header.
        Some(hops) => {
            std::str::from_utf8(hops).ok().and_then(|hops| hops.parse().ok()).unwrap_or(FORWARD_LIMIT)
        }
    };
    if hops >= FORWARD_LIMIT {
        return Err(Refusal::new(Reason::WrongPartition, "forwarded too often"));
    }
    Ok(Verdict::Forward { partition, hops: hops + 1 })
}

/// A keyed record has the id of its identity; one without a key has a UUIDv7, which no identity can give.
fn check_id(record: &RecordRef<'_>) -> Result<(), Refusal> {
    let fits = match record.idempotency_key {
        Some(key) => ids::record_id(record.tenant_id, key) == record.record_id,
        None => record.record_id.get_version_num() == 7,
    };
    fits.then_some(())
        .ok_or_else(|| Refusal::new(Reason::IdMismatch, "record_id: not the id of the identity"))
}

#[cfg(test)]
mod tests {
    use usage_schemas::codec::Encoder;
    use usage_schemas::{Kind, Quantity, Rules, UsageRecord};

    use super::*;
    use crate::message::OwnedMessage;
    use crate::testing::{
        NOW, SOURCE, TENANTS, judge, marker, record, register, sealed, signed, with_headers,
    };

    const PLACE: Place = Place { partition: 0, count: 1 };

    fn tenant() -> Uuid {
        TENANTS[0]
    }

    fn reason(message: &OwnedMessage, place: Place) -> Option<(Reason, bool)> {
        match judge().judge(&message.envelope(), place) {
            Verdict::Refused(refusal) => Some((refusal.reason, refusal.by_registry)),
            _ => None,
        }
    }

    fn changed(change: impl FnOnce(&mut UsageRecord)) -> OwnedMessage {
        let mut record = record(tenant(), "key", 5);
        change(&mut record);
        signed(1, &record)
    }

    #[test]
    fn a_good_record_comes_with_its_hash() {
        let record = record(tenant(), "key", 5);
        let message = signed(1, &record);
        let verdict = judge();
        let envelope = message.envelope();
        let Verdict::Record { record: judged, content_hash } = verdict.judge(&envelope, PLACE) else {
            panic!("valid")
        };
        assert_eq!(judged, record.borrowed());
        assert_eq!(content_hash, ids::content_hash(&record.borrowed()));
    }

    #[test]
    fn each_fault_has_its_reason() {
        let gauge = |record: &mut UsageRecord| {
            record.kind = Kind::Gauge;
            record.idempotency_key = None;
        };
        let cases: Vec<(OwnedMessage, Reason, bool)> = vec![
            (changed(|r| r.source = "mail".into()), Reason::UnknownSource, true),
            (changed(|r| r.record_id = Uuid::from_u128(7)), Reason::IdMismatch, false),
            (changed(|r| r.value = Quantity::from_unscaled(-1).unwrap()), Reason::InvalidRecord, false),
            (
                changed(|r| r.metadata = Some(format!("{{\"a\":\"{}\"}}", "x".repeat(9_000)))),
                Reason::MetadataTooLarge,
                false,
            ),
            (
                changed(|r| r.timestamp = Timestamp::from_micros((NOW + 301_000) * 1_000)),
                Reason::InFuture,
                false,
            ),
            (changed(|r| r.timestamp = Timestamp::from_micros(0)), Reason::TooOld, false),
            (changed(|r| r.metric = "llm.unheard".into()), Reason::UnknownUsageType, true),
            (changed(|r| r.metric = "vm.memory".into()), Reason::SchemaViolation, true),
            // Without a key the id must be a UUIDv7, so that it never equals the id of an identity.
            (
                changed(|r| {
                    gauge(r);
                    r.metric = "vm.memory".into();
                }),
                Reason::IdMismatch,
                false,
            ),
        ];
        for (message, expected, by_registry) in cases {
            assert_eq!(reason(&message, PLACE), Some((expected, by_registry)), "{expected}");
        }
        let sampled = changed(|r| {
            gauge(r);
            r.metric = "vm.memory".into();
            r.record_id = Uuid::from_u128(0x0188_4b5e_0000_7000_8000_0000_0000_0001);
        });
        assert_eq!(reason(&sampled, PLACE), None);
    }

    #[test]
    fn a_record_is_held_against_the_rules_of_its_time() {
        let mut judge = judge();
        let registry = Arc::get_mut(&mut judge.registry).unwrap();
        registry.types.remove("llm.tokens");
        let most = |units| Rules { max: Some(Quantity::from_unscaled(units).unwrap()), ..Rules::default() };
        // Version 2 begins a second after NOW.
        for rules in [most(5), most(7)] {
            register(registry, "llm.tokens", Kind::Counter, rules);
        }
        let second = 1_000_000;
        for (units, after, error) in [
            (5, 0, None),
            (6, second - 1, Some("value: is greater than the maximum (version 1 of the usage type)")),
            (7, second, None),
            (8, second, Some("value: is greater than the maximum (version 2 of the usage type)")),
        ] {
            let timestamp = Timestamp::from_micros(NOW * 1_000 + after);
            let message = signed(1, &UsageRecord { timestamp, ..record(tenant(), "key", units) });
            match judge.judge(&message.envelope(), PLACE) {
                Verdict::Record { .. } => assert_eq!(error, None, "{units}"),
                Verdict::Refused(refusal) => {
                    assert_eq!((refusal.reason, refusal.by_registry), (Reason::SchemaViolation, true));
                    assert_eq!(Some(refusal.error.as_str()), error, "{units}");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn what_is_no_record_is_undecodable() {
        let good = signed(1, &record(tenant(), "key", 5));
        let take = |change: fn(&mut OwnedMessage)| {
            let mut message = crate::testing::copy(&good);
            change(&mut message);
            message
        };
        let value = Encoder::new().encode(&record(tenant(), "key", 5));
        let messages = [
            take(|m| m.value = None),
            take(|m| m.key = None),
            take(|m| m.headers = None),
            take(|m| m.value = Some(vec![])),
            take(|m| m.value.as_mut().unwrap().truncate(20)),
            sealed(1, "text/plain", b"k", &value, SOURCE),
            with_headers(1, b"k", &value, &[("payload-type", b"usage-collector.record.v1")]),
            with_headers(
                1,
                b"k",
                &value,
                &[
                    ("payload-type", b"\xff\xfe"),
                    ("usage-signature", b"00"),
                    ("usage-key-id", b"k1"),
                    ("usage-source", b"s"),
                ],
            ),
        ];
        for (i, message) in messages.iter().enumerate() {
            assert_eq!(reason(message, PLACE), Some((Reason::Undecodable, false)), "message {i}");
        }
        let mut unknown = value;
        unknown[2] ^= 1;
        let unknown = sealed(1, names::PAYLOAD_RECORD, b"k", &unknown, SOURCE);
        assert_eq!(reason(&unknown, PLACE), Some((Reason::UnknownSchema, false)));
    }

    #[test]
    fn a_changed_byte_breaks_the_signature() {
        let record = record(tenant(), "key", 5);
        let mut forged = record.clone();
        forged.value = Quantity::from_unscaled(6).unwrap();
        let mut message = signed(1, &record);
        message.value = Some(Encoder::new().encode(&forged));
        assert_eq!(reason(&message, PLACE), Some((Reason::BadSignature, true)));
    }

    #[test]
    fn an_older_registry_does_not_replace_a_fresher_one() {
        let mut judge = judge();
        let read = |reading| Arc::new(Registry { reading, ..Registry::default() });
        judge.refresh(read(2));
        judge.refresh(read(1));
        assert_eq!(judge.registry.reading, 2);
        judge.refresh(read(3));
        assert_eq!(judge.registry.reading, 3);
    }

    #[test]
    fn the_key_must_be_the_tenant_as_text() {
        let record = record(tenant(), "key", 5);
        let value = Encoder::new().encode(&record);
        for key in [
            tenant().to_string().to_uppercase(),
            Uuid::from_u128(1).to_string(),
            tenant().simple().to_string(),
        ] {
            let message = sealed(1, names::PAYLOAD_RECORD, key.as_bytes(), &value, SOURCE);
            assert_eq!(reason(&message, PLACE), Some((Reason::WrongPartition, false)), "{key}");
        }
    }

    #[test]
    fn a_misplaced_record_is_forwarded_three_times() {
        let record = record(tenant(), "key", 5);
        let right = partition_of(tenant(), 12);
        let place = Place { partition: (right + 1) % 12, count: 12 };
        let hops = |forwarded: Option<&str>| {
            let mut message = signed(1, &record);
            if let Some(hops) = forwarded {
                let headers = message.headers.take().unwrap();
                let header = rdkafka::message::Header { key: names::HEADER_FORWARDED, value: Some(hops) };
                message.headers = Some(headers.insert(header));
            }
            match judge().judge(&message.envelope(), place) {
                Verdict::Forward { partition, hops } => Ok((partition, hops)),
                Verdict::Refused(refusal) => Err(refusal.reason),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(hops(None), Ok((right, 1)));
        assert_eq!(hops(Some("2")), Ok((right, 3)));
        assert_eq!(hops(Some("3")), Err(Reason::WrongPartition));
        assert_eq!(hops(Some("many")), Err(Reason::WrongPartition));
        // At its place it does not matter how it came there.
        let mut message = signed(1, &record);
        let headers = message.headers.take().unwrap();
        message.headers =
            Some(headers.insert(rdkafka::message::Header { key: names::HEADER_FORWARDED, value: Some("3") }));
        assert_eq!(reason(&message, Place { partition: right, count: 12 }), None);
    }

    #[test]
    fn a_marker_is_passed_over_if_its_source_signed_it() {
        let own = marker(1, 1, NOW * 1_000);
        assert!(matches!(judge().judge(&own.envelope(), PLACE), Verdict::Marker(Heard { ahead: false, .. })));
        let text = String::from_utf8(own.value.unwrap()).unwrap().replace(SOURCE, "mail");
        let foreign = sealed(1, names::PAYLOAD_MARKER, b"mail", text.as_bytes(), "mail");
        assert_eq!(reason(&foreign, PLACE), Some((Reason::UnknownSource, true)));
        let borrowed = sealed(1, names::PAYLOAD_MARKER, b"mail", text.as_bytes(), SOURCE);
        assert_eq!(reason(&borrowed, PLACE), Some((Reason::UnknownSource, false)));
        let empty = sealed(1, names::PAYLOAD_MARKER, SOURCE.as_bytes(), b"{}", SOURCE);
        assert_eq!(reason(&empty, PLACE), Some((Reason::Undecodable, false)));
    }
}
