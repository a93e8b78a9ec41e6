use std::collections::BTreeMap;

use proptest::prelude::*;
use usage_schemas::{Quantity, RecordRef, Timestamp};

use super::*;

/// 2026-10-31T23:00:00Z.
const START: i64 = 1_793_487_600_000_000;

fn rows(seed: &[(u8, u8, i64, i64)]) -> Rows {
    let mut rows = Rows::default();
    for (i, &(tenant, metric, minutes, value)) in seed.iter().enumerate() {
        let metric = format!("metric.{}", metric % 3);
        let record = RecordRef {
            // Ids whose halves order differently.
            record_id: Uuid::from_u128(u128::from(tenant % 2) << 100 | (1000 - i as u128)),
            tenant_id: Uuid::from_u128(u128::from(tenant % 3) + 1),
            source: if tenant % 2 == 0 { "a" } else { "b" },
            metric: &metric,
            kind: if metric.ends_with('0') { Kind::Counter } else { Kind::Gauge },
            value: Quantity::from_unscaled(i128::from(value) * 1_000_000_000_000_000_000).unwrap(),
            timestamp: Timestamp::from_micros(START + minutes * 60_000_000),
            idempotency_key: None,
            resource_id: None,
            resource_type: None,
            subject_id: None,
            subject_type: None,
            metadata: None,
        };
        rows.push(&record, [0; 16], i as i64, 0);
    }
    rows
}

type Named = (Month, Uuid, String, String, Kind, u32);

/// What an aggregate holds, with names spelt out.
fn spelt(aggregate: &Aggregate) -> BTreeMap<String, Totals> {
    let frozen = aggregate.frozen.iter().map(|(month, frozen)| (month, &frozen.groups));
    let mut all = BTreeMap::new();
    for (month, groups) in aggregate.months.iter().chain(frozen) {
        for (group, totals) in groups {
            let text_of = |number: u32| aggregate.names.texts[number as usize].to_string();
            let (metric, source) = (text_of(group.metric), text_of(group.source));
            let key = (*month, group.tenant, metric, source, group.kind, group.bucket);
            all.entry(text(&key)).and_modify(|known: &mut Totals| known.add(totals)).or_insert(*totals);
        }
    }
    all
}

fn text(key: &Named) -> String {
    format!("{key:?}")
}

/// The same row by row, the slow way.
fn expected(all: &[Rows]) -> BTreeMap<String, Totals> {
    let mut groups: BTreeMap<String, Vec<(i64, Uuid, i128)>> = BTreeMap::new();
    for rows in all {
        for i in 0..rows.len() {
            let seconds = rows.timestamp[i] / 1_000_000;
            let key = (
                Month::of_seconds(seconds),
                rows.tenant_id[i],
                rows.metric.get(i).unwrap().into(),
                rows.source.get(i).unwrap().into(),
                rows.kind[i],
                u32::try_from(seconds / 900 * 900).unwrap(),
            );
            groups.entry(text(&key)).or_default().push((rows.timestamp[i], rows.record_id[i], rows.value[i]));
        }
    }
    let totals = |samples: Vec<(i64, Uuid, i128)>| Totals {
        count: samples.len() as u64,
        sum: samples.iter().map(|sample| I256::from(sample.2)).sum(),
        min: samples.iter().map(|sample| sample.2).min().unwrap(),
        max: samples.iter().map(|sample| sample.2).max().unwrap(),
        // Batches of this test repeat ids; then the greater value is taken.
        latest: samples
            .iter()
            .copied()
            .max_by_key(|(time, id, value)| (*time, id.into_bytes(), *value))
            .unwrap(),
    };
    groups.into_iter().map(|(key, samples)| (key, totals(samples))).collect()
}

fn some_rows() -> impl Strategy<Value = Rows> {
    prop::collection::vec((any::<u8>(), any::<u8>(), 0..120i64, any::<i64>()), 0..60)
        .prop_map(|seed| rows(&seed))
}

proptest! {
    /// However rows come in, and whatever flushes were begun, proved or taken back meanwhile, nothing is lost or counted twice.
    #[test]
    fn rows_are_counted_once(batches in prop::collection::vec((some_rows(), 0..4u8), 1..6)) {
        let mut aggregate = Aggregate::default();
        let mut rolled_up: BTreeMap<String, Totals> = BTreeMap::new();
        for (i, (rows, fate)) in batches.iter().enumerate() {
            aggregate.add_rows(rows);
            for (month, _) in aggregate.in_doubt() {
                if *fate == 0 {
                    let flushed = Aggregate {
                        names: std::mem::take(&mut aggregate.names),
                        months: BTreeMap::new(),
                        frozen: BTreeMap::from([(month, aggregate.frozen[&month].clone())]),
                    };
                    for (key, totals) in spelt(&flushed) {
                        rolled_up.entry(key).and_modify(|known| known.add(&totals)).or_insert(totals);
                    }
                    aggregate.names = flushed.names;
                    aggregate.rolled_up(month);
                } else {
                    aggregate.thaw(month);
                }
            }
            if *fate >= 2 {
                for month in aggregate.months().collect::<Vec<_>>() {
                    prop_assert!(aggregate.freeze(month, i as i64));
                    prop_assert!(!aggregate.freeze(month, i as i64), "its rows are taken");
                }
            }
        }
        for (key, totals) in spelt(&aggregate) {
            rolled_up.entry(key).and_modify(|known| known.add(&totals)).or_insert(totals);
        }
        let all: Vec<Rows> = batches.into_iter().map(|(rows, _)| rows).collect();
        prop_assert_eq!(rolled_up, expected(&all));
    }
}

#[test]
fn the_latest_of_equal_times_is_that_of_the_greater_bytes() {
    let id = |high: u64, low: u64| Uuid::from_u64_pair(high, low);
    let mut totals = Totals::one(5, id(1, 9), 10);
    totals.add(&Totals::one(5, id(2, 0), 20));
    totals.add(&Totals::one(5, id(0, u64::MAX), 30));
    assert_eq!(
        totals.latest,
        (5, id(2, 0), 20),
        "ClickHouse's own order of UUID would take the second half first"
    );
    totals.add(&Totals::one(6, id(0, 0), 1));
    assert_eq!(totals.latest.0, 6);
}

#[test]
fn names_are_forgotten_with_the_last_row() {
    let mut aggregate = Aggregate::default();
    aggregate.add_rows(&rows(&[(0, 0, 0, 1), (1, 1, 100, 1)]));
    let months: Vec<Month> = aggregate.months().collect();
    assert_eq!((months.len(), aggregate.len()), (2, 2));
    months.iter().for_each(|&month| assert!(aggregate.freeze(month, 7)));
    assert_eq!(aggregate.in_doubt(), [(months[0], 7), (months[1], 7)]);
    aggregate.rolled_up(months[0]);
    assert!(!aggregate.names.texts.is_empty() && !aggregate.is_empty());
    aggregate.rolled_up(months[1]);
    assert!(aggregate.names.texts.is_empty() && aggregate.is_empty());
}

#[test]
fn the_hasher_spreads_keys() {
    use std::hash::BuildHasher;
    let hash = |group: Group| Fast::default().hash_one(group);
    // Keys that differ in one small field each; a table uses the low bits for places and the top seven for tags.
    let mut places = [0u32; 256];
    let mut tags = [0u32; 128];
    for bucket in 0..256u32 {
        for tenant in 0..64u128 {
            let group = Group {
                tenant: Uuid::from_u128(tenant),
                metric: 1,
                source: 0,
                bucket: bucket * 900,
                kind: Kind::Gauge,
            };
            let hash = hash(group);
            places[(hash & 0xff) as usize] += 1;
            tags[(hash >> 57) as usize] += 1;
        }
    }
    assert!(places.iter().all(|&count| (24..=120).contains(&count)), "{places:?}");
    assert!(tags.iter().all(|&count| (64..=220).contains(&count)), "{tags:?}");
}
