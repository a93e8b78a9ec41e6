//! SIGKILL at every fail point: whoever comes next finishes what was begun, exactly once.

mod support;

use support::lanes::{Lane, in_lanes};
use support::points::{self, Visit};
use support::{eventually, logs};

/// A worker dies at the point while it works on a slice.
async fn at_work(lane: &mut Lane, visit: Visit) {
    lane.send().await;
    lane.armed(&visit.armed("kill")).died().await;
    lane.finish(visit.point).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_51_a_worker_dies_while_it_decides_or_commits() {
    logs();
    in_lanes(points::DECIDING, at_work).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_2_a_worker_dies_while_it_ships() {
    logs();
    in_lanes(points::SHIPPING, at_work).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_dies_while_it_takes_over_from_one_that_died() {
    logs();
    in_lanes(points::TAKING_OVER, async |lane: &mut Lane, visit: Visit| {
        lane.send().await;
        lane.armed("consumer.planned=kill").died().await;
        lane.armed(&visit.armed("kill")).died().await;
        lane.finish(visit.point).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_dies_while_it_stops() {
    logs();
    in_lanes(points::STOPPING, async |lane: &mut Lane, visit: Visit| {
        let worker = lane.armed(&visit.armed("kill"));
        lane.send().await;
        eventually("something is stored", || async { lane.pipeline.stored_rows().await > 0 }).await;
        worker.terminate();
        worker.died().await;
        lane.finish(visit.point).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_dies_while_storage_refuses_rows() {
    logs();
    let visits: Vec<Visit> = points::REFUSING.iter().chain(points::REFUSING_A_PLAN).copied().collect();
    in_lanes(&visits, async |lane: &mut Lane, visit: Visit| {
        refuse_rows(lane).await;
        lane.send().await;
        if points::REFUSING_A_PLAN.contains(&visit) {
            lane.armed("consumer.planned=kill").died().await;
        }
        lane.armed(&visit.armed("kill")).died().await;
        lane.finish(visit.point).await;
    })
    .await;
}

async fn refuse_rows(lane: &mut Lane) {
    lane.pipeline.refuse_rows().await;
    lane.workload.be_picky();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_dies_in_the_callback_that_revokes() {
    logs();
    in_lanes(points::REVOKED, async |lane: &mut Lane, visit: Visit| {
        let worker = lane.armed(&visit.armed("kill"));
        lane.send().await;
        eventually("something is stored", || async { lane.pipeline.stored_rows().await > 0 }).await;
        let other = lane.worker();
        worker.died().await;
        lane.pipeline.settled().await;
        other.stop().await;
        lane.check(visit.point).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_dies_in_the_callback_that_says_that_its_partitions_are_lost() {
    logs();
    in_lanes(points::LOST, async |lane: &mut Lane, visit: Visit| {
        lane.send().await;
        let zombie = lane.armed(&format!("consumer.planned=stop@1;{}", visit.armed("kill")));
        zombie.froze().await;
        let other = lane.worker();
        lane.pipeline.settled().await;
        zombie.resume();
        zombie.died().await;
        lane.send().await;
        lane.pipeline.settled().await;
        other.stop().await;
        lane.check(visit.point).await;
    })
    .await;
}

#[test]
fn every_fail_point_is_visited() {
    let mut found = Vec::new();
    for sources in ["src", "../crates/storage/src", "../crates/control/src"] {
        support::sources::fail_points(sources.as_ref(), &mut found);
    }
    assert!(found.len() > 30, "{found:?}");
    let mut known: Vec<&str> = points::all().map(|visit| visit.point).collect();
    known.sort_unstable();
    known.dedup();
    found.sort_unstable();
    assert_eq!(found, known, "each point of the sources is in `points.rs`, and stands there once");
}
