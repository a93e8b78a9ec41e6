//! `quota …`.

use clap::{ArgGroup, Args, Subcommand};
use usage_control::QuotaScope;
use uuid::Uuid;

use super::List;
use crate::parse;

#[derive(Debug, Subcommand)]
pub(crate) enum Quota {
    /// Sets how many records may be kept in a window; workers take it up within 10 s
    Set(QuotaSet),
    /// Lists what is set
    List(List),
    /// Shows what holds for a tenant, and how much of it is used
    Show(QuotaShow),
    /// Takes a quota away, so that a wider one holds
    Remove(QuotaRemove),
}

/// Whom it is for.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("whose").required(true).args(["source", "every_source"]))]
pub(crate) struct QuotaFor {
    /// Every tenant of this source that has none of its own
    #[arg(value_name = "SOURCE", value_parser = parse::name)]
    source: Option<String>,
    /// Only this tenant of the source
    #[arg(long, value_name = "UUID", value_parser = parse::uuid, requires = "source", conflicts_with = "every_source")]
    tenant: Option<Uuid>,
    /// Every tenant of every source that has none of its own
    #[arg(long)]
    every_source: bool,
}

impl QuotaFor {
    pub(crate) fn scope(&self) -> QuotaScope {
        match (&self.source, self.tenant) {
            (None, _) => QuotaScope::EverySource,
            (Some(source), None) => QuotaScope::Source(source.clone()),
            (Some(source), Some(tenant)) => QuotaScope::Tenant(source.clone(), tenant),
        }
    }
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["records", "unlimited"]))]
pub(crate) struct QuotaSet {
    #[command(flatten)]
    pub whose: QuotaFor,
    /// Most records that are kept of each tenant in a window; 0 keeps none
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..), requires = "window")]
    pub records: Option<i64>,
    /// Length of the windows, whole seconds up to 31 days; they begin at multiples of it since 1970 in UTC
    #[arg(long, value_name = "DURATION", value_parser = parse::window, requires = "records")]
    pub window: Option<i32>,
    /// No bound, whatever a wider quota says
    #[arg(long)]
    pub unlimited: bool,
}

#[derive(Debug, Args)]
pub(crate) struct QuotaShow {
    /// Name of the source
    #[arg(value_name = "SOURCE", value_parser = parse::name)]
    pub source: String,
    /// The tenant
    #[arg(long, value_name = "UUID", value_parser = parse::uuid)]
    pub tenant: Uuid,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct QuotaRemove {
    #[command(flatten)]
    pub whose: QuotaFor,
}
