//! Schedules that reviews of the protocol found: servers that come back changed.

use std::path::{Path, PathBuf};
use std::process::Command;

use tokio::time::Instant;
use usage_devstack::Postgres;
use usage_producer::outbox;
use uuid::Uuid;

use crate::markers::{Truth, emit, none_runs_ahead, passes};
use crate::support::{BY_THE_FLOOR, Running, SOURCE, Source, Topic, config, until};

/// A Postgres of the test's own.
struct Server {
    dir: PathBuf,
    postgres: Option<Postgres>,
}

impl Server {
    async fn start() -> Self {
        let dir = std::env::temp_dir().join(format!("usage-postgres-{}", Uuid::new_v4()));
        let started = dir.clone();
        let postgres = tokio::task::spawn_blocking(move || Postgres::start(&started)).await.unwrap().unwrap();
        Self { dir, postgres: Some(postgres) }
    }

    async fn source(&self) -> Source {
        let source = Source::empty_on(&self.postgres.as_ref().unwrap().url("postgres")).await;
        outbox::migrate(&source.pool).await.unwrap();
        source
    }

    async fn with(&mut self, work: impl FnOnce(&mut Postgres) + Send + 'static) {
        let mut postgres = self.postgres.take().unwrap();
        let worked = tokio::task::spawn_blocking(move || {
            work(&mut postgres);
            postgres
        });
        self.postgres = Some(worked.await.unwrap());
    }

    async fn end(mut self) {
        let postgres = self.postgres.take().unwrap();
        tokio::task::spawn_blocking(move || postgres.stop()).await.unwrap().unwrap();
        Postgres::purge(&self.dir).unwrap();
    }
}

async fn answers(source: &Source) {
    until("the server is back", async || sqlx::query("SELECT 1").execute(&source.pool).await.ok()).await;
}

/// Writes a row in a transaction and prepares it for a two-phase commit.
async fn prepare(source: &Source, tenant: Uuid, key: &str) -> usage_schemas::Timestamp {
    let mut tx = source.pool.begin().await.unwrap();
    let at = emit(&mut tx, tenant, key).await;
    sqlx::raw_sql("PREPARE TRANSACTION 'late'").execute(&mut *tx).await.unwrap();
    // The transaction is the server's now; what is left of it here must not be rolled back in its name.
    drop(tx);
    at
}

/// A relay over an immediate restart of Postgres with a prepared transaction open. It has another virtual id afterwards: proofs from before
/// would pass its row, and say that everything is complete beyond it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_immediate_restart_with_a_prepared_transaction_open() {
    let mut server = Server::start().await;
    let (source, topic) = (server.source().await, Topic::new(1).await);
    let outbox = source.outbox_id().await;
    let relay = Running::start(config(&source, &topic));
    // One tenant, so one outbox partition, whose floor is what matters.
    let tenant = Uuid::new_v4();
    passes(&topic, SOURCE, outbox, source.clock().await).await;
    let at = prepare(&source, tenant, "prepared").await;
    let mut truth = Truth::from([("prepared".to_string(), at)]);
    source.emit(tenant, "before").await;
    source.emptied().await;
    server.with(|postgres| postgres.restart_immediate().unwrap()).await;
    let by_the_floor = Instant::now() + BY_THE_FLOOR;
    answers(&source).await;
    let lock = "SELECT count(*) FROM pg_locks WHERE relation = 'usage_outbox'::regclass AND pid IS NULL";
    let held: i64 = sqlx::query_scalar(lock).fetch_one(&source.pool).await.unwrap();
    assert!(held > 0, "it is still open");
    for number in 0..5 {
        let key = format!("after-{number}");
        let after = emit(&mut source.pool.acquire().await.unwrap(), tenant, &key).await;
        truth.insert(key, after);
        source.emptied().await;
        // Two looks for the floor happen at least.
        tokio::time::sleep(std::time::Duration::from_millis(450)).await;
    }
    assert!(topic.complete_until(SOURCE, outbox).await.unwrap() <= at);
    sqlx::raw_sql("COMMIT PREPARED 'late'").execute(&source.pool).await.unwrap();
    // Well before the look from 0 that is due each minute.
    tokio::time::timeout_at(by_the_floor, source.emptied()).await.unwrap();
    passes(&topic, SOURCE, outbox, source.clock().await).await;
    relay.stop().await;
    assert_eq!(topic.keys().await.len(), 7);
    none_runs_ahead(&topic.messages().await, &truth, SOURCE, outbox);
    drop(source);
    server.end().await;
}

/// A transaction is prepared while a round waits for it under its first name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_a_member_of_a_round_is_prepared() {
    let (source, topic) = (Source::new().await, Topic::new(1).await);
    let outbox = source.outbox_id().await;
    let by_the_floor = Instant::now() + BY_THE_FLOOR;
    let relay = Running::start(config(&source, &topic));
    let tenant = Uuid::new_v4();
    let mut tx = source.pool.begin().await.unwrap();
    let at = emit(&mut tx, tenant, "prepared").await;
    // A round has begun once what came later has been delivered and completeness has gone as far as it may.
    source.emit(tenant, "later").await;
    source.emptied().await;
    let stored = async || -> bool {
        sqlx::query_scalar(
            "SELECT min(complete_until) > clock_timestamp() - interval '1 second' FROM usage_outbox_partitions",
        )
        .fetch_one(&source.pool)
        .await
        .unwrap()
    };
    until("rounds wait for it", async || (!stored().await).then_some(())).await;
    let name = format!("m{}", Uuid::new_v4().simple());
    let sql = format!("PREPARE TRANSACTION '{name}'");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *tx).await.unwrap();
    drop(tx);
    for number in 0..3 {
        source.emit(tenant, &format!("after-{number}")).await;
        source.emptied().await;
        tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    }
    assert!(topic.complete_until(SOURCE, outbox).await.is_none_or(|until| until <= at));
    let sql = format!("COMMIT PREPARED '{name}'");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&source.pool).await.unwrap();
    tokio::time::timeout_at(by_the_floor, source.emptied()).await.unwrap();
    passes(&topic, SOURCE, outbox, source.clock().await).await;
    relay.stop().await;
    assert_eq!(topic.keys().await.len(), 5);
    none_runs_ahead(&topic.messages().await, &Truth::from([("prepared".into(), at)]), SOURCE, outbox);
}

fn shell(command: &str, arguments: &[&Path]) {
    assert!(Command::new(command).arg("-a").args(arguments).status().unwrap().success());
}

/// A standby that lags is promoted behind the relay's back: what the old server handed out last is handed out again, to other rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_a_promoted_standby_hands_out_ids_again() {
    let mut server = Server::start().await;
    let (source, topic) = (server.source().await, Topic::new(3).await);
    let outbox = source.outbox_id().await;
    let relay = Running::start(config(&source, &topic));
    let tenants: Vec<Uuid> = (0..20).map(|number| Uuid::from_u64_pair(3, number)).collect();
    let mut truth = Truth::new();
    let mut write = async |name: &str| {
        let mut connection = source.pool.acquire().await.unwrap();
        for (number, tenant) in tenants.iter().chain(&tenants).chain(&tenants).enumerate() {
            let key = format!("{name}-{number}");
            let at = emit(&mut connection, *tenant, &key).await;
            truth.insert(key, at);
        }
        let high: i64 = sqlx::query_scalar("SELECT last_value FROM usage_outbox_id_seq")
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        high
    };
    write("base").await;
    source.emptied().await;
    let data: String = sqlx::query_scalar("SHOW data_directory").fetch_one(&source.pool).await.unwrap();
    let (data, standby) = (PathBuf::from(&data), PathBuf::from(format!("{data}.standby")));
    let copied = (data.clone(), standby.clone());
    server
        .with(move |postgres| {
            postgres.kill9();
            shell("cp", &[&copied.0, &copied.1]);
            postgres.restart().unwrap();
        })
        .await;
    answers(&source).await;
    let lost = write("lost").await;
    source.emptied().await;
    passes(&topic, SOURCE, outbox, source.clock().await).await;
    let gone = PathBuf::from(format!("{}.gone", data.display()));
    let swapped = (data.clone(), standby, gone.clone());
    server
        .with(move |postgres| {
            postgres.kill9();
            std::fs::rename(&swapped.0, &swapped.2).unwrap();
            std::fs::rename(&swapped.1, &swapped.0).unwrap();
            // A file of the server's own user; its content does not matter.
            shell("cp", &[&swapped.0.join("PG_VERSION"), &swapped.0.join("standby.signal")]);
            postgres.restart().unwrap();
            postgres.query("postgres", "SELECT pg_promote()").unwrap();
        })
        .await;
    until("it is promoted", async || {
        sqlx::query_scalar::<_, bool>("SELECT NOT pg_is_in_recovery()")
            .fetch_one(&source.pool)
            .await
            .ok()
            .filter(|primary| *primary)
    })
    .await;
    let first: i64 = sqlx::query_scalar("SELECT last_value FROM usage_outbox_id_seq")
        .fetch_one(&source.pool)
        .await
        .unwrap();
    assert!(first < lost, "ids are handed out again: {first}, {lost}");
    let by_the_floor = Instant::now() + BY_THE_FLOOR;
    write("again").await;
    tokio::time::timeout_at(by_the_floor, source.emptied()).await.unwrap();
    passes(&topic, SOURCE, outbox, source.clock().await).await;
    relay.stop().await;
    assert_eq!(topic.keys().await.len(), 180);
    none_runs_ahead(&topic.messages().await, &truth, SOURCE, outbox);
    drop(source);
    server.end().await;
    Command::new("rm").arg("-rf").arg(gone).status().unwrap();
}

/// An outbox is restored with its rows, but its sequence stands where it stood before: rows with ids that are still to be handed out are missed
/// by a pass that ends there, so nothing is said until it is repaired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_a_restored_outbox_whose_sequence_lags() {
    let source = Source::new().await;
    let topic = Topic::named(2);
    let outbox = source.outbox_id().await;
    let tenant = Uuid::new_v4();
    let mut truth = Truth::new();
    for number in 0..30 {
        let key = format!("k{number}");
        let at = emit(&mut source.pool.acquire().await.unwrap(), tenant, &key).await;
        truth.insert(key, at);
    }
    sqlx::query("SELECT setval('usage_outbox_id_seq', 5)").execute(&source.pool).await.unwrap();
    // The topic is not there yet, so that the rows stay.
    let relay = Running::start(config(&source, &topic));
    let reason = until("it says so", async || relay.status.borrow().completeness.clone()).await;
    assert!(reason.contains("stands at 5") && reason.contains("usagectl outbox repair"), "{reason}");
    // The ids are handed out again meanwhile, to rows of the same partition.
    for number in 0..10 {
        let key = format!("again{number}");
        let at = emit(&mut source.pool.acquire().await.unwrap(), tenant, &key).await;
        truth.insert(key, at);
    }
    let incomplete = "usage_outbox_partitions WHERE complete_until > '-infinity'";
    assert_eq!(source.count(incomplete).await, 0);

    let repaired = outbox::repair(&mut source.pool.acquire().await.unwrap()).await.unwrap();
    assert_eq!((repaired.stood_at, repaired.greatest_id, repaired.set_to), (15, 30, Some(1_030)));
    let again = outbox::repair(&mut source.pool.acquire().await.unwrap()).await.unwrap();
    assert_eq!((again.stood_at, again.set_to), (1_030, None));
    until("all is well", async || relay.status.borrow().completeness.is_none().then_some(())).await;
    topic.create(&[]).await;
    source.emptied().await;
    passes(&topic, SOURCE, outbox, source.clock().await).await;
    relay.stop().await;
    assert_eq!(topic.keys().await.len(), 40);
    none_runs_ahead(&topic.messages().await, &truth, SOURCE, outbox);
}

/// The sequence is set back under a running relay: its floor lies above the ids that are handed out now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_the_sequence_goes_back_under_a_running_relay() {
    let (source, topic) = (Source::new().await, Topic::new(1).await);
    let outbox = source.outbox_id().await;
    let by_the_floor = Instant::now() + BY_THE_FLOOR;
    let relay = Running::start(config(&source, &topic));
    let tenant = Uuid::new_v4();
    for number in 0..50 {
        source.emit(tenant, &format!("k{number}")).await;
    }
    source.emptied().await;
    passes(&topic, SOURCE, outbox, source.clock().await).await;
    sqlx::query("SELECT setval('usage_outbox_id_seq', 1)").execute(&source.pool).await.unwrap();
    let at = emit(&mut source.pool.acquire().await.unwrap(), tenant, "below").await;
    // Well before the look from 0 that is due each minute.
    tokio::time::timeout_at(by_the_floor, source.emptied()).await.unwrap();
    passes(&topic, SOURCE, outbox, source.clock().await).await;
    relay.stop().await;
    none_runs_ahead(&topic.messages().await, &Truth::from([("below".into(), at)]), SOURCE, outbox);
    assert_eq!(topic.keys().await.len(), 51);
}

/// A clock that was ahead was set right: what is emitted until it has passed that time again is older than what the outbox has said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_the_clock_is_behind_what_was_said() {
    let (source, topic) = (Source::new().await, Topic::new(2).await);
    let outbox = source.outbox_id().await;
    sqlx::raw_sql("UPDATE usage_outbox_partitions SET complete_until = clock_timestamp() + interval '8 seconds' WHERE part = 2")
        .execute(&source.pool)
        .await
        .unwrap();
    let relay = Running::start(config(&source, &topic));
    let reason = until("it says so", async || relay.status.borrow().completeness.clone()).await;
    assert!(reason.contains("clock"), "{reason}");
    let at = emit(&mut source.pool.acquire().await.unwrap(), Uuid::new_v4(), "meanwhile").await;
    source.emptied().await;
    let repaired = outbox::repair(&mut source.pool.acquire().await.unwrap()).await.unwrap();
    assert_eq!(repaired.set_to, None, "the sequence is well");
    passes(&topic, SOURCE, outbox, source.clock().await).await;
    let held: String = sqlx::query_scalar(
        "SELECT to_char(hold_until AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM usage_outbox_identity",
    )
    .fetch_one(&source.pool)
    .await
    .unwrap();
    let held = usage_schemas::Timestamp::parse(&held).unwrap();
    assert!(
        topic.markers().await.iter().all(|found| found.marker.complete_until > held),
        "none before it has passed"
    );
    until("all is well", async || relay.status.borrow().completeness.is_none().then_some(())).await;
    relay.stop().await;
    none_runs_ahead(&topic.messages().await, &Truth::from([("meanwhile".into(), at)]), SOURCE, outbox);
}
