//! What every command reads: first the marks, then the messages, each letter once and with its state.

use std::collections::{BTreeMap, HashSet};

use indicatif::{ProgressBar, ProgressStyle};
use usage_schemas::codec::Decoder;

use super::letter::{self, Content, Letter, Origin};
use super::mark::{Marked, Marks};
use super::message::Message;
use super::position::{Committed, Start};
use super::topic::{Span, Topic};

/// How far before the group's offset marks are read. A recovery writes the letters of one batch again, perhaps when the first ones are
/// settled already; a batch is smaller than this.
const MARKS_BEFORE: i64 = 200_000;

/// What has become of a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Open,
    Replayed,
    Discarded,
    /// Nothing marks it, but the group's offset lies behind it: somebody moved that.
    Passed,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Replayed => "replayed",
            Self::Discarded => "discarded",
            Self::Passed => "passed",
        }
    }
}

/// What a command meets in the topic.
pub(super) enum Met {
    /// A letter, at the first message of its origin that is in range.
    Letter(Box<Letter>, State),
    Foreign(Message, &'static str),
    /// A mark, or a letter that was met before.
    Nothing,
}

/// The topic as it was when the command began.
pub(super) struct Survey {
    pub topic: Topic,
    pub starts: BTreeMap<i32, Start>,
    pub committed: BTreeMap<i32, Committed>,
    spans: Vec<Span>,
    marks: Marks,
    decoder: Decoder,
    bar: ProgressBar,
}

impl Survey {
    /// Reads the marks of the partitions that `wanted` names. `whole`: from the log's beginning, not only from the group's offset.
    pub fn begin(topic: Topic, wanted: impl Fn(i32) -> bool, whole: bool) -> anyhow::Result<Self> {
        let committed = topic.committed()?;
        let (mut starts, mut spans, mut of_marks) = (BTreeMap::new(), Vec::new(), Vec::new());
        for partition in topic.partitions.iter().copied().filter(|partition| wanted(*partition)) {
            let (low, high) = topic.bounds(partition)?;
            let start = Start::of(committed.get(&partition).unwrap_or(&Committed::default()), low, high);
            starts.insert(partition, start);
            let from = if whole { low } else { start.offset };
            spans.push(Span { partition, from, to: high });
            // Without letters no mark matters.
            if from < high {
                of_marks.push(Span { partition, from: low.max(from - MARKS_BEFORE), to: high });
            }
        }
        let mut survey = Self {
            bar: bar(&[&of_marks, &spans]),
            topic,
            starts,
            committed,
            spans,
            marks: Marks::default(),
            decoder: Decoder::new(),
        };
        survey.read_marks(&of_marks)?;
        Ok(survey)
    }

    fn read_marks(&mut self, spans: &[Span]) -> anyhow::Result<()> {
        let (marks, starts, decoder, bar) = (&mut self.marks, &self.starts, &self.decoder, &self.bar);
        self.topic.read(spans, |message| {
            bar.inc(1);
            if let Content::Mark(mark) = letter::read(message, decoder) {
                let void_before = starts.get(&mark.place.partition).map_or(0, |start| start.void_before);
                marks.add(mark, void_before);
            }
            Ok(())
        })
    }

    /// Hands everything to `visit`, with the partition and the offset behind it.
    pub fn each(&self, mut visit: impl FnMut(Met, i32, i64) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut met: HashSet<Origin> = HashSet::new();
        self.topic.read(&self.spans, |message| {
            self.bar.inc(1);
            let place = message.place;
            let met = match letter::read(message, &self.decoder) {
                Content::Letter(letter) if met.insert(letter.origin.clone()) => {
                    let state = self.state(&letter);
                    Met::Letter(Box::new(letter), state)
                }
                Content::Letter(_) | Content::Mark(_) => Met::Nothing,
                Content::Foreign(message, why) => Met::Foreign(message, why),
            };
            visit(met, place.partition, place.offset + 1)
        })?;
        self.bar.finish_and_clear();
        Ok(())
    }

    pub fn state(&self, letter: &Letter) -> State {
        let place = letter.message.place;
        let passed = self.starts.get(&place.partition).is_some_and(|start| place.offset < start.offset);
        match self.marks.of(&letter.origin) {
            Some(Marked::Discarded) => State::Discarded,
            Some(Marked::Replayed) => State::Replayed,
            Some(Marked::ReplayedBeforeMove) if passed => State::Replayed,
            None if passed => State::Passed,
            Some(Marked::ReplayedBeforeMove) | None => State::Open,
        }
    }

    /// The end of each partition when the command began.
    pub fn ends(&self) -> impl Iterator<Item = (i32, i64)> {
        self.spans.iter().map(|span| (span.partition, span.to))
    }
}

/// Shown only where standard error is a terminal.
fn bar(passes: &[&Vec<Span>]) -> ProgressBar {
    let messages = passes.iter().flat_map(|spans| spans.iter()).map(|span| span.to - span.from);
    let bar = ProgressBar::new(messages.sum::<i64>().unsigned_abs());
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} messages {per_sec} {eta}");
    style.map_or_else(|_| ProgressBar::hidden(), |style| bar.with_style(style))
}
