//! Markers as a relay sends them, and what they come to.

use std::collections::HashSet;

use usage_schemas::{Marker, Timestamp, names};
use usage_service::clock;
use uuid::Uuid;

use super::{KEY_ID, Message, Pipeline, SOURCE};

/// One of the test's outboxes.
pub fn outbox(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

impl Pipeline {
    /// A signed marker of the test's source.
    pub fn marker(&self, partition: i32) -> Message {
        self.marker_of(outbox(0), clock::now_micros(), partition)
    }

    /// Of one of its outboxes; the time in microseconds.
    pub fn marker_of(&self, outbox: Uuid, complete_until: i64, partition: i32) -> Message {
        let complete_until = Timestamp::from_micros(complete_until);
        let value = Marker { source: SOURCE.into(), outbox, complete_until }.encode();
        let signature = self.signing.sign(SOURCE.as_bytes(), &value);
        let headers = [
            (names::HEADER_PAYLOAD_TYPE, names::PAYLOAD_MARKER.to_string()),
            (names::HEADER_SOURCE, SOURCE.into()),
            (names::HEADER_KEY_ID, KEY_ID.into()),
            (names::HEADER_SIGNATURE, signature),
        ];
        Message {
            partition,
            key: Some(SOURCE.as_bytes().to_vec()),
            value: Some(value),
            headers: headers.map(|(name, value)| (name.to_string(), value.into_bytes())).into(),
        }
    }

    /// The same through every partition.
    pub fn markers_of(&self, outbox: Uuid, complete_until: i64) -> Vec<Message> {
        (0..self.partitions).map(|partition| self.marker_of(outbox, complete_until, partition)).collect()
    }

    /// Until when the test's source is complete, as a reader is told.
    pub async fn complete_until(&self) -> Option<i64> {
        let known = self.control.completeness().await.expect("the control database answers");
        known.complete_until(&[SOURCE])
    }

    /// The least progress of an outbox, whatever holds the source down besides.
    pub async fn outbox_until(&self, outbox: Uuid) -> Option<i64> {
        let all = self.control.outbox_progress().await.expect("the control database answers");
        all.iter().find(|found| found.outbox == outbox).map(|found| found.complete_until)
    }

    /// Ids of everything that is stored.
    pub async fn stored_ids(&self) -> HashSet<Uuid> {
        let query = "SELECT toString(record_id) FROM usage_records";
        let ids: Vec<String> = self.maintenance().query(query).fetch_all().await.expect("clickhouse answers");
        ids.iter().map(|id| id.parse().expect("an id")).collect()
    }

    /// Parts that inserts into records and rollups have made, merged ones too.
    pub async fn parts(&self) -> u64 {
        let query = "SELECT count() FROM system.parts \
                     WHERE database = currentDatabase() AND table IN ('usage_records', 'usage_rollups')";
        self.maintenance().query(query).fetch_one().await.expect("clickhouse answers")
    }
}
