//! A worker as the consumer is one, as far as storage is concerned.

use std::sync::Arc;
use std::time::Duration;

use usage_storage::{PlannedBatch, StorageError, Writer};

use super::oracle::Oracle;

/// How a batch came into storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Written,
    /// After this many attempts to settle.
    Settled(u32),
}

/// Writes until the batches are stored; gives up only if fenced.
pub async fn store(
    writer: &dyn Writer,
    oracle: &Oracle,
    batches: &[Arc<PlannedBatch>],
) -> Result<Way, StorageError> {
    batches.iter().for_each(|batch| oracle.begin(batch));
    let way = store_begun(writer, batches).await?;
    batches.iter().for_each(|batch| oracle.acknowledge(batch));
    Ok(way)
}

async fn store_begun(writer: &dyn Writer, batches: &[Arc<PlannedBatch>]) -> Result<Way, StorageError> {
    loop {
        match writer.write(batches).await {
            Ok(()) => return Ok(Way::Written),
            Err(StorageError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(StorageError::Unknown(_)) => return settle(writer, batches).await.map(Way::Settled),
            Err(error) => return Err(error),
        }
    }
}

/// Settles until it is proved; the number of attempts.
pub async fn settle(writer: &dyn Writer, batches: &[Arc<PlannedBatch>]) -> Result<u32, StorageError> {
    for attempt in 1.. {
        match writer.settle(batches).await {
            Ok(()) => return Ok(attempt),
            Err(error) if error.may_pass() => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => return Err(error),
        }
    }
    unreachable!("attempts don't end")
}

/// Takes partitions over that have no plan.
pub async fn take(writer: &dyn Writer, partitions: &[i32]) {
    for &partition in partitions {
        again(|| writer.open(partition)).await;
        again(|| writer.recover(partition)).await;
    }
}

/// Repeats a call while its error may pass.
pub async fn again<T, F: Future<Output = Result<T, StorageError>>>(mut call: impl FnMut() -> F) -> T {
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) if error.may_pass() => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error:?}"),
        }
    }
}
