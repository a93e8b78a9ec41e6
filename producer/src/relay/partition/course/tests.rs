use super::*;
use crate::pg_time::PgTime;

const SECOND: Duration = Duration::from_secs(1);

/// What rounds have proven of the floor alone.
fn ids(ids: i64) -> Proven {
    Proven { ids, ..Proven::default() }
}

fn keys(ids: std::ops::RangeInclusive<i64>) -> Vec<RowKey> {
    ids.map(|id| RowKey { id, emitted_at: PgTime(0), segment: 0 }).collect()
}

/// Partition 0 of the topic is closed; its next attempt is due after a second at most.
fn closed(now: Instant) -> Lanes {
    let mut lanes = Lanes::new(SECOND, SECOND);
    assert!(lanes.admit(0, now));
    lanes.failed(0, now);
    lanes
}

/// A course that has read rows 1 to 10 and left some of them lying.
fn behind(now: Instant, lanes: &mut Lanes) -> Course {
    let mut course = Course::new(now);
    course.begin(now, ids(10), lanes);
    course.read(Part::Walk, keys(1..=10), false);
    course.walked(true, Duration::ZERO, now, lanes);
    assert_eq!((course.next(Part::Walk), course.next(Part::Tail)), (None, Some(10)));
    course
}

#[test]
fn when_nothing_is_left_lying_each_look_starts_at_the_floor() {
    let now = Instant::now();
    let (mut course, mut lanes) = (Course::new(now), Lanes::new(SECOND, SECOND));
    course.begin(now, ids(7), &mut lanes);
    course.read(Part::Walk, keys(1..=5), true);
    course.walked(false, Duration::ZERO, now, &mut lanes);
    assert_eq!((course.next(Part::Walk), course.next(Part::Tail)), (Some(5), None));
    course.read(Part::Walk, keys(6..=9), false);
    course.gone(&keys(1..=5));
    course.gone(&keys(7..=9));
    course.walked(false, Duration::ZERO, now, &mut lanes);
    assert!(!course.is_walking());
    course.begin(now, ids(9), &mut lanes);
    assert_eq!((course.next(Part::Walk), course.next(Part::Tail)), (Some(5), None), "row 6 is still there");
}

/// The backlog of a closed partition is 100 pages; after each of them what is new is read.
#[test]
fn pages_of_a_walk_and_of_what_is_new_take_turns() {
    let now = Instant::now();
    let mut lanes = closed(now);
    let mut course = behind(now, &mut lanes);
    let later = now + SECOND;
    course.begin(later, ids(10), &mut lanes);
    for page in 0..100 {
        let (old, new) = (page * 10, 1_000 + page);
        assert_eq!(course.next(Part::Walk), Some(old));
        course.read(Part::Walk, keys(old + 1..=old + 10), true);
        course.walked(true, Duration::ZERO, later, &mut lanes);
        assert!(course.next(Part::Tail).is_some(), "page {page}");
        course.read(Part::Tail, keys(new..=new), false);
        assert_eq!(course.next(Part::Tail), Some(new));
        course.begin(later, ids(10), &mut lanes);
    }
    course.read(Part::Walk, keys(1_001..=1_099), false);
    course.walked(true, 3 * SECOND, later, &mut lanes);
    assert_eq!((course.next(Part::Walk), course.next(Part::Tail)), (None, Some(1_099)));
    assert_eq!(course.sweep_at, later + 30 * SECOND);
}

/// A partition without a leader is attempted every few seconds for hours: that must not cost a walk through its backlog each time.
#[test]
fn a_due_attempt_reads_no_further_than_it_needs() {
    let now = Instant::now();
    let mut lanes = closed(now);
    let mut course = behind(now, &mut lanes);
    course.sweep_at = now + 100 * SECOND;
    course.begin(now, ids(10), &mut lanes);
    assert!(!course.is_walking(), "nothing is due");
    let later = now + SECOND;
    course.begin(later, ids(10), &mut lanes);
    course.read(Part::Walk, keys(1..=2), true);
    course.walked(true, Duration::ZERO, later, &mut lanes);
    assert_eq!(course.next(Part::Walk), Some(2), "its rows lie further behind");
    course.read(Part::Walk, keys(3..=4), true);
    assert!(lanes.admit(0, later));
    course.walked(true, Duration::ZERO, later, &mut lanes);
    assert_eq!((course.next(Part::Walk), course.next(Part::Tail)), (None, Some(10)));
    assert_eq!((course.floor.get(), course.sweep_at), (0, now + 100 * SECOND));
}

#[test]
fn an_attempt_for_which_there_is_no_row_opens_its_partition() {
    let now = Instant::now();
    let mut lanes = closed(now);
    let mut course = behind(now, &mut lanes);
    course.sweep_at = now + 100 * SECOND;
    course.begin(now + SECOND, ids(10), &mut lanes);
    course.read(Part::Walk, Vec::new(), false);
    course.walked(false, Duration::ZERO, now + SECOND, &mut lanes);
    assert!(!lanes.is_failing());
    assert_eq!((course.next(Part::Walk), course.next(Part::Tail)), (None, None));
}

/// What opens while a walk is under way, and what has to be looked at again, lies before its place.
#[test]
fn a_reason_that_comes_up_during_a_walk_begins_another() {
    let now = Instant::now();
    for again in [false, true] {
        let mut lanes = closed(now);
        let mut course = behind(now, &mut lanes);
        let later = now + SECOND;
        course.begin(later, ids(10), &mut lanes);
        course.read(Part::Walk, keys(1..=5), true);
        course.walked(true, Duration::ZERO, later, &mut lanes);
        if again {
            course.look_again();
        } else {
            assert!(lanes.admit(0, later));
            lanes.delivered(0);
        }
        course.begin(later, ids(10), &mut lanes);
        assert_eq!(course.next(Part::Walk), Some(5), "it goes on where it is");
        course.read(Part::Walk, keys(6..=10), false);
        course.walked(true, Duration::ZERO, later, &mut lanes);
        assert!(!course.is_walking());
        course.begin(later, ids(10), &mut lanes);
        assert_eq!(course.next(Part::Walk), Some(0));
        assert!(course.walk.as_ref().is_some_and(|walk| walk.whole));
    }
}

#[test]
fn a_walk_that_takes_longer_than_the_belt_comes_to_its_end() {
    let now = Instant::now();
    let mut lanes = closed(now);
    let mut course = behind(now, &mut lanes);
    let (belt, end) = (now + BELT, now + 10 * BELT);
    course.floor.advance(&Pass::begin(0, ids(5)), None);
    course.begin(belt, ids(10), &mut lanes);
    assert_eq!(course.next(Part::Walk), Some(0), "from 0, whatever the floor is");
    course.read(Part::Walk, keys(1..=5), true);
    course.walked(true, BELT, end, &mut lanes);
    course.begin(end, ids(10), &mut lanes);
    assert_eq!(course.next(Part::Walk), Some(5));
    course.read(Part::Walk, keys(6..=10), false);
    course.walked(true, BELT, end, &mut lanes);
    assert!(!course.is_walking() && course.belt_at == end + BELT);
}
