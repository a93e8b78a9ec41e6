//! The ClickHouse plugin.
