//! Identity and content hash of a record.

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::RecordRef;

/// UUIDv8 of the first 16 bytes of SHA-256(tenant_id as 16 bytes ‖ idempotency_key as UTF-8).
pub fn record_id(tenant_id: Uuid, idempotency_key: &str) -> Uuid {
    let digest = Sha256::new().chain_update(tenant_id.as_bytes()).chain_update(idempotency_key).finalize();
    uuid::Builder::from_custom_bytes(first_half(&digest)).into_uuid()
}

/// First 16 bytes of SHA-256 over source, metric, kind, value, timestamp, resource, subject and metadata.
///
/// Each field goes in as its length (u32 big-endian) and its bytes; an absent one as the length 2^32 - 1 alone, so that it
/// differs from an empty one. Kind is its word, the value 16 bytes and the timestamp 8 bytes, both two's complement
/// big-endian: how many bytes the decimal took on the wire does not matter. Identity is not part of it.
pub fn content_hash(record: &RecordRef<'_>) -> [u8; 16] {
    let mut content = Content(Sha256::new());
    content.field(Some(record.source.as_bytes()));
    content.field(Some(record.metric.as_bytes()));
    content.field(Some(record.kind.as_str().as_bytes()));
    content.field(Some(&record.value.unscaled().to_be_bytes()));
    content.field(Some(&record.timestamp.micros().to_be_bytes()));
    content.field(record.resource_id.as_ref().map(|id| id.as_bytes().as_slice()));
    content.field(record.resource_type.map(str::as_bytes));
    content.field(record.subject_id.as_ref().map(|id| id.as_bytes().as_slice()));
    content.field(record.subject_type.map(str::as_bytes));
    content.field(record.metadata.map(str::as_bytes));
    first_half(&content.0.finalize())
}

struct Content(Sha256);

impl Content {
    fn field(&mut self, bytes: Option<&[u8]>) {
        let length = bytes.map_or(u32::MAX, |bytes| bytes.len() as u32);
        self.0.update(length.to_be_bytes());
        self.0.update(bytes.unwrap_or_default());
    }
}

fn first_half(digest: &[u8]) -> [u8; 16] {
    *digest.first_chunk().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests;
