//! Where each partition goes on after a restore: a pure function of the log and of what is stored.

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reset {
    pub partition: i32,
    pub offset: i64,
    /// The batch that it begins with; `None` if nothing of the partition is stored.
    pub batch_seq: Option<i64>,
}

impl fmt::Display for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { partition, offset, batch_seq } = self;
        match batch_seq {
            Some(batch_seq) => {
                write!(f, "partition {partition}: from offset {offset}, where batch {batch_seq} begins")
            }
            None => write!(
                f,
                "partition {partition}: from offset {offset}, the log's start: nothing of it is restored"
            ),
        }
    }
}

/// From the lowest offset of the last restored batch, since the backup may hold a part of it; ids recognise what is there.
pub(super) fn resets(logs: &[Log], stored: &[LastBatch]) -> anyhow::Result<Vec<Reset>> {
    let (mut resets, mut gone) = (Vec::new(), Vec::new());
    for &Log { partition, low, high } in logs {
        let last = stored.iter().find(|last| last.partition == partition);
        let Some(&LastBatch { batch_seq, first_offset, .. }) = last else {
            resets.push(Reset { partition, offset: low, batch_seq: None });
            continue;
        };
        if first_offset < low {
            gone.push(format!("offsets {first_offset} to {} of partition {partition}", low - 1));
        } else if first_offset >= high {
            bail!(
                "partition {partition}: batch {batch_seq} begins at offset {first_offset}, beyond the log's end {high}: \
                 this is not the topic that it came from"
            );
        }
        resets.push(Reset { partition, offset: first_offset, batch_seq: Some(batch_seq) });
    }
    if gone.is_empty() {
        return Ok(resets);
    }
    bail!("what came after the backup is gone from the log, restore a younger one: {}", gone.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(partition: i32, low: i64, high: i64) -> Log {
        Log { partition, low, high }
    }

    fn last(partition: i32, batch_seq: i64, first_offset: i64) -> LastBatch {
        LastBatch { partition, batch_seq, first_offset }
    }

    #[test]
    fn the_last_restored_batch_is_read_again() {
        let found = resets(&[log(0, 5, 90), log(1, 7, 7), log(2, 0, 40)], &[last(0, 3, 60), last(2, 9, 0)]);
        let reset = |partition, offset, batch_seq| Reset { partition, offset, batch_seq };
        assert_eq!(found.unwrap(), [reset(0, 60, Some(3)), reset(1, 7, None), reset(2, 0, Some(9))]);
    }

    #[test]
    fn every_range_that_is_gone_is_named() {
        let logs = [log(0, 61, 90), log(1, 0, 9), log(2, 100, 100)];
        let error = resets(&logs, &[last(0, 3, 60), last(1, 1, 0), last(2, 7, 80)]).unwrap_err().to_string();
        assert!(
            error.ends_with("offsets 60 to 60 of partition 0, offsets 80 to 99 of partition 2"),
            "{error}"
        );
    }

    #[test]
    fn another_topic_is_refused() {
        let error = resets(&[log(0, 0, 60)], &[last(0, 3, 60)]).unwrap_err().to_string();
        assert!(error.contains("beyond the log's end 60"), "{error}");
    }

    #[test]
    fn resets_say_why() {
        let all = [Some(3), None].map(|batch_seq| Reset { partition: 1, offset: 60, batch_seq }.to_string());
        assert!(all[0].contains("batch 3 begins") && all[1].contains("the log's start"), "{all:?}");
    }
}
