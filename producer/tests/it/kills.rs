//! A relay dies, or freezes and wakes up as a zombie, at each of its steps; another one finishes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use usage_schemas::names;
use uuid::Uuid;

use crate::markers::{Truth, emit, none_runs_ahead, passes};
use crate::process::Process;
use crate::support::{SOURCE, Source, Topic, until};

/// Short, so that the heir need not wait long; a lost lease is part of it.
const LEASE: Duration = Duration::from_millis(1_500);

/// A point, and at which of its visits it happens.
type Visit = (&'static str, u32);

/// Taking a partition, sending its rows.
const SENDING: [Visit; 5] = [
    ("relay.claim", 2),
    ("relay.claimed", 2),
    ("relay.produce", 20),
    ("relay.produced", 20),
    ("relay.acked", 5),
];
/// Taking rows out of the outbox, and back into it.
const MOVING: [Visit; 6] = [
    ("relay.remove", 1),
    ("relay.removed", 1),
    ("relay.move_aside", 1),
    ("relay.moved_aside", 1),
    ("relay.return", 1),
    ("relay.returned", 1),
];
const COMPLETING: [Visit; 4] = [
    ("relay.store_complete", 1),
    ("relay.stored_complete", 1),
    ("relay.send_marker", 1),
    ("relay.sent_marker", 1),
];

/// What is in a source's outbox before any relay runs.
struct Load {
    source: Source,
    topic: Topic,
    /// Committed keys.
    truth: Truth,
}

impl Load {
    /// Rows of several tenants, among them one that can't be encoded, one that waits and can go on now, and a gauge that has no key.
    async fn new() -> Self {
        let (source, topic) = (Source::new().await, Topic::new(3).await);
        let mut truth = Truth::new();
        let mut connection = source.pool.acquire().await.unwrap();
        for number in 0..40 {
            let key = format!("k{number}");
            let at = emit(&mut connection, Uuid::from_u64_pair(1, number % 10), &key).await;
            truth.insert(key, at);
        }
        let (waiting, dead) = (Uuid::from_u64_pair(2, 1), Uuid::from_u64_pair(2, 2));
        let at = emit(&mut connection, waiting, "waited").await;
        truth.insert("waited".into(), at);
        emit(&mut connection, dead, "dead").await;
        sqlx::query("UPDATE usage_outbox SET payload = '{}' WHERE tenant_id = $1")
            .bind(dead)
            .execute(&mut *connection)
            .await
            .unwrap();
        let columns = "part, id, tenant_id, emitted_at, payload_type, source, traceparent, payload";
        let aside = format!(
            "WITH gone AS (DELETE FROM usage_outbox WHERE tenant_id = $1 RETURNING *) \
             INSERT INTO usage_outbox_waiting ({columns}) SELECT {columns} FROM gone"
        );
        sqlx::query(sqlx::AssertSqlSafe(aside)).bind(waiting).execute(&mut *connection).await.unwrap();
        sqlx::query("SELECT usage_emit($1, 'vm.cores', 1, NULL, kind => 'gauge')")
            .bind(Uuid::from_u64_pair(1, 1))
            .execute(&mut *connection)
            .await
            .unwrap();
        Self { source, topic, truth }
    }

    /// Nothing is left, and markers say so. One more row, since markers of an idle outbox are seldom.
    async fn finish(&mut self) {
        let source = &self.source;
        until("nothing waits", async || (source.count("usage_outbox_waiting").await == 0).then_some(()))
            .await;
        source.emptied().await;
        let key = format!("last-{}", self.truth.len());
        let mut connection = source.pool.acquire().await.unwrap();
        let at = emit(&mut connection, Uuid::from_u64_pair(1, 3), &key).await;
        self.truth.insert(key, at);
        passes(&self.topic, SOURCE, source.outbox_id().await, at).await;
        source.emptied().await;
    }

    /// All that was committed is in Kafka, each under one id, and nothing is left anywhere.
    async fn check(&self, visit: Visit) {
        let (source, topic) = (&self.source, &self.topic);
        assert_eq!(source.count("usage_outbox").await, 0, "{visit:?}");
        assert_eq!(source.count("usage_outbox_waiting").await, 0, "{visit:?}");
        let dead: Vec<String> = sqlx::query_scalar("SELECT reason FROM usage_outbox_dead_letters")
            .fetch_all(&source.pool)
            .await
            .unwrap();
        assert_eq!(dead, ["not_encodable"], "{visit:?}");
        let mut ids: BTreeMap<String, BTreeSet<Uuid>> = BTreeMap::new();
        for received in topic.read().await {
            assert_eq!(received.headers[names::HEADER_SOURCE], SOURCE);
            let key = received.record.idempotency_key.unwrap_or_else(|| "gauge".into());
            ids.entry(key).or_default().insert(received.record.record_id);
        }
        assert!(ids.values().all(|ids| ids.len() == 1), "{visit:?}: {ids:?}");
        assert!(ids.remove("gauge").is_some(), "{visit:?}");
        assert!(ids.keys().eq(self.truth.keys()), "{visit:?}: {:?}", ids.keys());
        let outbox = source.outbox_id().await;
        let markers = none_runs_ahead(&topic.messages().await, &self.truth, SOURCE, outbox);
        assert!(markers >= 3, "{visit:?}: {markers}");
    }
}

/// Side by side with others, for most of the time is spent in waiting for leases. The victim dies at the point; an heir takes over once its leases have run out.
async fn die(visit: Visit) {
    let mut load = Load::new().await;
    let (source, topic) = (&load.source, &load.topic);
    let mut open = source.pool.begin().await.unwrap();
    if !COMPLETING.contains(&visit) {
        // Nothing is complete while it is open.
        emit(&mut open, Uuid::from_u64_pair(1, 1), "rolled back").await;
    }
    let point = format!("{}=kill@{}", visit.0, visit.1);
    Process::armed(source, topic, "victim", LEASE, &point).died().await;
    let mut heir = Process::start(source, topic, "heir", LEASE);
    source.emptied().await;
    open.rollback().await.unwrap();
    load.finish().await;
    assert!(heir.terminate().success(), "{visit:?}");
    load.check(visit).await;
}

/// The victim freezes at the point until another relay has done all of its work, and then goes on where it was.
async fn freeze(visit: Visit) -> Load {
    let mut load = Load::new().await;
    let (source, topic) = (&load.source, &load.topic);
    let point = format!("{}=stop@{}", visit.0, visit.1);
    let mut zombie = Process::armed(source, topic, "zombie", LEASE, &point);
    zombie.froze().await;
    let mut heir = Process::start(source, topic, "heir", LEASE);
    load.finish().await;
    zombie.signal("-CONT");
    let source = &load.source;
    until("they share", async || {
        let owners: i64 = source
            .count("(SELECT DISTINCT owner FROM usage_outbox_partitions WHERE expires_at > clock_timestamp()) AS owners")
            .await;
        (owners == 2).then_some(())
    })
    .await;
    load.finish().await;
    assert!(zombie.terminate().success() && heir.terminate().success(), "{visit:?}");
    load.check(visit).await;
    load
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_killed_while_it_sends_loses_nothing() {
    join_all(SENDING.map(die)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_killed_while_it_moves_rows_loses_nothing() {
    join_all(MOVING.map(die)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_killed_while_it_speaks_of_completeness_says_nothing_wrong() {
    join_all(COMPLETING.map(die)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_that_wakes_up_while_it_sends_or_moves_rows_does_no_harm() {
    join_all(["relay.produce", "relay.acked", "relay.move_aside"].map(|point| freeze((point, 1)))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_that_wakes_up_while_it_speaks_of_completeness_says_nothing_wrong() {
    let points = ["relay.claimed", "relay.return", "relay.store_complete", "relay.send_marker"];
    join_all(points.map(|point| freeze((point, 1)))).await;
}

/// Two relays send the same rows, one of them as a zombie: the copies have one id, also of a record without a key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_106_copies_that_two_relays_send_have_one_id() {
    let load = freeze(("relay.remove", 1)).await;
    let sent = load.topic.read().await.len();
    assert!(sent > load.truth.len() + 1, "{sent}: some were sent twice");
}

/// The relay's points are those that are visited here.
#[test]
fn no_fail_point_is_left_out() {
    let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
    let mut found = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let points = text.split("fail_point!(\"").skip(1).filter_map(|rest| rest.split('"').next());
            found.extend(points.map(ToString::to_string));
        }
    }
    let visited: BTreeSet<String> = [&SENDING[..], &MOVING, &COMPLETING]
        .concat()
        .into_iter()
        .map(|(point, _)| point.to_string())
        .collect();
    assert_eq!(found, visited);
}
