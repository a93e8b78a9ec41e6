//! Identity and content hash of a record.

use uuid::Uuid;

use crate::RecordRef;

/// UUIDv8 of the first 16 bytes of SHA-256(tenant_id as 16 bytes ‖ idempotency_key as UTF-8).
pub fn record_id(_tenant_id: Uuid, _idempotency_key: &str) -> Uuid {
    unimplemented!()
}

/// First 16 bytes of SHA-256 over source, metric, kind, value, timestamp, resource, subject and metadata, each after its length.
pub fn content_hash(_record: &RecordRef<'_>) -> [u8; 16] {
    unimplemented!()
}
