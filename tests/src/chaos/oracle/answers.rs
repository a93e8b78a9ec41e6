//! Answers that were read during the run, judged afterwards by what the source had emitted at those moments.

use std::collections::BTreeMap;
use std::time::Duration;

use usage_schemas::Quantity;
use uuid::Uuid;

use super::{Claimed, Difference, Emission, Fate, claimed};

/// What was asked for; only what can never go down is kept: samples may be negative, so their sum is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    Count,
    /// Of counters, which are not negative.
    Sum,
}

/// What a value is added up over.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Series {
    Metric(String),
    /// The watermark of a source.
    Source(String),
}

/// One value of one answer over all time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Answers of one reader come one after another.
    pub reader: usize,
    pub tenant: Uuid,
    pub series: Series,
    pub measure: Measure,
    pub value: Quantity,
    /// Microseconds when the answer had arrived.
    pub answered_at: i64,
    /// Everything that was emitted before is in the answer, or is a dead letter.
    pub complete_until: Option<i64>,
}

/// What one tenant's metric or source may come to, in the order of the first emit of each identity.
#[derive(Debug, Default)]
struct Course {
    /// First emit; count, least and greatest sum of everything up to it.
    points: Vec<(i64, Totals)>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Totals {
    count: i128,
    least: i128,
    greatest: i128,
}

impl Course {
    /// Totals of everything whose first emit lies before `at`.
    fn before(&self, at: i64) -> Totals {
        let passed = self.points.partition_point(|(emitted_at, _)| *emitted_at < at);
        passed.checked_sub(1).map_or_else(Totals::default, |last| self.points[last].1)
    }
}

/// Unscaled values: a sum may be wider than a record's value.
fn courses(emissions: &[Emission]) -> BTreeMap<(Uuid, Series), Course> {
    let mut first: Vec<(i64, Uuid, Series, Totals)> = Vec::new();
    let claimed: BTreeMap<_, Claimed<'_>> = claimed(emissions);
    for ((tenant, _), claimed) in &claimed {
        let kept = claimed.emissions.iter().filter(|emission| emission.fate == Fate::Kept);
        let Some(emitted_at) = kept.map(|emission| emission.emitted_at).min() else { continue };
        let values = claimed.contents.iter().map(|content| content.value.unscaled());
        let (Some(least), Some(greatest)) = (values.clone().min(), values.max()) else { continue };
        // Contents that contradict each other differ in their value only, so any of them names metric and source.
        let Some(content) = claimed.contents.first() else { continue };
        let totals = Totals { count: 1, least, greatest };
        for series in [Series::Metric(content.metric.clone()), Series::Source(content.details.source.clone())]
        {
            first.push((emitted_at, *tenant, series, totals));
        }
    }
    first.sort_unstable_by_key(|(emitted_at, ..)| *emitted_at);
    let mut courses: BTreeMap<(Uuid, Series), Course> = BTreeMap::new();
    for (emitted_at, tenant, series, one) in first {
        let course = courses.entry((tenant, series)).or_default();
        let before = course.points.last().map_or_else(Totals::default, |(_, totals)| *totals);
        let totals = Totals {
            count: before.count + one.count,
            least: before.least + one.least,
            greatest: before.greatest + one.greatest,
        };
        course.points.push((emitted_at, totals));
    }
    courses
}

/// No total above what had been emitted when the answer came, none below what `complete_until` promises, none below an earlier one
/// of the same reader.
pub fn judge_answers(emissions: &[Emission], answers: &[Answer]) -> Vec<Difference> {
    let courses = courses(emissions);
    let none = Course::default();
    let mut differences = Vec::new();
    let mut last: BTreeMap<(usize, Uuid, &Series, Measure), &Answer> = BTreeMap::new();
    for answer in answers {
        let course = courses.get(&(answer.tenant, answer.series.clone())).unwrap_or(&none);
        let scale = if answer.measure == Measure::Count { 10_i128.pow(18) } else { 1 };
        let value = answer.value.unscaled();
        let pick = |totals: Totals, greatest: bool| match (answer.measure, greatest) {
            (Measure::Count, _) => totals.count * scale,
            (Measure::Sum, true) => totals.greatest,
            (Measure::Sum, false) => totals.least,
        };
        // The clock's microsecond may be shared with the emit.
        let most = pick(course.before(answer.answered_at.saturating_add(1)), true);
        if value > most {
            differences.push(wrong(answer, "is above what had been emitted", most));
        }
        if let Some(until) = answer.complete_until {
            let least = pick(course.before(until), false);
            if value < least {
                differences.push(wrong(answer, "lacks what complete_until says is there", least));
            }
        }
        let key = (answer.reader, answer.tenant, &answer.series, answer.measure);
        if let Some(before) = last.insert(key, answer).filter(|before| before.value > answer.value) {
            differences.push(wrong(answer, "went down", before.value.unscaled()));
        }
    }
    differences
}

fn wrong(answer: &Answer, what: &str, bound: i128) -> Difference {
    let bound =
        Quantity::from_unscaled(bound).map_or_else(|_| format!("{bound}e-18"), |bound| bound.to_string());
    Difference::Answer(format!("{what}: bound {bound}, {answer:?}"))
}

/// The longest that a count lagged behind: from the first emit that it lacks until the answer, the time of its transaction included.
pub fn max_lag(emissions: &[Emission], answers: &[Answer]) -> Duration {
    let courses = courses(emissions);
    let lag = |answer: &Answer| {
        let course = courses.get(&(answer.tenant, answer.series.clone()))?;
        let counted = usize::try_from(answer.value.unscaled() / 10_i128.pow(18)).ok()?;
        let (lacks, _) = course.points.get(counted)?;
        u64::try_from(answer.answered_at - lacks).ok()
    };
    let counts = answers.iter().filter(|answer| answer.measure == Measure::Count);
    Duration::from_micros(counts.filter_map(lag).max().unwrap_or(0))
}
