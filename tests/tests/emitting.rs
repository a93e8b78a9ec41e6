//! Usage types on their whole way to a source: registered over HTTP, read by it from the query-api, judged at `emit`, and counted.

// The program that the README shows.
#[path = "../../producer/examples/emit.rs"]
#[allow(dead_code, reason = "its main is called by nobody here")]
mod example;

use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};
use usage_access::{Scopes, SecurityContext};
use usage_producer::{EmitError, Freshness, NewRecord, ScopedCollector};
use usage_schemas::{Quantity, Timestamp};
use usage_service::clock;
use usage_tests::answers::Api;
use usage_tests::pipeline::{Options, Pipeline, RANGE};
use usage_tests::{topic, workload};
use uuid::Uuid;

const METRIC: &str = "gpu.seconds";
const PATIENCE: Duration = Duration::from_secs(90);

/// Every authorization reads the types anew if they can be read, and goes by what it remembers if not.
const ANEW: Freshness =
    Freshness { fresh: Duration::ZERO, stale: Duration::from_secs(3_600), pause: Duration::ZERO };

/// A version of the type whose values have a maximum.
fn version(number: i32, valid_from: Option<Timestamp>, max: &str) -> Value {
    let mut body = json!({"name": METRIC, "kind": "counter", "unit": "second", "rules": {"max": max}});
    if let Some(from) = valid_from {
        body["version"] = json!(number);
        body["valid_from"] = json!(from.to_string());
    }
    body
}

async fn register(api: &Api, body: &Value) -> anyhow::Result<()> {
    let (status, answer) = api.post(Uuid::new_v4(), "/v1/usage/types", body).await?;
    anyhow::ensure!(status == 201, "{status}: {answer}");
    Ok(())
}

/// A module, its caller, and where it emits.
struct Source<'a> {
    module: &'a ScopedCollector,
    ctx: SecurityContext,
    pool: &'a PgPool,
}

impl Source<'_> {
    /// Authorizes and emits one record of the metric.
    async fn emit(&self, value: &str, key: &str, at: Timestamp) -> Result<Uuid, EmitError> {
        let auth = self.module.authorize_emit(&self.ctx, METRIC).await?;
        let value = Quantity::parse(value).expect("a value");
        let record = NewRecord::counter(self.ctx.tenant_id, METRIC, value, key).at(at);
        let mut tx = self.pool.begin().await.expect("a transaction");
        let id = self.module.emit(&mut tx, &self.ctx, record, &auth).await?;
        tx.commit().await.expect("a commit");
        Ok(id)
    }
}

fn field(result: Result<Uuid, EmitError>) -> (&'static str, Option<String>) {
    let error = result.expect_err("it is refused");
    (error.reason(), error.field().map(ToOwned::to_owned))
}

fn violation() -> (&'static str, Option<String>) {
    ("schema_violation", Some("value".into()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_type_is_registered_over_http_and_judges_what_is_emitted() -> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options { partitions: Some(1), ..Options::default() }).await?;
    let running = pipeline.run()?;
    let module = workload::collector(running.api.types(ANEW)?);
    let tenant = Uuid::new_v4();
    let ctx = SecurityContext::for_tenant(tenant, Scopes::all());
    let source = Source { module: &module, ctx, pool: &pipeline.source };
    let now = Timestamp::from_micros(clock::now_micros());
    let unknown = field(source.emit("1", "early", now).await);
    assert_eq!(unknown, ("unknown_usage_type", Some("metric".into())));

    register(&running.api, &version(1, None, "5")).await?;
    source.emit("5", "a", now).await?;
    assert_eq!(field(source.emit("6", "b", now).await), violation());

    // It allows more, so it may begin in the past: what lies before keeps the old rule.
    let hour = Timestamp::from_micros(now.micros() - 3_600_000_000);
    register(&running.api, &version(2, Some(hour), "10")).await?;
    // The first authorization may still go by what it remembers, and has it read again beside.
    accepted(&source, "6", "b", now).await?;
    source.emit("10", "c", hour).await?;
    let before = Timestamp::from_micros(hour.micros() - 1);
    assert_eq!(field(source.emit("10", "d", before).await), violation());
    source.emit("5", "e", before).await?;

    // It demands more, so it begins later, and until then nothing changes.
    let soon = Timestamp::from_micros(now.micros() + 1_200_000_000);
    register(&running.api, &version(3, Some(soon), "2")).await?;
    source.emit("10", "f", now).await?;
    // As if its time had come.
    let begun = Timestamp::from_micros(now.micros() + 1);
    let mut control = PgConnection::connect(&pipeline.env()["USAGE_CONTROL_DATABASE_URL"]).await?;
    let comes = format!("UPDATE usage_types SET valid_from = '{begun}' WHERE version = 3");
    sqlx::query(AssertSqlSafe(comes)).execute(&mut control).await?;
    refused(&source, "3", begun).await?;
    assert_eq!(field(source.emit("3", "g", begun).await), violation());
    source.emit("2", "h", begun).await?;
    source.emit("10", "i", now).await?;

    // The consumer judges by the same versions: all that was emitted is counted.
    let total = async || -> anyhow::Result<Option<(String, String)>> {
        let totals = running.api.totals(tenant, RANGE.0, RANGE.1).await?;
        Ok(totals.get(&(tenant, METRIC.to_string())).map(|total| (total.count.clone(), total.sum.clone())))
    };
    let counted = Some(("7".to_owned(), "48".to_owned()));
    within(async || Ok(total().await? == counted)).await.with_context(|| format!("not {counted:?}"))?;
    assert_eq!(topic::read_all(pipeline.dead_letters_topic())?, []);
    Ok(())
}

/// Waits until it holds.
async fn within(mut holds: impl AsyncFnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let waiting = async {
        let mut every = tokio::time::interval(Duration::from_millis(50));
        while !holds().await? {
            every.tick().await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, waiting).await?
}

/// Emits until a new version lets it through.
async fn accepted(source: &Source<'_>, value: &str, key: &str, at: Timestamp) -> anyhow::Result<()> {
    within(async || match source.emit(value, key, at).await {
        Ok(_) => Ok(true),
        Err(EmitError::SchemaViolation { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    })
    .await
}

/// Checks, without writing anything, until a new version refuses the value.
async fn refused(source: &Source<'_>, value: &str, at: Timestamp) -> anyhow::Result<()> {
    within(async || {
        let auth = source.module.authorize_emit(&source.ctx, METRIC).await?;
        let record =
            NewRecord::counter(source.ctx.tenant_id, METRIC, Quantity::parse(value)?, "probe").at(at);
        let mut tx = source.pool.begin().await?;
        let result = source.module.emit(&mut tx, &source.ctx, record, &auth).await;
        tx.rollback().await?;
        match result {
            Ok(_) => Ok(false),
            Err(EmitError::SchemaViolation { .. }) => Ok(true),
            Err(error) => Err(error.into()),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_registry_is_away_only_what_is_remembered_is_emitted() -> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options { partitions: Some(1), ..Options::default() }).await?;
    let (mut query_api, api) = pipeline.query_api()?;
    register(&api, &version(1, None, "5")).await?;
    let module = workload::collector(api.types(ANEW)?);
    let ctx = SecurityContext::for_tenant(Uuid::new_v4(), Scopes::all());
    let source = Source { module: &module, ctx: ctx.clone(), pool: &pipeline.source };
    let now = Timestamp::from_micros(clock::now_micros());
    source.emit("5", "a", now).await?;
    let cold = workload::collector(api.types(ANEW)?);
    let too_old = Freshness { stale: Duration::ZERO, ..ANEW };
    let forgetful = workload::collector(api.types(too_old)?);
    forgetful.authorize_emit(&ctx, METRIC).await?;

    query_api.terminate()?;
    source.emit("5", "b", now).await?;
    assert_eq!(field(source.emit("6", "c", now).await), violation());
    // What is not remembered is not refused as unknown: nobody knows.
    for (module, metric) in [(&module, "mail.sent"), (&cold, METRIC), (&forgetful, METRIC)] {
        let error = module.authorize_emit(&ctx, metric).await.expect_err("nothing is known");
        let EmitError::Unavailable { what, .. } = error else { anyhow::bail!("{metric}: {error}") };
        assert_eq!(what, "the types registry", "{metric}");
    }
    let rows: i64 =
        sqlx::query_scalar("SELECT count(*) FROM usage_outbox").fetch_one(&pipeline.source).await?;
    assert_eq!(rows, 2, "a refusal writes nothing");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_emits_what_the_registry_has() -> anyhow::Result<()> {
    let pipeline = Pipeline::prepare(Options { partitions: Some(1), ..Options::default() }).await?;
    let running = pipeline.run()?;
    let token = running.api.token(Uuid::new_v4())?;
    let database = &pipeline.env()["USAGE_SOURCE_DATABASE_URL"];
    let id = example::emit(database, &running.api.url, token).await?;
    let tenant: Uuid = "0190f3c2-6f1e-7a44-9d3b-5a1f0c2e7b10".parse()?;
    let path = format!("/v1/usage/records/{id}");
    within(async || Ok(running.api.try_get(tenant, &path, &[]).await?.0 == 200)).await?;
    // A token that the API refuses is no answer.
    let error = example::emit(database, &running.api.url, "none".into()).await.expect_err("refused");
    let unavailable = error.downcast_ref::<EmitError>().context("an EmitError")?;
    assert_eq!(unavailable.reason(), "unavailable", "{unavailable}");
    Ok(())
}
