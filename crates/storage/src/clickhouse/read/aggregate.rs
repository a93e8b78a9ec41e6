//! Aggregated reads (protocol 6.3): which tables are asked, in which order.

use std::collections::BTreeSet;

use usage_schemas::Bounds;
use usage_service::clock::now_micros;

use super::{
    merge::merge,
    question::Question,
    records::{self, Part},
    rollups::{self, Rolled},
    session::Session,
    spans::{self, Cut, Span, months},
    windows::boundary_from,
};
use crate::{
    StorageError,
    query::{AggregateQuery, AggregateRow, Windows},
};

/// Rows that one question to the records should read. Questions about more, if their windows allow it, are asked in
/// stretches of windows, so that a page of many groups does not aggregate the whole range.
const STRETCH_ROWS: u64 = 200_000;

/// What planning one more leg costs, as the number of records that are read in that time.
const LEG_ROWS: u64 = 50_000;

/// 31 days, in microseconds: a month more than records can be old, so that clocks and months need no care.
const MONTH: i64 = 31 * 86_400_000_000;

/// Sizes at which a question is answered another way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Rows in the range from which the rollups are asked: 0 = always.
    pub(super) rollup_rows: u64,
    /// See [`LEG_ROWS`].
    pub(super) leg_rows: u64,
    /// See [`STRETCH_ROWS`].
    pub(super) stretch_rows: u64,
}

impl Sizes {
    pub(super) fn new(rollup_rows: u64) -> Self {
        Self { rollup_rows, leg_rows: LEG_ROWS, stretch_rows: STRETCH_ROWS }
    }
}

enum Plan {
    Both(Cut),
    /// The records alone; of about so many rows.
    Records(u64),
}

/// Answers a query. `dirty` are the starts of the buckets that corrections have marked for the query's tenant and metrics,
/// read before anything else here: records answer for those.
///
/// The order makes the answer exact: the rollups first, together with the horizons that bound what they hold; then, in one
/// SELECT, all records they don't hold. Records only grow, so the sum is that of the second read's moment.
pub(super) async fn aggregate(
    session: &Session,
    query: &AggregateQuery,
    dirty: &BTreeSet<i64>,
    sizes: Sizes,
) -> Result<Vec<AggregateRow>, StorageError> {
    let question = Question::new(query);
    if question.range.is_empty() || query.limit == 0 {
        return Ok(Vec::new());
    }
    match plan(session, &question, dirty, sizes).await? {
        Plan::Both(cut) => {
            let rolled = rollups::read(session, &question, &cut).await?;
            tracing::debug!(rows = rolled.rows.len(), horizons = rolled.horizons.len(), "rollups were asked");
            complete(session, &question, &cut, rolled).await
        }
        Plan::Records(rows) => from_records(session, &question, rows, sizes).await,
    }
}

/// Rollups, if they can answer and the range has enough rows to be worth a second question and the planning of its legs.
async fn plan(
    session: &Session,
    question: &Question<'_>,
    dirty: &BTreeSet<i64>,
    sizes: Sizes,
) -> Result<Plan, StorageError> {
    let may_ask_rollups = question.fits_rollups() && !question.partitions.is_empty();
    let cut = if may_ask_rollups { spans::cut(question.range, dirty) } else { None };
    match cut {
        Some(cut) if sizes.rollup_rows == 0 => Ok(Plan::Both(cut)),
        None if matches!(question.query.windows, Windows::Total) => Ok(Plan::Records(0)),
        cut => {
            let rows = records::estimate(session, question).await?;
            Ok(match cut {
                Some(cut) if rows >= least_rows(question, &cut, sizes, now_micros()) => Plan::Both(cut),
                _ => Plan::Records(rows),
            })
        }
    }
}

/// Only months that can have records have horizons and thus legs of their own; what the question's range has before and
/// after them shares one leg each, see [`spans::legs`].
fn least_rows(question: &Question<'_>, cut: &Cut, sizes: Sizes, now: i64) -> u64 {
    let bounds = Bounds::default();
    let from = now.saturating_sub(bounds.past_micros).saturating_sub(MONTH);
    let to = now.saturating_add(bounds.future_micros).saturating_add(MONTH);
    let clean = cut.clean;
    let outside = usize::from(clean.from < from) + usize::from(clean.to > to);
    let inside = months(Span { from: clean.from.max(from), to: clean.to.min(to) }).count();
    let legs = question.partitions.len() * (outside + inside) + cut.from_records.len();
    sizes.rollup_rows.saturating_add(sizes.leg_rows.saturating_mul(legs as u64))
}

/// The second read: what the rollups, read before, don't hold.
pub(super) async fn complete(
    session: &Session,
    question: &Question<'_>,
    cut: &Cut,
    rolled: Rolled,
) -> Result<Vec<AggregateRow>, StorageError> {
    let legs = spans::legs(cut.clean, &question.partitions, &rolled.horizons);
    let mut parts: Vec<Part<'_>> = cut.from_records.iter().map(|span| Part::All(*span)).collect();
    parts.extend(legs.into_iter().map(|leg| Part::Beyond { leg, except: &cut.dirty }));
    let fresh = records::read(session, question, &parts, question.query.limit).await?;
    merge(rolled.rows, fresh, question.query.limit)
}

/// The records alone, stretch after stretch of whole windows until the page is full: rows ascend by window first, and no
/// row has records in two stretches.
async fn from_records(
    session: &Session,
    question: &Question<'_>,
    rows: u64,
    sizes: Sizes,
) -> Result<Vec<AggregateRow>, StorageError> {
    let range = question.range;
    let limit = question.query.limit;
    tracing::debug!(rows, "records are asked alone");
    let mut length = stretch_length(range, rows, sizes.stretch_rows);
    let mut page = Vec::new();
    let mut from = range.from;
    while from < range.to && page.len() < limit {
        let to = boundary_from(&question.query.windows, from.saturating_add(length))
            .map_or(range.to, |to| to.min(range.to));
        let part = Part::All(Span { from, to });
        page.extend(records::read(session, question, &[part], limit - page.len()).await?);
        length = length.saturating_mul(2);
        from = to;
    }
    Ok(page)
}

/// Time that holds about `wanted` of the range's rows, if they are evenly spread; at least 1.
fn stretch_length(range: Span, rows: u64, wanted: u64) -> i64 {
    let whole = i128::from(range.to) - i128::from(range.from);
    let share = if rows <= wanted { whole } else { whole * i128::from(wanted) / i128::from(rows) };
    i64::try_from(share).unwrap_or(i64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::everything, *};

    const DAY: i64 = 86_400_000_000;
    /// 2026-07-01T00:00:00Z
    const NOW: i64 = 1_782_864_000_000_000;

    /// Legs that the planning of a range is charged with, for each of the tenant's partitions.
    fn legs(from: i64, to: i64) -> u64 {
        let query = AggregateQuery { from, to, ..everything() };
        let question = Question::new(&query);
        let cut = spans::cut(question.range, &BTreeSet::new()).unwrap();
        let sizes = Sizes { rollup_rows: 0, leg_rows: 1, stretch_rows: 1 };
        let edges = cut.from_records.len() as u64;
        (least_rows(&question, &cut, sizes, NOW) - edges) / question.partitions.len() as u64
    }

    #[test]
    fn months_without_records_cost_no_legs_of_their_own() {
        assert_eq!(legs(NOW - 31 * DAY, NOW), 2, "May's last day and June");
        let seven_years = legs(NOW - 2_557 * DAY, NOW);
        assert_eq!(seven_years, 84);
        // 1970 to 2100, and all of time.
        for (from, to) in [(0, 4_102_444_800_000_000), (i64::MIN, i64::MAX)] {
            let legs = legs(from, to);
            assert!((seven_years..=seven_years + 6).contains(&legs), "{legs}");
        }
        assert_eq!(legs(0, 365 * DAY), 1, "1970 has none");
        assert_eq!(legs(NOW + 365 * DAY, NOW + 730 * DAY), 1, "nor has next year");
    }

    #[test]
    fn a_stretch_has_its_share_of_the_rows() {
        let range = Span { from: 100, to: 1100 };
        assert_eq!(stretch_length(range, 0, 10), 1000);
        assert_eq!(stretch_length(range, 10, 10), 1000);
        assert_eq!(stretch_length(range, 100, 10), 100);
        assert_eq!(stretch_length(range, u64::MAX, 1), 1);
        assert_eq!(stretch_length(Span { from: i64::MIN, to: i64::MAX }, 5, 10), i64::MAX);
    }
}
