//! Any record that the types allow, valid or not: the codec does not judge.

use proptest::prelude::*;
use usage_schemas::{Kind, Quantity, Timestamp, UsageRecord};
use uuid::Uuid;

fn any_uuid() -> impl Strategy<Value = Uuid> {
    any::<u128>().prop_map(Uuid::from_u128)
}

/// Any characters, but few at random: proptest draws each by itself, which takes longer than all that is tested with it.
fn any_text() -> impl Strategy<Value = String> {
    // Mostly short; beyond 63 and 8,191 bytes the length takes one byte more.
    let short = prop::sample::select(vec![1, 7, 20, 63, 64, 200]);
    let length = prop_oneof![20 => short, 1 => prop::sample::select(vec![8_191, 8_192])];
    let repeated = (any::<char>(), length)
        .prop_map(|(character, length)| std::iter::repeat_n(character, length).collect());
    prop_oneof![".{0,4}", repeated]
}

fn any_quantity() -> impl Strategy<Value = Quantity> {
    // Uniform values nearly all have 16 bytes: take those of every length.
    let unscaled = (any::<i128>(), 0u32..128).prop_map(|(bits, shift)| bits >> shift);
    unscaled.prop_filter_map("38 digits", |unscaled| Quantity::from_unscaled(unscaled).ok())
}

fn any_micros() -> impl Strategy<Value = i64> {
    (any::<i64>(), 0u32..64).prop_map(|(bits, shift)| bits >> shift)
}

pub fn any_record() -> impl Strategy<Value = UsageRecord> {
    let kind = prop_oneof![Just(Kind::Counter), Just(Kind::Gauge)];
    let required = (any_uuid(), any_uuid(), any_text(), any_text(), kind, any_quantity(), any_micros());
    let ids = (prop::option::of(any_uuid()), prop::option::of(any_uuid()));
    let texts = prop::array::uniform4(prop::option::of(any_text()));
    (required, ids, texts).prop_map(|(required, (resource_id, subject_id), texts)| {
        let (record_id, tenant_id, source, metric, kind, value, micros) = required;
        let [idempotency_key, resource_type, subject_type, metadata] = texts;
        UsageRecord {
            record_id,
            tenant_id,
            source,
            metric,
            kind,
            value,
            timestamp: Timestamp::from_micros(micros),
            idempotency_key,
            resource_id,
            resource_type,
            subject_id,
            subject_type,
            metadata,
        }
    })
}
