//! What `authorize_emit` takes: with everything remembered, for a caller that is new, and with nothing remembered.
//!
//! ```text
//! cargo bench -p usage-producer --bench authorize
//! ```
//! Starts a Postgres of its own: for the quota's counter, and for usage types that are not remembered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use sqlx::PgPool;
use usage_access::policy::{Cached, EmbeddedPolicies, PolicyDecisionPoint};
use usage_access::{Scopes, SecurityContext};
use usage_devstack::Postgres;
use usage_producer::{ScopedCollector, SourceQuota, UsageCollector, outbox};
use usage_schemas::{
    CompiledType, Kind, RegistryError, Rules, Timestamp, TypeVersion, TypesRegistry, UsageType,
};
use uuid::Uuid;

const METRIC: &str = "llm.tokens";
const WARM: usize = 20_000;
const COLD: usize = 500;

fn usage_type(unit: String) -> Result<Arc<CompiledType>, RegistryError> {
    let version = TypeVersion {
        version: 1,
        valid_from: None,
        kind: Kind::Counter,
        unit,
        description: None,
        rules: Rules { integer: true, ..Rules::default() },
        created_at: Timestamp::from_micros(0),
    };
    let usage_type = UsageType { name: METRIC.into(), versions: vec![version] };
    CompiledType::new(usage_type).map(Arc::new).map_err(|error| RegistryError::Unusable(error.into()))
}

/// Read each time, and compiled.
struct InPostgres(PgPool);

#[async_trait]
impl TypesRegistry for InPostgres {
    async fn usage_type(&self, name: &str) -> Result<Option<Arc<CompiledType>>, RegistryError> {
        let unit: Option<String> = sqlx::query_scalar("SELECT unit FROM types WHERE name = $1")
            .bind(name)
            .fetch_optional(&self.0)
            .await
            .map_err(|error| RegistryError::Unavailable(error.into()))?;
        unit.map(usage_type).transpose()
    }
}

struct Remembered(Arc<CompiledType>);

#[async_trait]
impl TypesRegistry for Remembered {
    async fn usage_type(&self, name: &str) -> Result<Option<Arc<CompiledType>>, RegistryError> {
        Ok((name == METRIC).then(|| self.0.clone()))
    }
}

fn policies() -> Result<Arc<dyn PolicyDecisionPoint>> {
    Ok(Arc::new(Cached::new(EmbeddedPolicies::shipped()?, Duration::from_secs(60), 100_000)))
}

fn collector(
    pool: &PgPool,
    policies: Arc<dyn PolicyDecisionPoint>,
    types: Arc<dyn TypesRegistry>,
) -> Result<ScopedCollector> {
    let quota = SourceQuota::new(pool.clone(), 1_000_000, Duration::from_secs(3_600));
    let builder = UsageCollector::builder().policy(policies).types(types).source_quota(quota);
    Ok(builder.build()?.for_module("llm-gateway"))
}

fn caller(number: usize) -> SecurityContext {
    SecurityContext::for_tenant(Uuid::from_u128(number as u128 + 1), Scopes::all())
}

/// The time of each call, `ready` not counted.
async fn measure(
    calls: usize,
    mut ready: impl FnMut(usize) -> Result<(ScopedCollector, SecurityContext)>,
) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(calls);
    for number in 0..calls {
        let (collector, ctx) = ready(number)?;
        let started = Instant::now();
        let authorization = collector.authorize_emit(&ctx, METRIC).await?;
        times.push(started.elapsed());
        std::hint::black_box(authorization);
    }
    times.sort_unstable();
    Ok(times)
}

fn print(what: &str, times: &[Duration]) {
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    println!("{what:<44} {:>7} calls  p50 {:>10.1?}  p99 {:>10.1?}", times.len(), at(50), at(99));
}

#[tokio::main]
async fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let server = Postgres::start(dir.path())?;
    server.ensure_database("bench")?;
    let pool = PgPool::connect(&server.url("bench")).await?;
    outbox::migrate(&pool).await?;
    sqlx::raw_sql("CREATE TABLE types (name text PRIMARY KEY, unit text); INSERT INTO types VALUES ('llm.tokens', 'token')")
        .execute(&pool)
        .await?;
    let remembered =
        || -> Result<Arc<dyn TypesRegistry>> { Ok(Arc::new(Remembered(usage_type("token".into())?))) };
    println!("{} build", if cfg!(debug_assertions) { "debug" } else { "release" });

    let warm = collector(&pool, policies()?, remembered()?)?;
    warm.authorize_emit(&caller(0), METRIC).await.context("the first authorization")?;
    print("warm: all remembered", &measure(WARM, |_| Ok((warm.clone(), caller(0)))).await?);
    print(
        "a new caller: Cedar decides",
        &measure(COLD, |number| Ok((warm.clone(), caller(number + 1)))).await?,
    );
    let nothing_remembered =
        |number| Ok((collector(&pool, policies()?, Arc::new(InPostgres(pool.clone())))?, caller(number)));
    print("cold: Cedar, and type and count of Postgres", &measure(COLD, nothing_remembered).await?);
    let trusting =
        UsageCollector::builder().trust_scopes().unchecked_types().build()?.for_module("llm-gateway");
    print("nobody is asked", &measure(WARM, |_| Ok((trusting.clone(), caller(0)))).await?);
    pool.close().await;
    server.stop()?;
    Ok(())
}
