//! An aggregate query, prepared: what both tables need to know of it.

use std::collections::BTreeSet;

use usage_schemas::{Quantity, partition::partition_of};

use super::{
    dimensions::{
        Dimension, dimensions, push_after, push_columns, push_order, push_ordered, read_id, read_key,
    },
    spans::Span,
    sql::Sql,
    windows::{on_buckets, push_window},
};
use crate::{
    clickhouse::{client::CallError, rowbinary::RowReader},
    query::{AggregateQuery, AggregateRow, Measure, Windows},
};

/// A query with what follows from it.
pub(super) struct Question<'a> {
    pub(super) query: &'a AggregateQuery,
    /// The part of the query's range whose windows may still have rows after `query.after`.
    pub(super) range: Span,
    pub(super) dimensions: Vec<Dimension>,
    /// Every partition that has or had the tenant, under any count.
    pub(super) partitions: BTreeSet<i32>,
}

impl<'a> Question<'a> {
    pub(super) fn new(query: &'a AggregateQuery) -> Self {
        let counts = query.partition_counts.known.iter().copied().chain([query.partition_counts.current]);
        let partitions =
            counts.filter(|count| *count > 0).map(|count| partition_of(query.tenant_id, count)).collect();
        let from = match (&query.windows, &query.after) {
            // A window's rows lie at or after its start, and windows before the last row's are done. The one total starts
            // with the range.
            (Windows::Starts(_) | Windows::Within { .. }, Some(after)) => query.from.max(after.window_start),
            (Windows::Total, _) | (_, None) => query.from,
        };
        Self { query, range: Span { from, to: query.to }, dimensions: dimensions(query.group_by), partitions }
    }

    /// True if the rollups' columns are enough and no window cuts a bucket.
    pub(super) fn fits_rollups(&self) -> bool {
        let query = self.query;
        let by_rolled_up_columns = !query.group_by.subject
            && !query.group_by.resource
            && query.subject_ids.is_empty()
            && query.subject_types.is_empty()
            && query.resource_ids.is_empty()
            && query.resource_types.is_empty();
        by_rolled_up_columns && on_buckets(&query.windows, self.range)
    }

    /// Appends the window's start for a time in microseconds, an expression of ours.
    pub(super) fn push_window(&self, sql: &mut Sql, micros: &str) {
        push_window(sql, &self.query.windows, self.range, micros);
    }

    /// Appends `, column` for each dimension, unconverted.
    pub(super) fn push_columns(&self, sql: &mut Sql) {
        push_columns(sql, &self.dimensions);
    }

    /// Appends `window_start, …` as [`Self::read_row`] reads keys.
    pub(super) fn push_key(&self, sql: &mut Sql) {
        sql.push("window_start");
        push_ordered(sql, &self.dimensions);
    }

    /// Appends the condition of the page: `1` on the first.
    pub(super) fn push_after(&self, sql: &mut Sql) {
        match &self.query.after {
            Some(after) => push_after(sql, &self.dimensions, after),
            None => {
                sql.push("1");
            }
        }
    }

    /// Appends ` GROUP BY window_start, …`.
    pub(super) fn push_group_by(&self, sql: &mut Sql) {
        sql.push(" GROUP BY window_start");
        push_columns(sql, &self.dimensions);
    }

    /// Appends what rows are ordered by.
    pub(super) fn push_order(&self, sql: &mut Sql) {
        push_order(sql, &self.dimensions);
    }

    /// Reads key, count, sum and the measures asked for.
    pub(super) fn read_row(&self, row: &mut RowReader<'_>) -> Result<AggregateRow, CallError> {
        read_row(row, &self.dimensions, self.query.measure)
    }
}

fn read_row(
    row: &mut RowReader<'_>,
    dimensions: &[Dimension],
    measure: Measure,
) -> Result<AggregateRow, CallError> {
    let mut answer = AggregateRow {
        key: read_key(row, dimensions)?,
        count: row.u64()?,
        sum: row.i256()?,
        min: None,
        max: None,
        latest: None,
    };
    if measure.min_max {
        answer.min = row.nullable(read_quantity)?;
        answer.max = row.nullable(read_quantity)?;
    }
    if measure.latest {
        answer.latest = Some((row.i64()?, read_id(row)?, read_quantity(row)?));
    }
    Ok(answer)
}

/// Reads a `Decimal(38, 18)`.
pub(super) fn read_quantity(row: &mut RowReader<'_>) -> Result<Quantity, CallError> {
    Quantity::from_unscaled(row.i128()?).map_err(|error| CallError::Lost(Box::new(error)))
}
