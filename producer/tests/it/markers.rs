//! Completeness markers against the real Postgres and Kafka.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::PgPool;
use usage_schemas::{Timestamp, names};
use uuid::Uuid;

use crate::process::Process;
use crate::support::{Arrived, Running, SOURCE, Source, Topic, config, key_of, until};

/// What emitters know: each committed key with the time of its row.
pub type Truth = BTreeMap<String, Timestamp>;

/// Emits in a transaction of the pool and returns what was written and when.
pub async fn emit(connection: &mut sqlx::PgConnection, tenant: Uuid, key: &str) -> Timestamp {
    sqlx::query("SELECT usage_emit($1, 'llm.tokens', 1, $2)")
        .bind(tenant)
        .bind(key)
        .execute(&mut *connection)
        .await
        .unwrap();
    let text: String = sqlx::query_scalar(
        "SELECT to_char(emitted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM usage_outbox \
         WHERE part = usage_outbox_part($1) AND convert_from(payload, 'UTF8')::json->>'idempotency_key' = $2",
    )
    .bind(tenant)
    .bind(key)
    .fetch_one(connection)
    .await
    .unwrap();
    Timestamp::parse(&text).unwrap()
}

/// No marker runs ahead: each of them stands behind the first copy of every record of its source that was emitted before its time.
pub fn none_runs_ahead(arrived: &[Arrived], truth: &Truth, source: &str, outbox: Uuid) -> usize {
    let mut first: BTreeMap<&str, (i32, i64)> = BTreeMap::new();
    for arrived in arrived {
        if let Arrived::Record(record) = arrived {
            let Some(key) = record.record.idempotency_key.as_deref() else { continue };
            let place = first.entry(key).or_insert((record.partition, record.offset));
            place.1 = place.1.min(record.offset);
        }
    }
    let mut markers = 0;
    for arrived in arrived {
        let Arrived::Marker(found) = arrived else { continue };
        if found.marker.source != source || found.marker.outbox != outbox {
            continue;
        }
        markers += 1;
        for (key, emitted_at) in truth.iter().filter(|(_, at)| **at < found.marker.complete_until) {
            let (partition, offset) = first[key.as_str()];
            assert!(
                partition != found.partition || offset < found.offset,
                "{key}, emitted at {emitted_at}, stands at {partition}/{offset}, behind {found:?}"
            );
        }
    }
    markers
}

pub async fn passes(topic: &Topic, source: &str, outbox: Uuid, time: Timestamp) {
    until("completeness passes the time", async || {
        topic.complete_until(source, outbox).await.filter(|until| *until > time).map(|_| ())
    })
    .await;
}

/// One emitter: transactions of up to three rows, some of them late, some rolled back, some prepared first.
async fn emitter(pool: PgPool, number: u64, rounds: u64) -> Truth {
    let mut truth = Truth::new();
    for round in 0..rounds {
        let mut tx = pool.begin().await.unwrap();
        let mut written = Truth::new();
        for row in 0..=(round % 3) {
            let key = format!("{number}-{round}-{row}");
            let at = emit(&mut tx, Uuid::from_u64_pair(1, number * 7 + row), &key).await;
            written.insert(key, at);
        }
        // How long a caller takes between its emit and its commit is what the test is about.
        tokio::time::sleep(Duration::from_millis(
            [0, 5, 0, 700, 20, 0][(round as usize + number as usize) % 6],
        ))
        .await;
        match round % 5 {
            3 => tx.rollback().await.unwrap(),
            4 => {
                let name = format!("m{}", Uuid::new_v4().simple());
                sqlx::raw_sql(sqlx::AssertSqlSafe(format!("PREPARE TRANSACTION '{name}'")))
                    .execute(&mut *tx)
                    .await
                    .unwrap();
                // What is left of it here must not be rolled back in its name.
                drop(tx);
                tokio::time::sleep(Duration::from_millis(300)).await;
                let commit = format!("COMMIT PREPARED '{name}'");
                sqlx::raw_sql(sqlx::AssertSqlSafe(commit)).execute(&pool).await.unwrap();
                truth.append(&mut written);
            }
            _ => {
                tx.commit().await.unwrap();
                truth.append(&mut written);
            }
        }
    }
    truth
}

/// Commits out of order, rollbacks, prepared transactions, an open one that emitted and one that did not; several relays, one of which is
/// killed, one stopped, and whose connections are cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_marker_runs_ahead_of_what_callers_commit() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    sqlx::raw_sql("CREATE TABLE business (n int)").execute(&source.pool).await.unwrap();
    let outbox = source.outbox_id().await;
    let killed = Process::start(&source, &topic, "killed", Duration::from_secs(2));
    let stopped = Running::start(config(&source, &topic));
    let mut unrelated = source.pool.begin().await.unwrap();
    sqlx::raw_sql("INSERT INTO business VALUES (1)").execute(&mut *unrelated).await.unwrap();
    let emitters: Vec<_> =
        (0..6).map(|number| tokio::spawn(emitter(source.pool.clone(), number, 40))).collect();
    passes(&topic, SOURCE, outbox, source.clock().await).await;
    let mut long = source.pool.begin().await.unwrap();
    let late = emit(&mut long, Uuid::from_u64_pair(1, 0), "late").await;
    killed.kill();
    let stays = Running::start(config(&source, &topic));
    until("some more is delivered", async || (topic.keys().await.len() > 100).then_some(())).await;
    sqlx::query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND application_name = 'usage-relay'",
    )
    .execute(&source.pool)
    .await
    .unwrap();
    stopped.stop().await;
    let mut truth = Truth::from([("late".to_string(), late)]);
    for emitter in emitters {
        truth.append(&mut emitter.await.unwrap());
    }
    assert!(topic.complete_until(SOURCE, outbox).await.unwrap() <= late, "an emitter is still open");
    long.commit().await.unwrap();
    let now = source.clock().await;
    passes(&topic, SOURCE, outbox, now).await;
    unrelated.commit().await.unwrap();
    stays.stop().await;
    assert_eq!(topic.keys().await.len(), truth.len(), "what was committed, and nothing that was not");
    let markers = none_runs_ahead(&topic.messages().await, &truth, SOURCE, outbox);
    assert!(markers >= 9, "{markers}");
}

/// Nobody emits: T goes on with time. The markers are for each configured source and in every partition.
#[tokio::test]
async fn idle_sources_advance_with_time() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let outbox = source.outbox_id().await;
    let relay = Running::start(config(&source, &topic));
    for _ in 0..2 {
        let now = source.clock().await;
        for name in [SOURCE, "llm-gateway"] {
            passes(&topic, name, outbox, now).await;
        }
    }
    relay.stop().await;
    let ahead = source.clock().await;
    assert!(topic.markers().await.iter().all(|found| found.marker.complete_until < ahead));
}

/// A row of a configured source that this relay can't send holds its source back, and no other one. It is still older than what the
/// partitions say of themselves when it comes back.
#[tokio::test]
async fn a_waiting_row_holds_its_source_until_it_is_delivered() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let outbox = source.outbox_id().await;
    let at = emit(&mut source.pool.acquire().await.unwrap(), Uuid::new_v4(), "newer").await;
    sqlx::raw_sql(
        "UPDATE usage_outbox SET payload_type = 'usage-collector.record.v9', source = 'llm-gateway'",
    )
    .execute(&source.pool)
    .await
    .unwrap();
    let relay = Running::start(config(&source, &topic));
    let now = source.clock().await;
    passes(&topic, SOURCE, outbox, now).await;
    assert_eq!(source.count("usage_outbox_waiting").await, 1);
    until("the source is complete until its row", async || {
        topic.complete_until("llm-gateway", outbox).await.filter(|until| *until == at)
    })
    .await;
    relay.stop().await;

    // A relay that knows the type finds it.
    sqlx::query("UPDATE usage_outbox_waiting SET payload_type = $1")
        .bind(names::PAYLOAD_RECORD_JSON)
        .execute(&source.pool)
        .await
        .unwrap();
    let relay = Running::start(config(&source, &topic));
    let now = source.clock().await;
    passes(&topic, "llm-gateway", outbox, now).await;
    relay.stop().await;
    let truth = Truth::from([("newer".to_string(), at)]);
    assert!(none_runs_ahead(&topic.messages().await, &truth, "llm-gateway", outbox) >= 6);
    assert_eq!(topic.keys().await, ["newer"]);
}

/// Rows that have come back from waiting are older than what the partitions say of themselves, which begins to speak of them only after
/// their return.
#[tokio::test]
async fn a_return_holds_its_source_until_the_partitions_speak_of_it() {
    let (source, topic) = (Source::new().await, Topic::new(1).await);
    let outbox = source.outbox_id().await;
    let relay = Running::start(config(&source, &topic));
    passes(&topic, SOURCE, outbox, source.clock().await).await;
    sqlx::raw_sql(
        "INSERT INTO usage_outbox_returned VALUES (NULL, clock_timestamp() - interval '1 hour', 'infinity')",
    )
    .execute(&source.pool)
    .await
    .unwrap();
    let returned = source.clock().await;
    passes(&topic, "llm-gateway", outbox, returned).await;
    assert!(topic.complete_until(SOURCE, outbox).await.unwrap() < returned);
    sqlx::raw_sql("UPDATE usage_outbox_returned SET returned_at = clock_timestamp()")
        .execute(&source.pool)
        .await
        .unwrap();
    passes(&topic, SOURCE, outbox, returned).await;
    until("it is forgotten", async || (source.count("usage_outbox_returned").await == 0).then_some(())).await;
    relay.stop().await;
}

/// Both count: markers carry the outbox's id.
#[tokio::test]
async fn two_outboxes_under_one_source_name_have_markers_of_their_own() {
    let (first, second) = (Source::new().await, Source::new().await);
    let topic = Topic::new(2).await;
    let outboxes = [first.outbox_id().await, second.outbox_id().await];
    assert_ne!(outboxes[0], outboxes[1]);
    let mut open = second.pool.begin().await.unwrap();
    let at = emit(&mut open, Uuid::new_v4(), "open").await;
    let relays = [Running::start(config(&first, &topic)), Running::start(config(&second, &topic))];
    let emitted = emit(&mut first.pool.acquire().await.unwrap(), Uuid::new_v4(), "first").await;
    passes(&topic, SOURCE, outboxes[0], emitted).await;
    let held = topic.complete_until(SOURCE, outboxes[1]).await;
    assert!(
        held.is_none_or(|until| until <= at),
        "the first outbox says nothing of the second one: {held:?}"
    );
    open.commit().await.unwrap();
    passes(&topic, SOURCE, outboxes[1], at).await;
    for relay in relays {
        relay.stop().await;
    }
    let arrived = topic.messages().await;
    assert!(none_runs_ahead(&arrived, &Truth::from([("first".into(), emitted)]), SOURCE, outboxes[0]) >= 2);
    assert!(none_runs_ahead(&arrived, &Truth::from([("open".into(), at)]), SOURCE, outboxes[1]) >= 2);
}

/// A relay without keys sends nothing and claims nothing, and rows of a source without a key hold up nobody else's completeness.
#[tokio::test]
async fn rows_of_an_unconfigured_source_in_front_hold_no_other_source_back() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let outbox = source.outbox_id().await;
    sqlx::query(
        "SELECT usage_emit(gen_random_uuid(), 'llm.tokens', 1, 'w' || n) FROM generate_series(1, 500) AS n",
    )
    .execute(&source.pool)
    .await
    .unwrap();
    sqlx::query("UPDATE usage_outbox SET source = 'vm-manager'").execute(&source.pool).await.unwrap();
    let at = emit(&mut source.pool.acquire().await.unwrap(), Uuid::new_v4(), "good").await;
    let mut config = config(&source, &topic);
    config.relay.batch_rows = 100;
    let relay = Running::start(config.clone());
    passes(&topic, SOURCE, outbox, at).await;
    assert_eq!(source.count("usage_outbox_waiting").await, 500);
    relay.stop().await;
    assert!(topic.complete_until("vm-manager", outbox).await.is_none());
    let rows: Vec<(String, String)> = sqlx::query_as(
        "SELECT convert_from(payload, 'UTF8')::json->>'idempotency_key', \
         to_char(emitted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM usage_outbox_waiting",
    )
    .fetch_all(&source.pool)
    .await
    .unwrap();
    let truth: Truth = rows.into_iter().map(|(key, at)| (key, Timestamp::parse(&at).unwrap())).collect();
    config.relay.sources.push(key_of("vm-manager"));
    let relay = Running::start(config);
    let now = source.clock().await;
    passes(&topic, "vm-manager", outbox, now).await;
    relay.stop().await;
    assert!(none_runs_ahead(&topic.messages().await, &truth, "vm-manager", outbox) >= 3);
    assert_eq!(topic.keys().await.len(), 501);
}

/// A relay that is newer than its outbox delivers all the same, sends no markers and says what to do.
#[tokio::test]
async fn an_outbox_without_what_markers_need_is_delivered_from() {
    let (source, topic) = (Source::new().await, Topic::new(2).await);
    let outbox = source.outbox_id().await;
    sqlx::raw_sql("ALTER TABLE usage_outbox_returned RENAME TO elsewhere")
        .execute(&source.pool)
        .await
        .unwrap();
    let relay = Running::start(config(&source, &topic));
    let reason = until("it says so", async || relay.status.borrow().completeness.clone()).await;
    assert!(reason.contains("usagectl outbox migrate"), "{reason}");
    source.emit(Uuid::new_v4(), "k").await;
    source.emptied().await;
    assert_eq!((topic.keys().await, topic.markers().await.len()), (vec!["k".to_string()], 0));
    assert!(relay.status.borrow().database.is_none());
    sqlx::raw_sql("ALTER TABLE elsewhere RENAME TO usage_outbox_returned")
        .execute(&source.pool)
        .await
        .unwrap();
    passes(&topic, SOURCE, outbox, source.clock().await).await;
    until("all is well", async || relay.status.borrow().completeness.is_none().then_some(())).await;
    relay.stop().await;
}

/// A restore can leave rows of the same id. Pages end between ids, whether their rows or their bytes make them full: no row is passed, and
/// none of them is taken for delivered with the other one.
#[tokio::test]
async fn rows_of_one_id_are_not_torn_apart_by_the_end_of_a_page() {
    for (batch_rows, padding) in [(1, 0), (3, 0), (1_000, 700_000)] {
        let (source, topic) = (Source::new().await, Topic::new(1).await);
        let outbox = source.outbox_id().await;
        let (tenant, mut truth) = (Uuid::new_v4(), Truth::new());
        let mut connection = source.pool.acquire().await.unwrap();
        for row in 0..60 {
            let key = format!("key-{row}");
            truth.insert(key.clone(), emit(&mut connection, tenant, &key).await);
        }
        // An odd number of rows, then pairs: wherever a page ends by its rows or bytes, some ends fall into a pair.
        sqlx::query("UPDATE usage_outbox SET id = id / 2 * 2, payload = payload || convert_to(repeat(' ', $1), 'UTF8') WHERE id > 1")
            .bind(padding)
            .execute(&mut *connection)
            .await
            .unwrap();
        let mut config = config(&source, &topic);
        config.relay.batch_rows = batch_rows;
        let relay = Running::start(config);
        let now = source.clock().await;
        passes(&topic, SOURCE, outbox, now).await;
        relay.stop().await;
        assert_eq!(topic.keys().await.len(), truth.len(), "{batch_rows}");
        assert!(none_runs_ahead(&topic.messages().await, &truth, SOURCE, outbox) >= 1);
    }
}
