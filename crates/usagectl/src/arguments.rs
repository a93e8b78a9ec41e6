//! The command line.

mod dead_letters;
pub(crate) mod outbox;
mod quota;
mod sources;
mod storage;
mod types;

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand};
use usage_access::Scopes;
use usage_service::config::Cli;
use uuid::Uuid;

use crate::parse;

pub(crate) use dead_letters::{
    CountBy, CountLetters, DeadLetters, DiscardLetters, LetterFilter, ListLetters, Place, ReplayLetters,
    ShowLetters,
};
pub(crate) use quota::{Quota, QuotaRemove, QuotaSet, QuotaShow};
pub(crate) use sources::{
    Source, SourceAdd, SourceKeyCreate, SourceKeyList, SourceKeyRevoke, SourceKeys, SourceRetire, SourceSet,
    Tenants,
};
pub(crate) use storage::{Restored, Storage, Verify};
pub(crate) use types::{Kind, Types, TypesAdd, TypesShow};

/// Operates the usage collector.
///
/// Addresses come from a configuration file or from USAGE_KAFKA_BROKERS, USAGE_CLICKHOUSE_URL, USAGE_CONTROL_DATABASE_URL and
/// USAGE_SOURCE_DATABASE_URL; docs/config.md lists all settings.
#[derive(Debug, Parser)]
#[command(name = "usagectl", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Overrides one setting, e.g. --set kafka.brokers=127.0.0.1:9092
    #[arg(long, value_name = "PATH=VALUE", global = true)]
    set: Vec<String>,
    /// Prints the resolved configuration with secrets hidden and ends
    #[arg(long, global = true)]
    check_config: bool,
    #[command(subcommand)]
    pub command: Option<Command>,
}

impl Arguments {
    /// The part that the configuration needs.
    pub fn configuration(&self) -> Cli {
        Cli { config: self.config.clone(), set: self.set.clone(), check_config: self.check_config }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The topics of records and dead letters
    #[command(subcommand)]
    Topics(Topics),
    /// The control database
    #[command(subcommand)]
    Control(Migrate),
    /// Records and rollups in storage
    #[command(subcommand)]
    Storage(Storage),
    /// Holds every rollup against the records, and looks for records stored twice or in a wrong partition; ends with 1 if any
    Verify(Verify),
    /// The outbox in the source's database
    #[command(subcommand)]
    Outbox(outbox::Outbox),
    /// What the consumer refused: the topic of dead letters
    #[command(subcommand)]
    DeadLetters(DeadLetters),
    /// Usage sources: whose usage they emit, how far they are
    #[command(subcommand)]
    Source(Source),
    /// How many records of a source each of its tenants may have kept in a window
    #[command(subcommand)]
    Quota(Quota),
    /// The keys that sources sign with
    #[command(subcommand)]
    SourceKey(SourceKeys),
    /// Offsets that nobody read
    #[command(subcommand)]
    Gaps(Gaps),
    /// Usage types
    #[command(subcommand)]
    Types(Types),
    /// Keys that sign and verify tokens
    #[command(subcommand)]
    Keys(Keys),
    /// Prints a token for the local stack
    Token(Token),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Topics {
    /// Creates both topics, or checks that existing ones have the settings the protocol needs; records the partition count
    Create(TopicsCreate),
    /// Gives both topics more partitions while everything runs; killed anywhere and called again it ends the same
    Grow(TopicsGrow),
}

#[derive(Debug, Args)]
pub(crate) struct TopicsCreate {
    /// Partitions of each topic [default: the recorded count, else 12]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=10_000))]
    pub partitions: Option<i32>,
    /// Copies of each partition [default: 3, or as many as there are brokers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=100))]
    pub replication: Option<i32>,
    /// Name of the topic of records [default: kafka.records_topic]
    #[arg(long, value_name = "NAME")]
    pub records: Option<String>,
    /// Name of the topic of dead letters [default: kafka.dead_letters_topic]
    #[arg(long, value_name = "NAME")]
    pub dead_letters: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TopicsGrow {
    /// Partitions that each topic shall have
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=10_000))]
    pub partitions: i32,
    /// Shows the steps and does nothing
    #[arg(long)]
    pub dry_run: bool,
    /// How long readers may remember the old count: at least twice the greatest `limits.cache` of all query-apis
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = parse::duration)]
    pub readers_within: Duration,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Migrate {
    /// Brings the tables up to date; several processes may do so at once
    Migrate,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Gaps {
    /// Lists them; while one is not accepted, nothing is known to be complete
    List(List),
    /// Says that the loss is known: completeness is told again
    Accept(GapsAccept),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["all", "partition"]))]
pub(crate) struct GapsAccept {
    /// All that are not accepted
    #[arg(long)]
    pub all: bool,
    /// Those of one partition
    #[arg(long, value_name = "N")]
    pub partition: Option<i32>,
    /// The one that begins at this offset
    #[arg(long, value_name = "OFFSET", requires = "partition")]
    pub from: Option<i64>,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// Makes an Ed25519 key pair: signing.pem and jwks.json; keys that are there stay
    Generate {
        /// Where to put them
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Token {
    /// Tenant that the token speaks for
    #[arg(long, value_name = "UUID", value_parser = parse::uuid)]
    pub tenant: Uuid,
    /// Subject that the token speaks for
    #[arg(long, value_name = "UUID", value_parser = parse::uuid)]
    pub subject: Option<Uuid>,
    /// What the subject is
    #[arg(long, value_name = "NAME", value_parser = parse::name, requires = "subject")]
    pub subject_type: Option<String>,
    /// What it allows, words with spaces between, e.g. "usage:read usage:types" [default: everything]
    #[arg(long, value_name = "WORDS", value_parser = parse::scopes)]
    pub scope: Option<Scopes>,
    /// How long it is valid
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse::ttl)]
    pub ttl: Duration,
    /// Private key [default: token.key_file]
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    fn refused(line: &str) -> String {
        let words = std::iter::once("usagectl").chain(line.split_whitespace());
        let error = Arguments::try_parse_from(words).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
        error.to_string()
    }

    #[test]
    fn wrong_input_names_the_argument() {
        for (line, part) in [
            ("token", "--tenant"),
            ("token --tenant 1", "--tenant"),
            ("token --tenant 00000000-0000-0000-0000-000000000000", "nil"),
            ("token --tenant 0b4c9e2e-3d6f-4c53-8a3f-0f1a2b3c4d5e --scope usage:raed", "usage:read"),
            ("token --tenant 0b4c9e2e-3d6f-4c53-8a3f-0f1a2b3c4d5e --ttl 1", "--ttl"),
            ("token --tenant 0b4c9e2e-3d6f-4c53-8a3f-0f1a2b3c4d5e --ttl 100ms", "at least 1s"),
            ("token --tenant 0b4c9e2e-3d6f-4c53-8a3f-0f1a2b3c4d5e --subject-type user", "--subject"),
            ("topics create --partitions 0", "--partitions"),
            ("topics create --replication x", "--replication"),
            ("topics grow", "--partitions"),
            ("topics grow --partitions 0", "--partitions"),
            ("topics grow --partitions 6 --readers-within soon", "--readers-within"),
            ("source add demo --key-id k", "--key-hex"),
            ("source add demo --key-id k --generate --key-hex 00", "--generate"),
            ("source add Demo --key-id k --generate", "NAME"),
            ("source add demo --key-id k --generate --any-tenant --home-tenant x", "--home-tenant"),
            ("source set demo", "--any-tenant"),
            ("source set demo --any-tenant --by-policy", "--by-policy"),
            ("source set demo --home-tenant 00000000-0000-0000-0000-000000000000", "nil"),
            ("source-key create Demo", "NAME"),
            ("source-key create demo --valid-until soon", "--valid-until"),
            ("source-key revoke demo", "KEY_ID"),
            ("source-key revoke demo k --undo --at 2030-01-01T00:00:00Z", "--at"),
            ("source add demo --key-id k --generate --valid-from yesterday", "--valid-from"),
            ("source retire demo --outbox 7", "--outbox"),
            ("gaps accept", "--all"),
            ("gaps accept --all --partition 3", "--partition"),
            ("gaps accept --from 3", "--partition"),
            ("quota set", "SOURCE"),
            ("quota set mail", "--records"),
            ("quota set mail --records 5", "--window"),
            ("quota set mail --records -1 --window 1m", "--records"),
            ("quota set mail --records 5 --window 500ms", "whole seconds"),
            ("quota set mail --records 5 --window 32d", "31 days"),
            ("quota set mail --records 5 --window 1m --unlimited", "--unlimited"),
            ("quota set Mail --unlimited", "SOURCE"),
            (
                "quota set --every-source --tenant 0b4c9e2e-3d6f-4c53-8a3f-0f1a2b3c4d5e --unlimited",
                "--tenant",
            ),
            ("quota set mail --every-source --unlimited", "--every-source"),
            ("quota show mail", "--tenant"),
            ("quota remove", "SOURCE"),
            ("types add tokens --kind sum --unit token", "--kind"),
            ("types add tokens --kind counter", "--unit"),
            ("types add tokens --kind counter --unit x --version two", "--version"),
            ("types add tokens --kind counter --unit x --version 2 --valid-from soon", "--valid-from"),
            ("types add tokens --kind counter --unit x --rules [1]", "--rules"),
            (r#"types add tokens --kind counter --unit x --rules {"most":"1"}"#, "most"),
            (r#"types add tokens --kind counter --unit x --rules {"min":"1","min":"2"}"#, "twice"),
            (
                r#"types add tokens --kind counter --unit x --rules {"integer":true,"max":100}"#,
                "max: invalid type",
            ),
            (r#"types add tokens --kind counter --unit x --rules {"integer":1}"#, "integer: invalid type"),
            ("types add tokens --kind counter --unit x --rules @no-such-file", "no-such-file"),
            ("types show Tokens", "NAME"),
            ("keys generate", "--dir"),
            ("topic create", "topics"),
            ("dead-letters list --reason conflct", "did you mean conflict?"),
            ("dead-letters count --offsets 7..3", "--offsets"),
            ("dead-letters show 3", "P:OFFSET"),
            ("dead-letters replay --rate 0", "--rate"),
            ("dead-letters replay --max-attempts 0", "--max-attempts"),
            ("verify --from yesterday", "--from"),
            ("verify --tenant 00000000-0000-0000-0000-000000000000", "nil"),
            ("storage restored", "--readers-stopped"),
            ("outbox dead-letters retry", "--all"),
            ("outbox dead-letters discard --dry-run", "--all"),
            ("outbox dead-letters resolve 1 --all", "--all"),
            ("outbox dead-letters retry x", "ID"),
            ("outbox dead-letters list --source Demo", "--source"),
            ("outbox dead-letters list --state gone", "--state"),
            ("outbox dead-letters retry --reason toolarge", "too_large, refused_by_broker, not_encodable"),
        ] {
            let text = refused(line);
            assert!(text.contains(part), "{line}: {part:?} is not in {text:?}");
        }
    }

    #[test]
    fn growing_waits_as_long_as_a_reader_may_remember() {
        let words = ["usagectl", "topics", "grow", "--partitions", "6"];
        let Some(Command::Topics(Topics::Grow(grow))) = Arguments::try_parse_from(words).unwrap().command
        else {
            panic!("another command")
        };
        assert_eq!(grow.readers_within, usage_control::READERS_RELOAD_WITHIN);
    }

    #[test]
    fn configuration_may_follow_the_command() {
        let words = ["usagectl", "topics", "create", "--set", "kafka.brokers=k:1", "--config", "f.toml"];
        let cli = Arguments::try_parse_from(words).unwrap().configuration();
        assert_eq!((cli.set, cli.config), (vec!["kafka.brokers=k:1".to_string()], Some("f.toml".into())));
    }
}
