use super::*;

fn holders(names: &[&str]) -> HashSet<Holder> {
    let holder = |name: &&str| Holder { transaction: name.to_string(), prepared: name.starts_with("-1/") };
    names.iter().map(holder).collect()
}

fn look(clock: i64, high: i64, names: &[&str]) -> Look {
    Look { clock: PgTime(clock), high, holders: holders(names) }
}

/// Rounds after these looks.
fn after(looks: &[(i64, i64, &[&str])]) -> Rounds {
    let mut rounds = Rounds::default();
    for (clock, high, names) in looks {
        rounds.observe(look(*clock, *high, names)).unwrap();
    }
    rounds
}

/// Up to when a pass that begins now would make a partition complete, and which id it has to pass.
fn complete(rounds: &Rounds) -> Option<(i64, i64)> {
    rounds.proven().complete.map(|proof| (proof.until.0, proof.high))
}

fn ids(ids: i64) -> Proven {
    Proven { ids, ..Proven::default() }
}

#[test]
fn without_emitters_everything_handed_out_is_proven() {
    let rounds = after(&[(1, 7, &[])]);
    assert_eq!(
        (rounds.proven().ids, complete(&rounds)),
        (7, None),
        "which ids belong to it is read at the next look"
    );
    let rounds = after(&[(1, 7, &[]), (2, 9, &[])]);
    assert_eq!((rounds.proven().ids, complete(&rounds)), (9, Some((1, 9))));
}

#[test]
fn an_open_emitter_holds_its_round_and_no_later_one_does() {
    let mut rounds = after(&[(1, 10, &["3/1"]), (2, 20, &["3/1", "4/1"])]);
    // Others come and go; they are not in the round.
    assert_eq!((rounds.proven().ids, complete(&rounds)), (0, None));
    rounds.observe(look(3, 30, &["4/1", "5/1"])).unwrap();
    assert_eq!(rounds.proven().ids, 10, "the round of 10 is over, that of 30 waits for two");
    rounds.observe(look(4, 40, &["5/1"])).unwrap();
    assert_eq!((rounds.proven().ids, complete(&rounds)), (10, Some((1, 40))));
    rounds.observe(look(5, 50, &["6/1"])).unwrap();
    assert_eq!(rounds.proven().ids, 30);
    rounds.observe(look(6, 60, &["6/1"])).unwrap();
    assert_eq!(complete(&rounds), Some((3, 60)));
}

#[test]
fn the_same_connection_with_the_next_transaction_is_another_holder() {
    let rounds = after(&[(1, 10, &["3/1"]), (2, 11, &["3/2"])]);
    assert_eq!(rounds.proven().ids, 10);
}

/// `PREPARE TRANSACTION` gives a transaction another name. Its row is as invisible as before.
#[test]
fn a_transaction_that_is_prepared_stays_in_its_round() {
    let mut rounds = after(&[(1, 10, &["3/1", "-1/7"]), (2, 20, &["-1/7", "-1/8"]), (3, 30, &["-1/8"])]);
    assert_eq!((rounds.proven().ids, complete(&rounds)), (0, None));
    // Whoever is prepared later can't be that one: these had gone before.
    rounds.observe(look(4, 40, &["-1/9"])).unwrap();
    assert_eq!(rounds.proven().ids, 10);
    rounds.observe(look(5, 50, &["-1/9"])).unwrap();
    assert_eq!(complete(&rounds), Some((1, 50)));
}

#[test]
fn many_prepared_transactions_hold_a_round_no_longer_than_its_own() {
    let mut rounds = after(&[(1, 10, &["3/1"])]);
    for number in 0..50 {
        let name = format!("-1/{number}");
        rounds.observe(look(2 + number, 11 + number, &["3/1", &name])).unwrap();
    }
    rounds.observe(look(100, 100, &["-1/100"])).unwrap();
    assert_eq!(rounds.proven().ids, 0, "it may be the one that was prepared");
    rounds.observe(look(101, 101, &["-1/101"])).unwrap();
    assert_eq!(rounds.proven().ids, 10);
}

#[test]
fn what_goes_back_is_told() {
    let mut rounds = after(&[(10, 10, &[])]);
    assert_eq!(rounds.observe(look(9, 10, &[])), Err(WentBack::Clock));
    assert_eq!(rounds.observe(look(10, 9, &[])), Err(WentBack::Sequence));
    let session = rounds.session();
    rounds.start_over();
    rounds.observe(look(9, 9, &[])).unwrap();
    assert!(rounds.session() > session);
    assert_eq!(rounds.proven().ids, 9);
}

/// What was confirmed, is proven or under way belongs to the old series; the floor stands.
#[test]
fn voided_completeness_comes_only_of_new_rounds() {
    let mut rounds = after(&[(1, 10, &[]), (2, 10, &["3/1"])]);
    let before = rounds.proven().complete.unwrap();
    rounds.void_completeness();
    assert_eq!((rounds.proven().ids, complete(&rounds)), (10, None));
    assert_ne!(before.series, rounds.series());
    rounds.observe(look(3, 12, &["3/1"])).unwrap();
    rounds.observe(look(4, 12, &["4/1"])).unwrap();
    rounds.observe(look(5, 12, &["4/1"])).unwrap();
    assert_eq!((rounds.proven().ids, complete(&rounds)), (10, None), "the round of 2 is only for the floor");
    rounds.observe(look(6, 12, &[])).unwrap();
    rounds.observe(look(7, 13, &[])).unwrap();
    assert_eq!(complete(&rounds), Some((6, 13)));
}

#[test]
fn the_floor_stays_below_what_is_left() {
    let mut floor = Floor::default();
    let mut pass = Pass::begin(floor.get(), ids(100));
    pass.page(Some(50), true);
    assert!(pass.more() && pass.next_page() == 50);
    floor.advance(&pass, Some(20));
    assert_eq!(floor.get(), 19);
    let mut pass = Pass::begin(floor.get(), ids(100));
    pass.page(Some(50), true);
    floor.advance(&pass, None);
    assert_eq!(floor.get(), 50, "as far as the page went");
    let mut pass = Pass::begin(floor.get(), ids(100));
    pass.page(None, false);
    assert!(!pass.more() && pass.saw_the_end());
    floor.advance(&pass, None);
    assert_eq!(floor.get(), 100, "as far as it is proven");
}

#[test]
fn a_pass_from_elsewhere_moves_nothing() {
    let mut floor = Floor::default();
    let mut pass = Pass::begin(30, ids(100));
    pass.page(None, false);
    floor.advance(&pass, None);
    assert_eq!(floor.get(), 0);
}

#[test]
fn a_pass_confirms_once_nothing_is_left_up_to_the_proofs_last_id() {
    let rounds = after(&[(1, 7, &[]), (2, 20, &[])]);
    let mut pass = Pass::begin(0, rounds.proven());
    let proof = rounds.proven().complete;
    pass.page(Some(10), true);
    assert_eq!(pass.confirms(None), None, "there may be rows up to 20");
    pass.page(Some(20), true);
    assert!(!pass.more() && !pass.saw_the_end(), "more rows come, but they are the next pass's");
    assert_eq!((pass.confirms(Some(20)), pass.confirms(Some(21)), pass.confirms(None)), (None, proof, proof));
    let mut short = Pass::begin(0, rounds.proven());
    short.page(Some(3), false);
    assert_eq!((short.confirms(Some(3)), short.confirms(None)), (None, proof));
    let mut nothing = Pass::begin(0, ids(100));
    nothing.page(None, false);
    assert_eq!(nothing.confirms(None), None);
}
