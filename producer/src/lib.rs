//! What a usage source links: emitting records in its own transactions, the outbox that keeps them there, and the relay that brings
//! them to Kafka.
//!
//! - [`UsageCollector`] hands out a [`ScopedCollector`] for a module. [`ScopedCollector::authorize_emit`] asks, before the transaction,
//!   what has to be asked: policy, usage type, quota. [`ScopedCollector::emit`] checks a record in memory and writes one outbox row in
//!   the caller's transaction. No network call, no row that others wait for.
//! - [`outbox::migrate`] installs the outbox and `usage_emit`, the way to emit from any other language.
//! - [`relay::Relay`] delivers committed rows and removes them once the broker has acknowledged them. It runs as a task of the source's
//!   process, or as the program `usage-relay`.

pub mod client;
pub mod outbox;
mod pg_time;
pub mod relay;
mod waker;

pub use client::{
    BuildError, EmitAuthorization, EmitError, InvalidQuota, NewRecord, OutboxRow, OutboxTable,
    OutboxTransaction, QuotaStatus, ScopedCollector, SourceQuota, UsageCollector, UsageCollectorBuilder,
};
pub use client::{Freshness, QueryApi, RememberedTypes, TokenSource};
pub use usage_service::transport::TlsFiles;
pub use waker::Waker;
