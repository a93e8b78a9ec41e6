//! Emits one usage record in a transaction, together with the work that it is for. README.md shows lines of this program.
//!
//! ```text
//! cargo xtask up && . target/stack/env
//! export USAGE_TOKEN=$(target/debug/usagectl token --tenant 0190f3c2-6f1e-7a44-9d3b-5a1f0c2e7b10 --scope usage:read)
//! cargo run -p usage-producer --example emit
//! ```

use std::sync::Arc;

use anyhow::Context as _;
use sqlx::PgPool;
use usage_access::{Scopes, SecurityContext};
use usage_producer::{
    Freshness, NewRecord, QueryApi, RememberedTypes, TlsFiles, TokenSource, UsageCollector,
};
use uuid::Uuid;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let variable = |name: &'static str| std::env::var(name).context(name);
    let database = variable("USAGE_SOURCE_DATABASE_URL")?;
    let record_id = emit(&database, &variable("USAGE_API_URL")?, variable("USAGE_TOKEN")?).await?;
    println!("emitted {record_id}");
    Ok(())
}

/// Returns the record's id. The token is the source's own and has the scope `usage:read`.
pub async fn emit(database: &str, api_url: &str, token: String) -> anyhow::Result<Uuid> {
    let pool = PgPool::connect(database).await?;
    usage_producer::outbox::migrate(&pool).await?;
    // A source that runs for longer than its token is valid gives a new one here.
    let token: TokenSource = Arc::new(move || token.as_str().into());
    let registry = QueryApi::new(api_url, token, &TlsFiles::default(), false)?;
    // Once per process; the module's name becomes the source of its records.
    let usage = UsageCollector::builder()
        .trust_scopes() // or .policy(…): who may emit what
        .types(Arc::new(RememberedTypes::new(registry, Freshness::default())))
        .build()?
        .for_module("demo");
    // Comes from the request's verified token.
    let ctx = SecurityContext {
        tenant_id: "0190f3c2-6f1e-7a44-9d3b-5a1f0c2e7b10".parse()?,
        subject_id: None,
        subject_type: None,
        scopes: Scopes::all(),
        token_id: None,
    };
    // Before the transaction: whatever needs another service. An unregistered metric ends here.
    let auth = usage.authorize_emit(&ctx, "llm.input_tokens").await?;

    let mut tx = pool.begin().await?;
    let request = Uuid::new_v4();
    // … the work that is billed …
    let key = format!("{request}/input");
    let tokens = NewRecord::counter(ctx.tenant_id, "llm.input_tokens", "374".parse()?, key)
        .with_metadata(r#"{"model":"small"}"#);
    let record_id = usage.emit(&mut tx, &ctx, tokens, &auth).await?;
    tx.commit().await?;
    Ok(record_id)
}
