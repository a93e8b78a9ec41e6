//! The end of a batch.

use std::sync::Arc;

use usage_storage::{PlannedBatch, Rows};

use super::{Ledger, Rewind};
use crate::batch::{Decided, Limits, Open, index, merge, select};
use crate::marker;
use crate::plan::Runs;

impl Ledger {
    /// Makes the decided batch; if its plan would be too long it ends after fewer rows.
    pub(super) fn decide(&self, open: Open, more: Rows, limits: &Limits) -> (Decided, Option<Rewind>) {
        let (first, mut last) = open.bounds.expect("an empty batch is not closed");
        let (mut rows, mut ids) = if more.is_empty() {
            (open.rows, open.ids)
        } else {
            let merged = merge(&open.rows, &more);
            let ids = index(&merged);
            (merged, ids)
        };
        let (mut not_kept, mut outgoing, mut spent) = (open.not_kept, open.outgoing, open.spent);
        let mut runs = Runs::join(not_kept.iter().copied(), &rows.offset);
        let mut rewind = None;
        if runs.pack(first).len() > limits.not_kept && not_kept.len() > 1 {
            // As many decisions as can be listed; the rows behind them come again.
            let fits = |listed: usize| {
                Runs::join(not_kept[..listed].iter().copied(), &rows.offset).pack(first).len()
                    <= limits.not_kept
            };
            let (mut low, mut high) = (1, not_kept.len());
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if fits(middle) { low = middle } else { high = middle }
            }
            not_kept.truncate(low);
            last = not_kept.last().map_or(first, |(offset, _)| *offset);
            runs = Runs::join(not_kept.iter().copied(), &rows.offset);
            rewind = Some(Rewind(last + 1));
            rows = select(&rows, |offset| offset <= last);
            ids = index(&rows);
            outgoing.retain(|outgoing| outgoing.message.offset <= last);
            spent.cut(last);
        }
        let batch_seq = self.done_seq + 1 + i64::from(self.in_flight.is_some());
        let batch = PlannedBatch { partition: self.place.partition, batch_seq, rows };
        let (markers, ahead) = marker::fold(open.heard, last);
        let decided = Decided {
            batch: Arc::new(batch),
            ids,
            first,
            last,
            not_kept: runs,
            outgoing: Arc::new(outgoing),
            markers,
            ahead,
            charge: open.charge,
            opened: open.opened,
            oldest: open.oldest,
            tally: open.tally,
            spent,
            over_quota: open.over_quota,
        };
        (decided, rewind)
    }
}
