//! The table that a demo ends with: the source's own truth beside the API's answer.

use std::collections::BTreeSet;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use uuid::Uuid;

use crate::source::{Total, Totals};

/// One line per (tenant, metric) and how many of them differ.
pub fn compare(truth: &Totals, answers: &Totals) -> (String, usize) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["tenant", "metric", "records", "source's truth", "API's answer", "difference"]);
    let keys: BTreeSet<&(Uuid, String)> = truth.keys().chain(answers.keys()).collect();
    let mut different = 0;
    for key in keys {
        let (truth, answer) = (truth.get(key), answers.get(key));
        different += usize::from(truth != answer);
        let sum = |total: Option<&Total>| total.map_or_else(|| "none".to_string(), |total| total.sum.clone());
        let records = truth.map_or_else(|| "none".to_string(), |total| total.count.clone());
        let difference = if truth == answer { "0" } else { "DIFFERENT" };
        table.add_row([&key.0.to_string(), &key.1, &records, &sum(truth), &sum(answer), difference]);
    }
    for column in 2..6 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    (table.to_string(), different)
}

/// The value below which `percent` of the durations lie; zero for none.
pub fn percentile(durations: &mut [Duration], percent: usize) -> Duration {
    durations.sort_unstable();
    let index = (durations.len() * percent).div_ceil(100).saturating_sub(1);
    durations.get(index).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let mut durations: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut durations, 50), Duration::from_millis(50));
        assert_eq!(percentile(&mut durations, 95), Duration::from_millis(95));
        assert_eq!(percentile(&mut durations[..1], 95), Duration::from_millis(1));
        assert_eq!(percentile(&mut [], 95), Duration::ZERO);
    }

    #[test]
    fn what_differs_is_counted_and_shown() {
        let key = (Uuid::from_u128(1), "a".to_string());
        let truth = Totals::from([(key.clone(), Total { count: "2".into(), sum: "3".into() })]);
        let answers = Totals::from([(key, Total { count: "2".into(), sum: "4".into() })]);
        assert_eq!(compare(&truth, &truth).1, 0);
        let (table, different) = compare(&truth, &answers);
        assert_eq!(different, 1);
        assert!(table.contains("DIFFERENT"), "{table}");
    }
}
