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
use super::oracle::{Answer, Measure, Series};
use crate::pipeline::RANGE;
use crate::workload::SOURCE;

/// What is emitted and kept; metrics that an answer does not name have nothing.
pub const COUNTERS: [&str; 3] = ["llm.requests", "llm.input_tokens", "llm.output_tokens"];
pub const GAUGE: &str = "gpu.utilization";
/// A server that is away makes the API say so for a while: asking faster teaches nothing.
const EVERY: Duration = Duration::from_millis(40);
/// The reader that asks at the end.
const AT_REST: usize = usize::MAX;

/// What a reader asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    Totals(Measure),
    Watermarks,
}

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
    for (tenant, question) in round(tenants).into_iter().cycle() {
        pace.tick().await;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match ask(&cluster, tenant, question).await {
            Ok((200, body)) => {
                let answered_at = clock::now_micros();
                match answers(&body, (reader, tenant), question, answered_at) {
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
    for (tenant, question) in round(tenants) {
        loop {
            pace.tick().await;
            let said = ask(cluster, tenant, question).await;
            if let Ok((200, body)) = &said {
                let answers = answers(body, (AT_REST, tenant), question, clock::now_micros())?;
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

fn round(tenants: impl IntoIterator<Item = Uuid>) -> Vec<(Uuid, Question)> {
    let all = [Question::Totals(Measure::Count), Question::Totals(Measure::Sum), Question::Watermarks];
    tenants.into_iter().flat_map(|tenant| all.map(|question| (tenant, question))).collect()
}

async fn ask(cluster: &Cluster, tenant: Uuid, question: Question) -> anyhow::Result<(u16, String)> {
    let aggregation = match question {
        Question::Totals(Measure::Count) => "count",
        Question::Totals(Measure::Sum) => "sum",
        Question::Watermarks => {
            return cluster.api.try_get(tenant, "/v1/usage/metadata/watermarks", &[]).await;
        }
    };
    let query = [("from", RANGE.0), ("to", RANGE.1), ("aggregation", aggregation), ("group_by", "metric")];
    cluster.api.try_get(tenant, "/v1/usage/aggregated", &query).await
}

/// One value for each metric or source whose measure can only grow.
fn answers(
    body: &str,
    (reader, tenant): (usize, Uuid),
    question: Question,
    answered_at: i64,
) -> anyhow::Result<Vec<Answer>> {
    let body: Value = serde_json::from_str(body).context("no JSON")?;
    let said = match question {
        Question::Totals(measure) => totals(&body, measure)?,
        Question::Watermarks => watermarks(&body)?,
    };
    let measure = match question {
        Question::Totals(measure) => measure,
        Question::Watermarks => Measure::Count,
    };
    let answer = |(series, value, complete_until)| Answer {
        reader,
        tenant,
        series,
        measure,
        value,
        answered_at,
        complete_until,
    };
    Ok(said.into_iter().map(answer).collect())
}

/// A series, its value, and up to when that is complete.
type Said = (Series, Quantity, Option<i64>);

fn totals(body: &Value, measure: Measure) -> anyhow::Result<Vec<Said>> {
    let until = complete_until(body)?;
    let rows = body["data"].as_array().context("data is no array")?;
    let mut metrics = COUNTERS.to_vec();
    if measure == Measure::Count {
        metrics.push(GAUGE);
    }
    let known =
        |row: &&Value| row["metric"] != GAUGE && !COUNTERS.iter().any(|metric| row["metric"] == *metric);
    if let Some(row) = rows.iter().find(known) {
        bail!("nobody emitted {}", row["metric"]);
    }
    let value = |metric: &str| match rows.iter().find(|row| row["metric"] == metric) {
        Some(row) => quantity(&row["value"]),
        None => Ok(Quantity::ZERO),
    };
    metrics.into_iter().map(|metric| Ok((Series::Metric(metric.into()), value(metric)?, until))).collect()
}

/// The only source says how much is there; before its first record the answer as a whole says that there is none.
fn watermarks(body: &Value) -> anyhow::Result<Vec<Said>> {
    let series = || Series::Source(SOURCE.into());
    match body["sources"].as_array().context("sources is no array")?.as_slice() {
        [] => Ok(vec![(series(), Quantity::ZERO, complete_until(body)?)]),
        [row] if row["source"] == SOURCE => {
            Ok(vec![(series(), quantity(&row["records"])?, complete_until(row)?)])
        }
        other => bail!("nobody else emitted: {other:?}"),
    }
}

fn quantity(value: &Value) -> anyhow::Result<Quantity> {
    let text = value.as_str().context("a value is no text")?;
    Quantity::parse(text).with_context(|| text.to_string())
}

fn complete_until(of: &Value) -> anyhow::Result<Option<i64>> {
    match &of["complete_until"] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(Timestamp::parse(text).context("complete_until")?.micros())),
        _ => bail!("complete_until is no text"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str, measure: Measure) -> anyhow::Result<Vec<Answer>> {
        answers(body, (3, Uuid::from_u128(1)), Question::Totals(measure), 99)
    }

    #[test]
    fn a_watermark_speaks_of_its_source_and_up_to_when() {
        let read = |body: &str| answers(body, (3, Uuid::from_u128(1)), Question::Watermarks, 99);
        let body = r#"{"complete_until":null,"sources":[{"source":"demo","records":"7","complete_until":"1970-01-01T00:00:00.000017Z"}]}"#;
        let found = &read(body).unwrap()[0];
        assert_eq!((found.value.to_string().as_str(), found.complete_until), ("7", Some(17)));
        assert_eq!(found.series, Series::Source("demo".into()));
        let none = &read(r#"{"complete_until":"1970-01-01T00:00:00.000018Z","sources":[]}"#).unwrap()[0];
        assert_eq!((none.value, none.complete_until), (Quantity::ZERO, Some(18)));
        let other = body.replace("demo", "mail");
        for body in ["{}", other.as_str(), r#"{"sources":[{"source":"demo","records":7}]}"#] {
            assert!(read(body).is_err(), "{body}");
        }
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
