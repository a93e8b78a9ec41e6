//! Who signed a record: keys that are exchanged, ended and borrowed, and messages that were changed or said for others.

mod support;

use support::{Message, Pipeline, SOURCE, Totals, eventually, logs};
use usage_control::{Attribution, Revoked, SourceKey};
use usage_schemas::codec::Encoder;
use usage_schemas::partition::partition_of;
use usage_schemas::signature::SigningKey;
use usage_schemas::{UsageRecord, names};
use usage_service::clock;
use uuid::Uuid;

const OTHER: &str = "mail";
const KEY: &[u8] = b"the key of another source of the tests";

fn key(source: &str, key_id: &str, valid_from: i64, valid_until: Option<i64>) -> SourceKey {
    SourceKey {
        source: source.into(),
        key_id: key_id.into(),
        key: KEY.to_vec().into(),
        valid_from,
        valid_until,
    }
}

/// The record's bytes, signed with a key for the message key, in the name of a source.
fn signed(
    pipeline: &Pipeline,
    record: &UsageRecord,
    message_key: Uuid,
    source: &str,
    key_id: &str,
) -> Message {
    let (key, value) = (message_key.to_string().into_bytes(), Encoder::new().encode(record));
    let signature = SigningKey::new(key_id, KEY).sign(&key, &value);
    let headers = [
        (names::HEADER_PAYLOAD_TYPE, names::PAYLOAD_RECORD.to_string()),
        (names::HEADER_SOURCE, source.into()),
        (names::HEADER_KEY_ID, key_id.into()),
        (names::HEADER_SIGNATURE, signature),
    ];
    Message {
        partition: partition_of(message_key, pipeline.partitions),
        key: Some(key),
        value: Some(value),
        headers: headers.map(|(name, value)| (name.to_string(), value.into_bytes())).into(),
    }
}

async fn reasons(pipeline: &Pipeline) -> Vec<String> {
    let letters = pipeline.dead_letters().await;
    let mut by_offset: Vec<_> = letters
        .iter()
        .map(|letter| (letter.dlq["dlq-offset"].parse::<i64>().unwrap(), letter.reason()))
        .collect();
    by_offset.sort_unstable();
    by_offset.into_iter().map(|(_, reason)| reason.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_speaks_for_another_source_tenant_or_message() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let [tenant, victim] = [(); 2].map(|()| pipeline.tenant_of(0));
    pipeline.control.put_source_key(&key(OTHER, "o1", 0, None)).await.unwrap();
    pipeline.control.set_source(OTHER, Attribution::HomeTenant(tenant)).await.unwrap();
    let mut own = pipeline.record(tenant, "own", 1);
    own.source = OTHER.into();
    let foreign = pipeline.record(tenant, "foreign", 1);
    let mut header_only = signed(&pipeline, &own, tenant, OTHER, "o1");
    header_only.headers.iter_mut().filter(|(name, _)| name == names::HEADER_SOURCE).for_each(|(_, value)| {
        *value = SOURCE.into();
    });
    // A rightly signed record of the victim's, put onto the log once more under the attacker's tenant as key, and the other way round.
    let mut moved = pipeline.message(&pipeline.record(victim, "moved", 1));
    moved.key = Some(tenant.to_string().into_bytes());
    let mut no_tenant = own.clone();
    no_tenant.tenant_id = victim;
    no_tenant.record_id = usage_schemas::ids::record_id(victim, "own");
    let mut revalued = pipeline.message(&pipeline.record(victim, "revalued", 1));
    revalued.value = pipeline.message(&pipeline.record(victim, "revalued", 1_000)).value;
    let messages = [
        // Source `mail` signs a record that names the other source.
        signed(&pipeline, &foreign, tenant, OTHER, "o1"),
        // The same, in the other's name, and with the other's key id.
        signed(&pipeline, &foreign, tenant, SOURCE, "o1"),
        signed(&pipeline, &foreign, tenant, SOURCE, support::KEY_ID),
        header_only,
        moved,
        // Signed for the victim's record under its own tenant, and then honestly for a tenant that is not its own.
        signed(&pipeline, &no_tenant, tenant, OTHER, "o1"),
        signed(&pipeline, &no_tenant, victim, OTHER, "o1"),
        revalued,
        signed(&pipeline, &own, tenant, OTHER, "o1"),
    ];
    let worker = pipeline.worker(&[]);
    pipeline.send(&messages).await;
    pipeline.settled().await;
    worker.stop().await;
    let expected = [
        "unknown_source",
        "unknown_source",
        "bad_signature",
        "unknown_source",
        "bad_signature",
        "wrong_partition",
        "forbidden_tenant",
        "bad_signature",
    ];
    assert_eq!(reasons(&pipeline).await, expected);
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(1, 1));
    assert_eq!(pipeline.stored(victim).await.len(), 0);
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_exchanged_and_ended_without_a_restart() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = pipeline.tenant_of(0);
    pipeline.control.put_source_key(&key(SOURCE, "k2", 0, None)).await.unwrap();
    // So long that only what is looked up because it is unknown can help.
    let worker = pipeline.worker(&["consumer.registry_refresh=1h"]);
    let by = |name: &str, key_id: &str| {
        let record = pipeline.record(tenant, name, 1);
        signed(&pipeline, &record, tenant, SOURCE, key_id)
    };
    pipeline.send(&[by("a", "k2")]).await;
    pipeline.settled().await;
    // A key that the worker has never heard of, made a moment ago.
    pipeline.control.put_source_key(&key(SOURCE, "k3", 0, None)).await.unwrap();
    pipeline.send(&[by("b", "k3"), by("c", "k2")]).await;
    pipeline.settled().await;
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(3, 3));
    worker.stop().await;

    // An end is taken up with the next look; an unknown key makes the worker look.
    let worker = pipeline.worker(&["consumer.registry_refresh=1h"]);
    pipeline.send(&[by("d", "k2")]).await;
    pipeline.settled().await;
    let revoked = pipeline.control.revoke_source_key(SOURCE, "k2", clock::now_micros() - 1).await.unwrap();
    assert!(matches!(revoked, Revoked::Ends(_)));
    pipeline.send(&[by("e", "k9")]).await;
    pipeline.settled().await;
    pipeline.send(&[by("f", "k2"), by("g", "k3")]).await;
    pipeline.settled().await;
    assert_eq!(reasons(&pipeline).await, ["unknown_source", "unknown_source"]);
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(5, 5));
    worker.stop().await;

    // By time alone.
    let worker = pipeline.worker(&["consumer.registry_refresh=200ms"]);
    pipeline.control.revoke_source_key(SOURCE, "k3", clock::now_micros() - 1).await.unwrap();
    let sent = std::sync::atomic::AtomicUsize::new(0);
    eventually("the end is noticed", || async {
        let name = format!("h{}", sent.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        pipeline.send(&[by(&name, "k3")]).await;
        pipeline.settled().await;
        reasons(&pipeline).await.len() > 2
    })
    .await;
    worker.stop().await;
    pipeline.end().await;
}

/// One sealed key that does not open keeps the registry from being read. What was known before must not serve for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_revoked_while_the_registry_cant_be_read_keeps_nothing() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = pipeline.tenant_of(0);
    pipeline.control.put_source_key(&key(OTHER, "o1", 0, None)).await.unwrap();
    let worker =
        support::Process::start(&pipeline, &["consumer.registry_refresh=200ms", "consumer.retry_max=200ms"]);
    pipeline.send_records(&[pipeline.record(tenant, "a", 1)]).await;
    pipeline.settled().await;
    pipeline
        .database
        .execute("UPDATE source_keys SET sealed = '\\x00' || sealed WHERE source = 'mail'")
        .await;
    let revoked = pipeline.control.revoke_source_key(SOURCE, support::KEY_ID, clock::now_micros() - 1).await;
    assert!(matches!(revoked.unwrap(), Revoked::Ends(_)));
    eventually("it says so", || async { worker.log_contains("keys may have been revoked") }).await;
    pipeline.send_records(&[pipeline.record(tenant, "b", 1)]).await;
    eventually("the record waits", || async { worker.log_contains("will be tried again") }).await;
    assert_eq!((pipeline.rows(&[tenant]).await, pipeline.dead_letters().await.len()), (1, 0));
    pipeline
        .database
        .execute("UPDATE source_keys SET sealed = substring(sealed FROM 2) WHERE source = 'mail'")
        .await;
    pipeline.settled().await;
    assert_eq!(reasons(&pipeline).await, ["unknown_source"]);
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(1, 1));
    worker.stop().await;
    pipeline.end().await;
}

/// The broker's time of a message is not known before it is sent, so the edges are set around it and the messages replayed from the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_valid_from_its_first_to_before_its_last_microsecond_by_the_brokers_time() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = pipeline.tenant_of(0);
    let ids = ["ends-at", "ends-after", "begins-at", "begins-after"];
    let messages: Vec<Message> =
        ids.iter().map(|id| signed(&pipeline, &pipeline.record(tenant, id, 1), tenant, SOURCE, id)).collect();
    pipeline.send(&messages).await;
    let at: Vec<i64> = pipeline.broker_times(0).await.into_iter().map(|millis| millis * 1_000).collect();
    let validity = [(0, Some(at[0])), (0, Some(at[1] + 1)), (at[2], None), (at[3] + 1, None)];
    for (id, (from, until)) in ids.iter().zip(validity) {
        pipeline.control.put_source_key(&key(SOURCE, id, from, until)).await.unwrap();
    }
    let worker = pipeline.worker(&[]);
    pipeline.settled().await;
    worker.stop().await;
    let letters = pipeline.dead_letters().await;
    let mut refused: Vec<_> = letters.iter().map(|letter| letter.dlq["dlq-offset"].as_str()).collect();
    refused.sort_unstable();
    assert_eq!(refused, ["0", "3"]);
    assert!(letters.iter().all(|letter| letter.reason() == "unknown_source"));
    pipeline.end().await;
}

/// Whoever has another master key must not take every record for one of an unknown source.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_with_another_master_key_ends_at_its_start_and_names_the_setting() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = pipeline.tenant_of(0);
    pipeline.send_records(&[pipeline.record(tenant, "a", 1)]).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("master.key");
    std::fs::write(&file, "02".repeat(32)).unwrap();
    let setting = format!("control_database.master_key_file={}", file.display());
    let worker = support::Process::start(&pipeline, &[&setting]);
    eventually("it says why", || async {
        worker.log_contains("the one in `control_database.master_key` is")
    })
    .await;
    assert!(!worker.log_contains("0202"));
    worker.gone().await;
    assert_eq!(pipeline.dead_letters().await.len(), 0);
    assert_eq!(pipeline.committed(0).await, None);
    pipeline.end().await;
}
