use usage_storage::PreviousBatch;

use super::*;

fn log(partition: i32, low: i64, high: i64) -> Log {
    Log { partition, low, high }
}

/// `previous`: number and greatest offset.
fn last(partition: i32, batch_seq: i64, first_offset: i64, previous: Option<(i64, i64)>) -> LastBatch {
    let previous = previous.map(|(batch_seq, last_offset)| PreviousBatch { batch_seq, last_offset });
    LastBatch { partition, batch_seq, first_offset, previous }
}

/// The one partition 0.
fn one(low: i64, last: LastBatch, after_seq: Option<i64>) -> Reset {
    let made_anew = after_seq.map(|after_seq| (0, after_seq)).into_iter().collect();
    let mut found = resets(&[log(0, low, 90)], &[last], &made_anew).unwrap();
    assert_eq!(found.len(), 1);
    found.remove(0)
}

fn reset(offset: i64, why: Why, gaps: &[(i64, i64)]) -> Reset {
    Reset { partition: 0, offset, why, gaps: gaps.to_vec() }
}

fn refused(logs: &[Log], stored: &[LastBatch]) -> String {
    resets(logs, stored, &BTreeMap::new()).unwrap_err().to_string()
}

#[test]
fn everything_behind_the_batch_before_the_last_one_is_read_again() {
    // Of batch 3 the backup may hold only the month whose first row came at 60.
    assert_eq!(one(5, last(0, 3, 60, Some((2, 49))), None), reset(50, Why::Batch(3), &[]));
    assert_eq!(one(5, last(0, 3, 60, Some((1, 59))), None), reset(60, Why::Batch(3), &[]));
    assert_eq!(one(50, last(0, 3, 60, Some((2, 49))), None), reset(50, Why::Batch(3), &[]));
    assert_eq!(one(51, last(0, 3, 60, Some((2, 49))), None), reset(51, Why::Batch(3), &[(50, 51)]));
}

#[test]
fn a_batch_whose_beginning_is_not_known_is_read_from_the_logs_start() {
    assert_eq!(one(0, last(0, 3, 60, None), None), reset(0, Why::Beginning(3), &[]));
    assert_eq!(one(5, last(0, 3, 60, None), None), reset(5, Why::Beginning(3), &[(0, 5)]));
    // Offsets were set back between the two.
    assert_eq!(one(0, last(0, 3, 60, Some((2, 80))), None), reset(0, Why::Beginning(3), &[]));
}

#[test]
fn what_a_partition_without_anything_restored_had_before_the_log_is_a_gap() {
    let found = resets(&[log(0, 7, 7), log(1, 0, 9)], &[], &BTreeMap::new()).unwrap();
    let whole = Reset { partition: 1, ..reset(0, Why::Nothing, &[]) };
    assert_eq!(found, [reset(7, Why::Nothing, &[(0, 7)]), whole]);
}

#[test]
fn offsets_of_a_topic_that_is_gone_mean_nothing() {
    let old = last(0, 3, 60, Some((2, 49)));
    assert_eq!(one(0, old, Some(3)), reset(0, Why::OtherTopic(3), &[(50, 51)]));
    assert_eq!(one(5, old, Some(4)), reset(5, Why::OtherTopic(3), &[(50, 51), (0, 5)]));
    // Also where the present log is shorter than the former one was, or begins later.
    let beyond = last(0, 3, 600, None);
    assert_eq!(one(0, beyond, Some(3)), reset(0, Why::OtherTopic(3), &[(600, 601)]));
    let before = last(0, 3, 2, None);
    assert_eq!(one(5, before, Some(3)), reset(5, Why::OtherTopic(3), &[(2, 3), (0, 5)]));
    // The last batch is of the present topic, the one before it of the former.
    assert_eq!(one(0, old, Some(2)), reset(0, Why::Beginning(3), &[]));
    assert_eq!(one(0, old, Some(1)), reset(50, Why::Batch(3), &[]));
}

#[test]
fn every_range_that_is_gone_is_named() {
    let logs = [log(0, 61, 90), log(1, 0, 9), log(2, 100, 100)];
    let error = refused(&logs, &[last(0, 3, 60, None), last(1, 1, 0, None), last(2, 7, 80, Some((6, 79)))]);
    assert!(error.ends_with("offsets 60 to 60 of partition 0, offsets 80 to 99 of partition 2"), "{error}");
}

#[test]
fn another_topic_is_refused() {
    let error = refused(&[log(0, 0, 60)], &[last(0, 3, 60, None)]);
    assert!(error.contains("beyond the log's end 60"), "{error}");
}

#[test]
fn resets_say_why() {
    let why = [Why::Batch(3), Why::Beginning(3), Why::Nothing, Why::OtherTopic(3)];
    let all = why.map(|why| reset(60, why, &[(50, 51), (0, 5)]).to_string());
    assert!(all[0].contains("batch 3 may begin") && all[1].contains("not known where batch 3"), "{all:?}");
    assert!(all[2].contains("nothing of it is restored") && all[3].contains("made anew"), "{all:?}");
    assert!(all.iter().all(|text| text.contains("from offset 0 to 4 may be lost")), "{all:?}");
    assert!(all[3].contains("from offset 50 to 50 of the former topic may be lost"), "{all:?}");
}
