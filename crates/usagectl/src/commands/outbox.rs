//! `usagectl outbox repair` and `outbox dead-letters …`.

use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use usage_producer::outbox;
use usage_producer::outbox::dead_letters::{self, DeadLetter, Decision, State};
use usage_service::config::{DatabaseConfig, Resolved};

use super::migrate;
use crate::arguments::outbox::{DeadLetters, Decide, List, Outbox, Repair};
use crate::output;

/// Dead letters that a dry run shows.
const SHOWN: i64 = 1_000;

pub(super) async fn run(config: &Resolved, command: Outbox) -> anyhow::Result<()> {
    match command {
        Outbox::Migrate => migrate::outbox(config).await,
        Outbox::Repair(options) => repair(config, &options).await,
        Outbox::DeadLetters(DeadLetters::List(options)) => list(config, &options).await,
        Outbox::DeadLetters(DeadLetters::Retry(options)) => decide(config, Decision::Retry, &options).await,
        Outbox::DeadLetters(DeadLetters::Resolve(options)) => {
            decide(config, Decision::Resolve, &options).await
        }
        Outbox::DeadLetters(DeadLetters::Discard(options)) => {
            decide(config, Decision::Discard, &options).await
        }
    }
}

async fn connect(config: &Resolved) -> anyhow::Result<PgConnection> {
    let database: DatabaseConfig = config.section("source_database")?;
    Ok(PgConnection::connect_with(&database.options()?).await?)
}

async fn repair(config: &Resolved, options: &Repair) -> anyhow::Result<()> {
    let mut connection = connect(config).await?;
    let done = outbox::repair(&mut connection).await?;
    connection.close().await?;
    if options.json {
        return output::json(&json!({
            "stood_at": done.stood_at,
            "greatest_id": done.greatest_id,
            "set_to": done.set_to,
            "clock_behind": done.clock_behind,
        }));
    }
    match done.set_to {
        Some(set_to) => println!(
            "the id sequence stood at {}, a row has id {}: set it to {set_to}; markers go on by themselves",
            done.stood_at, done.greatest_id
        ),
        None => println!(
            "the id sequence stands at {}, no row is above it (greatest id: {}): nothing to repair",
            done.stood_at, done.greatest_id
        ),
    }
    if let Some(until) = done.clock_behind {
        println!(
            "the database's clock is behind {until}: completeness goes on by itself once it has passed that"
        );
    }
    Ok(())
}

async fn list(config: &Resolved, options: &List) -> anyhow::Result<()> {
    let mut connection = connect(config).await?;
    let (filter, states) = (options.which.filter(), options.state.states());
    let mut found =
        dead_letters::list(&mut connection, &filter, &states, options.limit.saturating_add(1)).await?;
    connection.close().await?;
    let limit = usize::try_from(options.limit).unwrap_or(usize::MAX);
    if found.len() > limit {
        found.truncate(limit);
        eprintln!("there are more than {limit}: raise --limit or narrow the filters");
    }
    print(&found, options.json)
}

async fn decide(config: &Resolved, decision: Decision, options: &Decide) -> anyhow::Result<()> {
    let mut connection = connect(config).await?;
    let filter = options.which.filter();
    if options.dry_run {
        let count = dead_letters::count_open(&mut connection, &filter).await?;
        let found = dead_letters::list(&mut connection, &filter, &[State::Open], SHOWN).await?;
        connection.close().await?;
        if options.json {
            let ids: Vec<i64> = found.iter().map(|letter| letter.dead_letter_id).collect();
            return output::json(&json!({ "dry_run": true, "count": count, "dead_letter_ids": ids }));
        }
        print(&found, false)?;
        println!("{count} would be {}", decision.state().as_str());
        return Ok(());
    }
    let (by, note) = (options.by.as_deref(), options.note.as_deref());
    let count = dead_letters::decide(&mut connection, decision, &filter, by, note).await?;
    connection.close().await?;
    if options.json {
        return output::json(&json!({ "dry_run": false, "count": count }));
    }
    println!("{count} {}", decision.state().as_str());
    Ok(())
}

fn print(found: &[DeadLetter], as_json: bool) -> anyhow::Result<()> {
    if as_json {
        let rows = found.iter().map(|letter| {
            json!({
                "dead_letter_id": letter.dead_letter_id,
                "state": letter.state,
                "reason": letter.reason,
                "error": letter.error,
                "source": letter.source,
                "tenant_id": letter.tenant_id,
                "payload_type": letter.payload_type,
                "payload_bytes": letter.payload_bytes,
                "emitted_at": letter.emitted_at,
                "failed_at": letter.failed_at,
                "decided_at": letter.decided_at,
                "decided_by": letter.decided_by,
                "note": letter.note,
            })
        });
        return output::json(&rows.collect::<Vec<_>>());
    }
    let headings = [
        "id",
        "state",
        "reason",
        "source",
        "tenant",
        "bytes",
        "emitted at",
        "failed at",
        "decided by",
        "error",
    ];
    let rows = found.iter().map(|letter| {
        vec![
            letter.dead_letter_id.to_string(),
            letter.state.clone(),
            letter.reason.clone(),
            letter.source.clone().unwrap_or_else(|| "-".into()),
            letter.tenant_id.to_string(),
            letter.payload_bytes.to_string(),
            letter.emitted_at.clone(),
            letter.failed_at.clone(),
            letter.decided_by.clone().unwrap_or_default(),
            letter.error.clone(),
        ]
    });
    output::table(&headings, rows);
    Ok(())
}
