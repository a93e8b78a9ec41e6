//! An hour of production, played as `cargo xtask demo --trace` plays it; the totals are those that the data set's page states.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use usage_producer::Freshness;
use usage_tests::pipeline::{Options, Pipeline, RANGE};
use usage_tests::{source, trace, workload};

/// The trace is not part of the project: `$USAGE_TRACE_FILE`, or beside the checkout.
fn trace_file() -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/azure_llm_inference_conv_2023.csv");
    let path = std::env::var_os("USAGE_TRACE_FILE").map_or_else(|| beside.into(), PathBuf::from);
    path.is_file().then_some(path)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_hour_of_production_adds_up_although_the_consumer_is_killed() -> anyhow::Result<()> {
    let Some(path) = trace_file() else {
        eprintln!("the trace is not here: nothing to play");
        return Ok(());
    };
    let requests = trace::read(&path)?;
    assert_eq!(requests.len(), 19_366);
    let pipeline = Pipeline::prepare(Options::with_kills()).await?;
    let mut running = pipeline.run()?;
    let done = Arc::new(AtomicUsize::new(0));
    let (pool, counter) = (pipeline.source.clone(), done.clone());
    let module = workload::collector(running.api.types(Freshness::default())?);
    let playing = tokio::spawn(async move {
        workload::play_trace(&pool, &module, &requests, 1, 8, 8, move || {
            counter.fetch_add(1, Ordering::Relaxed);
        })
        .await
    });
    let mut every = tokio::time::interval(Duration::from_millis(10));
    while done.load(Ordering::Relaxed) < 9_000 && !playing.is_finished() {
        every.tick().await;
    }
    running.consumer.kill9();
    running.consumer = pipeline.consumer()?;
    assert_eq!(playing.await??.records, 58_098);

    let truth = pipeline.judge(&running.api, Duration::from_secs(300)).await?;
    let answers = running.api.all_totals(&truth, RANGE.0, RANGE.1).await?;
    for (metric, expected) in
        [("llm.requests", 19_366), ("llm.input_tokens", 22_361_870), ("llm.output_tokens", 4_088_665)]
    {
        let of_metric = answers.iter().filter(|((_, name), _)| name == metric);
        let (records, sum) = of_metric.fold((0, 0), |(records, sum), (_, total)| {
            (records + total.count.parse::<u64>().unwrap(), sum + total.sum.parse::<u64>().unwrap())
        });
        assert_eq!((records, sum), (19_366, expected), "{metric}");
    }
    assert_eq!(source::truth(&pipeline.source).await?, answers);
    Ok(())
}
