//! Joins the answers of both tables.

use std::collections::{BTreeMap, btree_map::Entry};

use crate::{
    StorageError,
    query::{AggregateRow, RowKey},
};

/// The first `limit` rows of both answers together.
///
/// Each answer holds the first `limit` keys of its own side. That is enough: a key among the first `limit` of the union has
/// fewer than `limit` keys before it, so on each side that knows it at all it is among that side's first `limit` too. Every
/// row returned is therefore whole.
pub(super) fn merge(
    one: Vec<AggregateRow>,
    other: Vec<AggregateRow>,
    limit: usize,
) -> Result<Vec<AggregateRow>, StorageError> {
    let mut rows: BTreeMap<RowKey, AggregateRow> = BTreeMap::new();
    for row in one.into_iter().chain(other) {
        match rows.entry(row.key.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(row);
            }
            Entry::Occupied(mut entry) => add(entry.get_mut(), row)?,
        }
    }
    Ok(rows.into_values().take(limit).collect())
}

fn add(row: &mut AggregateRow, other: AggregateRow) -> Result<(), StorageError> {
    let overflow = || StorageError::Inconsistent("a sum beyond 76 digits".into());
    row.count = row.count.checked_add(other.count).ok_or_else(overflow)?;
    row.sum = row.sum.checked_add(other.sum).ok_or_else(overflow)?;
    row.min = row.min.into_iter().chain(other.min).min();
    row.max = row.max.into_iter().chain(other.max).max();
    row.latest = row.latest.into_iter().chain(other.latest).max();
    Ok(())
}

#[cfg(test)]
mod tests {
    use ethnum::I256;
    use usage_schemas::Quantity;
    use uuid::Uuid;

    use super::*;

    fn row(window_start: i64, metric: &str, value: i128) -> AggregateRow {
        let quantity = Quantity::from_unscaled(value).unwrap();
        AggregateRow {
            key: RowKey { window_start, metric: Some(metric.into()), ..RowKey::default() },
            count: 1,
            sum: I256::from(value),
            min: Some(quantity),
            max: Some(quantity),
            latest: Some((window_start, Uuid::from_u128(value.unsigned_abs()), quantity)),
        }
    }

    #[test]
    fn equal_keys_become_one_row() {
        let merged =
            merge(vec![row(1, "a", 5), row(1, "b", -9)], vec![row(1, "b", 7), row(2, "a", 1)], 10).unwrap();
        let sums: Vec<_> = merged.iter().map(|row| (row.count, row.sum.as_i64())).collect();
        assert_eq!(sums, [(1, 5), (2, -2), (1, 1)]);
        assert_eq!((merged[1].min, merged[1].max), (row(1, "b", -9).min, row(1, "b", 7).max));
        assert_eq!(merged[1].latest, row(1, "b", -9).latest, "the greater id wins a tie");
    }

    #[test]
    fn a_page_of_first_keys_of_both_sides_is_whole() {
        let one = [row(1, "a", 1), row(2, "a", 1), row(4, "a", 1), row(5, "a", 1)];
        let other = [row(2, "a", 10), row(3, "a", 10), row(4, "a", 10)];
        let whole = merge(one.to_vec(), other.to_vec(), usize::MAX).unwrap();
        for limit in 0..=whole.len() {
            let first = |side: &[AggregateRow]| side.iter().take(limit).cloned().collect();
            assert_eq!(merge(first(&one), first(&other), limit).unwrap(), whole[..limit]);
        }
    }

    #[test]
    fn a_sum_that_does_not_fit_is_an_error() {
        let mut huge = row(1, "a", 1);
        huge.sum = I256::MAX;
        assert!(merge(vec![huge], vec![row(1, "a", 1)], 1).is_err());
    }
}
