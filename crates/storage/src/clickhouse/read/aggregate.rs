//! Aggregated reads (protocol 6.3): which tables are asked, in which order.

use std::collections::BTreeSet;

use super::{
    merge::merge,
    question::Question,
    records::{self, Part},
    rollups,
    session::Session,
    spans::{self, Cut},
};
use crate::{
    StorageError,
    query::{AggregateQuery, AggregateRow},
};

/// Answers a query. `dirty` are the starts of the buckets that corrections have marked for the query's tenant and metrics,
/// read before anything else here: records answer for those.
///
/// The order makes the answer exact: the rollups first, together with the horizons that bound what they hold; then, in one
/// SELECT, all records they don't hold. Records only grow, so the sum is that of the second read's moment.
pub(super) async fn aggregate(
    session: &Session,
    query: &AggregateQuery,
    dirty: &BTreeSet<i64>,
    rollup_rows: u64,
) -> Result<Vec<AggregateRow>, StorageError> {
    let question = Question::new(query);
    if question.range.is_empty() || query.limit == 0 {
        return Ok(Vec::new());
    }
    match plan(session, &question, dirty, rollup_rows).await? {
        Some(cut) => from_both(session, &question, &cut).await,
        None => records::read(session, &question, &[Part::All(question.range)]).await,
    }
}

/// The cut of the range if rollups are worth their second question; None if records should answer alone.
async fn plan(
    session: &Session,
    question: &Question<'_>,
    dirty: &BTreeSet<i64>,
    rollup_rows: u64,
) -> Result<Option<Cut>, StorageError> {
    if !question.fits_rollups() || question.partitions.is_empty() {
        return Ok(None);
    }
    let Some(cut) = spans::cut(question.range, dirty) else {
        return Ok(None);
    };
    let worth = rollup_rows == 0 || records::estimate(session, question).await? >= rollup_rows;
    Ok(worth.then_some(cut))
}

async fn from_both(
    session: &Session,
    question: &Question<'_>,
    cut: &Cut,
) -> Result<Vec<AggregateRow>, StorageError> {
    let rolled = rollups::read(session, question, cut).await?;
    let legs = spans::legs(cut.clean, &question.partitions, &rolled.horizons);
    let mut parts: Vec<Part<'_>> = cut.from_records.iter().map(|span| Part::All(*span)).collect();
    parts.extend(legs.into_iter().map(|leg| Part::Beyond { leg, except: &cut.dirty }));
    let fresh = records::read(session, question, &parts).await?;
    merge(rolled.rows, fresh, question.query.limit)
}
