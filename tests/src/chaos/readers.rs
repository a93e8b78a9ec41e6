//! Readers of the API during the run: they keep every answer, to be judged when the truth is known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval};
use usage_schemas::{Quantity, Timestamp};
use usage_service::clock;
use uuid::Uuid;

use super::cluster::Cluster;
use super::oracle::{Answer, Measure};
use crate::pipeline::RANGE;

/// What is emitted and kept; metrics that an answer does not name have nothing.
pub const COUNTERS: [&str; 3] = ["llm.requests", "llm.input_tokens", "llm.output_tokens"];
pub const GAUGE: &str = "gpu.utilization";
/// A server that is away makes the API say so for a while: asking faster teaches nothing.
const EVERY: Duration = Duration::from_millis(40);
/// The reader that asks at the end.
const AT_REST: usize = usize::MAX;

/// What one reader saw.
#[derive(Debug, Default)]
pub struct Seen {
    pub answers: Vec<Answer>,
    /// How often each status or error came instead of an answer.
    pub failures: BTreeMap<String, u32>,
    /// Statuses that no fault of a server explains.
    pub absurd: Vec<String>,
}

/// Asks for one tenant after the other until told to stop.
pub async fn read(cluster: Arc<Cluster>, reader: usize, tenants: Vec<Uuid>, stop: Arc<AtomicBool>) -> Seen {
    let mut seen = Seen::default();
    let mut pace = interval(EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for (tenant, measure) in round(tenants).into_iter().cycle() {
        pace.tick().await;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match ask(&cluster, tenant, measure).await {
            Ok((200, body)) => {
                let answered_at = clock::now_micros();
                match answers(&body, reader, tenant, measure, answered_at) {
                    Ok(answers) => seen.answers.extend(answers),
                    Err(error) => seen.absurd.push(format!("{error:#}: {body}")),
                }
            }
            Ok((status, body)) => {
                *seen.failures.entry(format!("status {status}")).or_default() += 1;
                if (400..500).contains(&status) && status != 429 {
                    seen.absurd.push(format!("status {status}: {body}"));
                }
            }
            Err(_) => *seen.failures.entry("no answer".into()).or_default() += 1,
        }
    }
    seen
}

/// Asks everything once more when nothing moves, each question until its answer is complete past `emitted_at`.
///
/// # Errors
/// An answer that does not become so within the time, or that is none.
pub async fn complete(
    cluster: &Cluster,
    tenants: BTreeSet<Uuid>,
    emitted_at: i64,
    within: Duration,
) -> anyhow::Result<Vec<Answer>> {
    let deadline = Instant::now() + within;
    let mut pace = interval(EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut all = Vec::new();
    for (tenant, measure) in round(tenants) {
        loop {
            pace.tick().await;
            let said = ask(cluster, tenant, measure).await;
            if let Ok((200, body)) = &said {
                let answers = answers(body, AT_REST, tenant, measure, clock::now_micros())?;
                if are_past(&answers, emitted_at) {
                    all.extend(answers);
                    break;
                }
            }
            if Instant::now() >= deadline {
                bail!("no answer is complete past {emitted_at} within {within:?}: {said:?}");
            }
        }
    }
    Ok(all)
}

/// What was emitted in the very microsecond is not promised.
fn are_past(answers: &[Answer], emitted_at: i64) -> bool {
    answers.iter().all(|answer| answer.complete_until > Some(emitted_at))
}

fn round(tenants: impl IntoIterator<Item = Uuid>) -> Vec<(Uuid, Measure)> {
    let both = |tenant| [(tenant, Measure::Count), (tenant, Measure::Sum)];
    tenants.into_iter().flat_map(both).collect()
}

async fn ask(cluster: &Cluster, tenant: Uuid, measure: Measure) -> anyhow::Result<(u16, String)> {
    let aggregation = if measure == Measure::Count { "count" } else { "sum" };
    let query = [("from", RANGE.0), ("to", RANGE.1), ("aggregation", aggregation), ("group_by", "metric")];
    cluster.api.try_get(tenant, "/v1/usage/aggregated", &query).await
}

/// One value for each metric that the measure can only make grow.
fn answers(
    body: &str,
    reader: usize,
    tenant: Uuid,
    measure: Measure,
    answered_at: i64,
) -> anyhow::Result<Vec<Answer>> {
    let body: Value = serde_json::from_str(body).context("no JSON")?;
    let complete_until = match &body["complete_until"] {
        Value::Null => None,
        Value::String(text) => Some(Timestamp::parse(text).context("complete_until")?.micros()),
        _ => anyhow::bail!("complete_until is no text"),
    };
    let rows = body["data"].as_array().context("data is no array")?;
    let mut metrics = COUNTERS.to_vec();
    if measure == Measure::Count {
        metrics.push(GAUGE);
    }
    let known =
        |row: &&Value| row["metric"] != GAUGE && !COUNTERS.iter().any(|metric| row["metric"] == *metric);
    if let Some(row) = rows.iter().find(known) {
        anyhow::bail!("nobody emitted {}", row["metric"]);
    }
    metrics
        .into_iter()
        .map(|metric| {
            let row = rows.iter().find(|row| row["metric"] == metric);
            let value = row.map_or(Some("0"), |row| row["value"].as_str()).context("a value is no text")?;
            let value = Quantity::parse(value).with_context(|| value.to_string())?;
            let metric = metric.to_string();
            Ok(Answer { reader, tenant, metric, measure, value, answered_at, complete_until })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str, measure: Measure) -> anyhow::Result<Vec<Answer>> {
        answers(body, 3, Uuid::from_u128(1), measure, 99)
    }

    #[test]
    fn an_answer_speaks_of_every_metric_also_of_those_it_does_not_name() {
        let body = r#"{"complete_until":"1970-01-01T00:00:00.000017Z","data":[{"metric":"llm.requests","value":"2.5"}]}"#;
        let answers = read(body, Measure::Sum).unwrap();
        let values: Vec<String> = answers.iter().map(|answer| answer.value.to_string()).collect();
        assert_eq!(values, ["2.5", "0", "0"]);
        assert!(answers.iter().all(|answer| answer.complete_until == Some(17) && answer.answered_at == 99));
        assert_eq!(read(body, Measure::Count).unwrap().len(), 4);
        assert_eq!(
            read(r#"{"complete_until":null,"data":[]}"#, Measure::Sum).unwrap()[0].complete_until,
            None
        );
    }

    #[test]
    fn an_answer_is_past_an_emit_only_if_it_says_so_of_a_later_microsecond() {
        let body = r#"{"complete_until":"1970-01-01T00:00:00.000017Z","data":[]}"#;
        let answers = read(body, Measure::Sum).unwrap();
        assert!(are_past(&answers, 16) && !are_past(&answers, 17));
        let unknown = read(r#"{"complete_until":null,"data":[]}"#, Measure::Sum).unwrap();
        assert!(!are_past(&unknown, i64::MIN));
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for body in [
            "",
            "{}",
            r#"{"complete_until":7,"data":[]}"#,
            r#"{"complete_until":null,"data":[{"metric":"llm.requests","value":2}]}"#,
            r#"{"complete_until":null,"data":[{"metric":"llm.unregistered","value":"1"}]}"#,
        ] {
            assert!(read(body, Measure::Count).is_err(), "{body}");
        }
    }
}
