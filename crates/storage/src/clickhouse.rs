//! The ClickHouse plugin: records in a MergeTree, rollups behind horizons, fences (protocol 6).

mod aggregate;
mod bisect;
mod client;
mod codes;
mod config;
mod fence;
mod flush;
mod ids;
mod insert;
mod maintenance;
mod migrate;
mod months;
mod native;
mod partition;
mod patience;
mod read;
mod recover;
mod reroll;
mod rollup;
mod rowbinary;
mod settle;
mod storage;
mod verify;
mod writer;

pub use config::ClickHouseConfig;
pub use read::ClickHouseReader;
pub use storage::ClickHouseStorage;
pub use writer::ClickHouseWriter;
