//! What was over its quota and is replayed once there is room.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;
use usage_tests::pipeline::{Options, Pipeline};
use usage_tests::topic;
use usage_tests::workload::SOURCE;
use uuid::Uuid;

use crate::support::*;

/// Records that all tenants' windows have counted.
fn counted(pipeline: &Pipeline, tenants: &[Uuid]) -> anyhow::Result<u64> {
    let mut records = 0;
    for tenant in tenants {
        let shown =
            pipeline.usagectl(&["quota", "show", SOURCE, "--tenant", &tenant.to_string(), "--json"])?;
        let shown: Value = serde_json::from_str(&shown)?;
        let windows = shown["windows"].as_array().context("a quota has windows")?;
        records += windows.iter().filter_map(|window| window["kept"].as_u64()).sum::<u64>();
    }
    Ok(records)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_over_its_quota_counts_once_when_it_is_replayed_after_the_quota_was_raised()
-> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options { partitions: Some(3), ..Options::default() }).await?;
    let set = |records: &str| {
        pipeline.usagectl(&["quota", "set", SOURCE, "--records", records, "--window", "30days"]).map(drop)
    };
    set("5")?;
    let mut running = pipeline.run()?;
    let tenants: Vec<Uuid> = (0..3).map(|_| Uuid::new_v4()).collect();
    for number in 0..12 {
        for tenant in &tenants {
            let value = (number + 1).to_string();
            bill(&pipeline, &work(*tenant, "llm.requests", &value, &format!("request-{number}"))).await?;
        }
    }
    topic::await_letters(pipeline.dead_letters_topic(), 21, PATIENCE).await?;
    let list = ask(&pipeline, &["list"])?;
    let letters = list.as_array().context("a list is an array")?;
    assert!(letters.iter().all(|letter| letter["reason"] == "quota_exceeded"), "{list}");
    assert_eq!((letters.len(), counted(&pipeline, &tenants)?), (21, 15));

    // While the quota holds a replay gives the same letters again.
    let replay = ["replay", "--reason", "quota_exceeded"];
    assert_eq!(settled(&ask(&pipeline, &replay)?), 21);
    let mut every = tokio::time::interval(Duration::from_millis(300));
    let back = async {
        while open(&pipeline, &[])? < 21 {
            every.tick().await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, back).await.context("the letters do not come again")??;
    assert_eq!(counted(&pipeline, &tenants)?, 15);

    // A worker reads the quotas before anything else.
    running.consumer.terminate()?;
    set("1000")?;
    running.consumer = pipeline.consumer()?;
    assert_eq!(settled(&ask(&pipeline, &replay)?), 21);
    judge(&pipeline, &running, &tenants).await?;
    // 12 of each tenant, and the one that `judge` emits last.
    assert_eq!((open(&pipeline, &[])?, counted(&pipeline, &tenants)?), (0, 39));
    assert_eq!(settled(&ask(&pipeline, &["replay", "--again"])?), 42);
    judge(&pipeline, &running, &tenants).await?;
    assert_eq!((open(&pipeline, &[])?, counted(&pipeline, &tenants)?), (0, 42));
    Ok(())
}
