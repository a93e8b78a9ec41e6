//! Pages of aggregates: storage's rows, filled up where asked for, at most one page in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ethnum::I256;
use usage_storage::{AggregateQuery, AggregateRow, Measure, RowKey, StorageError, Windows};

use crate::decimal::{average, plain};
use crate::failure::Failure;
use crate::filters::Filters;
use crate::grant::Grant;
use crate::query::{AggregatedQuery, Aggregation, Fill};
use crate::registry::{Catalog, Types};
use crate::store::Store;
use crate::windows::{Cut, Part, Window};

/// A row of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    pub window: Window,
    pub partial: bool,
    pub key: RowKey,
    /// Exact decimal text; `None` where a filled window has no value.
    pub value: Option<String>,
    pub unit: Option<String>,
}

/// Some rows, and the key after which the next page begins if there is one.
#[derive(Debug, Default)]
pub struct Page {
    pub rows: Vec<Row>,
    pub next: Option<RowKey>,
}

/// Answers one question page by page.
pub struct Pages {
    store: Store,
    catalog: Arc<Catalog>,
    grant: Grant,
    query: Arc<AggregatedQuery>,
    /// Those of the query, narrowed to what the caller may see.
    narrowed: Filters,
    types: Types,
    /// Rows of a page.
    page_rows: usize,
    /// All groups of the range, once a page has found that they fit into one.
    groups: Option<BTreeSet<RowKey>>,
}

impl Pages {
    pub fn new(
        store: Store,
        catalog: Arc<Catalog>,
        (grant, narrowed): (Grant, Filters),
        query: Arc<AggregatedQuery>,
        types: Types,
        page_rows: usize,
    ) -> Self {
        Self { store, catalog, grant, query, narrowed, types, page_rows, groups: None }
    }

    /// The same pages for a body under way, see [`Store::for_stream`].
    #[must_use]
    pub fn for_stream(self) -> Self {
        Self { store: self.store.for_stream(), ..self }
    }

    /// The page of the rows after `after`.
    ///
    /// # Errors
    /// Storage or the control database does not answer, or the key is not one of this query.
    pub async fn page(&mut self, after: Option<RowKey>) -> Result<Page, Failure> {
        let query = self.query.clone();
        let Some(cut) = &query.cut else { return Ok(Page::default()) };
        if after.as_ref().is_some_and(|after| !cut.is_start(after.window_start)) {
            return Err(crate::cursor::CursorError::Invalid.into());
        }
        // One more than a page has tells whether there is a next one.
        let need = self.page_rows + 1;
        let mut found = match query.fill {
            Fill::None => self.stored(cut, after, need).await?,
            Fill::Zero => self.filled(cut, after, need).await?,
        };
        let mut next = None;
        if found.len() > self.page_rows {
            found.truncate(self.page_rows);
            next = found.last().map(|row| row.key.clone());
        }
        let rows: Result<_, StorageError> = found.into_iter().map(|row| self.row(cut, row)).collect();
        Ok(Page { rows: rows?, next })
    }

    /// At most `need` rows as they are in storage.
    async fn stored(
        &self,
        cut: &Cut,
        mut after: Option<RowKey>,
        need: usize,
    ) -> Result<Vec<AggregateRow>, Failure> {
        let mut rows = Vec::new();
        let mut at = after.as_ref().map_or(self.query.from, |after| after.window_start);
        // A page rarely needs more windows than it has rows; where most are empty, the steps grow.
        let mut windows = need;
        loop {
            let part = cut.part(at, windows);
            at = part.to;
            let measure = self.query.aggregation.measure();
            rows.extend(self.ask(part, measure, after.take(), need - rows.len()).await?);
            if rows.len() >= need || at >= self.query.to {
                return Ok(rows);
            }
            windows = windows.saturating_mul(4);
        }
    }

    /// At most `need` rows, one for each group in every window. Groups are read after the rows, so that they hold every group
    /// that has a row; `need` rows span at most as many windows.
    async fn filled(
        &mut self,
        cut: &Cut,
        after: Option<RowKey>,
        need: usize,
    ) -> Result<Vec<AggregateRow>, Failure> {
        let at = after.as_ref().map_or(self.query.from, |after| after.window_start);
        let part = cut.part(at, need);
        let found = self.ask(part, self.query.aggregation.measure(), after.clone(), need).await?;
        let mut stored: BTreeMap<RowKey, AggregateRow> =
            found.into_iter().map(|row| (row.key.clone(), row)).collect();
        let seen: BTreeSet<RowKey> = stored.keys().map(|key| in_window(key, self.query.from)).collect();

        let mut groups = self.groups(None, need, &seen).await?;
        let mut rows = Vec::with_capacity(need);
        let mut windows = cut.windows_from(at);
        if let Some(after) = &after
            && let Some(window) = windows.next()
        {
            // The rest of the window that the last page ended in.
            let last = in_window(after, self.query.from);
            let rest = if groups.len() < need {
                groups.iter().filter(|group| **group > last).cloned().collect()
            } else {
                self.groups(Some(last), need, &seen).await?
            };
            fill_window(&mut rows, &mut stored, window, &rest, need);
        }
        groups.extend(seen);
        for window in windows {
            if rows.len() >= need || groups.is_empty() {
                break;
            }
            fill_window(&mut rows, &mut stored, window, &groups, need);
        }
        Ok(rows)
    }

    /// At most `need` groups after `after` that have a record anywhere in the range, in order, together with those `seen`.
    async fn groups(
        &mut self,
        after: Option<RowKey>,
        need: usize,
        seen: &BTreeSet<RowKey>,
    ) -> Result<BTreeSet<RowKey>, Failure> {
        let by = self.query.group_by;
        if !(by.metric || by.source || by.subject || by.resource) {
            let only = in_window(&RowKey::default(), self.query.from);
            return Ok(BTreeSet::from_iter(after.is_none_or(|after| only > after).then_some(only)));
        }
        if after.is_none()
            && let Some(groups) = &mut self.groups
        {
            groups.extend(seen.iter().cloned());
            return Ok(groups.clone());
        }
        let part = Part { from: self.query.from, to: self.query.to, windows: Windows::Total };
        let found = self.ask(part, Measure::default(), after.clone(), need).await?;
        let mut groups: BTreeSet<RowKey> = found.into_iter().map(|row| row.key).collect();
        let complete = groups.len() < need;
        groups.extend(seen.iter().filter(|group| after.as_ref().is_none_or(|after| *group > after)).cloned());
        if complete && after.is_none() {
            self.groups = Some(groups.clone());
        }
        Ok(groups)
    }

    /// Storage's rows, if the counts they were looked for by hold at their end.
    async fn ask(
        &self,
        part: Part,
        measure: Measure,
        after: Option<RowKey>,
        limit: usize,
    ) -> Result<Vec<AggregateRow>, Failure> {
        let filters = &self.narrowed;
        let counted = self.catalog.partition_counts().await?;
        let question = AggregateQuery {
            tenant_id: self.grant.tenant_id(),
            metrics: filters.metrics.clone(),
            from: part.from,
            to: part.to,
            windows: part.windows,
            group_by: self.query.group_by,
            measure,
            sources: filters.sources.clone(),
            subject_ids: filters.subject_ids.clone(),
            subject_types: filters.subject_types.clone(),
            resource_ids: filters.resource_ids.clone(),
            resource_types: filters.resource_types.clone(),
            partition_counts: counted.counts.clone(),
            after,
            limit,
        };
        let rows = self.store.aggregate(&self.grant, &question).await?;
        if self.catalog.still_hold(&counted).await? { Ok(rows) } else { Err(Failure::grown()) }
    }

    fn row(&self, cut: &Cut, row: AggregateRow) -> Result<Row, StorageError> {
        let window = cut.window_at(row.key.window_start.max(self.query.from));
        let value = value(self.query.aggregation, &row);
        if value.is_none() && row.count > 0 {
            let what = "a row with records lacks the measure that was asked for";
            return Err(StorageError::Inconsistent(what.to_owned()));
        }
        Ok(Row { window, partial: cut.is_partial(window), value, unit: self.unit(&row.key), key: row.key })
    }

    /// The unit of a row: its metric's, or the one that all metrics of the question share. A count has none.
    fn unit(&self, key: &RowKey) -> Option<String> {
        if self.query.aggregation == Aggregation::Count {
            return None;
        }
        let metric = key.metric.as_ref().or(self.query.filters.metrics.first())?;
        Some(self.types.get(metric)?.newest().unit.clone())
    }
}

/// The key of a group in another window.
fn in_window(key: &RowKey, window_start: i64) -> RowKey {
    RowKey { window_start, ..key.clone() }
}

/// Appends a row for each group of a window until there are `need` rows.
fn fill_window(
    rows: &mut Vec<AggregateRow>,
    stored: &mut BTreeMap<RowKey, AggregateRow>,
    window: Window,
    groups: &BTreeSet<RowKey>,
    need: usize,
) {
    for group in groups.iter().take(need - rows.len()) {
        let key = in_window(group, window.start);
        let row = stored.remove(&key).unwrap_or(AggregateRow {
            key,
            count: 0,
            sum: I256::ZERO,
            min: None,
            max: None,
            latest: None,
        });
        rows.push(row);
    }
}

/// The value of a row in plain notation.
fn value(aggregation: Aggregation, row: &AggregateRow) -> Option<String> {
    match aggregation {
        Aggregation::Sum => Some(plain(row.sum)),
        Aggregation::Count => Some(row.count.to_string()),
        Aggregation::Min => row.min.map(|value| value.to_string()),
        Aggregation::Max => row.max.map(|value| value.to_string()),
        Aggregation::Avg => average(row.sum, row.count).map(plain),
        Aggregation::Latest => row.latest.map(|(_, _, value)| value.to_string()),
    }
}
