//! Requests that come late: a client that gave up leaves its request in the server's socket, where no list shows it.

use std::sync::Arc;
use std::time::Duration;

use super::batches::Maker;
use super::fences::settled_exactly_once;
use super::oracle::Oracle;
use super::proxy::{Freeze, Proxy};
use super::worker::{again, settle, store, take};
use super::{Bench, Server};
use usage_storage::StorageError;

const TRIES: usize = 12;

/// The server stops, a write times out, the server goes on: whether the late request is executed before, during or after the
/// settling, the batch is there once. (Looking before a new epoch was written stored 5 of 25 twice.)
pub async fn a_late_request_is_never_stored_twice(bench: &dyn Bench, server: &dyn Server) {
    let storage = bench.impatient(Duration::from_millis(300), None);
    storage.migrate().await.unwrap();
    let writer = storage.writer();
    let oracle = Oracle::default();
    let mut makers = vec![Maker::new(53, 0, 2)];
    take(&*writer, &[0]).await;
    let mut timeouts = 0;
    for _ in 0..TRIES {
        let batch = makers[0].batch_of_a_month(200);
        oracle.begin(&batch);
        server.pause();
        let written = writer.write(std::slice::from_ref(&batch)).await;
        server.resume();
        match written {
            Ok(()) => {}
            Err(StorageError::Unknown(_)) => {
                timeouts += 1;
                settle(&*writer, std::slice::from_ref(&batch)).await.unwrap();
            }
            Err(error) => panic!("{error:?}"),
        }
        oracle.acknowledge(&batch);
    }
    assert_eq!(timeouts, TRIES, "a stopped server answers nothing");
    settled_exactly_once(bench, &oracle, &makers).await;
    assert_eq!(bench.stored().await.values().sum::<u64>(), 200 * TRIES as u64);
}

/// The same for a flush: its rows are in the rollups once, and the horizon proves it.
pub async fn a_late_flush_is_never_counted_twice(bench: &dyn Bench, server: &dyn Server) {
    let storage = bench.impatient(Duration::from_millis(300), None);
    storage.migrate().await.unwrap();
    let writer = storage.writer();
    let oracle = Oracle::default();
    let mut makers = vec![Maker::new(59, 1, 2)];
    take(&*writer, &[1]).await;
    for round in 0..TRIES {
        let batch = makers[0].batch(50);
        oracle.begin(&batch);
        let stored = writer.write(std::slice::from_ref(&batch)).await;
        if let Err(error) = stored {
            assert!(matches!(error, StorageError::Unknown(_)), "{error:?}");
            settle(&*writer, std::slice::from_ref(&batch)).await.unwrap();
        }
        oracle.acknowledge(&batch);
        server.pause();
        let flushed = writer.tick(&[1]).await;
        server.resume();
        assert!(flushed.unwrap_err().may_pass());
        if round % 2 == 0 {
            // Rows that come before the doubt is resolved must not be taken for flushed ones.
            let batch = makers[0].batch(50);
            oracle.begin(&batch);
            if writer.write(std::slice::from_ref(&batch)).await.is_err() {
                settle(&*writer, std::slice::from_ref(&batch)).await.unwrap();
            }
            oracle.acknowledge(&batch);
        }
        again(|| writer.tick(&[1])).await;
        assert_eq!(bench.rollup_differences().await, Vec::<String>::new());
    }
    settled_exactly_once(bench, &oracle, &makers).await;
}

/// A caller that drops a running write or flush (it gives its partition up and gets it back) can't do harm by going on.
pub async fn dropped_calls_are_in_doubt(bench: &dyn Bench, server: &dyn Server) {
    let storage = bench.storage();
    storage.migrate().await.unwrap();
    let mut proxy = Proxy::start(server.address()).await;
    let writer = bench.impatient(Duration::from_secs(60), Some(proxy.address)).writer();
    let oracle = Oracle::default();
    let mut makers = vec![Maker::new(97, 2, 2)];
    take(&*writer, &[2]).await;
    for freeze in [Freeze::Requests(0), Freeze::Answers] {
        let batch = makers[0].batch(300);
        oracle.begin(&batch);
        proxy.set(freeze);
        let writing = {
            let (writer, batch) = (Arc::clone(&writer), Arc::clone(&batch));
            tokio::spawn(async move { writer.write(&[batch]).await })
        };
        proxy.frozen().await;
        writing.abort();
        assert!(writing.await.unwrap_err().is_cancelled());
        proxy.set(Freeze::Never);
        let second = writer.write(std::slice::from_ref(&batch)).await;
        assert!(matches!(second, Err(StorageError::Unknown(_))), "{freeze:?}: {second:?}");
        settle(&*writer, std::slice::from_ref(&batch)).await.unwrap();
        oracle.acknowledge(&batch);

        proxy.set(freeze);
        let flushing = {
            let writer = Arc::clone(&writer);
            tokio::spawn(async move { writer.tick(&[2]).await })
        };
        proxy.frozen().await;
        flushing.abort();
        assert!(flushing.await.unwrap_err().is_cancelled());
        proxy.set(Freeze::Never);
        again(|| writer.tick(&[2])).await;
        settled_exactly_once(bench, &oracle, &makers).await;
    }
}

/// A write that hangs does not keep its own or other partitions from being rolled up, nor the other way round.
pub async fn a_hanging_write_does_not_stop_flushes(bench: &dyn Bench, server: &dyn Server) {
    let storage = bench.storage();
    storage.migrate().await.unwrap();
    let mut proxy = Proxy::start(server.address()).await;
    let writer = bench.impatient(Duration::from_secs(60), Some(proxy.address)).writer();
    let oracle = Oracle::default();
    let mut makers: Vec<Maker> = [0, 1].map(|partition| Maker::new(101, partition, 2)).into();
    take(&*writer, &[0, 1]).await;
    let first: Vec<_> = makers.iter_mut().map(|maker| maker.batch(100)).collect();
    store(&*writer, &oracle, &first).await.unwrap();
    let large = makers[1].batch_of_a_month(20_000);
    oracle.begin(&large);
    // Far more than a flush of two small batches, and less than the large batch.
    proxy.set(Freeze::Requests(500_000));
    let writing = {
        let (writer, large) = (Arc::clone(&writer), Arc::clone(&large));
        tokio::spawn(async move { writer.write(&[large]).await })
    };
    proxy.frozen().await;
    writer.tick(&[0, 1]).await.unwrap();
    assert!(bench.rollup_keys().await > 0, "both first batches are rolled up");
    assert!(!writing.is_finished());
    let second = makers[0].batch(100);
    store(&*writer, &oracle, &[second]).await.unwrap();
    proxy.set(Freeze::Never);
    if writing.await.unwrap().is_err() {
        settle(&*writer, std::slice::from_ref(&large)).await.unwrap();
    }
    oracle.acknowledge(&large);
    settled_exactly_once(bench, &oracle, &makers).await;
    writer.tick(&[0, 1]).await.unwrap();
    settled_exactly_once(bench, &oracle, &makers).await;
}

/// The first month is stored and answered, the second one's request is lost on its way: settling sends exactly what is missing, and
/// the late request finds a higher epoch.
pub async fn a_batch_of_two_months_with_a_write_error_between_them(bench: &dyn Bench, server: &dyn Server) {
    bench.storage().migrate().await.unwrap();
    let mut proxy = Proxy::start(server.address()).await;
    let writer = bench.impatient(Duration::from_secs(5), Some(proxy.address)).writer();
    let oracle = Oracle::default();
    let mut makers = vec![Maker::new(109, 0, 2)];
    take(&*writer, &[0]).await;
    for round in 1..=3 {
        let batch = makers[0].batch(300);
        oracle.begin(&batch);
        proxy.set(Freeze::SecondRequest);
        let written = writer.write(std::slice::from_ref(&batch)).await;
        assert!(matches!(written, Err(StorageError::Unknown(_))), "{written:?}");
        proxy.frozen().await;
        let months = |stored: super::Stored| {
            stored.into_keys().filter(|(_, batch_seq, _)| *batch_seq == batch.batch_seq).count()
        };
        assert_eq!(months(bench.stored().await), 1, "the first month is stored");
        proxy.set(Freeze::Never);
        settle(&*writer, std::slice::from_ref(&batch)).await.unwrap();
        oracle.acknowledge(&batch);
        let stored = bench.stored().await;
        assert_eq!(stored.values().sum::<u64>(), 300 * round);
        assert_eq!(months(stored), 2);
        again(|| writer.tick(&[0])).await;
        settled_exactly_once(bench, &oracle, &makers).await;
    }
}
