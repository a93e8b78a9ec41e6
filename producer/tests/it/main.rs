//! The producer against the real Postgres and the real Kafka.

mod relay;
mod support;
