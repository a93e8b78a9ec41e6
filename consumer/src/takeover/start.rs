//! Where a partition goes on after a takeover: a pure function of what was found.

use usage_control::Progress;

use crate::plan::{self, Committed, Plan, PlanError};
use crate::side_reader::CommittedOffset;

/// What was found, each after the partition was fenced.
#[derive(Debug, Clone)]
pub struct Found {
    pub partition: i32,
    /// Partitions of the topic, and the smallest number it ever had.
    pub count: i32,
    pub first_count: i32,
    /// The topic is not the one that was consumed before; only its name is.
    pub made_anew: bool,
    /// The greatest `batch_seq` among records and horizons.
    pub stored_seq: i64,
    pub progress: Progress,
    pub committed: Option<CommittedOffset>,
    /// First offset of the log, and the one behind its last.
    pub log: (i64, i64),
    /// Milliseconds since the Unix epoch.
    pub now: i64,
}

/// How the partition goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The first offset that is not done.
    pub offset: i64,
    /// Number of the last batch before it.
    pub done_seq: i64,
    /// To be carried out first.
    pub plan: Option<Plan>,
    /// Offsets that an operator skipped.
    pub gap: Option<(i64, i64)>,
}

/// Why the partition stops until a person has looked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    #[error(
        "offsets {from} to {to} are gone from the log before they were consumed; stop the group, \
         move it with `kafka-consumer-groups --reset-offsets`, start it: ids keep the counts right"
    )]
    Gone { from: i64, to: i64 },
    /// Moved further than to its end, the group would skip what has been written there since.
    #[error(
        "the committed offset {offset} lies beyond the log's end {end}: the topic was made anew or truncated; stop the group, \
         move it with `kafka-consumer-groups --reset-offsets --to-offset {end}`, start it: ids keep the counts right"
    )]
    BeyondEnd { offset: i64, end: i64 },
    #[error(
        "offsets {end} to {last}, which the committed plan needs, are gone: the log was truncated and ends at {end}; stop the \
         group, move it with `kafka-consumer-groups --reset-offsets --to-offset {offset}`, start it: ids keep the counts right"
    )]
    PlanBeyondEnd { offset: i64, last: i64, end: i64 },
    #[error(
        "the broker does not take the committed plan again, whose length is {length}: raise its `offset.metadata.max.bytes`, \
         start the worker anew"
    )]
    PlanTooLong { length: usize },
    #[error(
        "the committed plan can't be read; run the version that wrote it, or clear it with `kafka-consumer-groups --reset-offsets`"
    )]
    Plan(#[from] PlanError),
}

/// Decides it.
pub fn start(found: &Found) -> Result<Start, Stop> {
    let (low, high) = found.log;
    if found.made_anew {
        let planned = found.committed.as_ref().and_then(|committed| plan::parse(&committed.metadata).ok());
        let planned = planned.map_or(0, |committed| committed.batch_seq());
        // Whatever the old log held from here on was never read; markers in the new one take it for delivered.
        let next = found.progress.next_offset.unwrap_or(0);
        let gap = Some((next, next + 1));
        return Ok(Start { offset: low, done_seq: found.last_seq(planned), plan: None, gap });
    }
    let Some(committed) = &found.committed else {
        // Nothing was ever committed, or the commit expired: from the log's beginning, unless something before it was consumed
        // and what followed is gone.
        return match found.progress.next_offset {
            Some(next) if low > next => Err(Stop::Gone { from: next, to: low - 1 }),
            _ => Ok(Start { offset: low, done_seq: found.last_seq(0), plan: None, gap: None }),
        };
    };
    let mut committed_offset = committed.offset;
    let mut cleared = false;
    let (planned_seq, mut plan) = match plan::parse(&committed.metadata)? {
        Committed::Planned(plan) => (plan.batch_seq, Some(plan)),
        Committed::Done { batch_seq } => (batch_seq, None),
        Committed::Cleared => {
            cleared = true;
            (0, None)
        }
    };
    // A batch that is done needs its rows no more; while they are there it is carried out all the same, which proves it, unless it
    // was decided by another count.
    let is_done = |plan: &mut Plan| {
        let Progress { batch_seq, next_offset, .. } = found.progress;
        let needed = low <= plan.first && plan.count == found.count;
        !needed && batch_seq >= plan.batch_seq && next_offset == Some(plan.last + 1)
    };
    if let Some(plan) = plan.take_if(is_done) {
        committed_offset = plan.last + 1;
    }
    let wanted = plan.as_ref().map_or(committed_offset, |plan| plan.first);
    if low > wanted {
        return Err(Stop::Gone { from: wanted, to: low - 1 });
    }
    if committed_offset > high {
        return Err(Stop::BeyondEnd { offset: committed_offset, end: high });
    }
    let done_seq = found.last_seq(planned_seq);
    // A plan of another count is not carried out: its rows may lie elsewhere now. What is stored of it counts by its ids.
    let plan = plan.filter(|plan| plan.count == found.count);
    if let Some(Plan { last, .. }) = plan.as_ref().filter(|plan| plan.last >= high) {
        return Err(Stop::PlanBeyondEnd { offset: committed_offset, last: *last, end: high });
    }
    // Before the first batch is done everything from the log's beginning is still to be read, and only an operator clears a commit.
    let next = found.progress.next_offset.or(cleared.then_some(low));
    let gap = next.filter(|next| committed_offset > *next).map(|next| (next, committed_offset));
    Ok(Start { offset: committed_offset, done_seq, plan, gap })
}

impl Found {
    /// The number after which batches go on: never backwards, whatever was reset.
    fn last_seq(&self, planned: i64) -> i64 {
        let last = planned.max(self.stored_seq).max(self.progress.batch_seq);
        // A partition that was added later starts above everything that a partition of that number may have had before.
        if last == 0 && self.partition >= self.first_count { self.now } else { last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{IdHash, Runs, done_text};

    fn found(committed: Option<(i64, &str)>, next_offset: Option<i64>) -> Found {
        Found {
            partition: 3,
            count: 12,
            first_count: 12,
            stored_seq: 40,
            made_anew: false,
            progress: Progress { kafka_partition: 3, batch_seq: 41, next_offset, quotas_from: None },
            committed: committed
                .map(|(offset, metadata)| CommittedOffset { offset, metadata: metadata.into() }),
            log: (100, 900),
            now: 1_700_000_000_000,
        }
    }

    fn plan(count: i32, batch_seq: i64, first: i64) -> Plan {
        Plan {
            count,
            batch_seq,
            first,
            last: first + 9,
            kept: 0,
            hash: IdHash::of([]),
            not_kept: Runs::default(),
        }
    }

    #[test]
    fn a_plan_is_carried_out_after_its_predecessors() {
        let plan = plan(12, 42, 205);
        let start = start(&found(Some((200, &plan.to_text())), Some(200))).unwrap();
        assert_eq!(start, Start { offset: 200, done_seq: 42, plan: Some(plan), gap: None });
    }

    #[test]
    fn a_plan_of_another_count_is_decided_anew_under_a_new_number() {
        let start = start(&found(Some((200, &plan(6, 42, 205).to_text())), Some(200))).unwrap();
        assert_eq!(start, Start { offset: 200, done_seq: 42, plan: None, gap: None });
    }

    #[test]
    fn a_plan_of_another_count_that_is_done_is_not_decided_again() {
        let text = plan(6, 41, 205).to_text();
        let done = start(&found(Some((200, &text)), Some(215))).unwrap();
        assert_eq!(done, Start { offset: 215, done_seq: 41, plan: None, gap: None });
        // Half of it may be stored: the other half is not.
        let text = plan(6, 42, 205).to_text();
        assert_eq!(start(&found(Some((200, &text)), Some(215))).unwrap().offset, 200);
    }

    #[test]
    fn the_number_is_above_everything_known() {
        let at = |planned: i64, stored: i64, progress: i64| {
            let mut found = found(Some((200, &done_text(planned))), Some(200));
            (found.stored_seq, found.progress.batch_seq) = (stored, progress);
            start(&found).unwrap().done_seq
        };
        assert_eq!((at(9, 5, 5), at(5, 9, 5), at(5, 5, 9)), (9, 9, 9));
        let mut new = found(None, None);
        (new.stored_seq, new.progress.batch_seq) = (0, 0);
        assert_eq!(start(&new).unwrap().done_seq, 0, "one of the first partitions");
        new.first_count = 3;
        assert_eq!(start(&new).unwrap().done_seq, 1_700_000_000_000, "added later");
    }

    #[test]
    fn without_a_commit_it_starts_at_the_logs_beginning_unless_records_were_lost() {
        assert_eq!(start(&found(None, None)).unwrap().offset, 100);
        assert_eq!(start(&found(None, Some(100))).unwrap().offset, 100);
        assert_eq!(start(&found(None, Some(700))).unwrap().offset, 100, "an expired commit");
        assert_eq!(start(&found(None, Some(99))), Err(Stop::Gone { from: 99, to: 99 }));
    }

    #[test]
    fn a_topic_made_anew_is_read_from_its_beginning_under_the_next_number() {
        for text in [done_text(57), plan(12, 57, 205).to_text(), "someone else's".to_owned()] {
            // Beyond the new log, or in the middle of it.
            for offset in [200, 2_000] {
                let mut found = found(Some((offset, &text)), Some(offset));
                found.made_anew = true;
                let done_seq = if text.contains("57") { 57 } else { 41 };
                let gap = Some((offset, offset + 1));
                let begin = Start { offset: 100, done_seq, plan: None, gap };
                assert_eq!(start(&found), Ok(begin), "{text}");
                found.progress.next_offset = None;
                let gap = start(&found).unwrap().gap;
                assert_eq!(gap, Some((0, 1)), "nobody knows what lay in the old one");
            }
        }
    }

    #[test]
    fn what_is_gone_stops_the_partition() {
        assert_eq!(start(&found(Some((90, "d1;41")), Some(90))), Err(Stop::Gone { from: 90, to: 99 }));
        assert_eq!(start(&found(Some((90, "")), Some(90))), Err(Stop::Gone { from: 90, to: 99 }));
        let text = plan(12, 42, 95).to_text();
        assert_eq!(start(&found(Some((90, &text)), Some(90))), Err(Stop::Gone { from: 95, to: 99 }));
        // Only control records lay before the plan's first row.
        let text = plan(12, 42, 100).to_text();
        assert!(start(&found(Some((90, &text)), Some(90))).is_ok());
        assert_eq!(
            start(&found(Some((901, "d1;41")), Some(901))),
            Err(Stop::BeyondEnd { offset: 901, end: 900 })
        );
        let text = Stop::BeyondEnd { offset: 901, end: 900 }.to_string();
        assert!(text.contains("--reset-offsets --to-offset 900`"), "{text}");
    }

    #[test]
    fn a_plan_whose_end_is_gone_stops_the_partition() {
        let end = |count, first, next_offset| {
            start(&found(Some((880, &plan(count, 42, first).to_text())), Some(next_offset)))
        };
        assert!(end(12, 890, 880).is_ok(), "its last row is the log's");
        for next_offset in [880, 901] {
            let stop = end(12, 891, next_offset).unwrap_err();
            assert_eq!(stop, Stop::PlanBeyondEnd { offset: 880, last: 900, end: 900 });
            let text = stop.to_string();
            assert!(text.contains("offsets 900 to 900") && text.contains("--to-offset 880`"), "{text}");
        }
        assert_eq!(end(6, 891, 880).unwrap().offset, 880, "it is not carried out");
    }

    #[test]
    fn a_plan_that_is_done_does_not_need_its_rows() {
        let text = plan(12, 41, 91).to_text();
        let done = start(&found(Some((90, &text)), Some(101))).unwrap();
        assert_eq!(done, Start { offset: 101, done_seq: 41, plan: None, gap: None });
        // Not this batch, or what follows it is gone too.
        let text = plan(12, 42, 91).to_text();
        assert!(start(&found(Some((90, &text)), Some(101))).is_err());
        let text = plan(12, 41, 85).to_text();
        assert_eq!(start(&found(Some((85, &text)), Some(95))), Err(Stop::Gone { from: 95, to: 99 }));
    }

    #[test]
    fn an_operators_move_is_followed_and_a_skip_is_a_gap() {
        let back = start(&found(Some((120, "")), Some(200))).unwrap();
        assert_eq!(back, Start { offset: 120, done_seq: 41, plan: None, gap: None });
        let skip = start(&found(Some((300, "")), Some(200))).unwrap();
        assert_eq!(skip, Start { offset: 300, done_seq: 41, plan: None, gap: Some((200, 300)) });
        // The first batch was planned and never done.
        assert_eq!(start(&found(Some((300, "")), None)).unwrap().gap, Some((100, 300)));
        for (offset, text) in [(100, String::new()), (120, plan(12, 1, 120).to_text()), (120, done_text(0))] {
            assert_eq!(start(&found(Some((offset, &text)), None)).unwrap().gap, None, "{offset} {text}");
        }
    }

    #[test]
    fn a_plan_that_cant_be_read_stops_the_partition() {
        for text in ["p2;12", "p1;12;42", "someone else's"] {
            assert!(matches!(start(&found(Some((200, text)), Some(200))), Err(Stop::Plan(_))), "{text}");
        }
    }
}
