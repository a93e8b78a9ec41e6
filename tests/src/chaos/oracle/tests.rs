use super::*;

fn tenant(number: u128) -> Uuid {
    Uuid::from_u128(number + 1)
}

fn content(value: &str) -> Content {
    Content {
        metric: "llm.requests".into(),
        kind: Kind::Counter,
        value: Quantity::parse(value).unwrap(),
        timestamp: 17,
        details: Details {
            source: "demo".into(),
            metadata: Some(r#"{"a": 1.0}"#.into()),
            subject_id: Some(tenant(7)),
            ..Details::default()
        },
    }
}

fn emission(number: u128, value: &str, emitted_at: i64) -> Emission {
    let identity = (tenant(0), Uuid::from_u128(100 + number));
    Emission { identity, content: content(value), fate: Fate::Kept, emitted_at }
}

fn stored(emission: &Emission) -> Stored {
    Stored { identity: emission.identity, content: emission.content.clone() }
}

fn refused(emission: &Emission, reason: &str) -> Refused {
    Refused { identity: emission.identity, content: emission.content.clone(), reason: reason.into() }
}

/// Three records: one emitted twice, one refused on purpose.
fn healthy() -> (Vec<Emission>, Vec<Stored>, Vec<Refused>) {
    let mut emissions =
        vec![emission(1, "1", 10), emission(2, "2.5", 20), emission(1, "1", 30), emission(3, "3", 40)];
    emissions[3].fate = Fate::TooOld;
    let stored = vec![stored(&emissions[0]), stored(&emissions[1])];
    let refused = vec![refused(&emissions[3], "too_old")];
    (emissions, stored, refused)
}

#[test]
fn a_healthy_system_is_right() {
    let (emissions, stored, refused) = healthy();
    assert_eq!(judge(&emissions, &stored, &refused), []);
    assert_eq!(expected_records(&emissions), 2);
}

#[test]
fn a_lost_record_is_found() {
    let (emissions, mut stored, refused) = healthy();
    stored.remove(0);
    assert_eq!(judge(&emissions, &stored, &refused), [Difference::Lost(emissions[0].clone())]);
}

#[test]
fn a_doubled_record_is_found() {
    let (emissions, mut stored, refused) = healthy();
    stored.push(stored[1].clone());
    assert_eq!(judge(&emissions, &stored, &refused), [Difference::Doubled(emissions[1].identity, 2)]);
}

#[test]
fn a_change_of_any_column_is_found() {
    for change in [
        |row: &mut Stored| row.content.value = Quantity::parse("2.500000000000000001").unwrap(),
        |row: &mut Stored| row.content.timestamp += 1,
        |row: &mut Stored| row.content.metric = "llm.other".into(),
        |row: &mut Stored| row.content.kind = Kind::Gauge,
        |row: &mut Stored| row.content.details.source = "other".into(),
        |row: &mut Stored| row.content.details.idempotency_key = Some("k".into()),
        |row: &mut Stored| row.content.details.resource_id = Some(tenant(0)),
        |row: &mut Stored| row.content.details.resource_type = Some("vm".into()),
        |row: &mut Stored| row.content.details.subject_id = None,
        |row: &mut Stored| row.content.details.subject_type = Some("user".into()),
        |row: &mut Stored| row.content.details.metadata = Some(r#"{"a":1.0}"#.into()),
    ] {
        let (emissions, mut stored, refused) = healthy();
        change(&mut stored[1]);
        let found = judge(&emissions, &stored, &refused);
        assert!(matches!(found[0], Difference::Changed { .. }), "{found:?}");
        // The same in a dead letter: one is missing and one is too many.
        let (emissions, stored, mut letters) = healthy();
        let mut row = Stored { identity: letters[0].identity, content: letters[0].content.clone() };
        change(&mut row);
        letters[0].content = row.content;
        assert_eq!(judge(&emissions, &stored, &letters).len(), 2);
    }
}

#[test]
fn a_record_that_never_committed_is_found() {
    let (emissions, mut stored, refused) = healthy();
    stored.push(Stored { identity: (tenant(1), Uuid::from_u128(9)), content: content("1") });
    assert!(matches!(judge(&emissions, &stored, &refused)[..], [Difference::Invented(_)]));
}

#[test]
fn a_record_of_another_tenant_is_both_lost_and_invented() {
    let (emissions, mut stored, refused) = healthy();
    stored[0].identity.0 = tenant(1);
    assert_eq!(judge(&emissions, &stored, &refused).len(), 2);
}

#[test]
fn a_record_that_is_to_be_refused_must_not_be_stored_and_must_be_a_dead_letter() {
    let (emissions, mut rows, refused) = healthy();
    assert!(matches!(judge(&emissions, &rows, &[])[..], [Difference::NotRefused { reason: "too_old", .. }]));
    rows.push(stored(&emissions[3]));
    assert!(matches!(judge(&emissions, &rows, &refused)[..], [Difference::Invented(_)]));
}

#[test]
fn a_dead_letter_that_nobody_expects_is_found() {
    let (emissions, stored, mut letters) = healthy();
    letters.push(refused(&emissions[0], "storage_refused"));
    assert!(matches!(judge(&emissions, &stored, &letters)[..], [Difference::WronglyRefused(_)]));
    // For another reason than the expected one is wrong too, twice: one is missing and one is too many.
    let (emissions, stored, mut letters) = healthy();
    letters[0].reason = "invalid_record".into();
    assert_eq!(judge(&emissions, &stored, &letters).len(), 2);
}

#[test]
fn of_contradictions_one_is_kept_and_the_others_are_dead_letters() {
    let emissions = [emission(1, "1", 10), emission(1, "7", 20)];
    for (kept, other) in [(0, 1), (1, 0)] {
        let rows = [stored(&emissions[kept])];
        let letters = [refused(&emissions[other], "conflict")];
        assert_eq!(judge(&emissions, &rows, &letters), []);
        assert!(matches!(
            judge(&emissions, &rows, &[])[..],
            [Difference::NotRefused { reason: "conflict", .. }]
        ));
        assert_eq!(judge(&emissions, &rows, &[refused(&emissions[kept], "conflict")]).len(), 2);
    }
    assert_eq!(expected_records(&emissions), 1);
}

#[test]
fn a_dead_letter_may_be_written_twice() {
    let (emissions, stored, mut letters) = healthy();
    letters.push(letters[0].clone());
    assert_eq!(judge(&emissions, &stored, &letters), []);
}

fn answer(value: &str, answered_at: i64, complete_until: Option<i64>) -> Answer {
    Answer {
        reader: 0,
        tenant: tenant(0),
        series: Series::Metric("llm.requests".into()),
        measure: Measure::Sum,
        value: Quantity::parse(value).unwrap(),
        answered_at,
        complete_until,
    }
}

fn complaints(answers: &[Answer]) -> Vec<String> {
    let (emissions, ..) = healthy();
    judge_answers(&emissions, answers).iter().map(ToString::to_string).collect()
}

#[test]
fn answers_between_what_is_complete_and_what_was_emitted_are_right() {
    // Whatever is under way may be counted or not; the refused record never is.
    let right = [
        answer("0", 5, Some(5)),
        answer("0", 15, Some(10)),
        answer("1", 15, Some(11)),
        answer("1", 25, Some(20)),
        answer("3.5", 25, None),
        answer("3.5", 99, Some(99)),
    ];
    assert_eq!(complaints(&right), [""; 0]);
}

#[test]
fn a_complete_until_that_runs_ahead_is_found() {
    let found = complaints(&[answer("1", 25, Some(21))]);
    assert!(found[0].starts_with("lacks what complete_until says"), "{found:?}");
    // One microsecond less promises less.
    assert_eq!(complaints(&[answer("1", 25, Some(20))]), [""; 0]);
}

#[test]
fn an_answer_above_the_truth_is_found() {
    for (value, at) in [("1", 9), ("3.5", 19), ("3.500000000000000001", 99)] {
        let found = complaints(&[answer(value, at, None)]);
        assert!(found[0].starts_with("is above"), "{found:?}");
    }
}

#[test]
fn an_answer_that_goes_down_is_found() {
    let found = complaints(&[answer("3.5", 50, None), answer("1", 60, None)]);
    assert!(found[0].starts_with("went down: bound 3.5"), "{found:?}");
    // Of two readers neither knows which question came first.
    let mut other = answer("1", 60, None);
    other.reader = 1;
    assert_eq!(complaints(&[answer("3.5", 50, None), other]), [""; 0]);
}

#[test]
fn counts_are_judged_like_sums() {
    let count = |value: &str, at| Answer { measure: Measure::Count, ..answer(value, at, Some(at)) };
    assert_eq!(complaints(&[count("1", 11), count("2", 50)]), [""; 0]);
    assert_eq!(complaints(&[count("3", 50)]).len(), 1);
    assert_eq!(complaints(&[count("1", 50)]).len(), 1);
}

#[test]
fn the_watermark_of_a_source_is_judged_by_the_records_of_that_source() {
    let count = |source: &str, value: &str, at, until| Answer {
        measure: Measure::Count,
        series: Series::Source(source.into()),
        ..answer(value, at, until)
    };
    let right =
        [count("demo", "0", 9, Some(9)), count("demo", "1", 20, Some(20)), count("other", "0", 50, Some(50))];
    assert_eq!(complaints(&right), [""; 0]);
    assert!(complaints(&[count("demo", "1", 50, Some(50))])[0].starts_with("lacks what complete_until says"));
    assert!(complaints(&[count("other", "1", 50, None)])[0].starts_with("is above"));
    assert!(
        complaints(&[count("demo", "2", 50, None), count("demo", "1", 50, None)])[0].starts_with("went down")
    );
}

#[test]
fn a_contradiction_leaves_room_for_either_value() {
    let emissions = [emission(1, "1", 10), emission(1, "7", 20)];
    for value in ["1", "7"] {
        assert_eq!(judge_answers(&emissions, &[answer(value, 30, Some(30))]), []);
    }
    assert_eq!(judge_answers(&emissions, &[answer("8", 30, None)]).len(), 1);
    assert_eq!(judge_answers(&emissions, &[answer("0", 30, Some(11))]).len(), 1);
}

#[test]
fn the_lag_is_the_age_of_the_first_emit_that_a_count_lacks() {
    let (emissions, ..) = healthy();
    let count = |value: &str, at| Answer { measure: Measure::Count, ..answer(value, at, None) };
    let lag = |answers: &[Answer]| max_lag(&emissions, answers).as_micros();
    assert_eq!(lag(&[count("0", 15), count("1", 90), count("2", 500)]), 70);
    assert_eq!(lag(&[count("2", 500), answer("1", 900, None)]), 0);
}

#[test]
fn what_a_quota_has_no_room_for_must_be_a_letter() {
    let bounded = |exact| Bounded { tenant: tenant(0), records: 1, exact };
    // The second one comes twice, once with other content.
    let (one, two) = (emission(1, "1", 10), emission(2, "2", 20));
    let emissions = [one.clone(), two.clone(), emission(2, "7", 30)];
    let rows = [stored(&one)];
    let over = |number: usize| refused(&emissions[number], "quota_exceeded");
    let found = |rows: &[Stored], letters: &[Refused], bounded: Bounded| {
        let (mut emissions, mut letters) = (emissions.to_vec(), letters.to_vec());
        let mut differences: Vec<_> = bounded.judge(&emissions, rows).into_iter().collect();
        bounded.settle(&mut emissions, rows, &mut letters);
        differences.extend(judge(&emissions, rows, &letters));
        differences
    };
    for exact in [true, false] {
        assert_eq!(found(&rows, &[over(1), over(2)], bounded(exact)), []);
        let lost = found(&rows, &[over(2)], bounded(exact));
        assert!(matches!(lost[..], [Difference::NotRefused { reason: "quota_exceeded", .. }]), "{lost:?}");
        // Another tenant has no quota.
        let other = Bounded { tenant: tenant(1), ..bounded(exact) };
        assert!(found(&rows, &[over(1), over(2)], other).len() > 2);
    }
    // It was in conflict with one that a batch was to keep, and came again when there was no room.
    let conflict = |number: usize| refused(&emissions[number], "conflict");
    let letters = [over(1), over(2), conflict(2)];
    assert_eq!(found(&rows, &letters, bounded(false)), []);
    let wrong = [
        found(&rows, &letters, bounded(true)),
        // Never refused for the quota; of a record that is stored; of another tenant.
        found(&rows, &[over(1), conflict(2)], bounded(false)),
        found(&rows, &[over(1), over(2), conflict(0)], bounded(false)),
        found(&rows, &letters, Bounded { tenant: tenant(1), ..bounded(false) }),
    ];
    for differences in wrong {
        assert!(
            differences.iter().any(|found| matches!(found, Difference::WronglyRefused(_))),
            "{differences:?}"
        );
    }
    // It was over the quota, and came again when there was room.
    let rows = [stored(&one), stored(&two)];
    assert_eq!(found(&rows, &[over(1), over(2)], bounded(false)), []);
    let found = found(&rows, &[over(1), over(2)], bounded(true));
    assert!(matches!(found[0], Difference::Other(_)) && found.len() > 1, "{found:?}");
}

#[test]
fn a_quota_with_room_left_keeps_everything() {
    let (emissions, rows, _) = healthy();
    let judged = |records, exact| {
        Bounded { tenant: tenant(0), records, exact }.judge(&emissions, &rows).map(|found| found.to_string())
    };
    assert_eq!((judged(5, true), judged(2, true), judged(1, false)), (None, None, None));
    let text = "2 records are kept of the tenant with a quota, not 1";
    assert_eq!(judged(1, true).as_deref(), Some(text));
}
