//! The answer of `GET /v1/usage/aggregated`, as JSON and as CSV.

use serde::ser::{Serialize, SerializeMap, Serializer};
use usage_schemas::Timestamp;
use usage_storage::GroupBy;

use crate::csv::{Cell, Writer};
use crate::pages::{Page, Row};
use crate::query::AggregatedQuery;
use crate::zones::Zone;

/// The names and cells of the dimensions that a row carries, in the order of the answer.
fn dimensions<'a>(
    group_by: GroupBy,
    row: &'a Row,
    ids: &'a [Option<String>; 2],
) -> impl Iterator<Item = (&'static str, Cell<'a>)> {
    let key = &row.key;
    [
        (group_by.metric, "metric", Cell::text(key.metric.as_deref())),
        (group_by.source, "source", Cell::text(key.source.as_deref())),
        (group_by.subject, "subject_id", Cell::plain(ids[0].as_deref())),
        (group_by.subject, "subject_type", Cell::text(key.subject_type.as_deref())),
        (group_by.resource, "resource_id", Cell::plain(ids[1].as_deref())),
        (group_by.resource, "resource_type", Cell::text(key.resource_type.as_deref())),
    ]
    .into_iter()
    .filter_map(|(carried, name, cell)| carried.then_some((name, cell)))
}

fn ids(row: &Row) -> [Option<String>; 2] {
    [row.key.subject_id, row.key.resource_id].map(|id| id.map(|id| id.to_string()))
}

/// The whole answer; the order of its members is part of the contract.
pub struct Answer<'a> {
    pub query: &'a AggregatedQuery,
    pub page: &'a Page,
    /// Microseconds since the Unix epoch.
    pub complete_until: Option<i64>,
    pub next_cursor: Option<String>,
}

impl Serialize for Answer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let zone = &self.query.zone;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("from", &zone.format(self.query.from))?;
        map.serialize_entry("to", &zone.format(self.query.to))?;
        map.serialize_entry("aggregation", self.query.aggregation.as_str())?;
        map.serialize_entry("window_size", &self.query.window_size)?;
        map.serialize_entry("window_time_zone", zone.name())?;
        let complete_until = self.complete_until.map(|until| Timestamp::from_micros(until).to_string());
        map.serialize_entry("complete_until", &complete_until)?;
        let rows: Vec<_> =
            self.page.rows.iter().map(|row| JsonRow { row, zone, group_by: self.query.group_by }).collect();
        map.serialize_entry("data", &rows)?;
        map.serialize_entry("next_cursor", &self.next_cursor)?;
        map.end()
    }
}

struct JsonRow<'a> {
    row: &'a Row,
    zone: &'a Zone,
    group_by: GroupBy,
}

impl Serialize for JsonRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = self.row;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("window_start", &self.zone.format(row.window.start))?;
        map.serialize_entry("window_end", &self.zone.format(row.window.end))?;
        map.serialize_entry("partial", &row.partial)?;
        for (name, cell) in dimensions(self.group_by, row, &ids(row)) {
            match cell {
                Cell::Text(text) | Cell::Plain(text) => map.serialize_entry(name, text)?,
                Cell::Empty => map.serialize_entry(name, &None::<&str>)?,
            }
        }
        map.serialize_entry("value", &row.value)?;
        if let Some(unit) = &row.unit {
            map.serialize_entry("unit", unit)?;
        }
        map.end()
    }
}

/// Appends the header of the CSV form.
///
/// # Errors
/// None: the text goes into memory.
pub fn csv_header(writer: &mut Writer, group_by: GroupBy) -> std::io::Result<()> {
    let none = Row::default();
    let no_ids = ids(&none);
    let names = dimensions(group_by, &none, &no_ids).map(|(name, _)| name);
    let all = ["window_start", "window_end", "partial"].into_iter().chain(names).chain(["value", "unit"]);
    writer.record(all.map(Cell::Plain))
}

/// Appends rows in the CSV form.
///
/// # Errors
/// None: the text goes into memory.
pub fn csv_rows(writer: &mut Writer, query: &AggregatedQuery, rows: &[Row]) -> std::io::Result<()> {
    for row in rows {
        let ids = ids(row);
        let (start, end) = (query.zone.format(row.window.start), query.zone.format(row.window.end));
        let window =
            [Cell::Plain(&start), Cell::Plain(&end), Cell::Plain(if row.partial { "true" } else { "false" })];
        let cells = dimensions(query.group_by, row, &ids).map(|(_, cell)| cell);
        let value = [Cell::plain(row.value.as_deref()), Cell::text(row.unit.as_deref())];
        writer.record(window.into_iter().chain(cells).chain(value))?;
    }
    Ok(())
}
