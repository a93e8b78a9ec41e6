//! Records from Kafka to storage on real servers: what is kept, what becomes a dead letter, what goes elsewhere.

mod support;

use std::collections::BTreeSet;

use support::{KEY_ID, Message, Pipeline, SOURCE, eventually, logs};
use usage_control::NewUsageType;
use usage_schemas::{Kind, Timestamp, UsageRecord, names};
use usage_storage::query::StoredRecord;
use uuid::Uuid;

/// (idempotency key, value) of each record, sorted.
fn contents(stored: &[StoredRecord]) -> Vec<(String, String)> {
    let mut contents: Vec<(String, String)> = stored
        .iter()
        .map(|record| (record.idempotency_key.clone().unwrap_or_default(), record.value.to_string()))
        .collect();
    contents.sort();
    contents
}

fn expected(records: &[&UsageRecord]) -> Vec<(String, String)> {
    let mut contents: Vec<(String, String)> = records
        .iter()
        .map(|record| (record.idempotency_key.clone().unwrap_or_default(), record.value.to_string()))
        .collect();
    contents.sort();
    contents
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_record_arrives_and_is_committed() {
    logs();
    let pipeline = Pipeline::start(3).await;
    let tenant = Uuid::new_v4();
    let record = pipeline.record(tenant, "a", 7);
    let partition = pipeline.message(&record).partition;
    let offsets = pipeline.send_records(std::slice::from_ref(&record)).await;
    let worker = pipeline.worker(&[]);
    eventually("the record is stored", || async { pipeline.stored(tenant).await.len() == 1 }).await;
    let stored = pipeline.stored(tenant).await.remove(0);
    assert_eq!(stored.record_id, record.record_id);
    assert_eq!((stored.value, stored.timestamp), (record.value, record.timestamp.micros()));
    assert_eq!(stored.metadata, record.metadata);
    let done = (offsets[0] + 1, "d1;1".to_string());
    eventually("the commit says that nothing is in hand", || async {
        pipeline.committed(partition).await.as_ref() == Some(&done)
    })
    .await;
    worker.ready().await;
    worker.stop().await;
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_are_kept_once_within_and_across_batches_and_restarts() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let tenants: Vec<Uuid> = (0..5).map(|_| Uuid::new_v4()).collect();
    let records: Vec<UsageRecord> =
        (0..200).map(|i| pipeline.record(tenants[i % 5], &format!("key-{i}"), 1 + i as i64)).collect();
    let mut conflict = records[17].clone();
    conflict.value = usage_schemas::Quantity::from_unscaled(1).unwrap();

    // Twice in one batch, then a batch later, then after a restart; a conflict each time.
    let mut worker = pipeline.worker(&[]);
    for round in 0..3 {
        let mut messages: Vec<Message> = records.iter().map(|record| pipeline.message(record)).collect();
        messages.extend(records.iter().rev().step_by(3).map(|record| pipeline.message(record)));
        messages.push(pipeline.message(&conflict));
        let offsets = pipeline.send(&messages).await;
        pipeline.all_done(&messages, &offsets).await;
        if round == 1 {
            worker.stop().await;
            worker = pipeline.worker(&[]);
        }
    }
    worker.stop().await;
    for tenant in &tenants {
        let own: Vec<&UsageRecord> = records.iter().filter(|record| record.tenant_id == *tenant).collect();
        assert_eq!(contents(&pipeline.stored(*tenant).await), expected(&own));
    }
    let letters = pipeline.dead_letters().await;
    assert_eq!(letters.iter().map(|letter| letter.reason()).collect::<Vec<_>>(), ["conflict"; 3]);
    let origins: BTreeSet<_> = letters.iter().map(|letter| letter.origin()).collect();
    assert_eq!(origins.len(), 3);
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_goes_to_the_dead_letters_untouched_and_blocks_nothing() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = Uuid::new_v4();
    let good: Vec<UsageRecord> = (0..20).map(|i| pipeline.record(tenant, &format!("good-{i}"), 1)).collect();
    let plain = pipeline.message(&good[0]);
    let changed = |change: &dyn Fn(&mut Message)| {
        let mut message = plain.clone();
        change(&mut message);
        message
    };
    let record = |change: &dyn Fn(&mut UsageRecord)| {
        let mut record = pipeline.record(tenant, "bad", 1);
        change(&mut record);
        pipeline.message(&record)
    };
    let header = |name: &str, value: &[u8]| {
        let (name, value) = (name.to_string(), value.to_vec());
        move |message: &mut Message| {
            message.headers.retain(|(known, _)| *known != name);
            message.headers.push((name.clone(), value.clone()));
        }
    };
    let poison: Vec<(Message, &str)> = vec![
        (changed(&|m| m.value = None), "undecodable"),
        (changed(&|m| m.key = None), "undecodable"),
        (changed(&|m| m.headers.clear()), "undecodable"),
        (changed(&|m| m.value = Some(vec![0xff; 40])), "undecodable"),
        (changed(&|m| m.value.as_mut().unwrap()[5] ^= 1), "unknown_schema"),
        (changed(&header(names::HEADER_SIGNATURE, b"00")), "bad_signature"),
        (changed(&header(names::HEADER_KEY_ID, b"k9")), "unknown_source"),
        (changed(&header(names::HEADER_SOURCE, b"nobody")), "unknown_source"),
        (record(&|r| r.record_id = Uuid::new_v4()), "id_mismatch"),
        (record(&|r| r.timestamp = Timestamp::from_micros(r.timestamp.micros() + 600_000_000)), "in_future"),
        (record(&|r| r.timestamp = Timestamp::from_micros(1)), "too_old"),
        (
            record(&|r| r.metadata = Some(format!("{{\"x\":\"{}\"}}", "y".repeat(10_000)))),
            "metadata_too_large",
        ),
        (record(&|r| r.subject_type = Some("Not A Name".into())), "invalid_record"),
        (record(&|r| r.metric = "llm.unheard".into()), "unknown_usage_type"),
        (record(&|r| r.metric = "vm.memory".into()), "schema_violation"),
    ];
    let mut messages = Vec::new();
    for (i, record) in good.iter().enumerate() {
        messages.push(pipeline.message(record));
        messages.extend(poison.get(i).map(|(message, _)| message.clone()));
        messages.push(pipeline.marker(0));
    }
    let offsets = pipeline.send(&messages).await;
    let worker = pipeline.worker(&[]);
    pipeline.all_done(&messages, &offsets).await;
    worker.stop().await;
    assert_eq!(contents(&pipeline.stored(tenant).await), expected(&good.iter().collect::<Vec<_>>()));

    let letters = pipeline.dead_letters().await;
    assert_eq!(letters.len(), poison.len());
    for (letter, (message, reason)) in letters.iter().zip(&poison) {
        assert_eq!(letter.reason(), *reason);
        assert_eq!(
            (&letter.key, &letter.value, &letter.headers),
            (&message.key, &message.value, &message.headers)
        );
        assert_eq!(letter.dlq["dlq-topic"], pipeline.topic);
        assert_eq!(letter.dlq["dlq-partition"], "0");
        let offset: usize = letter.dlq["dlq-offset"].parse().unwrap();
        assert_eq!(messages[offset].value, message.value);
        assert!(letter.dlq["dlq-timestamp"].parse::<i64>().unwrap() > 1_700_000_000_000);
        assert_eq!(letter.dlq["dlq-attempt"], "1");
        assert!(!letter.dlq["dlq-error"].is_empty());
    }
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_is_refused_until_it_is_registered_and_known_at_once_then() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = Uuid::new_v4();
    // The regular refresh is far away.
    let worker = pipeline.worker(&["consumer.registry_refresh=1h"]);
    let with_type = |key: &str| {
        let mut record = pipeline.record(tenant, key, 1);
        record.metric = "mail.sent".into();
        record
    };
    pipeline.send_records(&[with_type("early")]).await;
    eventually("it is refused", || async { pipeline.dead_letters().await.len() == 1 }).await;
    pipeline.control.register_type(&NewUsageType::new("mail.sent", Kind::Counter, "1")).await.unwrap();
    let late = with_type("late");
    pipeline.send_records(std::slice::from_ref(&late)).await;
    eventually("it is kept", || async { pipeline.stored(tenant).await.len() == 1 }).await;
    assert_eq!(contents(&pipeline.stored(tenant).await), expected(&[&late]));
    // What was refused claimed no identity: sent again it is kept.
    let again = with_type("early");
    pipeline.send_records(std::slice::from_ref(&again)).await;
    eventually("it is kept", || async { pipeline.stored(tenant).await.len() == 2 }).await;
    worker.stop().await;
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_4_a_record_and_its_copy_on_another_partition_count_once() {
    logs();
    let pipeline = Pipeline::start(3).await;
    let tenant = Uuid::new_v4();
    let records: Vec<UsageRecord> = (0..5).map(|i| pipeline.record(tenant, &format!("{i}"), 1)).collect();
    let right = pipeline.message(&records[0]).partition;
    let mut messages = Vec::new();
    for record in &records {
        let mut message = pipeline.message(record);
        message.partition = (right + 1) % 3;
        messages.push(message.clone());
        // A copy on the right partition: whichever is first, one is kept.
        message.partition = right;
        messages.push(message);
    }
    let mut tired = pipeline.message(&pipeline.record(tenant, "tired", 1));
    tired.partition = (right + 2) % 3;
    tired.headers.push((names::HEADER_FORWARDED.into(), b"3".to_vec()));
    messages.push(tired.clone());
    let offsets = pipeline.send(&messages).await;
    let worker = pipeline.worker(&[]);
    pipeline.all_done(&messages, &offsets).await;
    // The forwarded ones come behind what was sent.
    eventually("the forwarded records are decided", || async {
        let end = offsets
            .iter()
            .zip(&messages)
            .filter(|(_, m)| m.partition == right)
            .map(|(o, _)| *o)
            .max()
            .unwrap();
        pipeline.committed(right).await.is_some_and(|(next, _)| next > end + records.len() as i64)
    })
    .await;
    worker.stop().await;
    assert_eq!(contents(&pipeline.stored(tenant).await), expected(&records.iter().collect::<Vec<_>>()));
    let letters = pipeline.dead_letters().await;
    assert_eq!(letters.iter().map(|letter| letter.reason()).collect::<Vec<_>>(), ["wrong_partition"]);
    assert_eq!(letters[0].headers, tired.headers);
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_storage_refuses_become_dead_letters_and_the_rest_is_stored() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let maintenance = clickhouse::Client::default()
        .with_url(&pipeline.clickhouse.url)
        .with_database(&pipeline.clickhouse.database)
        .with_user("usage_maintenance")
        .with_password("usage");
    let constraint = "ALTER TABLE usage_records ADD CONSTRAINT picky CHECK NOT startsWith(ifNull(idempotency_key, ''), 'refused')";
    maintenance.query(constraint).execute().await.unwrap();

    let tenants: Vec<Uuid> = (0..6).map(|_| Uuid::new_v4()).collect();
    let month = 31 * 86_400 * 1_000_000;
    let mut records = Vec::new();
    for i in 0..300usize {
        let key = if i % 100 == 50 { format!("refused-{i}") } else { format!("key-{i}") };
        let mut record = pipeline.record(tenants[i % 6], &key, 1 + i as i64);
        // Two months, so that one may be stored before the other is refused.
        record.timestamp = Timestamp::from_micros(record.timestamp.micros() - (i as i64 % 2) * month);
        records.push(record);
    }
    let messages: Vec<Message> = records.iter().map(|record| pipeline.message(record)).collect();
    let offsets = pipeline.send(&messages).await;
    let worker = pipeline.worker(&[]);
    pipeline.all_done(&messages, &offsets).await;
    for tenant in &tenants {
        let own = records.iter().filter(|r| {
            r.tenant_id == *tenant && !r.idempotency_key.as_ref().unwrap().starts_with("refused")
        });
        assert_eq!(contents(&pipeline.stored(*tenant).await), expected(&own.collect::<Vec<_>>()));
    }
    let letters = pipeline.dead_letters().await;
    let refused: BTreeSet<Vec<u8>> = letters.iter().map(|letter| letter.value.clone().unwrap()).collect();
    assert_eq!(refused.len(), 3);
    assert!(letters.iter().all(|letter| letter.reason() == "storage_refused"), "{letters:?}");
    let signed = messages[50]
        .headers
        .iter()
        .any(|(name, value)| name == names::HEADER_KEY_ID && value == KEY_ID.as_bytes());
    assert!(signed && records[50].source == SOURCE);

    // A refused row claimed no identity.
    maintenance.query("ALTER TABLE usage_records DROP CONSTRAINT picky").execute().await.unwrap();
    let own = records.iter().filter(|r| r.tenant_id == records[50].tenant_id).count();
    let before = pipeline.stored(records[50].tenant_id).await.len();
    pipeline.send(&messages[50..51]).await;
    eventually("it is kept now", || async {
        pipeline.stored(records[50].tenant_id).await.len() == before + 1
    })
    .await;
    assert!(before < own);
    worker.stop().await;
    pipeline.end().await;
}
