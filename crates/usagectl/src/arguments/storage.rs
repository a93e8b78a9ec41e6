//! `storage …` and `verify`.

use clap::{Args, Subcommand};
use uuid::Uuid;

use crate::parse;

#[derive(Debug, Subcommand)]
pub(crate) enum Storage {
    /// Brings the tables up to date; several processes may do so at once
    Migrate,
    /// After records and rollups were restored from a backup: makes the workers store again what came after it
    Restored(Restored),
}

#[derive(Debug, Args)]
pub(crate) struct Restored {
    /// Says that no query-api runs; consumers are checked, readers can't be
    #[arg(long, required = true)]
    pub readers_stopped: bool,
    /// Consumer group [default: the consumer's own]
    #[arg(long, value_name = "NAME", default_value = usage_schemas::names::CONSUMER_GROUP)]
    pub group: String,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// First instant that is looked at, RFC 3339 [default: the beginning]
    #[arg(long, value_name = "TIME", value_parser = parse::time)]
    pub from: Option<i64>,
    /// First instant that is not looked at any more [default: the end]
    #[arg(long, value_name = "TIME", value_parser = parse::time)]
    pub to: Option<i64>,
    /// Only this tenant
    #[arg(long, value_name = "UUID", value_parser = parse::uuid)]
    pub tenant: Option<Uuid>,
    /// Only this metric
    #[arg(long, value_name = "NAME", value_parser = parse::name)]
    pub metric: Option<String>,
    /// Rolls buckets that differ up anew from the records
    #[arg(long)]
    pub repair: bool,
    /// Prints JSON, one object a line
    #[arg(long)]
    pub json: bool,
}
