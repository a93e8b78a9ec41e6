//! Emits one usage record in a transaction, together with the work that it is for. README.md shows lines of this program.
//!
//! `cargo xtask up && . target/stack/env && cargo run -p usage-producer --example emit`

use sqlx::PgPool;
use usage_access::{Scopes, SecurityContext};
use usage_producer::{NewRecord, UsageCollector};
use uuid::Uuid;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let pool = PgPool::connect(&std::env::var("USAGE_SOURCE_DATABASE_URL")?).await?;
    usage_producer::outbox::migrate(&pool).await?;
    // Once per process; the module's name becomes the source of its records.
    let usage = UsageCollector::builder()
        .trust_scopes() // or .policy(…): who may emit what
        .unchecked_types() // or .types(…): which metrics there are, and what their records must be like
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
    // Before the transaction: whatever needs another service.
    let auth = usage.authorize_emit(&ctx, "llm.input_tokens").await?;

    let mut tx = pool.begin().await?;
    let request = Uuid::new_v4();
    // … the work that is billed …
    let key = format!("{request}/input");
    let tokens = NewRecord::counter(ctx.tenant_id, "llm.input_tokens", "374".parse()?, key)
        .with_metadata(r#"{"model":"small"}"#);
    let record_id = usage.emit(&mut tx, &ctx, tokens, &auth).await?;
    tx.commit().await?;
    println!("emitted {record_id}");
    Ok(())
}
