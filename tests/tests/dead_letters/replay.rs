//! Through a real consumer: what is replayed counts exactly once, whatever happens to the replay.

use std::time::Duration;

use usage_tests::topic;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_type_that_is_registered_late_is_billed_once_however_often_it_is_replayed() -> anyhow::Result<()> {
    let (pipeline, running, tenants) = refused(30).await?;
    let count = ask(&pipeline, &["count", "--by", "reason", "--by", "severity", "--by", "metric"])?;
    assert_eq!(count["letters"], 30);
    let group = &count["groups"][0];
    assert_eq!(
        (group["reason"].as_str(), group["severity"].as_str(), group["metric"].as_str()),
        (Some("unknown_usage_type"), Some("error"), Some(UNREGISTERED))
    );
    assert_eq!(open(&pipeline, &["--tenant", &tenants[0].to_string()])?, 10);
    assert_eq!(open(&pipeline, &["--metric", "llm.requests"])?, 0);
    // A letter is counted when its batch is done, which is after it can be read.
    let counted = async {
        let mut every = tokio::time::interval(Duration::from_millis(100));
        loop {
            every.tick().await;
            let metrics = running.consumer.metrics()?;
            let line = metrics.lines().find(|line| line.starts_with("consumer_dead_letters_total{"));
            if line.is_some_and(|line| line.contains(r#"severity="error""#) && line.ends_with(" 30")) {
                return anyhow::Ok(());
            }
        }
    };
    tokio::time::timeout(PATIENCE, counted).await??;

    register(&pipeline)?;
    let dry = ask(&pipeline, &["replay", "--metric", UNREGISTERED, "--dry-run"])?;
    assert_eq!((settled(&dry), open(&pipeline, &[])?), (30, 30));
    let tally = ask(&pipeline, &["replay", "--metric", UNREGISTERED])?;
    assert_eq!((settled(&tally), open(&pipeline, &[])?), (30, 0));
    judge(&pipeline, &running, &tenants).await?;

    // Again there is nothing to do; and if it is forced, the records are known.
    assert_eq!(settled(&ask(&pipeline, &["replay"])?), 0);
    assert_eq!(settled(&ask(&pipeline, &["replay", "--again"])?), 30);
    judge(&pipeline, &running, &tenants).await?;
    assert_eq!(open(&pipeline, &[])?, 0);
    assert_eq!(states(&pipeline)?, vec!["replayed"; 30]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_is_killed_goes_on_where_it_was() -> anyhow::Result<()> {
    let (pipeline, running, tenants) = refused(30).await?;
    register(&pipeline)?;
    let replay = ["dead-letters", "replay", "--rate", "10"];
    // The first ten are done; ten more are produced, but nothing says so.
    dies(&pipeline, &replay, "dead_letters.produced=kill@2")?;
    assert_eq!(open(&pipeline, &[])?, 20);
    // Ten are marked, but the group's offset does not say so.
    dies(&pipeline, &replay, "dead_letters.marked=kill@1")?;
    assert_eq!(open(&pipeline, &[])?, 10);
    assert_eq!(settled(&ask(&pipeline, &["replay"])?), 10);
    assert_eq!(open(&pipeline, &[])?, 0);
    judge(&pipeline, &running, &tenants).await?;
    assert_eq!(states(&pipeline)?, vec!["replayed"; 30]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_stays_one_and_its_attempts_have_an_end() -> anyhow::Result<()> {
    let (pipeline, running, tenants) = refused(0).await?;
    let tenant = tenants[0];
    bill(&pipeline, &work(tenant, "llm.requests", "1", "twice")).await?;
    pipeline.judge(&running.api, PATIENCE).await?;
    // The truth keeps the first one, too.
    bill(&pipeline, &work(tenant, "llm.requests", "2", "twice")).await?;
    topic::await_letters(pipeline.dead_letters_topic(), 1, PATIENCE).await?;

    let replay = ["replay", "--reason", "conflict", "--max-attempts", "3"];
    for attempt in [2, 3] {
        assert_eq!(settled(&ask(&pipeline, &replay)?), 1);
        topic::await_letters(pipeline.dead_letters_topic(), attempt, PATIENCE).await?;
        let list = ask(&pipeline, &["list"])?;
        assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
        assert_eq!(
            (list[0]["reason"].as_str(), list[0]["attempt"].as_u64()),
            (Some("conflict"), Some(attempt as u64))
        );
    }
    let tally = ask(&pipeline, &replay)?;
    assert_eq!((settled(&tally), tally["exhausted"].as_u64()), (0, Some(1)));
    assert_eq!(states(&pipeline)?, ["replayed", "replayed", "open"]);
    judge(&pipeline, &running, &tenants).await?;

    assert_eq!(settled(&ask(&pipeline, &["discard", "--reason", "conflict"])?), 1);
    assert_eq!((open(&pipeline, &[])?, states(&pipeline)?.pop()), (0, Some("discarded".into())));
    Ok(())
}

/// One record that is known already must not spoil the others that come with it (lago-api PR 3049).
#[tokio::test(flavor = "multi_thread")]
async fn problem_16_a_known_record_among_those_replayed_refuses_nobody() -> anyhow::Result<()> {
    let (pipeline, running, tenants) = refused(30).await?;
    register(&pipeline)?;
    // A plain producer puts one letter back, all headers included.
    let letters = topic::read_all(pipeline.dead_letters_topic())?;
    let letter = &letters[7];
    let from = (pipeline.dead_letters_topic(), letter.partition, letter.offset);
    topic::copy(from, (pipeline.records_topic(), letter.partition)).await?;
    topic::copy(from, (pipeline.records_topic(), letter.partition)).await?;
    assert_eq!(settled(&ask(&pipeline, &["replay"])?), 30);
    judge(&pipeline, &running, &tenants).await?;
    assert_eq!(open(&pipeline, &[])?, 0);
    Ok(())
}
