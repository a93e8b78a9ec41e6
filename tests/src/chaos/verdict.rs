//! The end of a run: everything comes to rest, then what is there is compared with what committed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, bail};
use sqlx::PgPool;
use tokio::time::{Instant, interval};
use usage_schemas::codec::Decoder;
use usage_schemas::names;
use uuid::Uuid;

use super::cluster::{Cluster, blocking};
use super::oracle::{
    Answer, Bounded, Content, Details, Difference, Emission, Refused, Stored, expected_records, judge,
    judge_answers, max_lag,
};
use super::readers::{self, Seen};
use super::schedule::Actor;
use super::{emitter, offsets, storage, truth};
use crate::pipeline::RANGE;
use crate::source::{Total, Totals};
use crate::topic::{self, Letter};

/// For each thing that is waited for: servers have just come back and 2 cores do everything.
const PATIENCE: Duration = Duration::from_secs(180);
/// A run of this length has had a moment in which every source was known to be complete up to some time.
const PROVES_COMPLETENESS: Duration = Duration::from_secs(30);

/// What a run came to.
#[derive(Debug)]
pub struct Verdict {
    pub differences: Vec<Difference>,
    pub emitted: usize,
    pub records: usize,
    pub dead_letters: BTreeMap<String, usize>,
    pub answers: usize,
    /// Of these, answers with a `complete_until`; those that are asked for at rest are not among them.
    pub complete: usize,
    pub max_lag: Duration,
}

/// Waits until nothing moves any more and judges. What does not come to rest is a difference too, beside those that it causes.
///
/// `lasted` is how long things were broken.
pub async fn reach(
    cluster: &Cluster,
    seen: Vec<Seen>,
    lasted: Duration,
    bounded: Bounded,
) -> anyhow::Result<Verdict> {
    end_the_load(cluster).await?;
    let mut emissions = truth::read(&cluster.pipeline.source).await?;
    let database = cluster.pipeline.clickhouse_database();
    let mut differences = Vec::new();
    let rests = come_to_rest(cluster, database).await;
    differences.extend(rests.err().map(|error| Difference::Other(format!("{error:#}"))));

    let stored = storage::records(&cluster.clickhouse_url, database).await?;
    let mut letters = dead_letters(cluster).await?;
    differences.extend(bounded.judge(&emissions, &stored));
    bounded.settle(&mut emissions, &stored, &mut letters);
    differences.extend(judge(&emissions, &stored, &letters));
    differences.extend(storage::wrong_rollups(&cluster.clickhouse_url, database).await?);
    // The system's own check must come to the same.
    let verified = usagectl(cluster, &["verify"]).await;
    differences.extend(verified.err().map(|error| Difference::Other(format!("{error:#}"))));
    differences.extend(final_answers(cluster, &stored).await?);
    match complete_answers(cluster, &emissions).await {
        Ok(answers) => differences.extend(judge_answers(&emissions, &answers)),
        Err(error) => differences.push(Difference::Other(format!("{error:#}"))),
    }

    let absurd = seen.iter().flat_map(|seen| &seen.absurd);
    differences.extend(absurd.map(|text| Difference::Answer(format!("absurd answer: {text}"))));
    let mut answers: Vec<Answer> = seen.into_iter().flat_map(|seen| seen.answers).collect();
    // What was a letter then, and was stored when it came again, was not to be in the answer.
    let late = |answer: &&mut Answer| !bounded.exact && answer.tenant == bounded.tenant;
    answers.iter_mut().filter(late).for_each(|answer| answer.complete_until = None);
    differences.extend(judge_answers(&emissions, &answers));
    differences.extend(unproved(&emissions, &answers, lasted));
    let mut dead_letters = BTreeMap::new();
    for letter in letters {
        *dead_letters.entry(letter.reason).or_default() += 1;
    }
    Ok(Verdict {
        differences,
        emitted: expected_records(&emissions),
        records: stored.len(),
        dead_letters,
        answers: answers.len(),
        complete: answers.iter().filter(|answer| answer.complete_until.is_some()).count(),
        max_lag: max_lag(&emissions, &answers),
    })
}

/// What a run has to have seen, or its silence says nothing.
fn unproved(emissions: &[Emission], answers: &[Answer], lasted: Duration) -> Option<Difference> {
    let complete = answers.iter().any(|answer| answer.complete_until.is_some());
    if emissions.is_empty() || answers.is_empty() {
        Some(Difference::Other("nothing was emitted or answered, so nothing is proved".into()))
    } else if lasted >= PROVES_COMPLETENESS && !complete {
        Some(Difference::Other("no answer had a complete_until, so nothing is proved of completeness".into()))
    } else {
        None
    }
}

/// At rest `complete_until` has to come past the last emit, and the answer then lacks nothing.
async fn complete_answers(cluster: &Cluster, emissions: &[Emission]) -> anyhow::Result<Vec<Answer>> {
    let tenants: BTreeSet<Uuid> = emissions.iter().map(|emission| emission.identity.0).collect();
    let Some(last) = emissions.iter().map(|emission| emission.emitted_at).max() else {
        return Ok(Vec::new());
    };
    readers::complete(cluster, tenants, last, PATIENCE).await
}

/// Kills the emitters; what they had open is decided once the database has noticed.
async fn end_the_load(cluster: &Cluster) -> anyhow::Result<()> {
    for (actor, member) in &cluster.members {
        if matches!(actor, Actor::Emitter(_)) {
            member.lock().await.kill9();
        }
    }
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    await_zero(&cluster.pipeline.source, sql, Some(emitter::APPLICATION), "connections of emitters").await
}

async fn come_to_rest(cluster: &Cluster, database: &str) -> anyhow::Result<()> {
    for table in ["usage_outbox", "usage_outbox_waiting"] {
        let sql = format!("SELECT count(*) FROM {table}");
        await_zero(&cluster.pipeline.source, &sql, None, table).await?;
    }
    offsets::drained(cluster, PATIENCE).await?;
    storage::rolled_up(&cluster.clickhouse_url, database, PATIENCE).await?;
    let refused: i64 = sqlx::query_scalar("SELECT count(*) FROM usage_outbox_dead_letters")
        .fetch_one(&cluster.pipeline.source)
        .await?;
    if refused != 0 {
        bail!("{refused} rows are dead letters of the outbox");
    }
    Ok(())
}

async fn usagectl(cluster: &Cluster, arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = cluster.pipeline.usagectl_command(arguments);
    let output = blocking(move || Ok(command.output()?)).await?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        bail!("usagectl {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&said));
    }
    Ok(())
}

async fn await_zero(pool: &PgPool, sql: &str, bound: Option<&str>, what: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut every = interval(Duration::from_millis(200));
    loop {
        every.tick().await;
        let mut query = sqlx::query_scalar::<_, i64>(sqlx::AssertSqlSafe(sql.to_string()));
        if let Some(bound) = bound {
            query = query.bind(bound.to_string());
        }
        let left = query.fetch_one(pool).await;
        match left {
            Ok(0) => return Ok(()),
            _ if Instant::now() < deadline => {}
            Ok(left) => bail!("{left} {what} are left after {PATIENCE:?}"),
            Err(error) => return Err(error).context(what.to_string()),
        }
    }
}

async fn dead_letters(cluster: &Cluster) -> anyhow::Result<Vec<Refused>> {
    let (brokers, topic) = (cluster.brokers.clone(), cluster.pipeline.dead_letters_topic().to_string());
    let letters = blocking(move || topic::read_all_of(&brokers, &topic)).await?;
    refused(&letters)
}

/// Each once: a recovery may write a dead letter twice, its identity is where the message lay.
fn refused(letters: &[Letter]) -> anyhow::Result<Vec<Refused>> {
    let mut known = BTreeSet::new();
    let mut all = Vec::new();
    let decoder = Decoder::new();
    for letter in letters {
        let place = [names::HEADER_DLQ_TOPIC, names::HEADER_DLQ_PARTITION, names::HEADER_DLQ_OFFSET]
            .map(|name| letter.header(name).to_string());
        if !known.insert(place) {
            continue;
        }
        let value = letter.value.as_deref().context("a dead letter without a value")?;
        let record = decoder.decode(value).context("a dead letter that is no record")?;
        let text = |text: Option<&str>| text.map(str::to_owned);
        let details = Details {
            source: record.source.into(),
            idempotency_key: text(record.idempotency_key),
            resource_id: record.resource_id,
            resource_type: text(record.resource_type),
            subject_id: record.subject_id,
            subject_type: text(record.subject_type),
            metadata: text(record.metadata),
        };
        all.push(Refused {
            identity: (record.tenant_id, record.record_id),
            content: Content {
                metric: record.metric.into(),
                kind: record.kind,
                value: record.value,
                timestamp: record.timestamp.micros(),
                details,
            },
            reason: letter.header(names::HEADER_DLQ_REASON).into(),
        });
    }
    Ok(all)
}

/// What the API says in the end is what the records add up to.
async fn final_answers(cluster: &Cluster, stored: &[Stored]) -> anyhow::Result<Vec<Difference>> {
    let truth = totals(stored);
    let answers = cluster.api.settle(&truth, RANGE.0, RANGE.1, PATIENCE).await?;
    let differences = crate::answers::differences(&truth, &answers);
    Ok(differences.into_iter().map(|text| Difference::Answer(format!("final answer: {text}"))).collect())
}

fn totals(stored: &[Stored]) -> Totals {
    let mut sums: BTreeMap<(Uuid, String), (u64, i128)> = BTreeMap::new();
    for row in stored {
        let sum = sums.entry((row.identity.0, row.content.metric.clone())).or_default();
        *sum = (sum.0 + 1, sum.1 + row.content.value.unscaled());
    }
    let total = |(count, sum): (u64, i128)| Total {
        count: count.to_string(),
        sum: usage_schemas::Quantity::from_unscaled(sum)
            .map_or_else(|_| "too wide".into(), |sum| sum.to_string()),
    };
    sums.into_iter().map(|(key, sum)| (key, total(sum))).collect()
}

#[cfg(test)]
mod tests {
    use usage_schemas::{Kind, Quantity};

    use super::super::oracle::{Fate, Measure, Series};
    use super::*;

    const ONE: Uuid = Uuid::from_u128(1);

    fn emission() -> Emission {
        let content = Content {
            metric: "m".into(),
            kind: Kind::Counter,
            value: Quantity::ZERO,
            timestamp: 1,
            details: Details::default(),
        };
        Emission { identity: (ONE, ONE), content, fate: Fate::Kept, emitted_at: 1 }
    }

    fn answer(complete_until: Option<i64>) -> Answer {
        let (series, measure, value) = (Series::Metric("m".into()), Measure::Count, Quantity::ZERO);
        Answer { reader: 0, tenant: ONE, series, measure, value, answered_at: 2, complete_until }
    }

    #[test]
    fn a_run_without_emits_answers_or_completeness_proves_nothing() {
        let long = PROVES_COMPLETENESS;
        let (emissions, known) = ([emission()], [answer(None), answer(Some(1))]);
        assert_eq!(unproved(&emissions, &known, long), None);
        for (emissions, answers) in [(&[][..], &known[..]), (&emissions, &[]), (&emissions, &known[..1])] {
            assert!(unproved(emissions, answers, long).is_some(), "{emissions:?} {answers:?}");
        }
        // A shorter one may have broken everything all the time.
        assert_eq!(unproved(&emissions, &known[..1], long - Duration::from_secs(1)), None);
    }
}
