//! Processes that die, pause and come back in the middle of a workload: the totals are those of the source's own truth.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::PgPool;
use usage_devstack::ClickHouse;
use usage_tests::pipeline::{Options, Pipeline};
use usage_tests::topic;
use usage_tests::workload::{self, Played, Workload};

const PATIENCE: Duration = Duration::from_secs(300);

/// A workload in the background whose progress can be awaited.
struct Playing {
    done: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<anyhow::Result<Played>>,
}

impl Playing {
    fn start(pool: &PgPool, transactions: usize, seed: u64) -> Self {
        let (pool, done) = (pool.clone(), Arc::new(AtomicUsize::new(0)));
        let counter = done.clone();
        let workload = Workload { transactions, seed, workers: 4, ..Workload::default() };
        let task = tokio::spawn(async move {
            workload::play(&pool, &workload::unchecked_collector(), &workload, move || {
                counter.fetch_add(1, Ordering::Relaxed);
            })
            .await
        });
        Self { done, task }
    }

    async fn reached(&self, transactions: usize) {
        let mut every = tokio::time::interval(Duration::from_millis(5));
        while self.done.load(Ordering::Relaxed) < transactions && !self.task.is_finished() {
            every.tick().await;
        }
    }

    async fn end(self) -> anyhow::Result<Played> {
        self.task.await?
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_of_relay_and_consumer_loses_and_doubles_nothing() -> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options::with_kills()).await?;
    let mut running = pipeline.run()?;
    let playing = Playing::start(&pipeline.source, 1_500, 11);
    for step in 1..=4 {
        playing.reached(step * 300).await;
        running.consumer.kill9();
        running.consumer = pipeline.consumer()?;
        running.relay.kill9();
        running.relay = pipeline.relay()?;
    }
    playing.end().await?;
    pipeline.judge(&running.api, PATIENCE).await?;
    assert_eq!(topic::read_all(pipeline.dead_letters_topic())?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_share_and_a_third_joins_and_leaves_under_load() -> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options::default()).await?;
    let mut running = pipeline.run()?;
    let playing = Playing::start(&pipeline.source, 1_500, 12);
    playing.reached(200).await;
    let second = pipeline.consumer()?;
    playing.reached(600).await;
    let mut third = pipeline.consumer()?;
    playing.reached(900).await;
    third.terminate()?;
    playing.reached(1_200).await;
    running.consumer.terminate()?;
    playing.end().await?;
    pipeline.judge(&running.api, PATIENCE).await?;
    assert_eq!(topic::read_all(pipeline.dead_letters_topic())?, []);
    drop(second);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn clickhouse_away_for_a_while_means_waiting() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let mut clickhouse = ClickHouse::start(dir.path())?;
    let options = Options { clickhouse_url: Some(clickhouse.url()), ..Options::default() };
    let pipeline = Pipeline::prepare(options).await?;
    let running = pipeline.run()?;
    let playing = Playing::start(&pipeline.source, 1_200, 13);
    playing.reached(300).await;
    clickhouse.kill9();
    playing.reached(600).await;
    clickhouse.restart()?;
    playing.reached(900).await;
    clickhouse.pause();
    playing.end().await?;
    clickhouse.resume();
    pipeline.judge(&running.api, PATIENCE).await?;
    // Whatever could not be stored for a while waited: none of it became a dead letter.
    assert_eq!(topic::read_all(pipeline.dead_letters_topic())?, []);
    drop(running);
    clickhouse.stop()
}
