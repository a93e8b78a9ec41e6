//! Where each server's programs come from.

pub mod apt;
pub mod clickhouse;
pub mod kafka;
pub mod postgres;
