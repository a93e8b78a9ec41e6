//! The producer against the real Postgres and the real Kafka.

mod all_or_nothing;
mod clients;
mod dead_letters;
mod delivery;
mod emit;
mod failures;
mod kills;
mod markers;
mod migrations;
mod policies;
mod problems;
mod process;
mod quota;
mod schedules;
mod set_aside;
mod sharing;
mod support;
mod upkeep;
mod usage_emit;
