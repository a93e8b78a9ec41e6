//! The ClickHouse plugin: records in a MergeTree, rollups behind horizons, fences (protocol 6).

mod client;
mod codes;
mod config;
mod read;
mod rowbinary;

pub use config::ClickHouseConfig;
pub use read::ClickHouseReader;
