use super::*;

const NONE: PgTime = PgTime::NEG_INFINITY;

fn state() -> State {
    State {
        clock: PgTime(100),
        high: 10,
        beyond: None,
        least: PgTime(80),
        greatest: PgTime(90),
        hold_until: NONE,
    }
}

#[test]
fn all_is_well_before_anything_is_complete_too() {
    assert_eq!(state().alarm(), None);
    assert_eq!(State { least: NONE, greatest: NONE, ..state() }.alarm(), None);
    assert_eq!(State { least: NONE, ..state() }.alarm(), None);
}

#[test]
fn a_sequence_behind_a_row_forbids_everything() {
    let behind = State { beyond: Some(17), ..state() };
    assert_eq!(behind.alarm(), Some(Alarm::SequenceBehind { high: 10, beyond: 17 }));
    assert!(behind.alarm().unwrap().to_string().contains("usagectl outbox repair"));
}

/// What is emitted while the clock is behind is older than what partitions claim, so each of them has to be complete beyond that.
#[test]
fn a_clock_that_went_back_forbids_markers_until_every_partition_has_passed_it() {
    let back = State { clock: PgTime(85), ..state() };
    let alarm = Some(Alarm::ClockBehind { until: PgTime(90) });
    assert_eq!((back.alarm(), back.new_hold()), (alarm, Some(PgTime(90))));
    // It has passed again, but one partition has not been looked through since.
    let held = State { clock: PgTime(95), greatest: PgTime(94), hold_until: PgTime(90), ..state() };
    assert_eq!((held.alarm(), held.new_hold()), (alarm, None));
    assert_eq!(State { least: PgTime(90), ..held }.alarm(), alarm);
    assert_eq!(State { least: PgTime(91), ..held }.alarm(), None);
}

#[test]
fn every_alarm_has_its_label() {
    let alarms = [
        Alarm::SequenceBehind { high: 1, beyond: 2 },
        Alarm::ClockBehind { until: PgTime(0) },
        Alarm::Refused,
    ];
    assert_eq!(alarms.map(Alarm::reason), Alarm::REASONS);
    assert!(alarms[1].to_string().contains("2000-01-01T00:00:00"), "{}", alarms[1]);
}

#[test]
fn a_source_is_complete_until_its_oldest_waiting_row() {
    let at = |micros: i64| PgTime(micros).timestamp();
    assert_eq!(until(PgTime(5), None), at(5));
    assert_eq!(until(PgTime(5), Some(PgTime(7))), at(5));
    assert_eq!(until(PgTime(5), Some(PgTime(3))), at(3));
    assert_eq!(until(NONE, Some(PgTime(3))), None);
    assert_eq!(until(PgTime(5), Some(NONE)), None);
}

#[test]
fn markers_come_each_second_until_all_is_said_and_then_seldom() {
    let second = Duration::from_secs(1);
    let mut pace = Pace::default();
    pace.looked(PgTime(1), 0, false);
    assert!(pace.is_due(second), "nothing is settled");
    pace.settle(Some(PgTime(1)));
    assert!(pace.is_due(second));
    pace.settle(Some(PgTime(2)));
    assert!(!pace.is_due(second) && pace.is_due(IDLE), "an idle source advances as well");
    pace.looked(PgTime(3), 0, false);
    assert!(!pace.is_due(second));
    pace.looked(PgTime(4), 1, false);
    assert!(pace.is_due(second), "somebody has emitted");
    pace.settle(Some(PgTime(5)));
    assert!(!pace.is_due(second));
    pace.looked(PgTime(6), 1, true);
    pace.settle(Some(PgTime(6)));
    assert!(pace.is_due(second), "somebody is still emitting");
    pace.settle(None);
    assert!(pace.is_due(second));
}
