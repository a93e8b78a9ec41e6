//! What an operator does about rows that could not be produced.

use usage_producer::outbox::dead_letters::{self, DeadLetter, Decision, Filter, Of, State};
use usage_schemas::names;
use uuid::Uuid;

use crate::support::{Running, SOURCE, Source, Topic, config};

/// Writes a dead letter as a relay does.
async fn dead(source: &Source, name: Option<&str>, tenant: Uuid, reason: &str) -> i64 {
    sqlx::query_scalar(
        "INSERT INTO usage_outbox_dead_letters (part, id, tenant_id, emitted_at, payload_type, source, payload, reason, error) \
         VALUES (usage_outbox_part($2), 1, $2, clock_timestamp(), $4, $1, '{}', $3, 'it is so') RETURNING dead_letter_id",
    )
    .bind(name)
    .bind(tenant)
    .bind(reason)
    .bind(names::PAYLOAD_RECORD_JSON)
    .fetch_one(&source.pool)
    .await
    .unwrap()
}

async fn list(source: &Source, filter: &Filter, states: &[State]) -> Vec<DeadLetter> {
    dead_letters::list(&mut source.pool.acquire().await.unwrap(), filter, states, 10_000).await.unwrap()
}

async fn decide(source: &Source, decision: Decision, filter: &Filter) -> u64 {
    let mut connection = source.pool.acquire().await.unwrap();
    dead_letters::decide(&mut connection, decision, filter, None, Some("ticket 17")).await.unwrap()
}

fn ids(found: &[DeadLetter]) -> Vec<i64> {
    found.iter().map(|letter| letter.dead_letter_id).collect()
}

#[tokio::test]
async fn filters_are_joined_by_and() {
    let source = Source::new().await;
    let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let made = [
        dead(&source, None, a, "too_large").await,
        dead(&source, Some("vm"), a, "too_large").await,
        dead(&source, Some("vm"), b, "not_encodable").await,
    ];
    let vm = || Some(Of::Source("vm".into()));
    for (filter, expected) in [
        (Filter::default(), &made[..]),
        (Filter { ids: vec![made[2], made[0]], ..Filter::default() }, &[made[0], made[2]]),
        (Filter { source: vm(), ..Filter::default() }, &made[1..]),
        (Filter { source: Some(Of::Default), ..Filter::default() }, &made[..1]),
        (Filter { tenant: Some(a), source: vm(), ..Filter::default() }, &made[1..2]),
        (Filter { reason: Some("not_encodable".into()), ..Filter::default() }, &made[2..]),
        (Filter { reason: Some("not_encodable".into()), tenant: Some(a), ..Filter::default() }, &[]),
    ] {
        assert_eq!(ids(&list(&source, &filter, &[State::Open]).await), expected, "{filter:?}");
        let mut connection = source.pool.acquire().await.unwrap();
        let count = dead_letters::count_open(&mut connection, &filter).await.unwrap();
        assert_eq!(usize::try_from(count).unwrap(), expected.len(), "{filter:?}");
    }
}

/// Who decided, when and why stays; the payload goes where nobody needs it any more. What is decided is not decided again.
#[tokio::test]
async fn decisions_are_recorded_and_made_once() {
    let source = Source::new().await;
    let mut made = Vec::new();
    for _ in 0..4 {
        made.push(dead(&source, None, Uuid::from_u128(7), "too_large").await);
    }
    let of = |index: usize| Filter { ids: vec![made[index]], ..Filter::default() };
    for (index, decision) in [Decision::Retry, Decision::Resolve, Decision::Discard].into_iter().enumerate() {
        assert_eq!(decide(&source, decision, &of(index)).await, 1);
        for again in [Decision::Retry, Decision::Resolve, Decision::Discard] {
            assert_eq!(decide(&source, again, &of(index)).await, 0, "{decision:?}, then {again:?}");
        }
    }
    let all = list(&source, &Filter::default(), &State::ALL).await;
    let seen: Vec<(&str, i32, bool)> = all
        .iter()
        .map(|letter| (letter.state.as_str(), letter.payload_bytes, letter.decided_at.is_some()))
        .collect();
    assert_eq!(
        seen,
        [("retried", 0, true), ("resolved", 2, true), ("discarded", 0, true), ("open", 2, false)]
    );
    assert_eq!((all[1].note.as_deref(), all[1].decided_by.is_some()), (Some("ticket 17"), true));
    assert_eq!(source.count("usage_outbox").await, 1, "only what was retried went back");
    assert_eq!(ids(&list(&source, &Filter::default(), &[State::Open]).await), made[3..]);
}

/// Two operators at once, thousands of rows: each row goes back once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_go_back_once_whoever_retries_them() {
    let source = Source::new().await;
    sqlx::query(
        "INSERT INTO usage_outbox_dead_letters (part, id, tenant_id, emitted_at, payload_type, payload, reason, error) \
         SELECT n % 4, n, gen_random_uuid(), clock_timestamp(), 't', convert_to(n::text, 'UTF8'), 'too_large', '' \
         FROM generate_series(1, 3500) AS n",
    )
    .execute(&source.pool)
    .await
    .unwrap();
    let all = Filter::default();
    let both =
        futures::future::join(decide(&source, Decision::Retry, &all), decide(&source, Decision::Retry, &all));
    let (one, other) = both.await;
    assert_eq!(one + other, 3_500);
    let distinct = "(SELECT DISTINCT payload FROM usage_outbox) AS rows";
    assert_eq!((source.count("usage_outbox").await, source.count(distinct).await), (3_500, 3_500));
}

/// A row that is still too large comes back as another dead letter, which the same retry does not take again; once messages may be
/// larger it arrives.
#[tokio::test]
async fn a_retried_row_arrives_once_the_cause_is_gone() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let tenant = Uuid::new_v4();
    sqlx::query("SELECT usage_emit($1, 'llm.tokens', 1, 'large', metadata => json_build_object('a', repeat('x', 8000)))")
        .bind(tenant)
        .execute(&source.pool)
        .await
        .unwrap();
    let mut config = config(&source, &topic);
    config.relay.max_message_bytes = 2_000;
    let relay = Running::start(config.clone());
    source.emptied().await;
    assert_eq!(decide(&source, Decision::Retry, &Filter::default()).await, 1);
    source.emptied().await;
    relay.stop().await;
    let found = list(&source, &Filter::default(), &State::ALL).await;
    let states: Vec<&str> = found.iter().map(|letter| letter.state.as_str()).collect();
    assert_eq!(states, ["retried", "open"]);
    assert_eq!(found[0].emitted_at, found[1].emitted_at, "the time of the emit stays");
    assert!(topic.read().await.is_empty());

    config.relay.max_message_bytes = 100_000;
    assert_eq!(decide(&source, Decision::Retry, &Filter::default()).await, 1);
    let relay = Running::start(config);
    source.emptied().await;
    relay.stop().await;
    assert_eq!(topic.keys().await, ["large"]);
    assert_eq!(topic.read().await[0].record.source, SOURCE);
    assert!(list(&source, &Filter::default(), &[State::Open]).await.is_empty());
}
