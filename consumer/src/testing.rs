//! Messages and a judge for unit tests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use rdkafka::message::{Header, OwnedHeaders};
use usage_control::Attribution;
use usage_schemas::codec::{Decoder, Encoder};
use usage_schemas::signature::SigningKey;
use usage_schemas::{
    Bounds, CompiledType, Kind, Marker, Quantity, Rules, Timestamp, TypeVersion, UsageRecord, UsageType, ids,
    names,
};
use uuid::Uuid;

use crate::attribution::{Allowed, Permission, Permissions};
use crate::judge::{Judge, Registry};
use crate::message::OwnedMessage;

pub const SOURCE: &str = "llm-gateway";
pub const KEY: &[u8] = b"the key of the tests";
/// The broker's time of all messages, milliseconds.
pub const NOW: i64 = 1_790_000_000_000;

/// Tenants of the tests. Their source may emit for these and for the first 255 ids, by permission.
pub const TENANTS: [Uuid; 2] = [
    Uuid::from_u128(0x0188_4b5e_0000_4000_8000_0000_0000_0001),
    Uuid::from_u128(0x1111_2222_3333_4444_5555_6666_7777_8888),
];

/// What the policy point says of the tests' source.
pub fn permission(tenant_id: Uuid, allowed: Allowed) -> Permission {
    Permission {
        source: SOURCE.into(),
        tenant_id,
        asked: BTreeSet::from(["llm.tokens".into(), "llm.calls".into()]),
        attribution: Attribution::AnyTenant,
        generation: 0,
        allowed,
    }
}

pub fn judge() -> Judge {
    let mut registry = Registry::default();
    registry.keys.add(SOURCE, "k1", KEY, 0, None);
    register(&mut registry, "llm.tokens", Kind::Counter, Rules::default());
    register(&mut registry, "vm.memory", Kind::Gauge, Rules::default());
    registry.sources.insert(SOURCE.into(), Attribution::AnyTenant);
    let tenants = TENANTS.into_iter().chain((1..256).map(Uuid::from_u128));
    let permissions: Vec<_> = tenants.map(|tenant| permission(tenant, Allowed::Everything)).collect();
    Judge {
        decoder: Decoder::new(),
        bounds: Bounds::default(),
        registry: Arc::new(registry),
        stale: false,
        quotas: Arc::default(),
        permissions: Permissions::of(&permissions, Instant::now()),
    }
}

/// Adds a version to a usage type: version 1, or version n from n - 1 seconds after `NOW` on.
pub fn register(registry: &mut Registry, name: &str, kind: Kind, rules: Rules) {
    let mut versions =
        registry.types.get(name).map(|found| found.usage_type().versions.clone()).unwrap_or_default();
    let count = i32::try_from(versions.len()).unwrap();
    versions.push(TypeVersion {
        version: count + 1,
        valid_from: (count > 0).then(|| Timestamp::from_micros((NOW + i64::from(count) * 1_000) * 1_000)),
        kind,
        unit: "1".into(),
        description: None,
        rules,
        created_at: Timestamp::from_micros(0),
    });
    let compiled = CompiledType::new(UsageType { name: name.into(), versions }).unwrap();
    registry.types.insert(name.into(), Arc::new(compiled));
}

pub fn record(tenant: Uuid, key: &str, units: i64) -> UsageRecord {
    UsageRecord {
        record_id: ids::record_id(tenant, key),
        tenant_id: tenant,
        source: SOURCE.into(),
        metric: "llm.tokens".into(),
        kind: Kind::Counter,
        value: Quantity::from_unscaled(i128::from(units)).unwrap(),
        timestamp: Timestamp::from_micros(NOW * 1_000),
        idempotency_key: Some(key.into()),
        resource_id: None,
        resource_type: None,
        subject_id: None,
        subject_type: None,
        metadata: None,
    }
}

/// A message with these headers.
pub fn with_headers(offset: i64, key: &[u8], value: &[u8], headers: &[(&str, &[u8])]) -> OwnedMessage {
    let headers = headers
        .iter()
        .fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value: Some(*value) }));
    OwnedMessage {
        offset,
        timestamp: NOW,
        key: Some(key.to_vec()),
        value: Some(value.to_vec()),
        headers: Some(headers),
    }
}

/// The record as its source sends it.
pub fn signed(offset: i64, record: &UsageRecord) -> OwnedMessage {
    let key = record.tenant_id.to_string();
    let value = Encoder::new().encode(record);
    sealed(offset, names::PAYLOAD_RECORD, key.as_bytes(), &value, &record.source)
}

/// Any value under the tests' key.
pub fn sealed(offset: i64, payload_type: &str, key: &[u8], value: &[u8], source: &str) -> OwnedMessage {
    let signature = SigningKey::new("k1", KEY).sign(key, value);
    let headers = [
        (names::HEADER_PAYLOAD_TYPE, payload_type.as_bytes()),
        (names::HEADER_SOURCE, source.as_bytes()),
        (names::HEADER_KEY_ID, b"k1".as_slice()),
        (names::HEADER_SIGNATURE, signature.as_bytes()),
    ];
    with_headers(offset, key, value, &headers)
}

/// A marker of the tests' source; the time in microseconds.
pub fn marker(offset: i64, outbox: u128, complete_until: i64) -> OwnedMessage {
    let marker = Marker {
        source: SOURCE.into(),
        outbox: Uuid::from_u128(outbox),
        complete_until: Timestamp::from_micros(complete_until),
    };
    sealed(offset, names::PAYLOAD_MARKER, SOURCE.as_bytes(), &marker.encode(), SOURCE)
}

pub fn copy(message: &OwnedMessage) -> OwnedMessage {
    OwnedMessage {
        offset: message.offset,
        timestamp: message.timestamp,
        key: message.key.clone(),
        value: message.value.clone(),
        headers: message.headers.clone(),
    }
}
