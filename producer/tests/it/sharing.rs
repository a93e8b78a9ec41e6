//! Several relays for one outbox, and how they take over from each other.

use std::process::{Command, Output};
use std::time::Duration;

use uuid::Uuid;

use crate::process::Process;
use crate::support::{KEY, KEY_ID, Running, SOURCE, Source, Topic, config, until};

/// So long that Kafka acknowledges in time what is sent within it.
const LEASE: Duration = Duration::from_secs(6);

async fn held_by(source: &Source, owner: &str) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM usage_outbox_partitions WHERE owner = $1 AND expires_at > clock_timestamp()",
    )
    .bind(owner)
    .fetch_one(&source.pool)
    .await
    .unwrap()
}

#[tokio::test]
async fn two_relays_share_and_a_stopped_one_leaves_everything_to_the_other() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let named = |name: &str| {
        let mut config = config(&source, &topic);
        config.relay.instance = Some(name.into());
        // It does not run out while the test runs, and Kafka has time to acknowledge everything.
        config.relay.lease = Duration::from_secs(3_600);
        config.relay.message_timeout = Duration::from_secs(120);
        Running::start(config)
    };
    let first = named("first");
    until("the first has all", async || (held_by(&source, "first").await == 4).then_some(())).await;
    let second = named("second");
    until("they share", async || {
        let held = (held_by(&source, "first").await, held_by(&source, "second").await);
        (held == (2, 2)).then_some(())
    })
    .await;
    for number in 0..40 {
        source.emit(Uuid::new_v4(), &format!("k{number}")).await;
    }
    source.emptied().await;
    first.stop().await;
    assert_eq!(held_by(&source, "first").await, 0, "leases are given back");
    until("the second has all", async || (held_by(&source, "second").await == 4).then_some(())).await;
    source.emit(Uuid::new_v4(), "last").await;
    source.emptied().await;
    second.stop().await;
    assert_eq!(source.count("usage_outbox_relays").await, 0);
    assert_eq!(topic.read().await.len(), 41, "nobody sent what the other had sent");
}

/// kill -9 in the middle of a load: another relay takes over once the leases ran out, and nothing is missing.
#[tokio::test]
async fn a_killed_relay_is_replaced_after_its_lease() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let victim = Process::start(&source, &topic, "victim", LEASE);
    until("the victim has all", async || (held_by(&source, "victim").await == 4).then_some(())).await;
    let load = {
        let pool = source.pool.clone();
        tokio::spawn(async move {
            for number in 0..400 {
                sqlx::query("SELECT usage_emit($1, 'llm.tokens', 1, $2)")
                    .bind(Uuid::from_u64_pair(1, number % 20))
                    .bind(format!("k{number}"))
                    .execute(&pool)
                    .await
                    .unwrap();
            }
        })
    };
    until("something is delivered", async || (!topic.read().await.is_empty()).then_some(())).await;
    victim.kill();
    let kept = source.count("usage_outbox_partitions WHERE owner = 'victim'").await;
    assert_eq!(kept, 4, "nobody gave them back");
    let mut heir = Process::start(&source, &topic, "heir", LEASE);
    load.await.unwrap();
    source.emptied().await;
    until("the heir has all", async || (held_by(&source, "heir").await == 4).then_some(())).await;
    assert_eq!(topic.keys().await.len(), 400);
    let sent = topic.read().await.len();
    assert!(sent <= 600, "only what was on its way was sent twice: {sent}");

    assert!(heir.terminate().success(), "SIGTERM ends it in order");
    assert_eq!(held_by(&source, "heir").await, 0);
    let keys_after: i64 = source.count("usage_outbox_relays WHERE owner = 'heir'").await;
    assert_eq!(keys_after, 0);
}

/// A relay that was frozen for longer than its lease and wakes up as a zombie: what it still deletes is what Kafka acknowledged to it.
#[tokio::test]
async fn a_frozen_relay_that_wakes_up_does_no_harm() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let mut zombie = Process::start(&source, &topic, "zombie", Duration::from_secs(2));
    until("the zombie has all", async || (held_by(&source, "zombie").await == 4).then_some(())).await;
    let emit = async |from: u64| {
        for number in from..from + 100 {
            source.emit(Uuid::from_u64_pair(1, number % 20), &format!("k{number}")).await;
        }
    };
    emit(0).await;
    zombie.signal("-STOP");
    emit(100).await;
    let mut other = Process::start(&source, &topic, "other", Duration::from_secs(2));
    until("the other has all", async || (held_by(&source, "other").await == 4).then_some(())).await;
    emit(200).await;
    zombie.signal("-CONT");
    emit(300).await;
    until("they share", async || {
        let held = (held_by(&source, "zombie").await, held_by(&source, "other").await);
        (held == (2, 2)).then_some(())
    })
    .await;
    source.emptied().await;
    assert!(zombie.terminate().success() && other.terminate().success());
    let keys = topic.keys().await;
    assert_eq!(keys.len(), 400);
}

fn check_config(set: &[&str]) -> Output {
    let required = ["kafka.brokers=127.0.0.1:9092", "source_database.url=postgres://u:pw@127.0.0.1/d"];
    Command::new(env!("CARGO_BIN_EXE_usage-relay"))
        .arg("--check-config")
        .args(required.iter().chain(set).flat_map(|setting| ["--set", setting]))
        .env("USAGE_RELAY_SOURCE_KEYS", format!("{SOURCE}:{KEY_ID}:{KEY}"))
        .output()
        .unwrap()
}

#[test]
fn the_program_prints_its_configuration_without_the_keys() {
    let output = check_config(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.contains("poll_max") && text.contains("127.0.0.1:9092"),
        "{text}"
    );
    assert!(!text.contains(KEY) && !text.contains("pw"), "{text}");
}

#[test]
fn what_the_start_refuses_is_found_by_check_config() {
    for set in ["relay.lease=1ms", "relay.default_source=elsewhere", "relay.compression=brotli"] {
        let output = check_config(&[set]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{set}: {text}");
        assert!(text.contains(set.split('=').next().unwrap()), "{set}: {text}");
    }
}
