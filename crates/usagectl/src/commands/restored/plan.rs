//! Where each partition goes on after a restore: a pure function of the log and of what is stored.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::bail;
use usage_storage::LastBatch;

/// What the log of a partition holds: its first offset, and the one behind its last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Log {
    pub partition: i32,
    pub low: i64,
    pub high: i64,
}

/// The new committed offset of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reset {
    pub partition: i32,
    pub offset: i64,
    pub why: Why,
    /// Offsets `from..to` that may have held what is not restored, and that nobody can read again.
    pub gaps: Vec<(i64, i64)>,
}

/// Why it is this offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The backup may hold a part of the last restored batch.
    Batch(i64),
    /// Where the last restored batch begins can't be known: the one before it is not there, or was read before offsets were set
    /// back.
    Beginning(i64),
    Nothing,
    /// The topic was made anew after the last restored batch: its offsets mean other rows.
    OtherTopic(i64),
}

impl fmt::Display for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { partition, offset, why, gaps } = self;
        write!(f, "partition {partition}: from offset {offset}")?;
        match why {
            Why::Batch(batch_seq) => write!(f, ", where batch {batch_seq} may begin")?,
            Why::Beginning(batch_seq) => {
                write!(f, ", the log's start: it is not known where batch {batch_seq} begins")?;
            }
            Why::Nothing => write!(f, ", the log's start: nothing of it is restored")?,
            Why::OtherTopic(batch_seq) => write!(
                f,
                ", the log's start: the topic was made anew after batch {batch_seq}, the last that is restored"
            )?,
        }
        for (from, to) in gaps {
            let of = if matches!(why, Why::OtherTopic(_)) && *from > 0 { " of the former topic" } else { "" };
            write!(f, "\n  gap: what lay from offset {from} to {}{of} may be lost", to - 1)?;
        }
        Ok(())
    }
}

/// From the end of the batch before the last restored one, since the backup may hold a part of the last; ids recognise what is there.
/// `made_anew`: for each partition whose topic was made anew, the number of the last batch before that.
pub(super) fn resets(
    logs: &[Log],
    stored: &[LastBatch],
    made_anew: &BTreeMap<i32, i64>,
) -> anyhow::Result<Vec<Reset>> {
    let (mut resets, mut gone) = (Vec::new(), Vec::new());
    for log in logs {
        let Log { partition, low, high } = *log;
        let after_seq = made_anew.get(&partition).copied().unwrap_or(0);
        let Some(last) = stored.iter().find(|last| last.partition == partition) else {
            resets.push(from_start(log, Why::Nothing, None));
            continue;
        };
        let LastBatch { batch_seq, first_offset, .. } = *last;
        if batch_seq <= after_seq {
            // What the former topic held from here on is not in the log; how far it reached is not known any more.
            let lost = resume(last, 0).unwrap_or(first_offset);
            resets.push(from_start(log, Why::OtherTopic(batch_seq), Some((lost, lost + 1))));
            continue;
        }
        if first_offset < low {
            gone.push(format!("offsets {first_offset} to {} of partition {partition}", low - 1));
        } else if first_offset >= high {
            bail!(
                "partition {partition}: batch {batch_seq} begins at offset {first_offset}, beyond the log's end {high}: \
                 this is not the topic that it came from"
            );
        }
        resets.push(match resume(last, after_seq) {
            Some(offset) if offset >= low => {
                Reset { partition, offset, why: Why::Batch(batch_seq), gaps: Vec::new() }
            }
            // Perhaps there were only markers: nobody can say.
            Some(offset) => {
                Reset { partition, offset: low, why: Why::Batch(batch_seq), gaps: vec![(offset, low)] }
            }
            None => from_start(log, Why::Beginning(batch_seq), None),
        });
    }
    if gone.is_empty() {
        return Ok(resets);
    }
    bail!("what came after the backup is gone from the log, restore a younger one: {}", gone.join(", "))
}

/// The lowest offset that the last batch may have begun at, if it is known.
fn resume(last: &LastBatch, after_seq: i64) -> Option<i64> {
    let previous = last.previous.filter(|previous| previous.batch_seq > after_seq)?;
    (previous.last_offset < last.first_offset).then_some(previous.last_offset + 1)
}

fn from_start(log: &Log, why: Why, lost: Option<(i64, i64)>) -> Reset {
    let before = (log.low > 0).then_some((0, log.low));
    Reset { partition: log.partition, offset: log.low, why, gaps: lost.into_iter().chain(before).collect() }
}

#[cfg(test)]
mod tests;
