//! `usagectl dead-letters`.

use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use usage_schemas::Reason;
use uuid::Uuid;

use crate::parse;

#[derive(Debug, Subcommand)]
pub(crate) enum DeadLetters {
    /// Lists open letters, without values and metadata
    List(ListLetters),
    /// Prints whole letters: headers, decoded record, error
    Show(ShowLetters),
    /// Counts open letters
    Count(CountLetters),
    /// Puts open letters onto the topic of records again
    Replay(ReplayLetters),
    /// Marks open letters as not to be replayed
    Discard(DiscardLetters),
}

/// Which letters. Different filters must all fit; of one that is repeated any.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Filters")]
pub(crate) struct LetterFilter {
    /// Why the consumer refused it, e.g. unknown_usage_type
    #[arg(long, value_name = "WORD", value_parser = parse::reason)]
    pub reason: Vec<Reason>,
    /// Tenant, as the record (or the message's key) claims it
    #[arg(long, value_name = "UUID", value_parser = parse::uuid)]
    pub tenant: Vec<Uuid>,
    /// Source, as the record (or the message's header) claims it
    #[arg(long, value_name = "NAME")]
    pub source: Vec<String>,
    /// Usage type of the record
    #[arg(long, value_name = "NAME")]
    pub metric: Vec<String>,
    /// Not before this broker's time of the refused message (dlq-timestamp)
    #[arg(long, value_name = "TIME", value_parser = parse::time)]
    pub from: Option<i64>,
    /// Before this broker's time of the refused message (dlq-timestamp)
    #[arg(long, value_name = "TIME", value_parser = parse::time)]
    pub to: Option<i64>,
    /// Partition of the topic of dead letters
    #[arg(long, value_name = "P")]
    pub partition: Vec<i32>,
    /// Offsets in the topic of dead letters, the last one excluded; either end may be left out
    #[arg(long, value_name = "[P:]FROM..TO")]
    pub offsets: Vec<Offsets>,
}

/// Offsets `from..to` of one partition, or of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub partition: Option<i32>,
    pub from: i64,
    pub to: i64,
}

impl FromStr for Offsets {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected [P:]FROM..TO, e.g. 3:100..200 or 100..".to_string();
        let (partition, range) = match text.split_once(':') {
            Some((partition, range)) => (Some(partition.parse().map_err(|_| wrong())?), range),
            None => (None, text),
        };
        let (from, to) = range.split_once("..").ok_or_else(wrong)?;
        let number = |text: &str, absent: i64| {
            if text.is_empty() { Ok(absent) } else { text.parse::<i64>().map_err(|_| wrong()) }
        };
        let offsets = Self { partition, from: number(from, 0)?, to: number(to, i64::MAX)? };
        if offsets.from < 0 || offsets.from >= offsets.to { Err(wrong()) } else { Ok(offsets) }
    }
}

/// A message in the topic of dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    pub partition: i32,
    pub offset: i64,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.partition, self.offset)
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':').and_then(|(partition, offset)| {
            Some(Self { partition: partition.parse().ok()?, offset: offset.parse().ok()? })
        });
        parts.ok_or_else(|| "expected P:OFFSET as `list` prints it, e.g. 3:17".into())
    }
}

#[derive(Debug, Args)]
pub(crate) struct ListLetters {
    #[command(flatten)]
    pub filter: LetterFilter,
    /// Also letters that were replayed or discarded; reads the whole topic
    #[arg(long)]
    pub settled: bool,
    /// At most so many; the others are counted
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub limit: usize,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowLetters {
    /// Places as `list` prints them; also of letters that are settled and of messages that are no letters
    #[arg(value_name = "P:OFFSET")]
    pub places: Vec<Place>,
    #[command(flatten)]
    pub filter: LetterFilter,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub limit: usize,
    /// Bytes that are printed of what is not text
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub bytes: usize,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CountLetters {
    #[command(flatten)]
    pub filter: LetterFilter,
    /// What to count by, repeatable
    #[arg(long, value_name = "WHAT", default_values = ["reason", "severity"])]
    pub by: Vec<CountBy>,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CountBy {
    Reason,
    Severity,
    Tenant,
    Source,
    Metric,
    Attempt,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayLetters {
    #[command(flatten)]
    pub filter: LetterFilter,
    /// Says what would be done and changes nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Letters a second [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: Option<u32>,
    /// A letter whose dlq-attempt has reached this is left alone
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_attempts: u32,
    /// Also letters that were replayed or discarded before; reads the whole topic
    #[arg(long)]
    pub again: bool,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DiscardLetters {
    #[command(flatten)]
    pub filter: LetterFilter,
    /// Discards every open letter, if no filter is given
    #[arg(long)]
    pub all: bool,
    /// Says what would be done and changes nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Letters a second [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: Option<u32>,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_half_open_and_may_miss_an_end() {
        let read = |text: &str| text.parse::<Offsets>();
        let offsets = |partition, from, to| Ok(Offsets { partition, from, to });
        assert_eq!(read("3:100..200"), offsets(Some(3), 100, 200));
        assert_eq!(read("..7"), offsets(None, 0, 7));
        assert_eq!(read("0:5.."), offsets(Some(0), 5, i64::MAX));
        for wrong in ["", "5", "5..5", "-1..3", "x..3", "3:", "a:1..2", "1...3"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn places_are_read_as_they_are_printed() {
        let place = Place { partition: 11, offset: 9_007_199_254_740_993 };
        assert_eq!(place.to_string().parse(), Ok(place));
        for wrong in ["", "3", ":", "3:", ":3", "3:x"] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
