//! The judge: what the source committed against what was stored, refused and answered. It knows nothing of the system inside.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use usage_schemas::{Kind, Quantity};
use uuid::Uuid;

mod answers;
mod bounded;

pub use answers::{Answer, Measure, Series, judge_answers, max_lag};
pub use bounded::Bounded;

/// What must become of a record that was emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    Kept,
    InFuture,
    TooOld,
    UnknownUsageType,
    /// Found out from what was stored, never said by the source.
    OverQuota,
}

impl Fate {
    /// The word in the source's table: `kept`, or the reason of the dead letter.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::InFuture => "in_future",
            Self::TooOld => "too_old",
            Self::UnknownUsageType => "unknown_usage_type",
            Self::OverQuota => "quota_exceeded",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        [Self::Kept, Self::InFuture, Self::TooOld, Self::UnknownUsageType]
            .into_iter()
            .find(|fate| fate.as_str() == word)
    }
}

/// (tenant, record id).
pub type Identity = (Uuid, Uuid);

/// What a record says beside its measurement.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Details {
    pub source: String,
    pub idempotency_key: Option<String>,
    pub resource_id: Option<Uuid>,
    pub resource_type: Option<String>,
    pub subject_id: Option<Uuid>,
    pub subject_type: Option<String>,
    /// Byte for byte.
    pub metadata: Option<String>,
}

/// What a record says; two emits of one identity with different contents contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Content {
    pub metric: String,
    pub kind: Kind,
    pub value: Quantity,
    /// Microseconds since the Unix epoch.
    pub timestamp: i64,
    pub details: Details,
}

/// One committed emit, as the source remembers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emission {
    pub identity: Identity,
    pub content: Content,
    pub fate: Fate,
    /// Microseconds on the source database's clock, read inside the transaction after the emit.
    pub emitted_at: i64,
}

/// One row of storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub identity: Identity,
    pub content: Content,
}

/// One message in the topic of dead letters whose value is a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub identity: Identity,
    pub content: Content,
    pub reason: String,
}

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    Lost(Emission),
    Doubled(Identity, usize),
    Invented(Stored),
    Changed {
        stored: Stored,
        emitted: Vec<Content>,
    },
    /// Expected in the topic of dead letters and not there.
    NotRefused {
        identity: Identity,
        content: Content,
        reason: &'static str,
    },
    /// In the topic of dead letters, and it should not.
    WronglyRefused(Refused),
    /// An answer of the API that can't have been true.
    Answer(String),
    /// Anything else that was compared: rollups, outbox.
    Other(String),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(emission) => write!(f, "lost: {emission:?}"),
            Self::Doubled(identity, times) => write!(f, "stored {times} times: {identity:?}"),
            Self::Invented(stored) => write!(f, "never committed: {stored:?}"),
            Self::Changed { stored, emitted } => write!(f, "changed: {stored:?}, emitted as {emitted:?}"),
            Self::NotRefused { identity, content, reason } => {
                write!(f, "no dead letter {reason} for {identity:?} {content:?}")
            }
            Self::WronglyRefused(refused) => write!(f, "wrongly refused: {refused:?}"),
            Self::Answer(text) | Self::Other(text) => f.write_str(text),
        }
    }
}

/// All emits of one identity.
#[derive(Debug, Default)]
struct Claimed<'a> {
    emissions: Vec<&'a Emission>,
    /// Distinct contents of those that are to be kept.
    contents: BTreeSet<&'a Content>,
}

fn claimed(emissions: &[Emission]) -> BTreeMap<Identity, Claimed<'_>> {
    let mut by_identity: BTreeMap<Identity, Claimed<'_>> = BTreeMap::new();
    for emission in emissions {
        let claimed = by_identity.entry(emission.identity).or_default();
        claimed.emissions.push(emission);
        if emission.fate == Fate::Kept {
            claimed.contents.insert(&emission.content);
        }
    }
    by_identity
}

/// How many records have to be stored in the end.
pub fn expected_records(emissions: &[Emission]) -> usize {
    claimed(emissions).values().filter(|claimed| !claimed.contents.is_empty()).count()
}

/// Compares what was committed with what is stored and what was refused, after everything has come to rest.
///
/// Of contents that contradict each other any one may be the stored one: whichever came first to the topic. The others must be
/// dead letters.
pub fn judge(emissions: &[Emission], stored: &[Stored], refused: &[Refused]) -> Vec<Difference> {
    let claimed = claimed(emissions);
    let mut differences = Vec::new();
    let mut rows: BTreeMap<Identity, Vec<&Stored>> = BTreeMap::new();
    for row in stored {
        rows.entry(row.identity).or_default().push(row);
    }
    for (identity, found) in &rows {
        if found.len() > 1 {
            differences.push(Difference::Doubled(*identity, found.len()));
        }
        match claimed.get(identity).filter(|claimed| !claimed.contents.is_empty()) {
            None => differences.push(Difference::Invented(found[0].clone())),
            Some(claimed) if !claimed.contents.contains(&found[0].content) => {
                let emitted = claimed.contents.iter().map(|content| (*content).clone()).collect();
                differences.push(Difference::Changed { stored: found[0].clone(), emitted });
            }
            Some(_) => {}
        }
    }
    let letters: BTreeSet<(Identity, &Content, &str)> =
        refused.iter().map(|letter| (letter.identity, &letter.content, letter.reason.as_str())).collect();
    let mut expected = BTreeSet::new();
    for (identity, claimed) in &claimed {
        let kept = rows.get(identity).map(|found| &found[0].content);
        if let (None, false) = (kept, claimed.contents.is_empty()) {
            let first = claimed.emissions.iter().find(|emission| emission.fate == Fate::Kept);
            differences.extend(first.map(|emission| Difference::Lost((*emission).clone())));
        }
        for emission in &claimed.emissions {
            if let Some(reason) = reason(emission, kept) {
                expected.insert((*identity, &emission.content, reason));
            }
        }
    }
    let missing = expected.iter().filter(|letter| !letters.contains(*letter));
    differences.extend(missing.map(|(identity, content, reason)| Difference::NotRefused {
        identity: *identity,
        content: (*content).clone(),
        reason,
    }));
    let surplus = refused
        .iter()
        .filter(|letter| !expected.contains(&(letter.identity, &letter.content, letter.reason.as_str())));
    differences.extend(surplus.cloned().map(Difference::WronglyRefused));
    differences
}

/// Why this emit must be a dead letter, given what is stored of its identity.
fn reason(emission: &Emission, kept: Option<&Content>) -> Option<&'static str> {
    match emission.fate {
        Fate::Kept => kept.filter(|kept| **kept != emission.content).map(|_| "conflict"),
        other => Some(other.as_str()),
    }
}

#[cfg(test)]
mod tests;
