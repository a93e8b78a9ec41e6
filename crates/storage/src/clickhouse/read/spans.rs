//! Which part of a range which table answers for: whole buckets, edges, and legs beyond the horizons.

use std::collections::{BTreeMap, BTreeSet};

use time::{Date, Month, OffsetDateTime};

/// Width of a rollup bucket in microseconds.
pub(super) const BUCKET: i64 = 15 * 60 * 1_000_000;

/// Buckets are `DateTime`: seconds in 32 bits. Beyond that records answer.
const BUCKETS_END: i64 = (u32::MAX as i64) * 1_000_000;

/// More dirty stretches than this cost more as legs than the whole range from the records.
const MAX_DIRTY_SPANS: usize = 64;

/// A half-open range in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: i64,
    pub(super) to: i64,
}

impl Span {
    pub(super) fn is_empty(self) -> bool {
        self.from >= self.to
    }
}

/// A range cut for both tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cut {
    /// Whole buckets; those in `dirty` excepted, rollups answer for what lies behind the horizons.
    pub(super) clean: Span,
    /// Starts of the buckets within `clean` that records answer for, ascending.
    pub(super) dirty: Vec<i64>,
    /// What records answer for alone: the partial buckets at both ends and the dirty buckets, neighbours joined.
    pub(super) from_records: Vec<Span>,
}

/// Cuts the range; None if records should answer for all of it.
pub(super) fn cut(range: Span, dirty: &BTreeSet<i64>) -> Option<Cut> {
    let clean = Span {
        from: range.from.max(0).checked_add(BUCKET - 1)? / BUCKET * BUCKET,
        to: range.to.clamp(0, BUCKETS_END) / BUCKET * BUCKET,
    };
    if clean.is_empty() {
        return None;
    }
    let dirty: Vec<i64> = dirty.range(clean.from..clean.to).copied().collect();
    let mut from_records = vec![Span { from: range.from, to: clean.from }];
    for start in &dirty {
        match from_records.last_mut() {
            Some(last) if last.to == *start => last.to += BUCKET,
            _ => from_records.push(Span { from: *start, to: start + BUCKET }),
        }
    }
    match from_records.last_mut() {
        Some(last) if last.to == clean.to => last.to = range.to,
        _ => from_records.push(Span { from: clean.to, to: range.to }),
    }
    from_records.retain(|span| !span.is_empty());
    (from_records.len() <= MAX_DIRTY_SPANS + 2).then_some(Cut { clean, dirty, from_records })
}

/// Horizons as they stand in the rollups: the greatest batch number behind each (partition, month), the month as YYYYMM.
pub(super) type Horizons = BTreeMap<(i32, u32), i64>;

/// Records of a partition that the rollups may not hold yet: those in `span` with a greater batch number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leg {
    pub(super) partition: i32,
    pub(super) span: Span,
    pub(super) beyond: i64,
}

/// One leg for each partition and month of the clean range; months without a horizon start at 0. Neighbouring months with
/// the same horizon share a leg.
pub(super) fn legs(clean: Span, partitions: &BTreeSet<i32>, horizons: &Horizons) -> Vec<Leg> {
    let mut legs: Vec<Leg> = Vec::new();
    for &partition in partitions {
        for (month, span) in months(clean) {
            let beyond = horizons.get(&(partition, month)).copied().unwrap_or(0);
            match legs.last_mut() {
                Some(last) if last.partition == partition && last.beyond == beyond => last.span.to = span.to,
                _ => legs.push(Leg { partition, span, beyond }),
            }
        }
    }
    legs
}

/// The months (YYYYMM, UTC) that a span touches, each with its share of the span.
pub(super) fn months(span: Span) -> impl Iterator<Item = (u32, Span)> {
    let mut from = span.from;
    std::iter::from_fn(move || {
        if from >= span.to {
            return None;
        }
        let date = date_of(from);
        let to = start_of_next_month(date).map_or(span.to, |next| next.min(span.to));
        let month = (
            u32::try_from(date.year()).unwrap_or(0) * 100 + u32::from(u8::from(date.month())),
            Span { from, to },
        );
        from = to;
        Some(month)
    })
}

/// First instant of the month that `micros` lies in.
pub(super) fn start_of_month(micros: i64) -> i64 {
    let date = date_of(micros);
    midnight(date.replace_day(1).unwrap_or(date))
}

fn date_of(micros: i64) -> Date {
    OffsetDateTime::from_unix_timestamp(micros.div_euclid(1_000_000))
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
        .date()
}

fn start_of_next_month(date: Date) -> Option<i64> {
    let (year, month) = match date.month() {
        Month::December => (date.year() + 1, Month::January),
        month => (date.year(), month.next()),
    };
    Date::from_calendar_date(year, month, 1).ok().map(midnight)
}

fn midnight(date: Date) -> i64 {
    date.midnight().assume_utc().unix_timestamp() * 1_000_000
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: i64 = 86_400_000_000;
    /// 2026-01-31T00:00:00Z
    const JANUARY_31: i64 = 1_769_817_600_000_000;

    fn dirty(starts: &[i64]) -> BTreeSet<i64> {
        starts.iter().copied().collect()
    }

    #[test]
    fn edges_inside_a_bucket_come_from_records() {
        let range = Span { from: JANUARY_31 + 1, to: JANUARY_31 + 3 * BUCKET + 5 };
        let cut = cut(range, &BTreeSet::new()).unwrap();
        assert_eq!(cut.clean, Span { from: JANUARY_31 + BUCKET, to: JANUARY_31 + 3 * BUCKET });
        assert_eq!(
            cut.from_records,
            [Span { from: range.from, to: cut.clean.from }, Span { from: cut.clean.to, to: range.to }]
        );
    }

    #[test]
    fn whole_buckets_leave_no_edges() {
        let range = Span { from: JANUARY_31, to: JANUARY_31 + BUCKET };
        let cut = cut(range, &BTreeSet::new()).unwrap();
        assert_eq!((cut.clean, cut.from_records.len()), (range, 0));
    }

    #[test]
    fn a_range_without_a_whole_bucket_has_no_cut() {
        assert_eq!(cut(Span { from: JANUARY_31 + 1, to: JANUARY_31 + BUCKET }, &BTreeSet::new()), None);
        assert_eq!(cut(Span { from: JANUARY_31, to: JANUARY_31 }, &BTreeSet::new()), None);
        assert_eq!(cut(Span { from: i64::MAX - 3, to: i64::MAX }, &BTreeSet::new()), None);
    }

    #[test]
    fn dirty_neighbours_are_joined_also_with_the_edges() {
        let range = Span { from: JANUARY_31 - 7, to: JANUARY_31 + 6 * BUCKET };
        let marked =
            dirty(&[JANUARY_31, JANUARY_31 + 2 * BUCKET, JANUARY_31 + 3 * BUCKET, JANUARY_31 + 9 * BUCKET]);
        let cut = cut(range, &marked).unwrap();
        assert_eq!(cut.dirty.len(), 3);
        assert_eq!(
            cut.from_records,
            [
                Span { from: JANUARY_31 - 7, to: JANUARY_31 + BUCKET },
                Span { from: JANUARY_31 + 2 * BUCKET, to: JANUARY_31 + 4 * BUCKET }
            ]
        );
    }

    #[test]
    fn many_dirty_stretches_make_records_answer() {
        let every_other: BTreeSet<i64> = (0..80).map(|index| JANUARY_31 + 2 * index * BUCKET).collect();
        assert_eq!(cut(Span { from: JANUARY_31, to: JANUARY_31 + 30 * DAY }, &every_other), None);
        let all: BTreeSet<i64> = (0..80).map(|index| JANUARY_31 + index * BUCKET).collect();
        assert!(cut(Span { from: JANUARY_31, to: JANUARY_31 + 30 * DAY }, &all).is_some());
    }

    #[test]
    fn legs_follow_months_and_horizons() {
        let clean = Span { from: JANUARY_31, to: JANUARY_31 + 40 * DAY };
        let horizons = Horizons::from([((3, 202_601), 17), ((3, 202_602), 17), ((5, 202_602), 2)]);
        let february = JANUARY_31 + DAY;
        let march = february + 28 * DAY;
        assert_eq!(
            legs(clean, &BTreeSet::from([3, 5]), &horizons),
            [
                Leg { partition: 3, span: Span { from: clean.from, to: march }, beyond: 17 },
                Leg { partition: 3, span: Span { from: march, to: clean.to }, beyond: 0 },
                Leg { partition: 5, span: Span { from: clean.from, to: february }, beyond: 0 },
                Leg { partition: 5, span: Span { from: february, to: march }, beyond: 2 },
                Leg { partition: 5, span: Span { from: march, to: clean.to }, beyond: 0 },
            ]
        );
    }

    #[test]
    fn months_of_a_year_change() {
        let december = start_of_month(1_798_761_599_999_999);
        let found: Vec<u32> = months(Span { from: 1_798_761_599_999_999, to: 1_798_761_600_000_001 })
            .map(|(month, _)| month)
            .collect();
        assert_eq!(found, [202_612, 202_701]);
        assert_eq!(december, 1_796_083_200_000_000);
    }

    proptest! {
        #[test]
        fn a_cut_covers_each_instant_once(
            start in 0i64..4_000_000_000_000_000,
            length in 0i64..90 * DAY,
            marks in proptest::collection::btree_set(0i64..200, 0..20),
            probe in 0i64..90 * DAY,
        ) {
            let range = Span { from: start, to: start + length };
            let marks = marks.into_iter().map(|index| (start / BUCKET + index) * BUCKET).collect();
            if let Some(cut) = cut(range, &marks) {
                let instant = start + probe;
                let bucket = instant.div_euclid(BUCKET) * BUCKET;
                let rolled = (cut.clean.from..cut.clean.to).contains(&instant) && !cut.dirty.contains(&bucket);
                let spans = cut.from_records.iter().filter(|span| (span.from..span.to).contains(&instant)).count();
                let inside = usize::from((range.from..range.to).contains(&instant));
                prop_assert_eq!(usize::from(rolled) + spans, inside);
            }
        }

        #[test]
        fn months_cover_a_span_without_gaps(start in 0i64..4_000_000_000_000_000, length in 1i64..900 * DAY) {
            let span = Span { from: start, to: start + length };
            let mut at = span.from;
            let mut last = 0;
            for (month, share) in months(span) {
                prop_assert_eq!(share.from, at);
                prop_assert!(month > last && !share.is_empty());
                (at, last) = (share.to, month);
            }
            prop_assert_eq!(at, span.to);
        }
    }
}
