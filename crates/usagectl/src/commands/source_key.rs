//! `usagectl source-key create | list | revoke | rewrap`.

use anyhow::Context as _;
use rand::RngCore as _;
use secrecy::{ExposeSecret as _, SecretSlice};
use usage_control::{ControlError, Placed, Revoked, SourceKey, SourceKeyInfo};
use usage_service::clock;
use usage_service::config::Resolved;

use super::source::{hint, wrong_input};
use crate::WrongInput;
use crate::arguments::{SourceKeyCreate, SourceKeyList, SourceKeyRevoke};
use crate::{output, parse};

/// What who ends a key must know: it is the broker's time of a message that counts, not when it was signed.
const REFUSED_LATER: &str = "messages that the broker takes from then on are refused, also those that were signed before: rows that a relay still \
     has to send, records that are forwarded or replayed. Give their source the new key first, and let a key outlast the \
     topic's retention (14 days) unless it is known to others";

const NOT_CREATED: &str = "the key was not created, whatever was printed";

pub(super) fn random_key() -> SecretSlice<u8> {
    let mut key = vec![0; 32];
    rand::rng().fill_bytes(&mut key);
    key.into()
}

pub(super) async fn create(config: &Resolved, options: SourceKeyCreate) -> anyhow::Result<()> {
    let control = super::control(config).await?;
    let key = SourceKey {
        source: options.name,
        key_id: options.key_id.unwrap_or_else(new_id),
        key: random_key(),
        // A key that only begins now would refuse what it signed a moment ago by another clock.
        valid_from: options.valid_from.unwrap_or(0),
        valid_until: options.valid_until,
    };
    let there = control.source_key(&key.source, &key.key_id).await.map_err(wrong_input)?;
    anyhow::ensure!(there.is_none(), "key {} of source {} is there already", key.key_id, key.source);
    // Printed first: a key that was made and could not be shown is in force and known to nobody.
    let hex = parse::to_hex(key.key.expose_secret());
    if options.json {
        output::json(&serde_json::json!({
            "source": key.source,
            "key_id": key.key_id,
            "key": hex,
            "valid_from": output::time(key.valid_from),
            "valid_until": key.valid_until.map(output::time),
        }))?;
    } else {
        println!("key {} of source {}; this is the only time that it is shown:", key.key_id, key.source);
        println!("{hex}");
    }
    output::written().context(NOT_CREATED)?;
    let placed = control.put_source_key(&key).await.map_err(wrong_input).context(NOT_CREATED)?;
    anyhow::ensure!(placed == Placed::Created, "key {} is there already", key.key_id);
    eprintln!("key {} of source {} is created", key.key_id, key.source);
    hint(&control, &key.source).await
}

/// Sorts by time and is never another one's.
fn new_id() -> String {
    let day: String = output::time(clock::now_micros()).chars().take(10).filter(|c| *c != '-').collect();
    let mut chance = [0; 4];
    rand::rng().fill_bytes(&mut chance);
    format!("k{day}-{}", parse::to_hex(&chance))
}

pub(super) async fn list(config: &Resolved, options: &SourceKeyList) -> anyhow::Result<()> {
    let mut keys = super::control(config).await?.source_key_infos().await?;
    keys.retain(|key| options.name.as_ref().is_none_or(|name| *name == key.source));
    let now = clock::now_micros();
    if options.json {
        let rows = keys.iter().map(|key| {
            serde_json::json!({
                "source": key.source,
                "key_id": key.key_id,
                "state": state(key, now),
                "valid_from": output::time(key.valid_from),
                "valid_until": key.valid_until.map(output::time),
                "created_at": output::time(key.created_at),
                "master_key_id": key.master_key_id,
            })
        });
        return output::json(&rows.collect::<Vec<_>>());
    }
    let rows = keys.into_iter().map(|key| {
        let state = state(&key, now).to_string();
        let until = key.valid_until.map_or_else(|| "for ever".to_string(), output::time);
        let master = key.master_key_id.unwrap_or_else(|| "IN THE CLEAR".into());
        vec![
            key.source,
            key.key_id,
            state,
            output::time(key.valid_from),
            until,
            output::time(key.created_at),
            master,
        ]
    });
    output::table(&["SOURCE", "KEY", "STATE", "VALID FROM", "VALID UNTIL", "CREATED", "MASTER KEY"], rows);
    Ok(())
}

/// By this machine's clock; the broker's decides.
fn state(key: &SourceKeyInfo, now: i64) -> &'static str {
    if key.valid_until.is_some_and(|until| until <= now) {
        "ended"
    } else if key.valid_from > now {
        "to come"
    } else {
        "valid"
    }
}

pub(super) async fn revoke(config: &Resolved, options: &SourceKeyRevoke) -> anyhow::Result<()> {
    let SourceKeyRevoke { name, key_id, at, undo } = options;
    let control = super::control(config).await?;
    if *undo {
        let had_end = control.restore_source_key(name, key_id).await.map_err(no_such_key)?;
        println!(
            "key {key_id} of source {name} is valid without end{}",
            if had_end { "" } else { " already" }
        );
        return Ok(());
    }
    let at = match at {
        Some(at) => *at,
        // This machine's clock is anybody's.
        None => control.now().await?,
    };
    let revoked = control.revoke_source_key(name, key_id, at).await;
    match revoked.map_err(no_such_key)? {
        Revoked::Ends(until) => {
            println!("key {key_id} of source {name} is valid until {}", output::time(until));
            eprintln!("{REFUSED_LATER}");
        }
        Revoked::HadEnded(until) => {
            println!("key {key_id} of source {name} has been valid until {} only", output::time(until));
        }
        Revoked::Removed => {
            println!("key {key_id} of source {name} is removed: it would have ended before it began");
        }
    }
    Ok(())
}

fn no_such_key(error: ControlError) -> anyhow::Error {
    match error {
        error @ ControlError::NoSourceKey { .. } => {
            WrongInput { argument: "KEY_ID", detail: error.to_string() }.into()
        }
        other => wrong_input(other),
    }
}

pub(super) async fn rewrap(config: &Resolved) -> anyhow::Result<()> {
    let done = super::control(config).await?.rewrap_source_keys().await.map_err(wrong_input)?;
    println!(
        "{} keys are sealed anew, {} were under the present master key already",
        done.rewrapped, done.kept
    );
    Ok(())
}
