//! The operators' side on real processes: rollups held against records and repaired, and a backup that is restored and caught up.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde_json::Value;
use sqlx::{Connection as _, PgConnection};
use usage_tests::pipeline::{Options, Pipeline};
use usage_tests::workload::{self, Workload};

const PATIENCE: Duration = Duration::from_secs(300);

async fn prepare() -> anyhow::Result<(Pipeline, String)> {
    let consumer = [("clickhouse", vec!["flush_age = \"1s\"".to_owned()])];
    let options = Options { consumer: consumer.into(), partitions: Some(4), ..Options::default() };
    let pipeline = Pipeline::prepare(options).await?;
    let group = pipeline.group().to_owned();
    Ok((pipeline, group))
}

/// Half of the requests are late, so that batches have rows of two months.
async fn play(pipeline: &Pipeline, transactions: usize, seed: u64) -> anyhow::Result<()> {
    let workload = Workload { transactions, seed, workers: 4, late: 50, ..Workload::default() };
    workload::play(&pipeline.source, &workload::unchecked_collector(), &workload, || {}).await.map(drop)
}

/// Waits until the workers have rolled something up.
async fn rolled_up(pipeline: &Pipeline) -> anyhow::Result<()> {
    let waiting = async {
        while pipeline.clickhouse("SELECT sum(record_count) FROM usage_rollups").await? == "0" {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, waiting).await?
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_rollups_are_named_and_repaired_while_workers_run() -> anyhow::Result<()> {
    let (pipeline, _) = prepare().await?;
    let running = pipeline.run()?;
    play(&pipeline, 200, 21).await?;
    pipeline.judge(&running.api, PATIENCE).await?;
    rolled_up(&pipeline).await?;
    let clean = pipeline.usagectl(&["verify"])?;
    assert!(clean.contains(": 0 differences, 0 buckets rolled up anew, 0 left"), "{clean}");

    pipeline
        .clickhouse(
            "INSERT INTO usage_rollups (tenant_id, metric, source, kind, bucket, kafka_partition, generation, value_sum, latest) \
             SELECT tenant_id, metric, source, kind, bucket, kafka_partition, generation, toDecimal256('0.5', 18), latest \
             FROM usage_rollups WHERE record_count > 0 LIMIT 3",
        )
        .await?;
    let (code, out, error) = pipeline.usagectl_ended(&["verify", "--json"])?;
    assert_eq!(code, Some(1), "{error}");
    let lines = out.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let (summary, differences) = lines.split_last().expect("a summary");
    let count = differences.len();
    assert!((1..=3).contains(&count), "rows of one bucket are one difference: {out}");
    for difference in differences {
        assert_eq!(difference["difference"], "bucket", "{difference}");
        assert_ne!(difference["expected"]["sum"], difference["found"]["sum"], "{difference}");
        assert_eq!(difference["expected"]["count"], difference["found"]["count"], "{difference}");
    }
    assert_eq!(
        (&summary["summary"]["differences"], &summary["summary"]["left"]),
        (&count.into(), &count.into())
    );
    assert!(error.contains("differences"), "{error}");

    let repaired = pipeline.usagectl(&["verify", "--repair"])?;
    assert!(
        repaired.contains(&format!(": {count} differences, {count} buckets rolled up anew, 0 left")),
        "{repaired}"
    );
    // The workers were fenced for it, took their partitions over again and go on.
    play(&pipeline, 200, 22).await?;
    pipeline.judge(&running.api, PATIENCE).await?;
    pipeline.usagectl(&["verify"])?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_restored_from_an_older_backup_is_replayed_exactly() -> anyhow::Result<()> {
    let (pipeline, group) = prepare().await?;
    pipeline.usagectl(&["quota", "set", "--every-source", "--records", "1000000", "--window", "31d"])?;
    let mut running = pipeline.run()?;
    play(&pipeline, 200, 23).await?;
    pipeline.judge(&running.api, PATIENCE).await?;
    rolled_up(&pipeline).await?;
    // While workers write, table after table: not one snapshot.
    let (played, backed_up) = tokio::join!(play(&pipeline, 200, 24), async {
        for table in ["usage_rollups", "usage_records"] {
            pipeline.clickhouse(&format!("CREATE TABLE backup_of_{table} AS {table}")).await?;
            copy(&pipeline, table, &format!("backup_of_{table}")).await?;
        }
        anyhow::Ok(())
    });
    played?;
    backed_up?;
    play(&pipeline, 200, 25).await?;
    pipeline.judge(&running.api, PATIENCE).await?;
    let whole = pipeline.clickhouse("SELECT count() FROM usage_records").await?;

    let restored = ["storage", "restored", "--readers-stopped", "--group", &group];
    let (code, _, error) = pipeline.usagectl_ended(&restored)?;
    assert!(code == Some(1) && error.contains("1 members: stop all consumers first"), "{error}");
    running.consumer.terminate()?;
    running.query_api.terminate()?;
    cut_between_two_months(&pipeline, "backup_of_usage_records").await?;
    for table in ["usage_records", "usage_rollups"] {
        pipeline.clickhouse(&format!("TRUNCATE TABLE {table}")).await?;
        copy(&pipeline, &format!("backup_of_{table}"), table).await?;
    }
    // The fences were on the server that was lost.
    pipeline.clickhouse("TRUNCATE TABLE usage_fences").await?;
    let older = pipeline.clickhouse("SELECT count() FROM usage_records").await?;
    assert!(older.parse::<u64>()? < whole.parse::<u64>()?, "{older} of {whole} were in the backup");

    // What is read again was held to its quotas before: to hold it to this one would keep none of it.
    assert_eq!(counted(&pipeline).await?, whole);
    pipeline.usagectl(&["quota", "set", "--every-source", "--records", "0", "--window", "31d"])?;
    let said = pipeline.usagectl(&restored)?;
    assert!(said.matches("from offset").count() == 4 && said.contains("batch"), "{said}");
    assert!(said.contains("neither held to quotas nor counted"), "{said}");
    assert_eq!(pipeline.clickhouse("SELECT count() FROM usage_rollups").await?, "0");
    running.consumer = pipeline.consumer()?;
    let (query_api, api) = pipeline.query_api()?;
    running.query_api = query_api;
    pipeline.judge(&api, PATIENCE).await?;
    assert_eq!(pipeline.clickhouse("SELECT count() FROM usage_records").await?, whole);
    assert_eq!(counted(&pipeline).await?, whole);
    rolled_up(&pipeline).await?;
    pipeline.usagectl(&["verify"])?;
    Ok(())
}

/// What quotas have counted, of all tenants and windows.
async fn counted(pipeline: &Pipeline) -> anyhow::Result<String> {
    let mut control = PgConnection::connect(&pipeline.env()["USAGE_CONTROL_DATABASE_URL"]).await?;
    let counted = sqlx::query_scalar("SELECT coalesce(sum(records), 0)::text FROM quota_counters");
    let counted = counted.fetch_one(&mut control).await?;
    control.close().await?;
    Ok(counted)
}

/// Copies a table as it is at one moment, all months.
async fn copy(pipeline: &Pipeline, from: &str, to: &str) -> anyhow::Result<()> {
    pipeline.clickhouse(&format!("INSERT INTO {to} SELECT * FROM {from}")).await.map(drop)
}

/// Takes a copy of the records back to a moment at which, of the last batch of a partition, only the earlier month was stored, while
/// rows of the later one lie before it in the log.
async fn cut_between_two_months(pipeline: &Pipeline, table: &str) -> anyhow::Result<()> {
    let earlier = pipeline.clickhouse(&format!("SELECT min(toYYYYMM(timestamp)) FROM {table}")).await?;
    let later = format!("toYYYYMM(timestamp) > {earlier}");
    let batches = format!(
        "SELECT kafka_partition, max(batch_seq) FROM (SELECT kafka_partition, batch_seq FROM {table} \
         GROUP BY kafka_partition, batch_seq HAVING uniqExact(toYYYYMM(timestamp)) > 1 \
         AND minIf(kafka_offset, {later}) < minIf(kafka_offset, NOT ({later}))) GROUP BY kafka_partition"
    );
    let batches = pipeline.clickhouse(&batches).await?;
    let after = |(partition, batch_seq): (&str, &str)| {
        format!(
            "kafka_partition = {partition} AND (batch_seq > {batch_seq} OR batch_seq = {batch_seq} AND {later})"
        )
    };
    let after: Vec<String> = batches.lines().filter_map(|line| line.split_once('\t')).map(after).collect();
    assert!(!after.is_empty(), "no batch has rows of the later month before those of the earlier");
    let cut = format!("ALTER TABLE {table} DELETE WHERE {} SETTINGS mutations_sync = 2", after.join(" OR "));
    pipeline.clickhouse(&cut).await.map(drop)
}

/// What came after the backup is not in the log any more: nothing is changed, and the ranges are named.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_the_log_can_not_catch_up_with_is_refused() -> anyhow::Result<()> {
    let (pipeline, group) = prepare().await?;
    let mut running = pipeline.run()?;
    play(&pipeline, 100, 26).await?;
    pipeline.judge(&running.api, PATIENCE).await?;
    rolled_up(&pipeline).await?;
    running.consumer.terminate()?;
    running.query_api.terminate()?;
    empty_log(&pipeline).await?;

    let rolled = pipeline.clickhouse("SELECT sum(record_count), max(horizon) FROM usage_rollups").await?;
    let restored = ["storage", "restored", "--readers-stopped", "--group", &group];
    let (code, _, error) = pipeline.usagectl_ended(&restored)?;
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("gone from the log") && error.contains("of partition"), "{error}");
    assert_eq!(
        pipeline.clickhouse("SELECT sum(record_count), max(horizon) FROM usage_rollups").await?,
        rolled
    );
    // With the workers back everything is as it was.
    running.consumer = pipeline.consumer()?;
    let (query_api, api) = pipeline.query_api()?;
    running.query_api = query_api;
    pipeline.judge(&api, PATIENCE).await?;
    Ok(())
}

/// As retention does; everything but the topic's very end.
async fn empty_log(pipeline: &Pipeline) -> anyhow::Result<()> {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", usage_devstack::testing::kafka_brokers()).create()?;
    let mut list = TopicPartitionList::new();
    for partition in 0..4 {
        list.add_partition_offset(pipeline.records_topic(), partition, Offset::End)?;
    }
    admin.delete_records(&list, &AdminOptions::new()).await?;
    Ok(())
}

/// Where nobody can know what the log held, the restore goes on and completeness waits for a person.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_restore_can_not_read_again_is_a_gap_until_it_is_accepted() -> anyhow::Result<()> {
    let (pipeline, group) = prepare().await?;
    let mut running = pipeline.run()?;
    play(&pipeline, 100, 27).await?;
    pipeline.judge(&running.api, PATIENCE).await?;
    running.consumer.terminate()?;
    running.query_api.terminate()?;
    let control = sqlx::PgPool::connect(&pipeline.env()["USAGE_CONTROL_DATABASE_URL"]).await?;
    let waiting = "SELECT count(*) FROM gaps WHERE accepted_at IS NULL";
    let waiting = async || sqlx::query_scalar::<_, i64>(waiting).fetch_one(&control).await;
    let restored = ["storage", "restored", "--readers-stopped", "--group", &group];
    let said = pipeline.usagectl(&restored)?;
    assert!(!said.contains("gap"), "the whole log is there: {said}");

    // As if the topic had been made anew after the last batch of each partition.
    sqlx::query("UPDATE consumer_progress SET topic_after_seq = batch_seq").execute(&control).await?;
    let said = pipeline.usagectl(&restored)?;
    assert_eq!(
        said.matches("from offset 0, the log's start: the topic was made anew after batch").count(),
        4
    );
    assert_eq!((said.matches("of the former topic may be lost").count(), waiting().await?), (4, 4), "{said}");
    pipeline.usagectl(&["gaps", "accept", "--all"])?;

    empty_log(&pipeline).await?;
    pipeline.clickhouse("TRUNCATE TABLE usage_records").await?;
    for _ in 0..2 {
        let said = pipeline.usagectl(&restored)?;
        assert_eq!(said.matches("the log's start: nothing of it is restored\n  gap:").count(), 4, "{said}");
        assert_eq!(waiting().await?, 4, "{said}");
        // The same loss a second time is not accepted yet.
        pipeline.usagectl(&["gaps", "accept", "--all"])?;
    }
    control.close().await;
    Ok(())
}
