//! The dimensions of a row: columns, order, and the place where the next page starts.

use uuid::Uuid;

use super::sql::Sql;
use crate::{
    clickhouse::{client::CallError, rowbinary::RowReader},
    query::{GroupBy, RowKey},
};

/// One column that rows may be grouped by, in the order of [`RowKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dimension {
    Metric,
    Source,
    SubjectId,
    SubjectType,
    ResourceId,
    ResourceType,
}

/// The columns of a grouping, in the order of [`RowKey`].
pub(super) fn dimensions(group_by: GroupBy) -> Vec<Dimension> {
    use Dimension::*;
    let groups: [(bool, &[Dimension]); 4] = [
        (group_by.metric, &[Metric]),
        (group_by.source, &[Source]),
        (group_by.subject, &[SubjectId, SubjectType]),
        (group_by.resource, &[ResourceId, ResourceType]),
    ];
    groups
        .into_iter()
        .filter(|(wanted, _)| *wanted)
        .flat_map(|(_, columns)| columns.iter().copied())
        .collect()
}

impl Dimension {
    /// Name in both tables.
    pub(super) fn column(self) -> &'static str {
        match self {
            Self::Metric => "metric",
            Self::Source => "source",
            Self::SubjectId => "subject_id",
            Self::SubjectType => "subject_type",
            Self::ResourceId => "resource_id",
            Self::ResourceType => "resource_type",
        }
    }

    /// The value as it is ordered: ids by their bytes (the server orders a UUID by its second half first).
    fn ordered(self) -> &'static str {
        match self {
            Self::SubjectId => "UUIDToNum(subject_id)",
            Self::ResourceId => "UUIDToNum(resource_id)",
            other => other.column(),
        }
    }

    fn is_nullable(self) -> bool {
        !matches!(self, Self::Metric | Self::Source)
    }

    /// The key's value; None if it has none, which sorts after all.
    fn value(self, key: &RowKey) -> Option<Value<'_>> {
        match self {
            Self::Metric => key.metric.as_deref().map(Value::Text),
            Self::Source => key.source.as_deref().map(Value::Text),
            Self::SubjectId => key.subject_id.map(Value::Id),
            Self::SubjectType => key.subject_type.as_deref().map(Value::Text),
            Self::ResourceId => key.resource_id.map(Value::Id),
            Self::ResourceType => key.resource_type.as_deref().map(Value::Text),
        }
    }

    fn read(self, row: &mut RowReader<'_>, key: &mut RowKey) -> Result<(), CallError> {
        match self {
            Self::Metric => key.metric = Some(row.str()?.into()),
            Self::Source => key.source = Some(row.str()?.into()),
            Self::SubjectId => key.subject_id = row.nullable(read_id)?,
            Self::SubjectType => key.subject_type = row.nullable(RowReader::str)?.map(Into::into),
            Self::ResourceId => key.resource_id = row.nullable(read_id)?,
            Self::ResourceType => key.resource_type = row.nullable(RowReader::str)?.map(Into::into),
        }
        Ok(())
    }
}

/// A key's value of one dimension.
#[derive(Debug, Clone, Copy)]
enum Value<'a> {
    Text(&'a str),
    Id(Uuid),
}

impl Value<'_> {
    /// Appends the value, comparable with [`Dimension::ordered`].
    fn push(self, sql: &mut Sql) {
        match self {
            Self::Text(text) => sql.text(text),
            Self::Id(id) => sql.ordered_uuid(id),
        };
    }
}

/// Appends `, column` for each dimension.
pub(super) fn push_columns(sql: &mut Sql, dimensions: &[Dimension]) {
    for dimension in dimensions {
        sql.push(", ").push(dimension.column());
    }
}

/// Appends `, value` for each dimension, as it is ordered and as [`read_key`] reads it.
pub(super) fn push_ordered(sql: &mut Sql, dimensions: &[Dimension]) {
    for dimension in dimensions {
        sql.push(", ").push(dimension.ordered());
    }
}

/// Appends `window_start, …` for an ORDER BY, with missing values last.
pub(super) fn push_order(sql: &mut Sql, dimensions: &[Dimension]) {
    sql.push("window_start ASC");
    for dimension in dimensions {
        sql.push_fmt(format_args!(", {} ASC NULLS LAST", dimension.ordered()));
    }
}

/// Appends the condition that a row's key is greater than `after`.
pub(super) fn push_after(sql: &mut Sql, dimensions: &[Dimension], after: &RowKey) {
    let start = after.window_start;
    sql.push_fmt(format_args!("(window_start > {start} OR (window_start = {start} AND "));
    push_greater(sql, dimensions, after);
    sql.push("))");
}

fn push_greater(sql: &mut Sql, dimensions: &[Dimension], after: &RowKey) {
    let Some((dimension, rest)) = dimensions.split_first() else {
        sql.push("0");
        return;
    };
    let column = dimension.ordered();
    let Some(value) = dimension.value(after) else {
        // Nothing sorts after a missing value.
        sql.push_fmt(format_args!("(isNull({column}) AND "));
        push_greater(sql, rest, after);
        sql.push(")");
        return;
    };
    sql.push_fmt(format_args!("({column} > "));
    value.push(sql);
    if dimension.is_nullable() {
        sql.push_fmt(format_args!(" OR isNull({column})"));
    }
    sql.push_fmt(format_args!(" OR ({column} = "));
    value.push(sql);
    sql.push(" AND ");
    push_greater(sql, rest, after);
    sql.push("))");
}

/// Reads what [`push_ordered`] selected, after the window's start.
pub(super) fn read_key(row: &mut RowReader<'_>, dimensions: &[Dimension]) -> Result<RowKey, CallError> {
    let mut key = RowKey { window_start: row.i64()?, ..RowKey::default() };
    for dimension in dimensions {
        dimension.read(row, &mut key)?;
    }
    Ok(key)
}

/// Reads an id that was selected as `UUIDToNum(…)`: its bytes in their own order.
pub(super) fn read_id(row: &mut RowReader<'_>) -> Result<Uuid, CallError> {
    row.array().map(Uuid::from_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groupings_keep_the_order_of_keys() {
        let all = GroupBy { metric: true, source: true, subject: true, resource: true };
        let columns: Vec<_> = dimensions(all).into_iter().map(Dimension::column).collect();
        assert_eq!(
            columns,
            ["metric", "source", "subject_id", "subject_type", "resource_id", "resource_type"]
        );
        assert!(dimensions(GroupBy::default()).is_empty());
    }

    #[test]
    fn the_next_page_starts_after_the_key() {
        let mut sql = Sql::new();
        let after = RowKey { window_start: 7, metric: Some("m".into()), ..RowKey::default() };
        push_after(&mut sql, &[Dimension::Metric, Dimension::SubjectType], &after);
        assert_eq!(
            sql.as_str(),
            "(window_start > 7 OR (window_start = 7 AND (metric > {t0:String} OR (metric = {t0:String} AND \
             (isNull(subject_type) AND 0)))))"
        );
        assert_eq!(sql.params().len(), 1);
    }
}
