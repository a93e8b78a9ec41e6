//! kill -9 of the server in the middle of writes and flushes, with readers that check every answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use usage_storage::StorageError;

use super::batches::Maker;
use super::fences::settled_exactly_once;
use super::oracle::{Checking, Oracle};
use super::verifying::Verifying;
use super::worker::{again, settle, store, take};
use super::{Bench, Server};

/// Kills at random moments of a joint write; afterwards the same worker settles, or another takes over and carries the plan out.
pub async fn killed_in_the_middle_of_writes(bench: &dyn Bench, server: &mut dyn Server, rounds: usize) {
    let storage = bench.storage();
    storage.migrate().await.unwrap();
    let oracle = Oracle::default();
    let mut makers: Vec<Maker> = [0, 1].map(|partition| Maker::new(61, partition, 1)).into();
    let tenants: Vec<_> = makers.iter().map(|maker| maker.tenants[0]).collect();
    let mut writer = bench.storage().writer();
    take(&*writer, &[0, 1]).await;
    let started = Instant::now();
    store(&*writer, &oracle, &makers.iter_mut().map(|maker| maker.batch(4_000)).collect::<Vec<_>>())
        .await
        .unwrap();
    let mut usual = started.elapsed();
    let checking = Checking::start(&oracle, &storage, &tenants);
    let verifying = Verifying::start(&storage);
    let mut rng = StdRng::seed_from_u64(61);
    let (mut unknown, mut round) = (0, 0);
    // How long a write takes changes: until one was met in its middle.
    while round < rounds || unknown == 0 {
        round += 1;
        assert!(round < 10 * rounds, "no kill came in the middle of a write");
        let batches: Vec<_> = makers.iter_mut().map(|maker| maker.batch(4_000)).collect();
        batches.iter().for_each(|batch| oracle.begin(batch));
        let writing = {
            let (writer, batches) = (Arc::clone(&writer), batches.clone());
            tokio::spawn(async move { writer.write(&batches).await })
        };
        tokio::time::sleep(usual.mul_f64(rng.random_range(0.05..1.1))).await;
        server.kill();
        server.restart();
        match writing.await.unwrap() {
            Ok(()) => usual = usual.mul_f64(0.8),
            Err(StorageError::Unavailable(_)) => {
                store(&*writer, &Oracle::default(), &batches).await.unwrap();
            }
            Err(StorageError::Unknown(_)) => {
                unknown += 1;
                if rng.random_bool(0.5) {
                    writer = bench.storage().writer();
                    for partition in [0, 1] {
                        again(|| writer.open(partition)).await;
                    }
                    settle(&*writer, &batches).await.unwrap();
                    for partition in [0, 1] {
                        again(|| writer.recover(partition)).await;
                    }
                } else {
                    settle(&*writer, &batches).await.unwrap();
                }
            }
            Err(error) => panic!("{error:?}"),
        }
        batches.iter().for_each(|batch| oracle.acknowledge(batch));
        if rng.random_bool(0.3) {
            again(|| writer.tick(&[0, 1])).await;
        }
    }
    assert!(checking.finish().await > 0);
    assert!(verifying.finish().await > 0);
    again(|| writer.tick(&[0, 1])).await;
    settled_exactly_once(bench, &oracle, &makers).await;
}

/// Kills at random moments of a flush; afterwards the same worker proves it, or another rebuilds from the records.
pub async fn killed_in_the_middle_of_flushes(bench: &dyn Bench, server: &mut dyn Server, rounds: usize) {
    let storage = bench.storage();
    storage.migrate().await.unwrap();
    let oracle = Oracle::default();
    let mut makers: Vec<Maker> = [0, 1].map(|partition| Maker::new(67, partition, 1)).into();
    let tenants: Vec<_> = makers.iter().map(|maker| maker.tenants[0]).collect();
    let mut writer = bench.storage().writer();
    take(&*writer, &[0, 1]).await;
    let checking = Checking::start(&oracle, &storage, &tenants);
    let verifying = Verifying::start(&storage);
    let mut rng = StdRng::seed_from_u64(67);
    let mut usual = Duration::ZERO;
    let (mut doubtful, mut proved, mut round) = (0, 0, 0);
    while round < rounds || doubtful == 0 {
        round += 1;
        assert!(round < 10 * rounds, "no kill came in the middle of a flush ({proved} were proved)");
        let batches: Vec<_> = makers.iter_mut().map(|maker| maker.batch(500)).collect();
        store(&*writer, &oracle, &batches).await.unwrap();
        if round == 1 {
            let started = Instant::now();
            writer.tick(&[0, 1]).await.unwrap();
            usual = started.elapsed();
            continue;
        }
        let flushing = {
            let writer = Arc::clone(&writer);
            tokio::spawn(async move { writer.tick(&[0, 1]).await })
        };
        tokio::time::sleep(usual.mul_f64(rng.random_range(0.05..1.1))).await;
        server.kill();
        server.restart();
        match flushing.await.unwrap() {
            Ok(()) => {
                proved += 1;
                usual = usual.mul_f64(0.8);
            }
            Err(error) => {
                assert!(error.may_pass(), "{error:?}");
                doubtful += 1;
            }
        }
        if rng.random_bool(0.5) {
            writer = bench.storage().writer();
            take(&*writer, &[0, 1]).await;
        }
        again(|| writer.tick(&[0, 1])).await;
        assert_eq!(bench.rollup_differences().await, Vec::<String>::new());
    }
    assert!(checking.finish().await > 0);
    assert!(verifying.finish().await > 0);
    settled_exactly_once(bench, &oracle, &makers).await;
}
