//! SIGSTOP at every fail point, past the session's end: another worker takes over and goes on, then the zombie wakes up. It moves no
//! offset back, leaves no row, and its dead letters are the same by identity.

mod support;

use support::lanes::{Lane, in_lanes};
use support::points::{self, Visit};
use support::{Process, eventually, logs};

/// The zombie wakes up beside the worker that has done its work, and goes on as a member among others.
async fn wakes_up(lane: &mut Lane, zombie: &Process, when: &str) {
    let other = lane.worker();
    let before = lane.pipeline.settled().await;
    lane.workload.check(&lane.pipeline, when).await;
    let assigned = zombie.log_count("event=\"assigned\"");
    zombie.resume();
    eventually(&format!("{when}: it is a member again, see {}", zombie.log.display()), || async {
        zombie.log_count("event=\"assigned\"") > assigned
    })
    .await;
    assert!(not_back(&before, &lane.pipeline.offsets().await), "{when}: it moved an offset back");
    lane.send().await;
    let after = lane.pipeline.settled().await;
    assert!(not_back(&before, &after), "{when}: it moved an offset back");
    other.stop().await;
}

fn not_back(before: &[i64], after: &[i64]) -> bool {
    before.iter().zip(after).all(|(before, after)| before <= after)
}

async fn at_work(lane: &mut Lane, visit: Visit) {
    lane.send().await;
    freezes(lane, visit).await;
}

/// A worker freezes at the point while it works on what is in the log.
async fn freezes(lane: &mut Lane, visit: Visit) {
    let zombie = lane.armed(&visit.armed("stop"));
    zombie.froze().await;
    wakes_up(lane, &zombie, visit.point).await;
    zombie.stop().await;
    lane.check(visit.point).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_freezes_while_it_decides_or_commits() {
    logs();
    in_lanes(points::DECIDING, at_work).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_freezes_while_it_ships() {
    logs();
    in_lanes(points::SHIPPING, at_work).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_freezes_while_it_takes_over_from_one_that_died() {
    logs();
    in_lanes(points::TAKING_OVER, async |lane: &mut Lane, visit: Visit| {
        lane.send().await;
        lane.armed("consumer.planned=kill").died().await;
        freezes(lane, visit).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_freezes_while_it_stops() {
    logs();
    in_lanes(points::STOPPING, async |lane: &mut Lane, visit: Visit| {
        let zombie = lane.armed(&visit.armed("stop"));
        lane.send().await;
        eventually("something is stored", || async { lane.pipeline.stored_rows().await > 0 }).await;
        zombie.terminate();
        zombie.froze().await;
        let other = lane.worker();
        let before = lane.pipeline.settled().await;
        zombie.resume();
        // It may have been frozen for longer than it has to stop.
        zombie.gone().await;
        lane.send().await;
        let after = lane.pipeline.settled().await;
        assert!(not_back(&before, &after), "{}: it moved an offset back", visit.point);
        other.stop().await;
        lane.check(visit.point).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_freezes_while_storage_refuses_rows() {
    logs();
    let visits: Vec<Visit> = points::REFUSING.iter().chain(points::REFUSING_A_PLAN).copied().collect();
    in_lanes(&visits, async |lane: &mut Lane, visit: Visit| {
        lane.pipeline.refuse_rows().await;
        lane.workload.be_picky();
        lane.send().await;
        if points::REFUSING_A_PLAN.contains(&visit) {
            lane.armed("consumer.planned=kill").died().await;
        }
        freezes(lane, visit).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_freezes_in_the_callback_that_revokes() {
    logs();
    in_lanes(points::REVOKED, async |lane: &mut Lane, visit: Visit| {
        let zombie = lane.armed(&visit.armed("stop"));
        lane.send().await;
        eventually("something is stored", || async { lane.pipeline.stored_rows().await > 0 }).await;
        let joined = lane.worker();
        zombie.froze().await;
        wakes_up(lane, &zombie, visit.point).await;
        zombie.stop().await;
        joined.stop().await;
        lane.check(visit.point).await;
    })
    .await;
}
