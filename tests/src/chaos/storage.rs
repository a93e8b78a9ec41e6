//! What storage has, asked of ClickHouse itself, past everything of the project.

use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::{Instant, interval};
use usage_schemas::Quantity;
use uuid::Uuid;

use super::oracle::{Content, Details, Difference, Stored};
use super::truth::kind;

/// Runs one statement; the answer as text.
pub async fn ask(url: &str, sql: String) -> anyhow::Result<String> {
    let response = reqwest::Client::new().post(url).body(sql).send().await?;
    let (status, text) = (response.status(), response.text().await?);
    if !status.is_success() {
        bail!("ClickHouse answered {status}: {text}");
    }
    Ok(text)
}

/// Waits for a moment in which an insert runs; false if none was seen.
pub async fn insert_runs(url: &str, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    let mut every = interval(Duration::from_millis(2));
    while Instant::now() < deadline {
        every.tick().await;
        let sql = "SELECT count() FROM system.processes WHERE query_kind = 'Insert'".to_string();
        if ask(url, sql).await.is_ok_and(|count| count.trim() != "0") {
            return true;
        }
    }
    false
}

/// A row as JSON; numbers are text there, which keeps all their digits.
#[derive(serde::Deserialize)]
struct Row {
    tenant_id: Uuid,
    record_id: Uuid,
    source: String,
    metric: String,
    kind: String,
    value: String,
    micros: String,
    idempotency_key: Option<String>,
    resource_id: Option<Uuid>,
    resource_type: Option<String>,
    subject_id: Option<Uuid>,
    subject_type: Option<String>,
    metadata: Option<String>,
}

/// Every row of the records.
pub async fn records(url: &str, database: &str) -> anyhow::Result<Vec<Stored>> {
    let sql = format!(
        "SELECT tenant_id, record_id, source, metric, kind, toString(value) AS value,
           toString(toUnixTimestamp64Micro(timestamp)) AS micros, idempotency_key, resource_id, resource_type, subject_id,
           subject_type, metadata
         FROM {database}.usage_records FORMAT JSONEachRow"
    );
    ask(url, sql).await?.lines().map(stored).collect()
}

fn stored(line: &str) -> anyhow::Result<Stored> {
    let row: Row = serde_json::from_str(line).with_context(|| format!("ClickHouse said {line:?}"))?;
    let content = Content {
        metric: row.metric,
        kind: kind(&row.kind)?,
        value: Quantity::parse(&row.value).with_context(|| line.to_string())?,
        timestamp: row.micros.parse()?,
        details: Details {
            source: row.source,
            idempotency_key: row.idempotency_key,
            resource_id: row.resource_id,
            resource_type: row.resource_type,
            subject_id: row.subject_id,
            subject_type: row.subject_type,
            metadata: row.metadata,
        },
    };
    Ok(Stored { identity: (row.tenant_id, row.record_id), content })
}

/// Records and, of these, how many the rollups count.
pub async fn counts(url: &str, database: &str) -> anyhow::Result<(u64, u64)> {
    let sql = format!(
        "SELECT (SELECT count() FROM {database}.usage_records), (SELECT sum(record_count) FROM {database}.usage_rollups)
         FORMAT TSV"
    );
    let text = ask(url, sql).await?;
    let (records, rolled_up) = text.trim().split_once('\t').with_context(|| text.clone())?;
    Ok((records.parse()?, rolled_up.parse()?))
}

/// Waits until everything is rolled up; fails with the numbers otherwise.
pub async fn rolled_up(url: &str, database: &str, within: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + within;
    let mut every = interval(Duration::from_millis(500));
    loop {
        every.tick().await;
        let (records, rolled_up) = counts(url, database).await?;
        if records == rolled_up {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{rolled_up} of {records} records are rolled up after {within:?}");
        }
    }
}

/// Groups whose rollup is not what their records give.
pub async fn wrong_rollups(url: &str, database: &str) -> anyhow::Result<Vec<Difference>> {
    let text = ask(url, wrong_rollups_sql(database)).await?;
    Ok(text.lines().map(|line| Difference::Other(format!("rollup is not its records: {line}"))).collect())
}

/// Both sides in one list, so that what is missing on either is found too.
fn wrong_rollups_sql(database: &str) -> String {
    const KEY: &str = "tenant_id, metric, source, kind, bucket, kafka_partition";
    format!(
        "SELECT {KEY}, groupArray((side, n, s, lo, hi)) AS sides FROM (
           SELECT {KEY}, 'records' AS side, n, s, lo, hi FROM (
             SELECT tenant_id, metric, source, kind, toStartOfInterval(timestamp, INTERVAL 15 MINUTE) AS at,
               toDateTime(at, 'UTC') AS bucket, kafka_partition,
               count() AS n, sum(toDecimal256(value, 18)) AS s, min(value) AS lo, max(value) AS hi
             FROM {database}.usage_records WHERE status = 'active' GROUP BY ALL)
           UNION ALL
           SELECT {KEY}, 'rollup' AS side, n, s, lo, hi FROM (
             SELECT {KEY}, generation, sum(record_count) AS n, toDecimal256(sum(value_sum), 18) AS s,
               assumeNotNull(min(value_min)) AS lo, assumeNotNull(max(value_max)) AS hi
             FROM {database}.usage_rollups WHERE tenant_id != toUUID('{}')
             GROUP BY {KEY}, generation ORDER BY generation DESC LIMIT 1 BY {KEY}) WHERE n > 0)
         GROUP BY {KEY}
         HAVING count() != 2 OR min(n) != max(n) OR min(s) != max(s) OR min(lo) != max(lo) OR min(hi) != max(hi)
         FORMAT TSV",
        Uuid::nil()
    )
}

#[cfg(test)]
mod tests {
    use usage_schemas::Kind;

    use super::*;

    #[test]
    fn a_row_is_read_whole_or_not_at_all() {
        let line = r#"{"tenant_id":"00000000-0000-0000-0000-000000000001","record_id":"00000000-0000-0000-0000-000000000002",
            "source":"s","metric":"m","kind":"gauge","value":"-0.5","micros":"17","idempotency_key":null,
            "resource_id":"00000000-0000-0000-0000-000000000003","resource_type":"vm","subject_id":null,"subject_type":null,
            "metadata":"{\"a\":  \"\\u00e9\"}"}"#;
        let row = stored(line).unwrap();
        assert_eq!(row.identity, (Uuid::from_u128(1), Uuid::from_u128(2)));
        let content = Content {
            metric: "m".into(),
            kind: Kind::Gauge,
            value: Quantity::parse("-0.5").unwrap(),
            timestamp: 17,
            details: Details {
                source: "s".into(),
                resource_id: Some(Uuid::from_u128(3)),
                resource_type: Some("vm".into()),
                metadata: Some(r#"{"a":  "\u00e9"}"#.into()),
                ..Details::default()
            },
        };
        assert_eq!(row.content, content);
        assert!(stored("{}").is_err());
        assert!(stored(&line.replace("gauge", "other")).is_err());
    }
}
