//! A migrated control database for each test, with partitions that were taken over.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod world;

use std::future::Future;

use usage_control::testing::with_database;
use usage_control::{Advance, Control, Forward};
use usage_devstack::testing::control_database_url;
use usage_schemas::{Marker, Timestamp};
use uuid::Uuid;

/// Runs a test with a control database whose topic has `partitions` partitions.
pub async fn with_partitions<F, T>(partitions: i32, test: F)
where
    F: FnOnce(Control) -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    with_database(&control_database_url(), move |database| async move {
        let control = database.control().await;
        control.migrate().await.unwrap();
        control.init_partitions(partitions).await.unwrap();
        for partition in 0..partitions {
            control.open_progress(partition).await.unwrap();
        }
        test(control).await;
    })
    .await;
}

pub fn outbox(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

/// Of source `s`; the time in microseconds.
pub fn marker(of: Uuid, complete_until: i64) -> Marker {
    Marker { source: "s".into(), outbox: of, complete_until: Timestamp::from_micros(complete_until) }
}

pub fn forward(from_offset: i64, to_partition: i32, to_offset: i64, again: bool) -> Forward {
    Forward { source: "s".into(), from_offset, to_partition, to_offset, again }
}

pub fn batch(
    partition: i32,
    batch_seq: i64,
    next_offset: i64,
    markers: &[Marker],
    forwards: &[Forward],
) -> Advance {
    let (markers, forwards) = (markers.into(), forwards.into());
    Advance { partition, batch_seq, next_offset, markers, forwards, ..Advance::default() }
}

pub async fn until(control: &Control, source: &str) -> Option<i64> {
    control.completeness().await.unwrap().complete_until(&[source])
}
