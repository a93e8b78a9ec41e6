//! The producer against the real Postgres and the real Kafka.

mod delivery;
mod emit;
mod failures;
mod markers;
mod migrations;
mod process;
mod set_aside;
mod sharing;
mod support;
mod upkeep;
mod usage_emit;
