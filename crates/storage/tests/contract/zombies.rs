//! A worker that stops at a certain point and wakes up after its partition was taken: nothing of it appears, whatever it goes on
//! with.

use std::sync::Arc;
use std::time::Duration;

use usage_storage::{PlannedBatch, StorageError, Writer};

use super::batches::Maker;
use super::fences::settled_exactly_once;
use super::oracle::Oracle;
use super::proxy::{Freeze, Proxy};
use super::worker::{again, settle, store, take};
use super::{Bench, Server};

/// Where the worker stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// In a write, at this point of its requests or answers.
    Write(Freeze),
    /// In a flush.
    Flush(Freeze),
    /// Between two calls.
    AfterFlush,
    /// The partition is fenced, the plan is not carried out.
    AfterFence,
}

/// Before the insert; half of the first body sent (the server has begun, or has not); sent without an answer; between two months;
/// before, half-way and at the end of the flush; after the flush; after the fence.
const STOPS: [Stop; 10] = [
    Stop::Write(Freeze::Requests(0)),
    Stop::Write(Freeze::Requests(60_000)),
    Stop::Write(Freeze::Requests(900_000)),
    Stop::Write(Freeze::Answers),
    Stop::Write(Freeze::SecondRequest),
    Stop::Flush(Freeze::Requests(0)),
    Stop::Flush(Freeze::Requests(20_000)),
    Stop::Flush(Freeze::Answers),
    Stop::AfterFlush,
    Stop::AfterFence,
];

pub async fn zombies_of_every_stop_point_store_nothing(bench: &dyn Bench, server: &dyn Server) {
    let storage = bench.storage();
    storage.migrate().await.unwrap();
    let mut proxy = Proxy::start(server.address()).await;
    let oracle = Oracle::default();
    let mut makers = vec![Maker::new(113, 0, 1)];
    // Many metrics make flushes large.
    makers[0].metrics = (0..200).map(|i| format!("metric.{i}")).collect();
    for stop in STOPS {
        let zombie = bench.impatient(Duration::from_secs(120), Some(proxy.address)).writer();
        take(&*zombie, &[0]).await;
        store(&*zombie, &oracle, &[makers[0].batch(3_000)]).await.unwrap();
        // The plan that is committed when it stops.
        let plan =
            makers[0].batch(if stop == Stop::Write(Freeze::Requests(900_000)) { 20_000 } else { 3_000 });
        oracle.begin(&plan);
        let stopped = {
            let (zombie, plan) = (Arc::clone(&zombie), Arc::clone(&plan));
            match stop {
                Stop::Write(freeze) => {
                    proxy.set(freeze);
                    Some(tokio::spawn(async move { zombie.write(&[plan]).await }))
                }
                Stop::Flush(freeze) => {
                    proxy.set(freeze);
                    Some(tokio::spawn(async move { zombie.tick(&[0]).await }))
                }
                Stop::AfterFlush => {
                    zombie.tick(&[0]).await.unwrap();
                    None
                }
                Stop::AfterFence => {
                    zombie.open(0).await.unwrap();
                    None
                }
            }
        };
        if stopped.is_some() {
            proxy.frozen().await;
        }
        let owner = storage.writer();
        again(|| owner.open(0)).await;
        settle(&*owner, std::slice::from_ref(&plan)).await.unwrap();
        oracle.acknowledge(&plan);
        again(|| owner.recover(0)).await;
        let before = bench.stored().await;
        proxy.set(Freeze::Never);
        if let Some(stopped) = stopped {
            match stopped.await.unwrap() {
                // Its answer was on the way: it was done before the takeover.
                Ok(()) => {
                    assert!(
                        matches!(stop, Stop::Write(Freeze::Answers) | Stop::Flush(Freeze::Answers)),
                        "{stop:?}"
                    );
                }
                Err(error) => assert!(
                    matches!(&error, StorageError::Fenced { .. }) || error.may_pass(),
                    "{stop:?}: {error:?}"
                ),
            }
        }
        goes_on(&*zombie, &plan, stop).await;
        assert_eq!(bench.stored().await, before, "{stop:?}: it left a row");
        // It did not fence the owner either.
        store(&*owner, &oracle, &[makers[0].batch(500)]).await.unwrap();
        owner.tick(&[0]).await.unwrap();
        settled_exactly_once(bench, &oracle, &makers).await;
    }
}

/// Everything that a worker could do next is refused, or does nothing.
async fn goes_on(zombie: &dyn Writer, plan: &Arc<PlannedBatch>, stop: Stop) {
    let plans = std::slice::from_ref(plan);
    let written = zombie.write(plans).await;
    // It may know already that the batch is done, or in doubt.
    assert!(
        matches!(
            written,
            Err(StorageError::Fenced { .. } | StorageError::Unknown(_) | StorageError::Inconsistent(_))
        ),
        "{stop:?}: {written:?}"
    );
    for result in [zombie.settle(plans).await, zombie.settle(plans).await] {
        assert!(matches!(result, Err(StorageError::Fenced { .. })), "{stop:?}: {result:?}");
    }
    // What it has in memory it can't roll up; with nothing in hand there is nothing to refuse.
    for result in [zombie.tick(&[0]).await, zombie.close(0, true).await] {
        assert!(matches!(result, Ok(()) | Err(StorageError::Fenced { .. })), "{stop:?}: {result:?}");
    }
}

/// A fence whose insert is held up until another worker has taken the partition. Whichever epoch is the higher one, the other is
/// shut out at its next write, takes the partition over again, and every batch is there once.
pub async fn a_late_fence_costs_a_takeover_and_nothing_else(bench: &dyn Bench, server: &dyn Server) {
    let storage = bench.storage();
    storage.migrate().await.unwrap();
    let mut proxy = Proxy::start(server.address()).await;
    let late_storage = bench.impatient(Duration::from_secs(120), Some(proxy.address));
    let oracle = Oracle::default();
    let mut makers = vec![Maker::new(127, 0, 2)];
    let (mut first, mut again_taken) = (0, 0);
    // Epochs are random within a step: both cases come.
    for _ in 0..12 {
        let late = late_storage.writer();
        // The highest epoch is read, the insert of the next one does not begin.
        proxy.set(Freeze::SecondRequest);
        let opening = {
            let late = Arc::clone(&late);
            tokio::spawn(async move { late.open(0).await })
        };
        proxy.frozen().await;
        let owner = storage.writer();
        take(&*owner, &[0]).await;
        store(&*owner, &oracle, &[makers[0].batch(20)]).await.unwrap();
        proxy.set(Freeze::Never);
        // The group gave the partition to the owner: the late one has no plan to carry out, but a client that goes on.
        opening.await.unwrap().unwrap();
        let batch = makers[0].batch(20);
        oracle.begin(&batch);
        match owner.write(std::slice::from_ref(&batch)).await {
            Ok(()) => first += 1,
            Err(StorageError::Fenced { .. }) => {
                again_taken += 1;
                again(|| owner.open(0)).await;
                settle(&*owner, std::slice::from_ref(&batch)).await.unwrap();
                again(|| owner.recover(0)).await;
            }
            Err(error) => panic!("{error:?}"),
        }
        oracle.acknowledge(&batch);
        let before = bench.stored().await;
        let refused = late.settle(std::slice::from_ref(&batch)).await;
        assert!(matches!(refused, Err(StorageError::Fenced { .. })), "{refused:?}");
        assert_eq!(bench.stored().await, before);
        owner.tick(&[0]).await.unwrap();
        settled_exactly_once(bench, &oracle, &makers).await;
    }
    assert!(first > 0 && again_taken > 0, "both orders of the epochs: {first}, {again_taken}");
}
