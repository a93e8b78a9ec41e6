//! Installs and starts the real Kafka, ClickHouse and Postgres for demo, tests and benches.
//!
//! Everything listens on loopback, on free ports, with its data and log in one directory. Programs come from registries into
//! the user's cache and are checked against hashes kept here. No C library is needed to build this crate.

pub mod cache;
pub mod demo;
pub mod env_file;
pub mod install;
pub mod interrupt;
pub mod kill_at;
pub mod pgwire;
pub mod ports;
pub mod probe;
pub mod process;
pub mod stack;
pub mod testing;

mod clickhouse;
mod kafka;
mod postgres;

pub use clickhouse::ClickHouse;
pub use kafka::{Guard, Kafka, Listener};
pub use postgres::Postgres;
pub use stack::Stack;
