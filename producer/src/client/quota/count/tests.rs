use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const CLOSED: Staleness = Staleness { after: Duration::from_secs(5), open: false };
const OPEN: Staleness = Staleness { after: Duration::from_secs(5), open: true };

fn seen(count: i32, minute: i64, elapsed: Duration) -> Tallied {
    Tallied { count, start_micros: minute * 60_000_000, elapsed }
}

/// A count of at most 10 a minute that was told at `start` what the window holds, 20 s into minute 7.
fn told(stale: Staleness, start: Instant, total: i32) -> Count {
    let mut count = Count::new(10, MINUTE, stale, start);
    assert_eq!(count.begin_flush(start), 0);
    count.flushed(seen(total, 7, 20 * SECOND), start, start);
    count
}

#[test]
fn nothing_is_admitted_before_the_database_has_spoken() {
    let now = Instant::now();
    let mut count = Count::new(10, MINUTE, CLOSED, now);
    assert_eq!(count.admit(1, now), Err(Refused::Unknown { age: None }));
    assert_eq!(count.counted(), 0);
    count.flushed(seen(0, 7, SECOND), now, now);
    assert_eq!(count.admit(1, now), Ok(()));
}

#[test]
fn what_others_counted_and_what_was_admitted_here_share_the_limit() {
    let start = Instant::now();
    let mut count = told(CLOSED, start, 6);
    assert_eq!(count.admit(3, start), Ok(()));
    let full = Err(Refused::Full { retry_after: 40 * SECOND });
    assert_eq!(count.admit(2, start), full, "all of them or none");
    assert_eq!(count.room(1, start), Ok(()));
    assert_eq!(count.room(1, start), Ok(()), "to look takes nothing");
    assert_eq!(count.admit(1, start), Ok(()));
    assert_eq!(count.admit(1, start), full);
    let later = start + 3 * SECOND;
    assert_eq!(count.admit(1, later), Err(Refused::Full { retry_after: 37 * SECOND }));
}

#[test]
fn what_is_sent_counts_until_its_answer_and_only_once_after_it() {
    let start = Instant::now();
    let mut count = told(CLOSED, start, 0);
    count.admit(4, start).unwrap();
    assert_eq!(count.begin_flush(start), 4);
    count.admit(1, start).unwrap();
    assert_eq!((count.counted(), count.unconfirmed()), (5, 5));
    count.flushed(seen(6, 7, 20 * SECOND), start, start);
    assert_eq!((count.counted(), count.unconfirmed()), (7, 1), "two of others");
    assert_eq!(count.begin_flush(start), 1);
    assert_eq!(
        count.largest_unconfirmed(),
        5,
        "what came while the answer was on its way is unconfirmed as well"
    );
}

#[test]
fn a_flush_without_an_answer_is_sent_again_with_what_came_since() {
    let start = Instant::now();
    let mut count = told(CLOSED, start, 0);
    count.admit(4, start).unwrap();
    assert_eq!(count.begin_flush(start), 4);
    count.admit(1, start).unwrap();
    assert_eq!(count.begin_flush(start + SECOND), 5);
    assert_eq!(count.counted(), 5);
}

#[test]
fn a_count_that_is_too_old_refuses_or_goes_on_alone() {
    let start = Instant::now();
    let (fresh, late) = (start + 5 * SECOND, start + 5 * SECOND + Duration::from_millis(1));
    let mut closed = told(CLOSED, start, 0);
    assert_eq!(closed.admit(1, fresh), Ok(()));
    let age = Some(late - start);
    assert_eq!(closed.admit(1, late), Err(Refused::Unknown { age }));
    let mut open = told(OPEN, start, 9);
    assert_eq!(open.admit(1, late), Ok(()));
    assert_eq!(
        open.admit(1, late),
        Err(Refused::Full { retry_after: 35 * SECOND - Duration::from_millis(1) })
    );
    // Alone it still has its own limit in each window.
    let next = start + MINUTE;
    assert_eq!(open.admit(10, next), Ok(()));
    assert!(open.admit(1, next).is_err());
    assert_eq!(open.admit(10, next + 3 * MINUTE), Ok(()));
}

#[test]
fn the_next_window_begins_at_nothing_and_not_before_its_time() {
    let start = Instant::now();
    let mut count = told(Staleness { after: MINUTE, ..CLOSED }, start, 4);
    count.admit(6, start).unwrap();
    let edge = start + 40 * SECOND;
    assert!(count.admit(1, edge - Duration::from_millis(1)).is_err());
    assert_eq!(count.admit(1, edge), Ok(()));
    assert_eq!(count.begin_flush(edge), 1, "what was pending belongs to a window that is over");
}

#[test]
fn an_answer_about_a_window_that_is_over_says_nothing_about_this_one() {
    let start = Instant::now();
    let mut count = told(Staleness { after: MINUTE, ..CLOSED }, start, 0);
    count.admit(2, start).unwrap();
    let asked = start + 39 * SECOND;
    assert_eq!(count.begin_flush(asked), 2);
    let after_edge = start + 41 * SECOND;
    count.admit(3, after_edge).unwrap();
    count.flushed(seen(9, 7, 59 * SECOND), asked, after_edge);
    assert_eq!((count.counted(), count.unconfirmed()), (3, 3));
    // Asked after the edge, the database knows better.
    count.begin_flush(after_edge);
    count.flushed(seen(9, 7, 59 * SECOND), after_edge, after_edge);
    assert_eq!(count.counted(), 9);
}

#[test]
fn a_database_that_is_in_the_next_window_already_is_believed() {
    let start = Instant::now();
    let mut count = told(CLOSED, start, 10);
    let soon = start + SECOND;
    count.begin_flush(soon);
    count.flushed(seen(1, 8, Duration::ZERO), soon, soon);
    assert_eq!(count.admit(9, soon), Ok(()));
    assert_eq!(count.admit(1, soon), Err(Refused::Full { retry_after: MINUTE }));
}

#[test]
fn more_than_the_limit_at_once_never_fits() {
    let start = Instant::now();
    let mut count = told(CLOSED, start, 0);
    for units in [11, u64::MAX] {
        assert!(matches!(count.admit(units, start), Err(Refused::Full { .. })));
    }
    assert_eq!(count.admit(0, start), Ok(()));
}

#[derive(Debug, Clone)]
enum Step {
    Admit(usize, u64),
    Flush(usize),
    /// The answer comes after as many more as this were asked for.
    SlowFlush(usize, u64),
    LoseAnswer(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..3_usize, 1..4_u64).prop_map(|(who, units)| Step::Admit(who, units)),
        3 => (0..3_usize).prop_map(Step::Flush),
        2 => (0..3_usize, 1..6_u64).prop_map(|(who, units)| Step::SlowFlush(who, units)),
        1 => (0..3_usize).prop_map(Step::LoseAnswer),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    /// Three processes, one shared row: when the row reaches the limit, each of them still admits until it hears of that, and all this is
    /// unconfirmed just before the answer that tells it.
    #[test]
    fn the_limit_is_passed_by_what_all_have_unconfirmed_at_most(steps in steps()) {
        let now = Instant::now();
        let stale = Staleness { after: MINUTE, open: false };
        let mut processes: Vec<Count> = (0..3).map(|_| Count::new(20, MINUTE, stale, now)).collect();
        let (mut shared, mut admitted) = (0_i32, 0_u64);
        for process in &mut processes {
            process.flushed(seen(0, 7, SECOND), now, now);
        }
        for step in steps {
            match step {
                Step::Admit(who, units) => {
                    if processes[who].admit(units, now).is_ok() {
                        admitted += units;
                    }
                }
                Step::Flush(who) => {
                    shared += i32::try_from(processes[who].begin_flush(now)).unwrap();
                    processes[who].flushed(seen(shared, 7, SECOND), now, now);
                }
                Step::SlowFlush(who, units) => {
                    shared += i32::try_from(processes[who].begin_flush(now)).unwrap();
                    for _ in 0..units {
                        admitted += u64::from(processes[who].admit(1, now).is_ok());
                    }
                    processes[who].flushed(seen(shared, 7, SECOND), now, now);
                }
                Step::LoseAnswer(who) => shared += i32::try_from(processes[who].begin_flush(now)).unwrap(),
            }
        }
        let bound = 20 + processes.iter().map(Count::largest_unconfirmed).sum::<u64>();
        prop_assert!(admitted <= bound, "{admitted} admitted, {bound} is the bound");
    }
}
