//! `usagectl outbox …`.

use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use usage_producer::outbox::dead_letters::{Filter, Of, REASONS, State};
use uuid::Uuid;

use crate::parse;

#[derive(Debug, Subcommand)]
pub(crate) enum Outbox {
    /// Brings the tables up to date; several processes may do so at once
    Migrate,
    /// Sets the id sequence after the greatest id of a row, where a restore or a copy has left it behind
    Repair(Repair),
    /// Rows that could not be produced: too large, refused by the broker, impossible to encode
    #[command(subcommand)]
    DeadLetters(DeadLetters),
}

#[derive(Debug, Args)]
pub(crate) struct Repair {
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeadLetters {
    /// Lists them, oldest first
    List(List),
    /// Puts the rows into the outbox again: once the topic takes larger messages, or the relay can encode them
    Retry(Decide),
    /// Notes that they were dealt with in another way; the payload is kept
    Resolve(Decide),
    /// Notes that they shall never be counted; the payload is thrown away
    Discard(Decide),
}

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub which: Which,
    /// What became of them
    #[arg(long, value_name = "STATE", value_enum, default_value_t = Shown::Open)]
    pub state: Shown,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(i64).range(1..))]
    pub limit: i64,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

/// At least one condition, or --all: a command without any would otherwise decide about everything.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["ids", "source", "tenant", "reason", "all"]))]
pub(crate) struct Decide {
    #[command(flatten)]
    pub which: Which,
    /// All open ones
    #[arg(long, conflicts_with_all = ["ids", "source", "tenant", "reason"])]
    pub all: bool,
    /// Says which ones it would be and changes nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Who decides [default: the database's session user]
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Ids of the dead letters, as `list` shows them
    #[arg(value_name = "ID")]
    pub ids: Vec<i64>,
    /// Those of a source; - for rows that name none, which are the relay's default_source
    #[arg(long, value_name = "NAME", value_parser = of)]
    pub source: Option<Of>,
    /// Those of a tenant
    #[arg(long, value_name = "UUID", value_parser = parse::uuid)]
    pub tenant: Option<Uuid>,
    /// Those with this reason
    #[arg(long, value_name = "WORD", value_parser = PossibleValuesParser::new(REASONS))]
    pub reason: Option<String>,
}

impl Which {
    pub fn filter(&self) -> Filter {
        Filter {
            ids: self.ids.clone(),
            source: self.source.clone(),
            tenant: self.tenant,
            reason: self.reason.clone(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shown {
    Open,
    Retried,
    Resolved,
    Discarded,
    All,
}

impl Shown {
    pub fn states(self) -> Vec<State> {
        match self {
            Self::Open => vec![State::Open],
            Self::Retried => vec![State::Retried],
            Self::Resolved => vec![State::Resolved],
            Self::Discarded => vec![State::Discarded],
            Self::All => State::ALL.to_vec(),
        }
    }
}

fn of(text: &str) -> Result<Of, String> {
    if text == "-" { Ok(Of::Default) } else { parse::name(text).map(Of::Source) }
}
