//! What `replay` and `discard` share: letters are taken in windows, and each window is carried out, marked, and passed by the group's
//! offset, in this order.
//!
//! Killed before the marks, a window is carried out again: a record that was replayed twice has one identity. Killed before
//! the offset, the marks say what is done.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::bail;
use serde::Serialize;
use usage_schemas::names;
use usage_service::fail_point;

use super::letter::Letter;
use super::mark::Settled;
use super::outbound::Outbound;
use super::position::{self, Committed, Frontier};
use super::survey::{Met, State, Survey};
use crate::arguments::LetterFilter;

/// Letters in a window; `--rate` makes it smaller.
const WINDOW: usize = 500;
/// Bytes in a window.
const WINDOW_BYTES: usize = 8 << 20;

/// What is done with a letter.
pub(super) enum Action {
    Replay { topic: String, partitions: i32, max_attempts: u32 },
    Discard,
}

pub(super) struct Options<'a> {
    pub filter: &'a LetterFilter,
    pub action: Action,
    /// Settled letters too.
    pub again: bool,
    /// Letters a second.
    pub rate: Option<u32>,
}

/// What was done, or would be.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    /// Letters that were replayed or discarded, by reason.
    pub settled: BTreeMap<String, u64>,
    /// Letters that fit but have reached the greatest number of attempts.
    pub exhausted: u64,
    /// Letters that fit but can't be put back, by why.
    pub unreplayable: BTreeMap<String, u64>,
    /// Open letters that do not fit.
    pub others: u64,
    /// Messages that are no letters.
    pub foreign: u64,
}

impl Tally {
    pub fn total(&self) -> u64 {
        self.settled.values().sum()
    }
}

/// Works through the survey. Without `outbound` it only counts.
pub(super) fn run(
    survey: &Survey,
    options: &Options<'_>,
    outbound: Option<&Outbound>,
) -> anyhow::Result<Tally> {
    let mut work = Work::new(survey, options, outbound);
    work.take_over_moved_offsets()?;
    survey.each(|met, partition, next| work.meet(met, partition, next))?;
    work.flush()?;
    work.finish()?;
    Ok(work.tally)
}

struct Work<'a> {
    survey: &'a Survey,
    options: &'a Options<'a>,
    outbound: Option<&'a Outbound>,
    frontiers: BTreeMap<i32, Frontier>,
    /// As we know them to be.
    committed: BTreeMap<i32, Committed>,
    /// Offsets of the marks that were written.
    marks: BTreeMap<i32, BTreeSet<i64>>,
    window: Vec<Letter>,
    window_bytes: usize,
    begun: Instant,
    tally: Tally,
}

impl<'a> Work<'a> {
    fn new(survey: &'a Survey, options: &'a Options<'a>, outbound: Option<&'a Outbound>) -> Self {
        let frontiers =
            survey.starts.iter().map(|(partition, start)| (*partition, Frontier::new(start.offset)));
        Self {
            survey,
            options,
            outbound,
            frontiers: frontiers.collect(),
            committed: survey.committed.clone(),
            marks: BTreeMap::new(),
            window: Vec::new(),
            window_bytes: 0,
            begun: Instant::now(),
            tally: Tally::default(),
        }
    }

    fn frontier(&mut self, partition: i32) -> &mut Frontier {
        self.frontiers.entry(partition).or_insert_with(|| Frontier::new(0))
    }

    /// Which replays an operator's reset made void must be known before the first new mark: a repetition after a kill would else
    /// take the new ones for void, too.
    fn take_over_moved_offsets(&mut self) -> anyhow::Result<()> {
        let moved = self.survey.starts.iter().filter(|(_, start)| start.moved);
        let positions = moved.map(|(partition, start)| {
            let metadata = position::metadata(start.void_before);
            (*partition, Committed { offset: Some(start.offset), metadata })
        });
        self.commit(positions.collect())
    }

    fn meet(&mut self, met: Met, partition: i32, next: i64) -> anyhow::Result<()> {
        match met {
            Met::Letter(letter, state) => self.take(*letter, state)?,
            Met::Foreign(..) => self.tally.foreign += 1,
            Met::Nothing => {}
        }
        self.frontier(partition).seen(next);
        let letters = self.options.rate.map_or(WINDOW, |rate| WINDOW.min(rate as usize));
        if self.window.len() >= letters || self.window_bytes >= WINDOW_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn take(&mut self, letter: Letter, state: State) -> anyhow::Result<()> {
        let open = state == State::Open;
        if !open && !self.options.again {
            return Ok(());
        }
        let unreplayable = match &self.options.action {
            Action::Replay { .. } => letter.unreplayable(),
            Action::Discard => None,
        };
        if !self.options.filter.fits(&letter) {
            self.tally.others += u64::from(open);
        } else if let Some(why) = unreplayable {
            *self.tally.unreplayable.entry(why.into()).or_default() += 1;
        } else if self.is_exhausted(&letter) {
            self.tally.exhausted += 1;
        } else {
            self.window_bytes += letter.message.size();
            self.window.push(letter);
            return Ok(());
        }
        if open {
            let place = letter.message.place;
            self.frontier(place.partition).keep(place.offset);
        }
        Ok(())
    }

    fn is_exhausted(&self, letter: &Letter) -> bool {
        match self.options.action {
            Action::Replay { max_attempts, .. } => letter.attempt >= max_attempts,
            Action::Discard => false,
        }
    }

    /// Carries the window out.
    fn flush(&mut self) -> anyhow::Result<()> {
        let window = std::mem::take(&mut self.window);
        self.window_bytes = 0;
        let Some(outbound) = self.outbound else {
            for letter in &window {
                *self.tally.settled.entry(letter.reason.clone()).or_default() += 1;
            }
            return Ok(());
        };
        if window.is_empty() {
            return Ok(());
        }
        let (settled, results) = match &self.options.action {
            Action::Replay { topic, partitions, .. } => {
                (Settled::Replayed, outbound.replay(topic, *partitions, &window)?)
            }
            Action::Discard => (Settled::Discarded, window.iter().map(|_| Ok(())).collect()),
        };
        fail_point!("dead_letters.produced");
        let mut by_partition: BTreeMap<i32, Vec<&Letter>> = BTreeMap::new();
        for (letter, result) in window.iter().zip(results) {
            let place = letter.message.place;
            match result {
                Ok(()) => {
                    *self.tally.settled.entry(letter.reason.clone()).or_default() += 1;
                    by_partition.entry(place.partition).or_default().push(letter);
                }
                Err(code) => {
                    *self.tally.unreplayable.entry(format!("Kafka refuses it: {code}")).or_default() += 1;
                    self.frontier(place.partition).keep(place.offset);
                }
            }
        }
        for (partition, letters) in by_partition {
            let offset = outbound.mark(settled, partition, &letters)?;
            self.marks.entry(partition).or_default().insert(offset);
        }
        fail_point!("dead_letters.marked");
        self.advance()?;
        self.rest();
        Ok(())
    }

    /// Everything was met. Marks of this run right behind the end are nothing to read again, so that a group without open letters has
    /// no lag.
    fn finish(&mut self) -> anyhow::Result<()> {
        for (partition, end) in self.survey.ends() {
            let marks = self.marks.remove(&partition).unwrap_or_default();
            let own = (end..).find(|offset| !marks.contains(offset)).unwrap_or(end);
            self.frontier(partition).seen(own);
        }
        self.advance()
    }

    /// Moves the group's offsets as far as everything is settled.
    fn advance(&mut self) -> anyhow::Result<()> {
        let positions = self.frontiers.iter().map(|(partition, frontier)| {
            let void_before = self.survey.starts.get(partition).map_or(0, |start| start.void_before);
            let metadata = position::metadata(void_before);
            (*partition, Committed { offset: Some(frontier.position()), metadata })
        });
        self.commit(positions.collect())
    }

    fn commit(&mut self, positions: BTreeMap<i32, Committed>) -> anyhow::Result<()> {
        let changed =
            |(partition, position): &(i32, Committed)| self.committed.get(partition) != Some(position);
        let positions: BTreeMap<i32, Committed> = positions.into_iter().filter(changed).collect();
        if positions.is_empty() || self.outbound.is_none() {
            return Ok(());
        }
        // Whoever moved the offsets meanwhile meant something by it.
        let now = self.survey.topic.committed()?;
        if positions.keys().any(|partition| now.get(partition) != self.committed.get(partition)) {
            bail!(
                "somebody else moved the offsets of group {}, another usagectl or kafka-consumer-groups: \
                 what was done is marked; run the command again for the rest",
                names::DEAD_LETTERS_GROUP
            );
        }
        self.survey.topic.commit(&positions)?;
        self.committed.extend(positions);
        Ok(())
    }

    /// Waits until what is done fits the rate.
    #[allow(
        clippy::disallowed_methods,
        reason = "the rate is time itself, and the thread is one for blocking work"
    )]
    fn rest(&self) {
        let Some(rate) = self.options.rate else { return };
        let nanos = u128::from(self.tally.total()) * 1_000_000_000 / u128::from(rate);
        let due = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        std::thread::sleep(due.saturating_sub(self.begun.elapsed()));
    }
}
