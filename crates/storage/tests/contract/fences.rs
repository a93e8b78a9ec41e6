//! Who owns a partition: former owners can't store anything, whatever they were in the middle of.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use usage_storage::StorageError;

use super::batches::Maker;
use super::oracle::{Checking, Oracle, ask};
use super::proxy::{Freeze, Proxy};
use super::worker::{Way, again, settle, store, take};
use super::{Bench, Server};

fn partitions_of(error: StorageError) -> Vec<i32> {
    match error {
        StorageError::Fenced { mut partitions } => {
            partitions.sort_unstable();
            partitions
        }
        other => panic!("not fenced but {other:?}"),
    }
}

/// A writer whose partition was taken is fenced at once in everything it does, and leaves no row.
pub async fn a_stale_writer_is_fenced(bench: &dyn Bench) {
    let (storage, other) = (bench.storage(), bench.storage());
    storage.migrate().await.unwrap();
    let (stale, owner) = (storage.writer(), other.writer());
    let oracle = Oracle::default();
    let mut maker = Maker::new(31, 3, 2);
    take(&*stale, &[3]).await;
    store(&*stale, &oracle, &[maker.batch(100)]).await.unwrap();
    let opened = owner.open(3).await.unwrap();
    assert_eq!(opened.last_batch_seq, 1);

    let late = maker.batch(100);
    let before = bench.stored().await;
    assert_eq!(partitions_of(stale.write(std::slice::from_ref(&late)).await.unwrap_err()), [3]);
    assert_eq!(partitions_of(stale.settle(std::slice::from_ref(&late)).await.unwrap_err()), [3]);
    for _ in 0..2 {
        assert_eq!(partitions_of(stale.tick(&[3]).await.unwrap_err()), [3]);
    }
    assert_eq!(partitions_of(stale.close(3, true).await.unwrap_err()), [3]);
    assert_eq!(bench.stored().await, before, "it left no row");
    assert_eq!(bench.rollup_keys().await, 0, "nor rolled anything up");

    // All that did not disturb the new owner.
    owner.recover(3).await.unwrap();
    assert_eq!(store(&*owner, &oracle, &[late]).await.unwrap(), Way::Written);
    owner.tick(&[3]).await.unwrap();
    for tenant in &maker.tenants {
        assert_eq!(ask(&*other.reader(), *tenant).await.unwrap(), oracle.expected(*tenant));
    }
    assert_eq!(bench.rollup_differences().await, Vec::<String>::new());
}

/// Owners who are in the middle of anything, raising their own epochs too, while somebody fences them all and takes nothing over.
pub async fn a_fence_for_nobody_stops_every_owner(bench: &dyn Bench) {
    let (storage, other, operator) = (bench.storage(), bench.storage(), bench.storage());
    storage.migrate().await.unwrap();
    let operator = operator.writer();
    let owners = [(storage.writer(), 0), (other.writer(), 1)];
    let mut makers = [0, 1].map(|partition| Maker::new(43, partition, 2));
    for round in 0..4 {
        for (owner, partition) in &owners {
            take(&**owner, &[*partition]).await;
        }
        let work = owners.iter().zip(&mut makers).map(|((owner, partition), maker)| async move {
            loop {
                let batch = maker.batch(20);
                // Settled in any case: that raises the owner's epoch.
                let stored = match owner.write(std::slice::from_ref(&batch)).await {
                    Ok(()) | Err(StorageError::Unknown(_)) => owner.settle(&[batch]).await,
                    Err(error) => Err(error),
                };
                match stored {
                    Ok(()) => {}
                    Err(error) if error.may_pass() => {}
                    Err(error) => return (partitions_of(error), vec![*partition]),
                }
            }
        });
        let fence = async {
            // A little later in each round.
            for _ in 0..round {
                bench.stored().await;
            }
            again(|| operator.fence(&[0, 1, 2])).await;
            bench.stored().await
        };
        let (ends, after) = tokio::join!(futures::future::join_all(work), fence);
        for (fenced, own) in ends {
            assert_eq!(fenced, own);
        }
        assert_eq!(bench.stored().await, after, "nothing more was stored once the fence stood");
    }
}

/// An insert that carries several partitions is refused as a whole if one of them was taken; the others go on.
pub async fn a_joint_insert_is_fenced_as_a_whole(bench: &dyn Bench) {
    let (storage, other) = (bench.storage(), bench.storage());
    storage.migrate().await.unwrap();
    let (stale, owner) = (storage.writer(), other.writer());
    let mut makers: Vec<Maker> = [0, 1, 2].map(|partition| Maker::new(37, partition, 1)).into();
    take(&*stale, &[0, 1, 2]).await;
    take(&*owner, &[1]).await;
    let batches: Vec<_> = makers.iter_mut().map(|maker| maker.batch(60)).collect();
    assert_eq!(partitions_of(stale.write(&batches).await.unwrap_err()), [1]);
    assert!(bench.stored().await.is_empty());
    let oracle = Oracle::default();
    let rest = [Arc::clone(&batches[0]), Arc::clone(&batches[2])];
    assert!(
        matches!(stale.write(&rest).await, Err(StorageError::Unknown(_))),
        "a doubt is settled, never written over"
    );
    rest.iter().for_each(|batch| oracle.begin(batch));
    assert_eq!(settle(&*stale, &rest).await.unwrap(), 1);
    rest.iter().for_each(|batch| oracle.acknowledge(batch));
    store(&*owner, &oracle, &[Arc::clone(&batches[1])]).await.unwrap();
    for maker in &makers {
        assert_eq!(
            ask(&*storage.reader(), maker.tenants[0]).await.unwrap(),
            oracle.expected(maker.tenants[0])
        );
    }
}

/// While one worker writes two partitions together, another takes one of them over, at any moment of the insert; each batch is
/// there exactly once in the end, and every answer in between is right.
pub async fn a_takeover_ends_joint_inserts(bench: &dyn Bench) {
    let first = bench.storage();
    first.migrate().await.unwrap();
    let oracle = Oracle::default();
    let mut makers: Vec<Maker> = [0, 1].map(|partition| Maker::new(41, partition, 1)).into();
    let tenants: Vec<_> = makers.iter().map(|maker| maker.tenants[0]).collect();
    let checking = Checking::start(&oracle, &first, &tenants);
    let mut rng = StdRng::seed_from_u64(41);
    let mut holder = bench.storage().writer();
    take(&*holder, &[0, 1]).await;
    let started = Instant::now();
    store(&*holder, &oracle, &makers.iter_mut().map(|maker| maker.batch(3_000)).collect::<Vec<_>>())
        .await
        .unwrap();
    let mut usual = started.elapsed();
    let (mut interrupted, mut rounds) = (0, 0);
    // How long an insert takes changes: until one was met in its middle.
    while rounds < 8 || interrupted == 0 {
        rounds += 1;
        assert!(rounds < 100, "no takeover came in the middle of an insert");
        let batches: Vec<_> = makers.iter_mut().map(|maker| maker.batch(3_000)).collect();
        batches.iter().for_each(|batch| oracle.begin(batch));
        let writing = {
            let (holder, batches) = (Arc::clone(&holder), batches.clone());
            tokio::spawn(async move { holder.write(&batches).await })
        };
        tokio::time::sleep(usual.mul_f64(rng.random_range(0.0..1.2))).await;
        let taker = bench.storage().writer();
        // The plan of partition 0 is in the commit: the new owner carries it out.
        again(|| taker.open(0)).await;
        settle(&*taker, &batches[..1]).await.unwrap();
        oracle.acknowledge(&batches[0]);
        again(|| taker.recover(0)).await;
        match writing.await.unwrap() {
            Ok(()) => usual = usual.mul_f64(0.8),
            Err(error) => {
                interrupted += 1;
                assert!(matches!(error, StorageError::Unknown(_) | StorageError::Fenced { .. }), "{error:?}");
                let both = holder.settle(&batches).await;
                assert_eq!(partitions_of(both.unwrap_err()), [0]);
                settle(&*holder, &batches[1..]).await.unwrap();
            }
        }
        oracle.acknowledge(&batches[1]);
        taker.tick(&[0]).await.unwrap();
        holder.tick(&[1]).await.unwrap();
        take(&*taker, &[1]).await;
        holder = taker;
    }
    assert!(checking.finish().await > 0);
    settled_exactly_once(bench, &oracle, &makers).await;
}

/// A worker that froze in the middle of an insert: the next owner does not wait for long, and nothing of it appears later.
pub async fn a_frozen_writer_stores_nothing_later(bench: &dyn Bench, server: &dyn Server) {
    let storage = bench.storage();
    storage.migrate().await.unwrap();
    let mut proxy = Proxy::start(server.address()).await;
    let oracle = Oracle::default();
    let mut makers = vec![Maker::new(43, 0, 1)];
    // In the headers, in a body that the server has not begun to look at, in one that it works on, and before the answer.
    for freeze in
        [Freeze::Requests(0), Freeze::Requests(60_000), Freeze::Requests(1_500_000), Freeze::Answers]
    {
        let zombie = bench.impatient(Duration::from_secs(60), Some(proxy.address)).writer();
        take(&*zombie, &[0]).await;
        let batch = makers[0].batch_of_a_month(20_000);
        oracle.begin(&batch);
        proxy.set(freeze);
        let writing = {
            let (zombie, batch) = (Arc::clone(&zombie), Arc::clone(&batch));
            tokio::spawn(async move { zombie.write(&[batch]).await })
        };
        proxy.frozen().await;
        let owner = storage.writer();
        let started = Instant::now();
        again(|| owner.open(0)).await;
        // By the server's own settings it would wait for half a minute.
        assert!(started.elapsed() < Duration::from_secs(28), "{freeze:?}: {:?}", started.elapsed());
        settle(&*owner, std::slice::from_ref(&batch)).await.unwrap();
        oracle.acknowledge(&batch);
        again(|| owner.recover(0)).await;
        proxy.set(Freeze::Never);
        match writing.await.unwrap() {
            // The answer was on its way: the insert was done before the takeover.
            Ok(()) => assert_eq!(freeze, Freeze::Answers),
            Err(StorageError::Unknown(_) | StorageError::Fenced { .. }) => {}
            Err(error) => panic!("{freeze:?}: {error:?}"),
        }
        owner.tick(&[0]).await.unwrap();
        settled_exactly_once(bench, &oracle, &makers).await;
    }
}

/// Every answer is what was acknowledged, and the rollups agree with the records key by key.
pub async fn settled_exactly_once(bench: &dyn Bench, oracle: &Oracle, makers: &[Maker]) {
    let reader = bench.storage().reader();
    for tenant in makers.iter().flat_map(|maker| &maker.tenants) {
        assert_eq!(ask(&*reader, *tenant).await.unwrap(), oracle.expected(*tenant));
    }
    assert_eq!(bench.rollup_differences().await, Vec::<String>::new());
}
