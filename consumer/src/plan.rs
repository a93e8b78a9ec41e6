//! The plan: what a batch will be, written into the metadata of the committed offset before anything of it is stored.
//!
//! One text recovers one batch: `p1;count;batch_seq;first;last;kept;hash;not_kept`, or with nothing in hand `d1;batch_seq`.
//! An empty text means that an operator moved the offset: Kafka's own tools clear the metadata.

mod not_kept;
#[cfg(test)]
mod tests;

use sha2::{Digest, Sha256};
use uuid::Uuid;

pub use not_kept::{NotKept, PackedSize, Run, Runs};

/// Greatest length of the metadata that a broker takes with its default `offset.metadata.max.bytes` of 4096.
pub const METADATA_LIMIT: usize = 4095;
/// Kept free when a batch is cut, so that rows which storage refuses can still be listed.
pub const REFUSAL_RESERVE: usize = 512;
/// Room for everything before `not_kept`.
const HEAD_LIMIT: usize = 128;

/// The longest `not_kept` that a batch is cut by, under a metadata limit.
pub fn not_kept_limit(metadata_limit: usize) -> usize {
    metadata_limit.saturating_sub(REFUSAL_RESERVE + HEAD_LIMIT)
}

/// A batch to be carried out to the letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Partitions of the topic when it was made.
    pub count: i32,
    pub batch_seq: i64,
    /// Offsets of the first and the last delivered row.
    pub first: i64,
    pub last: i64,
    /// Number of kept rows.
    pub kept: u64,
    pub hash: IdHash,
    pub not_kept: Runs,
}

/// The first 8 bytes of SHA-256 over the kept record ids in offset order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IdHash(u64);

impl IdHash {
    pub fn of<'a>(ids: impl IntoIterator<Item = &'a Uuid>) -> Self {
        let mut sha = Sha256::new();
        for id in ids {
            sha.update(id.as_bytes());
        }
        let digest = sha.finalize();
        let (head, _) = digest.split_first_chunk::<8>().expect("a digest has 32 bytes");
        Self(u64::from_be_bytes(*head))
    }
}

impl std::fmt::Display for IdHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl std::fmt::Debug for IdHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// What the metadata of a committed offset says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Committed {
    /// This batch was planned; how much of it is stored is not known.
    Planned(Plan),
    /// Everything before the offset is done.
    Done { batch_seq: i64 },
    /// Nothing: an operator moved the offset, or something else committed.
    Cleared,
}

impl Committed {
    /// The number that it names; 0 if it names none.
    pub fn batch_seq(&self) -> i64 {
        match self {
            Self::Planned(plan) => plan.batch_seq,
            Self::Done { batch_seq } => *batch_seq,
            Self::Cleared => 0,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("the plan has an unknown version: {0}")]
    UnknownVersion(String),
    #[error("the plan is damaged ({detail}): {text}")]
    Damaged { detail: &'static str, text: String },
}

impl Plan {
    /// The text for the commit.
    pub fn to_text(&self) -> String {
        let Self { count, batch_seq, first, last, kept, hash, not_kept } = self;
        format!("p1;{count};{batch_seq};{first};{last};{kept};{hash};{}", not_kept.pack(*first))
    }

    /// The same number and bounds, with some kept rows refused by storage.
    pub fn refuse(&self, offsets: &[i64], kept_ids: impl IntoIterator<Item = Uuid>) -> Self {
        let ids: Vec<Uuid> = kept_ids.into_iter().collect();
        Self {
            kept: ids.len() as u64,
            hash: IdHash::of(&ids),
            not_kept: self.not_kept.with(offsets, NotKept::Refused(usage_schemas::Reason::StorageRefused)),
            ..self.clone()
        }
    }
}

/// The text that says that nothing is in hand.
pub fn done_text(batch_seq: i64) -> String {
    format!("d1;{batch_seq}")
}

/// Reads the metadata of a committed offset.
pub fn parse(text: &str) -> Result<Committed, PlanError> {
    let damaged = |detail| PlanError::Damaged { detail, text: text.chars().take(80).collect() };
    let Some((version, rest)) = text.split_once(';') else {
        return if text.is_empty() {
            Ok(Committed::Cleared)
        } else {
            Err(PlanError::UnknownVersion(text.into()))
        };
    };
    match version {
        "d1" => {
            let batch_seq = number(rest).ok_or_else(|| damaged("batch_seq"))?;
            Ok(Committed::Done { batch_seq })
        }
        "p1" => parse_plan(rest).map(Committed::Planned).map_err(damaged),
        other => Err(PlanError::UnknownVersion(other.chars().take(20).collect())),
    }
}

fn parse_plan(text: &str) -> Result<Plan, &'static str> {
    let fields: Vec<&str> = text.split(';').collect();
    let [count, batch_seq, first, last, kept, hash, not_kept] = fields[..] else {
        return Err("number of fields");
    };
    let count = number(count).and_then(|n| i32::try_from(n).ok()).filter(|n| *n > 0).ok_or("count")?;
    let batch_seq = number(batch_seq).filter(|n| *n > 0).ok_or("batch_seq")?;
    let first = number(first).ok_or("first")?;
    let last = number(last).filter(|last| *last >= first && *last < i64::MAX).ok_or("last")?;
    let kept = number(kept).and_then(|n| u64::try_from(n).ok()).ok_or("kept")?;
    let lower_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    if hash.len() != 16 || !hash.bytes().all(lower_hex) {
        return Err("hash");
    }
    let hash = IdHash(u64::from_str_radix(hash, 16).map_err(|_| "hash")?);
    let not_kept = Runs::unpack(not_kept, first, last)?;
    Ok(Plan { count, batch_seq, first, last, kept, hash, not_kept })
}

/// A number as `format!` writes it: no sign, no leading zeros.
fn number(text: &str) -> Option<i64> {
    let canonical = text == "0" || !text.starts_with('0');
    (canonical && text.bytes().all(|c| c.is_ascii_digit())).then(|| text.parse().ok())?
}
