//! The consumer: takes records from Kafka, decides each of them, and stores every kept one exactly once.
//!
//! One thread owns polling, deciding and committing; storage, Postgres and dead letters run beside it on a small tokio
//! runtime. `protocol.md` section 5 is the contract; `docs/architecture.md` follows a record and its crash windows.

pub mod attribution;
pub mod authenticate;
pub mod batch;
pub mod budget;
pub mod commit;
pub mod config;
pub mod context;
pub mod counts;
pub mod dead_letter;
pub mod filter;
pub mod judge;
pub mod ledger;
pub mod link;
pub mod marker;
pub mod message;
pub mod permissions;
pub mod plan;
pub mod quota;
pub mod rebuild;
pub mod service;
pub mod services;
pub mod ship;
pub mod side_reader;
pub mod startup;
pub mod takeover;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod ticket;
pub mod worker;
