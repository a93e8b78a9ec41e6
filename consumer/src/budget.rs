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
