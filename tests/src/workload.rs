//! An LLM gateway that bills its tenants: what `demo` plays and the end-to-end tests judge.
//!
//! Each request is one transaction: the application's own line of work and the usage record, together or not at all.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use sqlx::{PgConnection, PgPool};
use usage_access::{Scopes, SecurityContext};
use usage_producer::{NewRecord, ScopedCollector, UsageCollector};
use usage_schemas::{Quantity, Timestamp, TypesRegistry};
use usage_service::clock;
use uuid::Uuid;

use crate::source::{self, Work};
use crate::trace;

/// The source's name, as the stack registers it.
pub const SOURCE: &str = "demo";

/// The client that plays: its callers are trusted with what their scopes say, and a metric must be one that `types` has.
pub fn collector(types: Arc<dyn TypesRegistry>) -> ScopedCollector {
    let collector = UsageCollector::builder().trust_scopes().types(types).build();
    collector.expect("it is said who decides").for_module(SOURCE)
}

/// The same where no query-api runs, or where metrics that are not registered are emitted too, since what becomes of those is for the
/// consumer to show.
pub fn unchecked_collector() -> ScopedCollector {
    let collector = UsageCollector::builder().trust_scopes().unchecked_types().build();
    collector.expect("it is said who decides").for_module(SOURCE)
}

/// What is to be played. Shares are in percent.
#[derive(Debug, Clone)]
pub struct Workload {
    pub transactions: usize,
    pub tenants: usize,
    pub workers: usize,
    pub seed: u64,
    /// Transactions that are rolled back after they emitted.
    pub rollbacks: u32,
    /// Requests that are sent again later, with the same keys and content.
    pub repeats: u32,
    /// Requests that also sample a gauge.
    pub gauges: u32,
    /// Requests that happened a month or two ago.
    pub late: u32,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            transactions: 3_000,
            tenants: 8,
            workers: 8,
            seed: 1,
            rollbacks: 5,
            repeats: 5,
            gauges: 30,
            late: 0,
        }
    }
}

/// What was played.
#[derive(Debug, Default, Clone)]
pub struct Played {
    pub committed: usize,
    pub rolled_back: usize,
    pub repeated: usize,
    pub records: usize,
    /// Time of each emit call inside its transaction.
    pub emits: Vec<Duration>,
    pub elapsed: Duration,
}

impl AddAssign for Played {
    fn add_assign(&mut self, other: Self) {
        self.committed += other.committed;
        self.rolled_back += other.rolled_back;
        self.repeated += other.repeated;
        self.records += other.records;
        self.emits.extend(other.emits);
        self.elapsed = self.elapsed.max(other.elapsed);
    }
}

/// The tenants of a seed: the same ones each time, all fresh ids of version 4's shape.
pub fn tenants(seed: u64, count: usize) -> Vec<Uuid> {
    let mut random = StdRng::seed_from_u64(seed ^ 0x7e4a_4175);
    (0..count).map(|_| uuid::Builder::from_random_bytes(random.random()).into_uuid()).collect()
}

/// One request to be billed: everything in it is fixed, so that sending it again sends the same content.
#[derive(Debug, Clone)]
struct Request {
    tenant: Uuid,
    id: String,
    at: Timestamp,
    input: Quantity,
    output: Quantity,
    gauge: Option<Quantity>,
}

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Commit,
    Rollback,
}

/// Plays a generated workload; `progress` is told after each transaction.
pub async fn play(
    pool: &PgPool,
    module: &ScopedCollector,
    workload: &Workload,
    progress: impl Fn() + Send + Sync + Clone + 'static,
) -> anyhow::Result<Played> {
    let tenants = tenants(workload.seed, workload.tenants);
    let mut random = StdRng::seed_from_u64(workload.seed);
    let mut steps = Vec::new();
    for number in 0..workload.transactions {
        let request = generate(&mut random, &tenants, workload, number);
        if random.random_ratio(workload.rollbacks, 100) {
            steps.push((request, End::Rollback));
        } else {
            let again = random.random_ratio(workload.repeats, 100).then(|| request.clone());
            steps.push((request, End::Commit));
            steps.extend(again.map(|request| (request, End::Commit)));
        }
    }
    run(pool, module, steps, workload.workers, progress).await
}

fn generate(random: &mut StdRng, tenants: &[Uuid], workload: &Workload, number: usize) -> Request {
    let micro_tokens = random.random_range(0..2_000_000_i128);
    let late = workload.late > 0 && random.random_ratio(workload.late, 100);
    let age = if late { 40 * 86_400 * 1_000_000 } else { 0 };
    let unscaled = |value: i128| Quantity::from_unscaled(value).expect("a generated value is in range");
    Request {
        // A noisy tenant among quiet ones.
        tenant: tenants[if random.random_ratio(1, 3) { 0 } else { random.random_range(0..tenants.len()) }],
        id: format!("req-{}-{number}", workload.seed),
        at: Timestamp::from_micros(clock::now_micros() - age),
        input: unscaled(i128::from(random.random_range(1..8_000_u32)) * 10_i128.pow(18)),
        output: unscaled(micro_tokens * 10_i128.pow(12) + 1),
        gauge: random
            .random_ratio(workload.gauges, 100)
            .then(|| unscaled(random.random_range(-50..=100) * 10_i128.pow(16))),
    }
}

/// Plays a trace: three counters a request, spread over the tenants in turn.
pub async fn play_trace(
    pool: &PgPool,
    module: &ScopedCollector,
    requests: &[trace::Request],
    seed: u64,
    tenant_count: usize,
    workers: usize,
    progress: impl Fn() + Send + Sync + Clone + 'static,
) -> anyhow::Result<Played> {
    let tenants = tenants(seed, tenant_count);
    let steps = requests.iter().enumerate().map(|(number, request)| {
        let request = Request {
            tenant: tenants[number % tenants.len()],
            id: format!("trace-{seed}-{number}"),
            at: request.at,
            input: request.input_tokens,
            output: request.output_tokens,
            gauge: None,
        };
        (request, End::Commit)
    });
    run(pool, module, steps.collect(), workers, progress).await
}

/// Several workers take the steps in order; a request that is sent again counts as repeated.
async fn run(
    pool: &PgPool,
    module: &ScopedCollector,
    steps: Vec<(Request, End)>,
    workers: usize,
    progress: impl Fn() + Send + Sync + Clone + 'static,
) -> anyhow::Result<Played> {
    source::migrate(pool).await?;
    let (steps, next) = (Arc::new(steps), Arc::new(AtomicUsize::new(0)));
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..workers {
        let (pool, module, steps) = (pool.clone(), module.clone(), steps.clone());
        let (next, progress) = (next.clone(), progress.clone());
        tasks.spawn(async move {
            let mut played = Played::default();
            while let Some((request, end)) = steps.get(next.fetch_add(1, Ordering::Relaxed)) {
                bill(&pool, &module, request, *end, &mut played).await?;
                progress();
            }
            anyhow::Ok(played)
        });
    }
    let mut total = Played::default();
    while let Some(played) = tasks.join_next().await {
        total += played??;
    }
    total.elapsed = started.elapsed();
    Ok(total)
}

async fn bill(
    pool: &PgPool,
    module: &ScopedCollector,
    request: &Request,
    end: End,
    played: &mut Played,
) -> anyhow::Result<()> {
    let ctx = SecurityContext::for_tenant(request.tenant, Scopes::all());
    let counters = [
        ("llm.requests", Quantity::from_unscaled(10_i128.pow(18))?),
        ("llm.input_tokens", request.input),
        ("llm.output_tokens", request.output),
    ];
    let mut authorizations = Vec::new();
    for (metric, _) in &counters {
        authorizations.push(module.authorize_emit(&ctx, metric).await?);
    }
    let mut tx = pool.begin().await?;
    let before = remembered(&mut tx, request).await?;
    for ((metric, value), authorization) in counters.iter().zip(&authorizations) {
        let key = format!("{}/{metric}", request.id);
        let work = Work {
            tenant_id: request.tenant,
            metric: (*metric).into(),
            value: value.to_string(),
            key: Some(key.clone()),
        };
        source::remember(&mut tx, &work).await?;
        let started = Instant::now();
        // Half of the source speaks SQL, as another language would; the record is the same.
        if value.unscaled() % 2 == 0 {
            let record = NewRecord::counter(request.tenant, *metric, *value, key).at(request.at);
            module.emit(&mut *tx, &ctx, record, authorization).await?;
        } else {
            usage_emit(&mut tx, &work, request.at, "counter").await?;
        }
        played.emits.push(started.elapsed());
        played.records += 1;
    }
    // A sample has no key, so a request that is sent again must not sample again.
    if let Some(gauge) = request.gauge.filter(|_| !before) {
        let work = Work {
            tenant_id: request.tenant,
            metric: "gpu.utilization".into(),
            value: gauge.to_string(),
            key: None,
        };
        source::remember(&mut tx, &work).await?;
        usage_emit(&mut tx, &work, request.at, "gauge").await?;
        played.records += 1;
    }
    match end {
        End::Commit => {
            tx.commit().await?;
            played.committed += 1;
            played.repeated += usize::from(before);
        }
        End::Rollback => {
            tx.rollback().await?;
            played.rolled_back += 1;
        }
    }
    Ok(())
}

/// Whether the request was billed before; takes a lock so that the same request is never billed by two workers at once.
async fn remembered(connection: &mut PgConnection, request: &Request) -> anyhow::Result<bool> {
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 7))")
        .bind(&request.id)
        .execute(&mut *connection)
        .await?;
    let key = format!("{}/llm.requests", request.id);
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM work WHERE tenant_id = $1 AND metric = 'llm.requests' AND key = $2)",
    )
    .bind(request.tenant)
    .bind(key)
    .fetch_one(connection)
    .await
    .context("can't look up the request")
}

/// Emits in SQL, as any language can.
pub async fn usage_emit(
    connection: &mut PgConnection,
    work: &Work,
    at: Timestamp,
    kind: &str,
) -> anyhow::Result<Uuid> {
    sqlx::query_scalar("SELECT usage_emit($1, $2, $3::numeric, $4, $5::timestamptz, $6)")
        .bind(work.tenant_id)
        .bind(&work.metric)
        .bind(&work.value)
        .bind(&work.key)
        .bind(time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.micros()) * 1_000)?)
        .bind(kind)
        .fetch_one(connection)
        .await
        .context("usage_emit")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_tenants_and_requests_each_time() {
        assert_eq!(tenants(7, 5), tenants(7, 5));
        assert_ne!(tenants(7, 5), tenants(8, 5));
        let workload = Workload { seed: 7, ..Workload::default() };
        let one = |_: ()| {
            let mut random = StdRng::seed_from_u64(7);
            let request = generate(&mut random, &tenants(7, 5), &workload, 3);
            (request.tenant, request.id, request.input, request.output, request.gauge)
        };
        assert_eq!(one(()), one(()));
    }

    #[test]
    fn tenants_are_no_nil_ids() {
        assert!(tenants(1, 100).iter().all(|tenant| tenant.get_version_num() == 4 && !tenant.is_nil()));
    }
}
