//! Windows in SQL. Boundaries come from the caller; the server only sorts times between them.

use std::fmt::Write as _;

use super::{
    spans::{BUCKET, Span},
    sql::Sql,
};
use crate::query::Windows;

/// Appends the start of the window (microseconds, `Int64`) that the time `micros` (an expression of ours) lies in.
pub(super) fn push_window(sql: &mut Sql, windows: &Windows, range: Span, micros: &str) {
    match windows {
        Windows::Total => {
            sql.push_fmt(format_args!("toInt64({})", range.from));
        }
        Windows::Starts(starts) => push_rounded(sql, needed(starts, range), micros),
        Windows::Within { days, width } => {
            let days = needed(days, range);
            push_rounded(sql, days, micros);
            sql.push_fmt(format_args!(" + intDiv({micros} - "));
            push_rounded(sql, days, micros);
            sql.push_fmt(format_args!(", toInt64({width})) * toInt64({width})"));
        }
    }
}

/// Rollups can fill the windows if no boundary cuts a bucket.
pub(super) fn on_buckets(windows: &Windows, range: Span) -> bool {
    let whole = |starts: &[i64]| {
        needed(starts, range).iter().all(|start| start.rem_euclid(BUCKET) == 0 || (*start <= range.from))
    };
    match windows {
        Windows::Total => true,
        Windows::Starts(starts) => whole(starts),
        // Boundaries are counted from each day's start, also from one before the range.
        Windows::Within { days, width } => {
            width.rem_euclid(BUCKET) == 0 && needed(days, range).iter().all(|day| day.rem_euclid(BUCKET) == 0)
        }
    }
}

/// The first boundary at or after a time; None if there is none.
pub(super) fn boundary_from(windows: &Windows, micros: i64) -> Option<i64> {
    match windows {
        Windows::Total => None,
        Windows::Starts(starts) => starts.get(starts.partition_point(|start| *start < micros)).copied(),
        Windows::Within { days, width } => {
            let next = days.partition_point(|day| *day <= micros);
            let day = *days.get(next.checked_sub(1)?)?;
            let passed = (micros - day).checked_add(width - 1)? / width;
            let boundary = day.checked_add(passed.checked_mul(*width)?)?;
            Some(days.get(next).map_or(boundary, |tomorrow| boundary.min(*tomorrow)))
        }
    }
}

/// The start that the range's first instant belongs to, and those within the range.
fn needed(starts: &[i64], range: Span) -> &[i64] {
    let first = starts.partition_point(|start| *start <= range.from).saturating_sub(1);
    let end = starts.partition_point(|start| *start < range.to).max(first);
    &starts[first..end]
}

/// `roundDown` searches a constant array by halves, so that thousands of starts cost little.
fn push_rounded(sql: &mut Sql, starts: &[i64], micros: &str) {
    let mut list = String::with_capacity(starts.len() * 17);
    for start in starts {
        let separator = if list.is_empty() { "" } else { "," };
        write!(list, "{separator}{start}").expect("writing to a String does not fail");
    }
    sql.push_fmt(format_args!("roundDown({micros}, CAST([{list}], 'Array(Int64)'))"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_starts_of_the_range_are_sent() {
        let starts = [0, 10, 20, 30];
        assert_eq!(needed(&starts, Span { from: 10, to: 30 }), [10, 20]);
        assert_eq!(needed(&starts, Span { from: 15, to: 31 }), [10, 20, 30]);
        assert_eq!(needed(&starts, Span { from: 15, to: 16 }), [10]);
        assert_eq!(needed(&starts, Span { from: 99, to: 100 }), [30]);
        assert!(needed(&[], Span { from: 0, to: 1 }).is_empty());
    }

    #[test]
    fn rollups_serve_windows_that_cut_no_bucket() {
        let range = Span { from: 5, to: 10 * BUCKET };
        assert!(on_buckets(&Windows::Total, range));
        assert!(on_buckets(&Windows::Starts(vec![-3, BUCKET, 9 * BUCKET]), range));
        assert!(!on_buckets(&Windows::Starts(vec![-3, BUCKET + 1]), range));
        assert!(on_buckets(&Windows::Within { days: vec![0], width: BUCKET }, range));
        assert!(!on_buckets(&Windows::Within { days: vec![0], width: 60_000_000 }, range));
        // A day of Kathmandu (+05:45) starts on a bucket, one of Mumbai before 1945 (+04:51:20) does not.
        assert!(on_buckets(&Windows::Within { days: vec![-23 * BUCKET], width: 4 * BUCKET }, range));
        assert!(!on_buckets(&Windows::Within { days: vec![-17_480_000_000], width: 4 * BUCKET }, range));
    }

    #[test]
    fn boundaries_are_found_from_any_time() {
        let starts = Windows::Starts(vec![0, 10, 20]);
        assert_eq!(
            [-5, 0, 1, 20, 21].map(|at| boundary_from(&starts, at)),
            [Some(0), Some(0), Some(10), Some(20), None]
        );
        // The last window of the first day is shorter.
        let within = Windows::Within { days: vec![0, 25], width: 10 };
        let found = [0, 1, 20, 21, 25, 26, 99].map(|at| boundary_from(&within, at));
        assert_eq!(found, [Some(0), Some(10), Some(20), Some(25), Some(25), Some(35), Some(105)]);
        assert_eq!(boundary_from(&Windows::Total, 5), None);
        assert_eq!(boundary_from(&Windows::Within { days: vec![], width: 1 }, 5), None);
    }

    #[test]
    fn a_start_before_the_range_cuts_nothing() {
        let range = Span { from: BUCKET, to: 3 * BUCKET };
        assert!(on_buckets(&Windows::Starts(vec![7, 2 * BUCKET]), range));
    }
}
