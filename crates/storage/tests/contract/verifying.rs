//! `verify` beside everything else: it must find nothing, whatever is killed meanwhile.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use usage_storage::{Difference, PartitionCounts, Scope, Storage, StorageError, Verified};

use super::PARTITIONS;

/// Everything, with the suite's partitions.
pub fn everything() -> Scope {
    let partition_counts = PartitionCounts { current: PARTITIONS, known: vec![PARTITIONS] };
    Scope { from: None, to: None, tenant_id: None, metric: None, partition_counts }
}

/// What one pass finds.
pub async fn verify(
    storage: &dyn Storage,
    scope: &Scope,
) -> Result<(Verified, Vec<Difference>), StorageError> {
    let mut differences = Vec::new();
    let verified =
        storage.maintenance().verify(scope, &mut |difference| differences.push(difference)).await?;
    Ok((verified, differences))
}

/// Passes one after another until stopped.
pub struct Verifying {
    task: JoinHandle<u64>,
    stop: tokio::sync::watch::Sender<bool>,
}

impl Verifying {
    pub fn start(storage: &Arc<dyn Storage>) -> Self {
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let storage = Arc::clone(storage);
        let task = tokio::spawn(async move {
            let mut passes = 0;
            while !*stopped.borrow() {
                match verify(&*storage, &everything()).await {
                    Ok((_, differences)) => {
                        assert_eq!(differences, [], "a false alarm");
                        passes += 1;
                    }
                    Err(error) => assert!(error.may_pass(), "{error:?}"),
                }
                // The server's cores are shared with writers and readers.
                tokio::time::sleep(Duration::from_millis(150)).await;
            }
            passes
        });
        Self { task, stop }
    }

    /// Stops it; the number of whole passes. Panics if one found anything.
    pub async fn finish(self) -> u64 {
        self.stop.send(true).unwrap();
        self.task.await.expect("nothing is found")
    }
}
