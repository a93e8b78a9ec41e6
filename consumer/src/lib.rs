//! The consumer: takes records from Kafka, decides each of them, and stores every kept one exactly once.
//!
//! One thread owns polling, deciding and committing; storage, Postgres and dead letters run beside it on a small tokio
//! runtime. `protocol.md` section 5 is the contract; `docs/architecture.md` follows a record and its crash windows.

pub mod budget;
pub mod filter;
pub mod plan;
