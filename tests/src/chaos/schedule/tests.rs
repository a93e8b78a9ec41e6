use std::collections::BTreeSet;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_seed_is_a_schedule() {
    assert_eq!(plan(7, 5 * MINUTE, &Kind::ALL), plan(7, 5 * MINUTE, &Kind::ALL));
    assert_ne!(plan(7, 5 * MINUTE, &Kind::ALL), plan(8, 5 * MINUTE, &Kind::ALL));
}

#[test]
fn a_longer_run_begins_like_a_shorter_one() {
    let (short, long) = (plan(3, MINUTE, &Kind::ALL), plan(3, 5 * MINUTE, &Kind::ALL));
    assert_eq!(long[..short.len()], short[..]);
    assert!(long.len() > 3 * short.len(), "{} and {}", short.len(), long.len());
}

#[test]
fn faults_come_every_few_seconds_until_the_end() {
    for seed in 0..50 {
        let steps = plan(seed, MINUTE, &Kind::ALL);
        assert!(steps[0].at < Duration::from_secs(4));
        for pair in steps.windows(2) {
            let gap = pair[1].at - pair[0].at;
            assert!((2_000..5_000).contains(&gap.as_millis()), "{gap:?}");
        }
        let last = steps[steps.len() - 1].at;
        assert!(last < MINUTE && last > MINUTE - Duration::from_secs(5), "{last:?}");
    }
}

#[test]
fn each_kind_has_its_turn_within_a_minute() {
    for seed in 0..200 {
        let seen: BTreeSet<Kind> =
            plan(seed, MINUTE, &Kind::ALL).iter().map(|step| step.fault.kind()).collect();
        assert_eq!(seen.len(), Kind::ALL.len(), "seed {seed}: {seen:?}");
    }
}

#[test]
fn only_the_kinds_that_were_asked_for_come() {
    let steps = plan(1, 5 * MINUTE, &[Kind::Kill, Kind::Disk]);
    assert!(steps.len() > 60);
    assert!(steps.iter().all(|step| [Kind::Kill, Kind::Disk].contains(&step.fault.kind())));
    assert_eq!(plan(1, 5 * MINUTE, &[]), []);
    // Growing alone happens once: there is nothing else to draw.
    assert_eq!(plan(1, 5 * MINUTE, &[Kind::Grow]).len(), 1);
}

#[test]
fn every_process_and_every_link_is_hit_by_some_seed() {
    let mut killed = BTreeSet::new();
    let mut broken = BTreeSet::new();
    for seed in 0..100 {
        for step in plan(seed, 5 * MINUTE, &Kind::ALL) {
            match step.fault {
                Fault::Kill(actor) => drop(killed.insert(actor)),
                Fault::Network { link, .. } => drop(broken.insert(link)),
                _ => {}
            }
        }
    }
    assert_eq!(killed.into_iter().collect::<Vec<_>>(), actors());
    assert_eq!(broken.len(), links().len());
}

#[test]
fn a_step_says_what_it_does_and_to_whom() {
    let fault = Fault::Network {
        link: Link(Actor::Consumer(1), Server::ClickHouse),
        bad: Bad::NoAnswers,
        lasts: Duration::from_secs(4),
        after: After::Lost,
    };
    assert_eq!(fault.to_string(), "no answers of clickhouse to consumer-1 for 4.0s, what was sent is lost");
    assert_eq!(Fault::Clock { hours: 2, lasts: MINUTE }.to_string(), "the source's clock +2 h for 60.0s");
}

#[test]
fn what_stops_everything_leaves_time_for_the_rest() {
    for seed in 0..50 {
        let steps = plan(seed, 5 * MINUTE, &Kind::ALL);
        for kind in [Kind::Kafka, Kind::Reset] {
            let times: Vec<Duration> =
                steps.iter().filter(|step| step.fault.kind() == kind).map(|step| step.at).collect();
            assert!(!times.is_empty());
            assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_secs(30)), "seed {seed}");
        }
    }
    assert_eq!(plan(1, MINUTE, &[Kind::Kafka]).len(), 2);
}
