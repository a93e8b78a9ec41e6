//! Tables and JSON on standard output.

use comfy_table::{Table, presets};
use serde::Serialize;
use usage_schemas::Timestamp;

/// Prints rows under their headings, for people.
pub(crate) fn table(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(headings.iter().map(|heading| heading.to_string()).collect::<Vec<_>>());
    for row in rows {
        table.add_row(row);
    }
    println!("{table}");
}

/// Prints JSON, for programs.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// A time in microseconds since the Unix epoch as RFC 3339.
pub(crate) fn time(micros: i64) -> String {
    Timestamp::from_micros(micros).to_string()
}
