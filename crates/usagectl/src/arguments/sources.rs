//! `usagectl source …` and `usagectl source-key …`.

use clap::{ArgGroup, Args, Subcommand};
use uuid::Uuid;

use super::List;
use crate::parse;

#[derive(Debug, Subcommand)]
pub(crate) enum Source {
    /// Adds a given signing key of a source; `source-key create` makes one
    Add(SourceAdd),
    /// Says whose usage a source may emit
    Set(SourceSet),
    /// Lists sources: whose usage they emit, their keys without the keys themselves, and until when their usage is complete
    List(List),
    /// Takes a source, or one of its outboxes, out of completeness: nobody waits for its markers any more
    Retire(SourceRetire),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("key").required(true).args(["key_hex", "generate"]))]
pub(crate) struct SourceAdd {
    /// Name of the source, as in the records' `source`
    #[arg(value_name = "NAME", value_parser = parse::name)]
    pub name: String,
    /// Id of the key, as messages carry it
    #[arg(long, value_name = "ID")]
    pub key_id: String,
    /// The key in hex, at least 16 bytes; - reads it from standard input, where other users can't see it
    // Read by the command: clap would repeat a mistyped key in its message.
    #[arg(long, value_name = "HEX")]
    pub key_hex: Option<String>,
    /// Makes a key of 32 random bytes and prints it
    #[arg(long)]
    pub generate: bool,
    /// First broker timestamp at which it may sign [default: any]
    #[arg(long, value_name = "TIME", value_parser = parse::time)]
    pub valid_from: Option<i64>,
    /// Broker timestamp from which on it may not sign any more; must outlast the topic's retention [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse::time)]
    pub valid_until: Option<i64>,
    /// Also says whose usage the source emits, if nothing was said of it yet
    #[command(flatten)]
    pub tenants: Option<Tenants>,
}

/// Whose usage a source may emit.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct Tenants {
    /// This tenant's, without anybody being asked; that of others if a policy permits it
    #[arg(long, value_name = "UUID", value_parser = parse::uuid)]
    pub home_tenant: Option<Uuid>,
    /// Every tenant's, as the shipped policies have it
    #[arg(long)]
    pub any_tenant: bool,
    /// Only what a policy permits
    #[arg(long)]
    pub by_policy: bool,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("whose").required(true).args(["home_tenant", "any_tenant", "by_policy"]))]
pub(crate) struct SourceSet {
    /// Name of the source, as in the records' `source`
    #[arg(value_name = "NAME", value_parser = parse::name)]
    pub name: String,
    #[command(flatten)]
    pub tenants: Tenants,
}

#[derive(Debug, Args)]
pub(crate) struct SourceRetire {
    /// Name of the source
    #[arg(value_name = "NAME", value_parser = parse::name)]
    pub name: String,
    /// Only this outbox, e.g. that of a database that is no more
    #[arg(long, value_name = "UUID")]
    pub outbox: Option<Uuid>,
    /// Takes it in again
    #[arg(long)]
    pub undo: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SourceKeys {
    /// Makes a key of 32 random bytes and prints it, once and for all: nobody can read it again
    Create(SourceKeyCreate),
    /// Lists keys without the keys themselves
    List(SourceKeyList),
    /// Ends a key's validity
    Revoke(SourceKeyRevoke),
    /// Seals all keys under `control_database.master_key` that are sealed under `control_database.other_master_key`
    Rewrap,
}

#[derive(Debug, Args)]
pub(crate) struct SourceKeyCreate {
    /// Name of the source, as in the records' `source`
    #[arg(value_name = "NAME", value_parser = parse::name)]
    pub name: String,
    /// Id of the key, as messages carry it [default: of the time and of chance]
    #[arg(long, value_name = "ID")]
    pub key_id: Option<String>,
    /// First broker timestamp at which it may sign [default: any]
    #[arg(long, value_name = "TIME", value_parser = parse::time)]
    pub valid_from: Option<i64>,
    /// Broker timestamp from which on it may not sign any more; must outlast the topic's retention [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse::time)]
    pub valid_until: Option<i64>,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SourceKeyList {
    /// Only those of one source
    #[arg(value_name = "NAME", value_parser = parse::name)]
    pub name: Option<String>,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SourceKeyRevoke {
    /// Name of the source
    #[arg(value_name = "NAME", value_parser = parse::name)]
    pub name: String,
    /// Id of the key
    #[arg(value_name = "KEY_ID")]
    pub key_id: String,
    /// Broker timestamp from which on it is not valid [default: now]
    #[arg(long, value_name = "TIME", value_parser = parse::time, conflicts_with = "undo")]
    pub at: Option<i64>,
    /// Makes it valid without end again
    #[arg(long)]
    pub undo: bool,
}
