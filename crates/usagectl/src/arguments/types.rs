//! Arguments of `usagectl types`.

use clap::{Args, Subcommand, ValueEnum};
use usage_schemas::{Rules, Timestamp};

use super::{List, parse};

#[derive(Debug, Subcommand)]
pub(crate) enum Types {
    /// Registers a usage type, or a further version of one; the same one again changes nothing
    Add(Box<TypesAdd>),
    /// Lists the usage types in their newest versions
    List(List),
    /// Shows all versions of a usage type
    Show(TypesShow),
}

#[derive(Debug, Args)]
pub(crate) struct TypesAdd {
    /// Name, as in the records' `metric`
    #[arg(value_name = "NAME", value_parser = parse::name)]
    pub name: String,
    /// Whether values add up (counter) or are samples of a level (gauge); the same in all versions
    #[arg(long)]
    pub kind: Kind,
    /// What a value of 1 is, e.g. token, second, byte; the same in all versions
    #[arg(long)]
    pub unit: String,
    /// For people
    #[arg(long)]
    pub description: Option<String>,
    /// Its number: 1, or one more than the newest one has
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub version: i32,
    /// From which timestamp of records on the version applies; required from version 2 on
    #[arg(long, value_name = "TIME", value_parser = parse::timestamp)]
    pub valid_from: Option<Timestamp>,
    /// What it demands of records, as JSON or @FILE, e.g. '{"min": "1", "integer": true, "resource_types": ["vm"]}'
    #[arg(long, value_name = "JSON", value_parser = parse::rules)]
    pub rules: Option<Rules>,
}

#[derive(Debug, Args)]
pub(crate) struct TypesShow {
    /// Name of the usage type
    #[arg(value_name = "NAME", value_parser = parse::name)]
    pub name: String,
    /// JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Kind {
    Counter,
    Gauge,
}
