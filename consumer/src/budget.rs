//! How much the worker may hold at once, in records and bytes, so that its memory is bounded whatever Kafka delivers.

/// What a batch has taken from the budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    pub records: usize,
    pub bytes: usize,
}

impl Charge {
    pub fn add(&mut self, more: Charge) {
        self.records += more.records;
        self.bytes += more.bytes;
    }

    /// True if neither part has reached `bound`.
    pub fn is_within(self, bound: Charge) -> bool {
        self.records < bound.records && self.bytes < bound.bytes
    }

    fn map(self, part: impl Fn(usize) -> usize) -> Charge {
        Charge { records: part(self.records), bytes: part(self.bytes) }
    }
}

/// What one partition may hold, so that partitions that are stuck leave room for the others.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    share: Charge,
    over: bool,
}

impl Share {
    /// True if a partition that holds this may take in more: up to twice its share, and while the budget is used up, whoever
    /// has done that, up to its share. A paused one waits until half of that is free.
    pub fn admits(&self, held: Charge, paused: bool) -> bool {
        let bound = if self.over { self.share } else { self.share.map(|part| part.saturating_mul(2)) };
        held.is_within(if paused { bound.map(|part| part.div_ceil(2)) } else { bound })
    }
}

/// Charged when a record is taken in, refunded when its batch is done or dropped.
#[derive(Debug)]
pub struct Budget {
    limit: Charge,
    used: Charge,
    over: bool,
}

impl Budget {
    pub fn new(limit: Charge) -> Self {
        Self { limit, used: Charge::default(), over: false }
    }

    pub fn charge(&mut self, charge: Charge) {
        self.used.add(charge);
    }

    pub fn refund(&mut self, charge: Charge) {
        debug_assert!(charge.records <= self.used.records && charge.bytes <= self.used.bytes);
        self.used.records = self.used.records.saturating_sub(charge.records);
        self.used.bytes = self.used.bytes.saturating_sub(charge.bytes);
    }

    /// True while intake must rest: from the limit on until less than half of it is used, since each pause throws away
    /// what librdkafka has fetched ahead.
    pub fn is_over(&mut self) -> bool {
        let Charge { records, bytes } = self.used;
        self.over = if self.over {
            records * 2 >= self.limit.records || bytes * 2 >= self.limit.bytes
        } else {
            records >= self.limit.records || bytes >= self.limit.bytes
        };
        self.over
    }

    /// What each of `partitions` may hold now. All of them together stay below twice the limit.
    pub fn share(&mut self, partitions: usize) -> Share {
        let share = self.limit.map(|part| (part / partitions.max(1)).max(1));
        Share { share, over: self.is_over() }
    }

    pub fn used(&self) -> Charge {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Take(usize),
        FinishOldest,
        DropNewest,
    }

    #[test]
    fn a_stuck_partition_leaves_the_others_their_share() {
        let mut budget = Budget::new(Charge { records: 1_000, bytes: 96 });
        let stuck = Charge { records: 10, bytes: 48 };
        let small = Charge { records: 4, bytes: 3 };
        budget.charge(stuck);
        budget.charge(Charge { records: 44, bytes: 48 });
        assert!(!budget.share(12).admits(stuck, false), "more than its share in bytes, few records");
        // The others are done; half of the budget is stuck, so it never counts as free again.
        budget.refund(Charge { records: 44, bytes: 48 });
        assert!(budget.is_over());
        assert!(budget.share(12).admits(small, true) && !budget.share(12).admits(stuck, true));
        assert!(!budget.share(12).admits(Charge { records: 4, bytes: 8 }, false));
        budget.refund(stuck);
        assert!(budget.share(12).admits(Charge { records: 4, bytes: 15 }, false), "twice the share");
        assert!(!budget.share(12).admits(Charge { records: 4, bytes: 16 }, false));
        assert!(!budget.share(12).admits(Charge { records: 166, bytes: 1 }, false));
    }

    proptest! {
        #[test]
        fn it_returns_to_zero_and_rests_between_its_marks(steps in proptest::collection::vec(
            prop_oneof![3 => (1usize..400).prop_map(Step::Take), 1 => Just(Step::FinishOldest), 1 => Just(Step::DropNewest)], 1..300
        )) {
            let limit = Charge { records: 50, bytes: 5_000 };
            let mut budget = Budget::new(limit);
            let mut batches = std::collections::VecDeque::new();
            let mut was_over = false;
            for step in steps {
                match step {
                    Step::Take(bytes) => {
                        let charge = Charge { records: 1, bytes };
                        budget.charge(charge);
                        batches.push_back(charge);
                    }
                    Step::FinishOldest => batches.pop_front().into_iter().for_each(|c| budget.refund(c)),
                    Step::DropNewest => batches.pop_back().into_iter().for_each(|c| budget.refund(c)),
                }
                let used = budget.used();
                let full = used.records >= limit.records || used.bytes >= limit.bytes;
                let half_free = used.records * 2 < limit.records && used.bytes * 2 < limit.bytes;
                let over = budget.is_over();
                prop_assert_eq!(over, full || (was_over && !half_free));
                was_over = over;
            }
            batches.into_iter().for_each(|c| budget.refund(c));
            prop_assert_eq!(budget.used(), Charge::default());
            prop_assert!(!budget.is_over());
        }
    }
}
