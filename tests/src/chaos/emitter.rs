//! A process of the usage source: many transactions at once, some of which roll back, last for seconds, repeat or contradict what was
//! said before, or say what must be refused. It writes down what it says in the same transaction.

mod work;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{Acquire as _, PgConnection};
use tokio::time::{MissedTickBehavior, interval};
use usage_access::{Scopes, SecurityContext};
use usage_producer::{NewRecord, ScopedCollector};
use usage_schemas::{Kind, Timestamp, ids};
use usage_service::clock;
use uuid::Uuid;

use super::oracle::Fate;
use super::truth::{self, Said};
use crate::workload::{self, tenants};
pub use work::TENANTS;
use work::{Door, Emit, Ending, Plan, Worker};

/// The subcommand of the program `usage-chaos` that is an emitter.
pub const COMMAND: &str = "emit";
/// By this name the database lists the emitters' connections.
pub const APPLICATION: &str = "chaos-emitter";
/// A transaction over a link that is cut is given up; the longest one on purpose takes 6 s.
const PATIENCE: Duration = Duration::from_secs(20);
/// After a failure, as an application would.
const BACKOFF: Duration = Duration::from_millis(300);

/// How one emitter is called.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// The source's database.
    #[arg(long)]
    pub url: String,
    #[arg(long)]
    pub seed: u64,
    /// Unique among all emitters that there were: part of every key.
    #[arg(long)]
    pub life: String,
    /// Transactions per second.
    #[arg(long)]
    pub rate: u32,
    /// Transactions at once.
    #[arg(long)]
    pub workers: u32,
    /// Records of a transaction, at most.
    #[arg(long)]
    pub records: u32,
    /// Hours by which the source's clock is wrong; absent means right. Read before each transaction.
    #[arg(long)]
    pub clock: PathBuf,
}

/// Emits until the process is killed.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let options: PgConnectOptions = arguments.url.parse().context("--url")?;
    let pool = PgPoolOptions::new()
        .max_connections(arguments.workers)
        .acquire_timeout(PATIENCE)
        .connect_lazy_with(options.application_name(APPLICATION));
    let arguments = Arc::new(arguments);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..arguments.workers {
        tasks.spawn(emit_for_ever(pool.clone(), arguments.clone(), number));
    }
    while tasks.join_next().await.transpose()?.is_some() {}
    Ok(())
}

async fn emit_for_ever(pool: PgPool, arguments: Arc<Arguments>, number: u32) {
    let module = workload::unchecked_collector();
    let seed = arguments.seed ^ u64::from(number) << 32 ^ hash(&arguments.life);
    let mut worker = Worker::new(
        StdRng::seed_from_u64(seed),
        tenants(arguments.seed, TENANTS),
        format!("{}-{number}", arguments.life),
        arguments.records,
    );
    let every = Duration::from_secs(1) * arguments.workers / arguments.rate.max(1);
    let mut pace = interval(every.max(Duration::from_millis(1)));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        pace.tick().await;
        let hours = std::fs::read_to_string(&arguments.clock).ok().and_then(|text| text.trim().parse().ok());
        let plan = worker.plan(clock::now_micros(), hours.unwrap_or(0));
        let done = tokio::time::timeout(PATIENCE, transaction(&pool, &module, &plan)).await;
        match done {
            Ok(Ok(true)) => worker.committed(&plan),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => {
                tracing::warn!(error = format!("{error:#}"), "a transaction failed");
                tokio::time::sleep(BACKOFF).await;
            }
            Err(_) => tracing::warn!("a transaction was given up"),
        }
    }
}

/// FNV-1a: the same on every machine and in every version.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Whether it committed. An error says nothing about that: the table does.
async fn transaction(pool: &PgPool, module: &ScopedCollector, plan: &Plan) -> anyhow::Result<bool> {
    let mut connection = pool.acquire().await?;
    let mut tx = connection.begin().await?;
    for emits in plan.emits.chunk_by(Emit::joins) {
        let ids = say(&mut tx, module, emits).await.with_context(|| format!("{emits:?}"))?;
        let said = emits.iter().zip(ids).map(|(emit, record_id)| {
            let content = emit.content.clone();
            Said { tenant: emit.tenant, record_id, content, fate: emit.fate }
        });
        truth::remember(&mut tx, &said.collect::<Vec<_>>()).await?;
    }
    if let Some(open_for) = plan.open_for {
        // A long transaction is time that passes with it open.
        tokio::time::sleep(open_for).await;
    }
    match plan.ending {
        Ending::Commit => tx.commit().await?,
        Ending::Rollback => tx.rollback().await?,
    }
    Ok(plan.ending == Ending::Commit)
}

/// Emits that go into the outbox together; returns their ids.
async fn say(
    connection: &mut PgConnection,
    module: &ScopedCollector,
    emits: &[Emit],
) -> anyhow::Result<Vec<Uuid>> {
    let [first, rest @ ..] = emits else { return Ok(Vec::new()) };
    if first.door != Door::Rust {
        let id = match first.door {
            Door::Sql => by_sql(connection, first).await?,
            _ => past_the_checks(connection, first).await?,
        };
        return Ok(vec![id]);
    }
    let details = &first.content.details;
    let ctx = SecurityContext {
        subject_id: details.subject_id,
        subject_type: details.subject_type.clone(),
        ..SecurityContext::for_tenant(first.tenant, Scopes::all())
    };
    let authorization = module.authorize_emit(&ctx, &first.content.metric).await?;
    if rest.is_empty() {
        return Ok(vec![module.emit(connection, &ctx, record(first), &authorization).await?]);
    }
    let records = emits.iter().map(record).collect();
    Ok(module.emit_batch(connection, &ctx, records, &authorization).await?)
}

fn record(emit: &Emit) -> NewRecord {
    let content = &emit.content;
    let details = &content.details;
    let key = details.idempotency_key.clone();
    let mut record = match content.kind {
        Kind::Counter => {
            NewRecord::counter(emit.tenant, &content.metric, content.value, key.clone().unwrap_or_default())
        }
        Kind::Gauge => NewRecord::gauge(emit.tenant, &content.metric, content.value),
    };
    record.idempotency_key = key;
    record.resource_id = details.resource_id;
    record.resource_type.clone_from(&details.resource_type);
    record.metadata.clone_from(&details.metadata);
    record.at(Timestamp::from_micros(content.timestamp))
}

async fn by_sql(connection: &mut PgConnection, emit: &Emit) -> anyhow::Result<Uuid> {
    let content = &emit.content;
    let details = &content.details;
    sqlx::query_scalar("SELECT usage_emit($1, $2, $3::numeric, $4, $5, $6, $7, $8, $9, $10, $11::json)")
        .bind(emit.tenant)
        .bind(&content.metric)
        .bind(content.value.to_string())
        .bind(&details.idempotency_key)
        .bind(clock::from_micros(content.timestamp))
        .bind(content.kind.as_str())
        .bind(details.resource_id)
        .bind(&details.resource_type)
        .bind(details.subject_id)
        .bind(&details.subject_type)
        .bind(&details.metadata)
        .fetch_one(connection)
        .await
        .context("usage_emit")
}

/// The outbox row that `usage_emit` would write on a machine whose clock is wrong: with a right one it refuses such times itself.
async fn past_the_checks(connection: &mut PgConnection, emit: &Emit) -> anyhow::Result<Uuid> {
    debug_assert_ne!(emit.fate, Fate::UnknownUsageType);
    let details = &emit.content.details;
    let key = details.idempotency_key.as_deref().context("such a record has a key")?;
    let record_id = ids::record_id(emit.tenant, key);
    let payload = serde_json::json!({
        "record_id": record_id,
        "tenant_id": emit.tenant,
        "metric": emit.content.metric,
        "kind": emit.content.kind.as_str(),
        "value": emit.content.value.to_string(),
        "timestamp": Timestamp::from_micros(emit.content.timestamp).to_string(),
        "idempotency_key": key,
        "resource_id": details.resource_id,
        "resource_type": details.resource_type,
        "subject_id": details.subject_id,
        "subject_type": details.subject_type,
        "metadata": details.metadata,
    });
    sqlx::query(
        "INSERT INTO usage_outbox (part, tenant_id, payload_type, payload)
         VALUES (usage_outbox_part($1), $1, 'usage-collector.record.v1+json', convert_to($2, 'UTF8'))",
    )
    .bind(emit.tenant)
    .bind(payload.to_string())
    .execute(connection)
    .await?;
    Ok(record_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_of_an_emitter_have_streams_of_their_own() {
        assert_eq!(hash("emitter-0.1"), hash("emitter-0.1"));
        assert_ne!(hash("emitter-0.1"), hash("emitter-0.2"));
        assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
    }
}
