//! Marks: how a letter is settled in a topic where nothing can be changed or taken out.
//!
//! A mark is a message in the same partition as the letters it names, so whoever reads a partition to its end knows what is open.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::letter::Origin;
use crate::arguments::Place;

/// How a letter was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Settled {
    Replayed,
    Discarded,
}

/// A mark as it lies in the topic.
#[derive(Debug)]
pub(super) struct Mark {
    pub place: Place,
    pub settled: Settled,
    pub letters: Vec<Origin>,
}

/// The value of a mark's message. Members that this version does not know are ignored.
#[derive(Serialize, Deserialize)]
struct Value {
    settled: Settled,
    letters: Vec<Origin>,
}

impl Mark {
    pub fn encode(settled: Settled, letters: Vec<Origin>) -> Vec<u8> {
        serde_json::to_vec(&Value { settled, letters }).expect("a mark has nothing that JSON refuses")
    }

    pub fn decode(value: &[u8]) -> Option<(Settled, Vec<Origin>)> {
        let value: Value = serde_json::from_slice(value).ok()?;
        Some((value.settled, value.letters))
    }
}

/// What the marks say of letters.
#[derive(Debug, Default)]
pub(super) struct Marks {
    marked: HashMap<Origin, Marked>,
}

/// The last mark of a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marked {
    Replayed,
    Discarded,
    /// Replayed, but the group's offset was moved since then: where that lies before the letter, it is open again.
    ReplayedBeforeMove,
}

impl Marks {
    /// Marks of one letter come in the order of their offsets; the last one counts. `void_before`: replays that were marked at lower
    /// offsets are from before the group's offset was moved. What was discarded before then stays so.
    pub fn add(&mut self, mark: Mark, void_before: i64) {
        let marked = match mark.settled {
            Settled::Discarded => Marked::Discarded,
            Settled::Replayed if mark.place.offset < void_before => Marked::ReplayedBeforeMove,
            Settled::Replayed => Marked::Replayed,
        };
        for letter in mark.letters {
            let known = self.marked.entry(letter).or_insert(marked);
            if marked != Marked::ReplayedBeforeMove || *known != Marked::Discarded {
                *known = marked;
            }
        }
    }

    pub fn of(&self, origin: &Origin) -> Option<Marked> {
        self.marked.get(origin).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(offset: i64) -> Origin {
        Origin { topic: "usage.records.v1".into(), partition: 3, offset, timestamp: 1_700_000_000_123 }
    }

    fn mark(offset: i64, settled: Settled, letters: &[i64]) -> Mark {
        let place = Place { partition: 3, offset };
        Mark { place, settled, letters: letters.iter().map(|offset| origin(*offset)).collect() }
    }

    #[test]
    fn text_is_fixed_and_later_members_are_ignored() {
        let text = r#"{"settled":"discarded","letters":[{"topic":"usage.records.v1","partition":3,"offset":7,"timestamp":1700000000123}]}"#;
        assert_eq!(String::from_utf8(Mark::encode(Settled::Discarded, vec![origin(7)])).unwrap(), text);
        let later = text.replacen('{', r#"{"note":"x","#, 1);
        assert_eq!(Mark::decode(later.as_bytes()), Some((Settled::Discarded, vec![origin(7)])));
        for garbage in ["", "null", "{}", r#"{"settled":"lost","letters":[]}"#] {
            assert_eq!(Mark::decode(garbage.as_bytes()), None, "{garbage}");
        }
    }

    #[test]
    fn the_last_mark_counts_but_a_replay_before_a_move_undoes_no_discard() {
        let mut marks = Marks::default();
        marks.add(mark(10, Settled::Replayed, &[1, 2]), 20);
        marks.add(mark(11, Settled::Discarded, &[3]), 20);
        marks.add(mark(12, Settled::Replayed, &[3]), 20);
        marks.add(mark(20, Settled::Replayed, &[2, 4]), 20);
        marks.add(mark(21, Settled::Discarded, &[4]), 20);
        let of = |offset| marks.of(&origin(offset));
        assert_eq!([of(1), of(2)], [Some(Marked::ReplayedBeforeMove), Some(Marked::Replayed)]);
        assert_eq!([of(3), of(4), of(5)], [Some(Marked::Discarded), Some(Marked::Discarded), None]);
    }

    #[test]
    fn problem_98_the_same_offset_elsewhere_is_another_letter() {
        let mut marks = Marks::default();
        marks.add(mark(10, Settled::Replayed, &[7]), 0);
        let other_partition = Origin { partition: 4, ..origin(7) };
        let topic_made_anew = Origin { timestamp: 1_700_000_000_124, ..origin(7) };
        let other_topic = Origin { topic: "usage.records.v2".into(), ..origin(7) };
        for other in [other_partition, topic_made_anew, other_topic] {
            assert_eq!(marks.of(&other), None, "{other:?}");
        }
        assert_eq!(marks.of(&origin(7)), Some(Marked::Replayed));
    }
}
