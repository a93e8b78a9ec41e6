//! The offsets of the group `usage-dead-letters`: everything before one is settled.
//!
//! Kafka's own `kafka-consumer-groups --reset-offsets` moves them, which clears the commit's metadata. That is how an offset that
//! an operator chose is told from one of ours: replays that were marked before the reset do not count any more.

/// What the group has committed for a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Committed {
    /// `None` if there never was a commit, or it has expired.
    pub offset: Option<i64>,
    pub metadata: String,
}

/// From where on a partition holds letters that may be open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    pub offset: i64,
    /// Replays that were marked at lower offsets do not count.
    pub void_before: i64,
    /// Somebody else chose the offset, and nothing of ours says so yet.
    pub moved: bool,
}

/// The first word of our metadata; another one is nobody we know.
const OURS: &str = "m1;";

pub(super) fn metadata(void_before: i64) -> String {
    format!("{OURS}{void_before}")
}

impl Start {
    /// Between the log's first offset and the one behind its last.
    pub fn of(committed: &Committed, low: i64, high: i64) -> Self {
        let all = Self { offset: low, void_before: 0, moved: false };
        match committed.offset {
            None => all,
            // The topic was made anew.
            Some(offset) if offset > high => all,
            Some(offset) => {
                let ours = committed.metadata.strip_prefix(OURS).and_then(|text| text.parse().ok());
                Self { offset: offset.max(low), void_before: ours.unwrap_or(high), moved: ours.is_none() }
            }
        }
    }
}

/// How far one partition is settled while a command works through it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frontier {
    start: i64,
    next: i64,
    left: Option<i64>,
}

impl Frontier {
    pub fn new(start: i64) -> Self {
        Self { start, next: start, left: None }
    }

    /// Everything below `next` was seen.
    pub fn seen(&mut self, next: i64) {
        self.next = self.next.max(next);
    }

    /// The letter here stays open.
    pub fn keep(&mut self, offset: i64) {
        self.left = Some(self.left.map_or(offset, |left| left.min(offset)));
    }

    /// The first offset that is not settled, if all that was seen and not kept is. It never goes back.
    pub fn position(&self) -> i64 {
        self.left.unwrap_or(self.next).max(self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(offset: i64, metadata: &str) -> Committed {
        Committed { offset: Some(offset), metadata: metadata.into() }
    }

    fn start(offset: i64, void_before: i64, moved: bool) -> Start {
        Start { offset, void_before, moved }
    }

    #[test]
    fn an_offset_of_ours_keeps_the_marks_and_a_moved_one_voids_those_before() {
        assert_eq!(Start::of(&Committed::default(), 5, 100), start(5, 0, false));
        assert_eq!(Start::of(&committed(40, &metadata(0)), 5, 100), start(40, 0, false));
        assert_eq!(Start::of(&committed(40, &metadata(60)), 5, 100), start(40, 60, false));
        assert_eq!(Start::of(&committed(40, ""), 5, 100), start(40, 100, true));
        assert_eq!(Start::of(&committed(40, "somebody's"), 5, 100), start(40, 100, true));
        assert_eq!(Start::of(&committed(100, ""), 5, 100), start(100, 100, true));
    }

    #[test]
    fn an_offset_outside_the_log_falls_back_to_its_beginning() {
        assert_eq!(Start::of(&committed(2, &metadata(0)), 5, 100), start(5, 0, false));
        assert_eq!(Start::of(&committed(101, &metadata(7)), 0, 100), start(0, 0, false));
    }

    #[test]
    fn the_position_stops_at_the_first_letter_that_stays() {
        let mut frontier = Frontier::new(10);
        frontier.seen(15);
        assert_eq!(frontier.position(), 15);
        frontier.keep(17);
        frontier.keep(30);
        frontier.seen(40);
        assert_eq!(frontier.position(), 17);
        // Found late to be open: a refusal of Kafka's.
        frontier.keep(12);
        assert_eq!(frontier.position(), 12);
        // Letters before the start were passed over on purpose.
        frontier.keep(3);
        assert_eq!(frontier.position(), 10);
    }
}
