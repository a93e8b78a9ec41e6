use proptest::prelude::*;
use usage_schemas::Reason;
use uuid::Uuid;

use super::*;

fn refused(reason: Reason) -> NotKept {
    NotKept::Refused(reason)
}

fn reasons() -> impl Strategy<Value = NotKept> {
    let mut all = vec![NotKept::Duplicate, NotKept::Marker, NotKept::Forwarded];
    all.extend(Reason::ALL.iter().map(|reason| NotKept::Refused(*reason)));
    proptest::sample::select(all)
}

/// Rows of a batch: distance to the row before (control records lie between) and what became of it.
fn rows(len: usize) -> impl Strategy<Value = Vec<(i64, Option<NotKept>)>> {
    let gap = prop_oneof![8 => Just(1i64), 1 => 2i64..9];
    let single =
        prop_oneof![3 => Just(None), 2 => Just(Some(NotKept::Duplicate)), 1 => reasons().prop_map(Some)];
    proptest::collection::vec((gap, single), 1..len).prop_map(|steps| {
        let mut offset = 1_000;
        steps
            .into_iter()
            .map(|(gap, why)| {
                offset += gap;
                (offset, why)
            })
            .collect()
    })
}

fn plan_of(rows: &[(i64, Option<NotKept>)]) -> Plan {
    let kept: Vec<i64> = rows.iter().filter(|(_, why)| why.is_none()).map(|(offset, _)| *offset).collect();
    let ids: Vec<Uuid> = kept.iter().map(|offset| Uuid::from_u128(*offset as u128)).collect();
    let not_kept = Runs::join(rows.iter().filter_map(|(offset, why)| why.map(|why| (*offset, why))), &kept);
    Plan {
        count: 12,
        batch_seq: 77,
        first: rows[0].0,
        last: rows[rows.len() - 1].0,
        kept: kept.len() as u64,
        hash: IdHash::of(&ids),
        not_kept,
    }
}

proptest! {
    #[test]
    fn a_plan_survives_its_text(rows in rows(400)) {
        let plan = plan_of(&rows);
        let Ok(Committed::Planned(read)) = parse(&plan.to_text()) else { panic!("not a plan: {}", plan.to_text()) };
        prop_assert_eq!((read.count, read.batch_seq, read.first, read.last), (12, 77, plan.first, plan.last));
        prop_assert_eq!((read.kept, read.hash), (plan.kept, plan.hash));
        for (offset, why) in &rows {
            prop_assert_eq!(read.not_kept.get(*offset), *why, "offset {}", offset);
        }
    }

    #[test]
    fn the_followed_size_bounds_the_packed_one(rows in rows(600)) {
        let mut size = PackedSize::default();
        for (offset, why) in &rows {
            size.push(*offset, *why);
        }
        let packed = plan_of(&rows).not_kept.pack(rows[0].0);
        prop_assert!(packed.len() <= size.bound(), "{} > {}: {}", packed.len(), size.bound(), packed);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[pd]1;[0-9A-Za-z;./_-]{0,60}") {
        if let Ok(Committed::Planned(plan)) = parse(&text) {
            prop_assert!(plan.first <= plan.last);
            for run in plan.not_kept.iter() {
                prop_assert!(run.start >= plan.first && run.start + run.len - 1 <= plan.last && run.len > 0);
            }
        }
    }

    #[test]
    fn rows_that_storage_refuses_are_added(rows in rows(200), picks in proptest::collection::vec(any::<proptest::sample::Index>(), 1..5)) {
        let plan = plan_of(&rows);
        let kept: Vec<i64> = rows.iter().filter(|(_, why)| why.is_none()).map(|(offset, _)| *offset).collect();
        prop_assume!(!kept.is_empty());
        let mut bad: Vec<i64> = picks.iter().map(|pick| kept[pick.index(kept.len())]).collect();
        bad.sort_unstable();
        bad.dedup();
        let left = kept.iter().filter(|o| !bad.contains(o)).map(|o| Uuid::from_u128(*o as u128));
        let Ok(Committed::Planned(read)) = parse(&plan.refuse(&bad, left).to_text()) else { panic!("not a plan") };
        prop_assert_eq!(read.kept as usize, kept.len() - bad.len());
        for (offset, why) in &rows {
            let expected = if bad.contains(offset) { Some(refused(Reason::StorageRefused)) } else { *why };
            prop_assert_eq!(read.not_kept.get(*offset), expected);
        }
    }
}

#[test]
fn the_text_is_what_the_protocol_says() {
    let ids = [Uuid::from_u128(1), Uuid::from_u128(2)];
    let not_kept = Runs::join(
        [(12, NotKept::Duplicate), (13, NotKept::Duplicate), (15, refused(Reason::Conflict))],
        &[10, 11, 14],
    );
    let plan =
        Plan { count: 12, batch_seq: 5, first: 10, last: 15, kept: 2, hash: IdHash::of(&ids), not_kept };
    // The hash comes from `sha256sum` over the 32 bytes of both ids.
    assert_eq!(plan.to_text(), "p1;12;5;10;15;2;78d68721debb423c;2D2.1C");
    assert_eq!(parse("d1;5"), Ok(Committed::Done { batch_seq: 5 }));
    assert_eq!(parse(""), Ok(Committed::Cleared));
}

#[test]
fn the_hash_is_the_head_of_sha256() {
    // printf 'abcdefghijklmnop' | sha256sum
    let id = Uuid::from_bytes(*b"abcdefghijklmnop");
    assert_eq!(IdHash::of([&id]).to_string(), "f39dac6cbaba535e");
}

#[test]
fn alternating_duplicates_become_a_bitmap() {
    let rows: Vec<(i64, Option<NotKept>)> =
        (0..6_000).map(|i| (i, (i % 2 == 0).then_some(NotKept::Duplicate))).collect();
    let text = plan_of(&rows).to_text();
    assert!(text.len() < 1_100, "{}", text.len());
    assert!(text.contains("/D"), "{text}");
}

#[test]
fn what_is_no_plan_is_refused() {
    for text in ["p2;1;2", "x", "garbage;1", "p10;1"] {
        assert!(matches!(parse(text), Err(PlanError::UnknownVersion(_))), "{text}");
    }
    let good = "p1;12;5;10;15;2;00112233445566ff;2D2.1C";
    assert!(parse(good).is_ok());
    for text in [
        "d1;",
        "d1;-1",
        "d1;1;2",
        "p1;12;5;10;15;2;00112233445566ff",
        "p1;12;5;10;15;2;00112233445566ff;2D2.1C;",
        "p1;0;5;10;15;2;00112233445566ff;",
        "p1;12;0;10;15;2;00112233445566ff;",
        "p1;12;05;10;15;2;00112233445566ff;",
        "p1;12;5;10;9;2;00112233445566ff;",
        "p1;12;5;10;15;2;00112233445566FF;",
        "p1;12;5;10;15;2;0112233445566ff;",
        "p1;12;5;10;15;2;00112233445566ff;2D9.",
        "p1;12;5;10;15;2;00112233445566ff;2Z",
        "p1;12;5;10;15;2;00112233445566ff;0D",
        "p1;12;5;10;15;2;00112233445566ff;D0.",
        "p1;12;5;10;15;2;00112233445566ff;D2",
        "p1;12;5;10;15;2;00112233445566ff;D/DB",
        "p1;12;5;10;15;2;00112233445566ff;/D!",
        "p1;12;5;10;15;2;00112233445566ff;/DAB",
    ] {
        assert!(matches!(parse(text), Err(PlanError::Damaged { .. })), "{text}");
    }
}
