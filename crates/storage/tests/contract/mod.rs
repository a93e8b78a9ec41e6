//! The contract of a storage plugin, as functions over its traits: any plugin can be run against them.
//!
//! `tests/<plugin>.rs` implements [`Bench`] and [`Server`] and calls every function once.

pub mod basics;
pub mod batches;
pub mod crash;
pub mod fences;
pub mod late;
pub mod oracle;
pub mod proxy;
pub mod verifying;
pub mod worker;
pub mod zombies;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use usage_storage::Storage;

/// Partitions of the topic that the suite pretends to have.
pub const PARTITIONS: i32 = 4;

/// Rows stored of each (partition, batch_seq, month as in 202611).
pub type Stored = BTreeMap<(i32, i64, u32), u64>;

/// One database of a plugin under test, empty at first. Its storages roll everything up at each `tick`, and answer whatever they
/// can from what is rolled up.
#[async_trait]
pub trait Bench: Send + Sync {
    /// The plugin as one more process would open it: the same data, an owner of its own.
    fn storage(&self) -> Arc<dyn Storage>;

    /// The same with a short deadline for writes, reached through another address (of a proxy) if one is given.
    fn impatient(&self, write_timeout: Duration, address: Option<SocketAddr>) -> Arc<dyn Storage>;

    /// What the plugin's tables hold, asked without the plugin.
    async fn stored(&self) -> Stored;

    /// Keys for which what is rolled up differs from the records up to the same horizon, described; asked without the plugin.
    async fn rollup_differences(&self) -> Vec<String>;

    /// Number of keys that are rolled up.
    async fn rollup_keys(&self) -> u64;

    /// Makes the backend refuse, for good, rows of this metric.
    async fn refuse_metric(&self, metric: &str);
}

/// The server behind a bench, where the suite has it for itself.
pub trait Server: Send {
    /// SIGKILL.
    fn kill(&mut self);
    /// Starts it again with the same data and address; returns when it answers.
    fn restart(&mut self);
    /// SIGSTOP: sockets stay open, nothing is read.
    fn pause(&self);
    fn resume(&self);
    /// The address that the plugin writes to.
    fn address(&self) -> SocketAddr;
}
