//! The control database on a real Postgres: a database for each test.

use std::future::Future;

use secrecy::ExposeSecret as _;
use usage_control::testing::{TestDatabase, with_database};
use usage_control::*;
use usage_devstack::testing::control_database_url;
use usage_service::config::DatabaseConfig;
use uuid::Uuid;

/// Runs a test with a migrated control database of its own.
async fn with_control<F, T>(test: F)
where
    F: FnOnce(Control, TestDatabase) -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    with_database(&control_database_url(), |database| async move {
        let control = database.control().await;
        control.migrate().await.unwrap();
        test(control, database).await;
    })
    .await;
}

fn key(source: &str, key_id: &str, byte: u8) -> SourceKey {
    SourceKey {
        source: source.into(),
        key_id: key_id.into(),
        key: vec![byte; 32].into(),
        valid_from: 1_700_000_000_123_456,
        valid_until: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_processes_may_migrate_at_once() {
    with_database(&control_database_url(), |database| async move {
        let mut running = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let database = database.clone();
            running.spawn(async move {
                let control = database.control().await;
                control.migrate().await.unwrap();
                control.migrate().await.unwrap();
                control.usage_types().await.unwrap()
            });
        }
        for types in running.join_all().await {
            assert!(types.is_empty());
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_database_belongs_to_the_group_and_topic_that_came_first() {
    with_control(|control, _| async move {
        let mut claims = tokio::task::JoinSet::new();
        for n in 0..4 {
            let (control, group) = (control.clone(), format!("group-{}", n % 2));
            claims.spawn(async move { control.belong_to(&group, "records").await.is_ok().then_some(group) });
        }
        let winners: Vec<String> = claims.join_all().await.into_iter().flatten().collect();
        assert!(winners.len() == 2 && winners[0] == winners[1], "{winners:?}");
        let own = &winners[0];
        control.belong_to(own, "records").await.unwrap();
        for (group, topic) in [("group-2", "records"), (own.as_str(), "others"), ("", "")] {
            let error = control.belong_to(group, topic).await.unwrap_err();
            assert!(matches!(&error, ControlError::OtherWorkers { group, topic } if group == own && topic == "records"));
            assert!(!error.may_pass());
        }
    })
    .await;
}

#[tokio::test]
async fn a_changed_migration_is_refused() {
    with_control(|control, _| async move {
        sqlx::query("UPDATE _sqlx_migrations SET checksum = '\\x00'").execute(control.pool()).await.unwrap();
        let error = control.migrate().await.unwrap_err();
        assert!(matches!(error, ControlError::Migrate(_)) && !error.may_pass(), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn fields_that_break_their_bounds_are_named() {
    with_control(|control, _| async move {
        let long = "x".repeat(129);
        for (bad, field) in [
            (SourceKey { source: "LLM".into(), ..key("llm", "1", 1) }, "source"),
            (SourceKey { key_id: String::new(), ..key("llm", "1", 1) }, "key_id"),
            (SourceKey { key_id: "a b".into(), ..key("llm", "1", 1) }, "key_id"),
            (SourceKey { key_id: long, ..key("llm", "1", 1) }, "key_id"),
            (SourceKey { key: vec![1; 15].into(), ..key("llm", "1", 1) }, "key"),
            (SourceKey { valid_until: Some(1_700_000_000_123_456), ..key("llm", "1", 1) }, "valid_until"),
        ] {
            let error = control.put_source_key(&bad).await.unwrap_err();
            assert!(
                matches!(&error, ControlError::Invalid { field: found, .. } if *found == field),
                "{field}: {error:?}"
            );
        }
        assert!(control.sources().await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn keys_are_kept_to_the_byte_and_the_microsecond() {
    with_control(|control, _| async move {
        assert_eq!(control.put_source_key(&key("mail", "m1", 1)).await.unwrap(), Placed::Created);
        assert_eq!(control.put_source_key(&key("llm", "l2", 2)).await.unwrap(), Placed::Created);
        assert_eq!(control.put_source_key(&key("llm", "l1", 3)).await.unwrap(), Placed::Created);
        let ended = SourceKey { valid_until: Some(1_800_000_000_000_001), ..key("llm", "l2", 2) };
        assert_eq!(control.put_source_key(&ended).await.unwrap(), Placed::Updated);

        let keys = control.source_keys().await.unwrap();
        let seen: Vec<_> = keys.iter().map(|key| (key.source.as_str(), key.key_id.as_str())).collect();
        assert_eq!(seen, [("llm", "l1"), ("llm", "l2"), ("mail", "m1")]);
        assert_eq!(keys[1].key.expose_secret(), [2; 32]);
        assert_eq!(
            (keys[1].valid_from, keys[1].valid_until),
            (1_700_000_000_123_456, Some(1_800_000_000_000_001))
        );
        assert!(keys[1].is_valid_at(1_700_000_000_123_456) && !keys[1].is_valid_at(1_700_000_000_123_455));
        assert!(keys[1].is_valid_at(1_800_000_000_000_000) && !keys[1].is_valid_at(1_800_000_000_000_001));
        let one = control.source_key("llm", "l1").await.unwrap().unwrap();
        assert_eq!((one.key.expose_secret(), one.valid_until), (&[3; 32][..], None));
        assert!(control.source_key("llm", "m1").await.unwrap().is_none());
    })
    .await;
}

#[tokio::test]
async fn a_key_id_never_changes_its_key() {
    with_control(|control, _| async move {
        control.put_source_key(&key("llm", "l1", 1)).await.unwrap();
        let error = control.put_source_key(&key("llm", "l1", 2)).await.unwrap_err();
        assert!(matches!(error, ControlError::KeyTaken { .. }) && !error.may_pass());
        assert_eq!(control.source_key("llm", "l1").await.unwrap().unwrap().key.expose_secret(), [1; 32]);
        assert!(!format!("{error:?} {:?}", key("llm", "l1", 77)).contains("77"));
    })
    .await;
}

#[tokio::test]
async fn the_partition_count_is_recorded_once() {
    with_control(|control, _| async move {
        assert!(matches!(control.partition_counts().await, Err(ControlError::NoPartitionCount)));
        assert!(matches!(control.init_partitions(0).await, Err(ControlError::Invalid { .. })));
        control.init_partitions(12).await.unwrap();
        control.init_partitions(12).await.unwrap();
        let error = control.init_partitions(24).await.unwrap_err();
        assert!(matches!(error, ControlError::OtherPartitionCount { recorded: 12, asked: 24 }), "{error:?}");
        let expected = Partitions { current: 12, known: vec![12], growing: false };
        assert_eq!(control.partition_counts().await.unwrap(), expected);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_counts_at_once_one_wins_wholly() {
    with_control(|control, _| async move {
        let mut running = tokio::task::JoinSet::new();
        for count in [6, 12, 6, 12] {
            let control = control.clone();
            running.spawn(async move { (count, control.init_partitions(count).await.is_ok()) });
        }
        let results = running.join_all().await;
        let counts = control.partition_counts().await.unwrap();
        assert_eq!(counts.known, [counts.current]);
        assert!(results.into_iter().all(|(count, taken)| taken == (count == counts.current)));
    })
    .await;
}

#[tokio::test]
async fn counts_of_a_grown_topic_ascend() {
    with_control(|control, _| async move {
        control.init_partitions(12).await.unwrap();
        sqlx::raw_sql(
            "INSERT INTO partition_counts (count) VALUES (48), (24);
             UPDATE partition_state SET current = 24, growing = true, growing_to = 48",
        )
        .execute(control.pool())
        .await
        .unwrap();
        let expected = Partitions { current: 24, known: vec![12, 24, 48], growing: true };
        assert_eq!(control.partition_counts().await.unwrap(), expected);
    })
    .await;
}

fn advance(partition: i32, batch_seq: i64, next_offset: i64) -> Advance {
    Advance { partition, batch_seq, next_offset, ..Advance::default() }
}

#[tokio::test]
async fn progress_moves_forward_only() {
    with_control(|control, _| async move {
        let new = Progress { kafka_partition: 3, batch_seq: 0, next_offset: None, quotas_from: None };
        assert_eq!(control.open_progress(3).await.unwrap(), new);
        assert_eq!(control.open_progress(3).await.unwrap(), new);
        assert_eq!(control.advance(&[advance(3, 5, 100)]).await.unwrap(), [true]);
        // The same batch again, and an older one: done before, nothing changes.
        assert_eq!(control.advance(&[advance(3, 5, 100)]).await.unwrap(), [false]);
        assert_eq!(control.advance(&[advance(3, 4, 50)]).await.unwrap(), [false]);
        // After offsets were reset the number still grows while the offset goes back.
        assert_eq!(control.advance(&[advance(3, 6, 0)]).await.unwrap(), [true]);
        let now = Progress { kafka_partition: 3, batch_seq: 6, next_offset: Some(0), quotas_from: None };
        assert_eq!(control.open_progress(3).await.unwrap(), now);
    })
    .await;
}

#[tokio::test]
async fn a_partition_remembers_its_topic() {
    with_control(|control, _| async move {
        let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
        assert!(matches!(control.topic_id(3).await, Err(ControlError::NoProgress(3))));
        assert!(matches!(control.set_topic_id(3, first).await, Err(ControlError::NoProgress(3))));
        control.open_progress(3).await.unwrap();
        assert_eq!(control.topic_id(3).await.unwrap(), None);
        for id in [first, second] {
            control.set_topic_id(3, id).await.unwrap();
            assert_eq!(control.topic_id(3).await.unwrap(), Some(id));
        }
    })
    .await;
}

#[tokio::test]
async fn several_partitions_move_in_one_transaction() {
    with_control(|control, _| async move {
        for partition in [0, 1, 2] {
            control.open_progress(partition).await.unwrap();
        }
        control.advance(&[advance(1, 9, 90)]).await.unwrap();
        let items = [advance(2, 1, 20), advance(1, 9, 90), advance(0, 1, 10)];
        assert_eq!(control.advance(&items).await.unwrap(), [true, false, true]);
        let offsets: Vec<_> = control.progress().await.unwrap().iter().map(|row| row.next_offset).collect();
        assert_eq!(offsets, [Some(10), Some(90), Some(20)]);

        let error = control.advance(&[advance(0, 2, 11), advance(7, 1, 1)]).await.unwrap_err();
        assert!(matches!(error, ControlError::NoProgress(7)) && !error.may_pass());
        let error = control.advance(&[advance(0, 2, 11), advance(0, 3, 12)]).await.unwrap_err();
        assert!(matches!(error, ControlError::PartitionTwice(0)));
        assert_eq!(control.open_progress(0).await.unwrap().batch_seq, 1);
        assert_eq!(control.advance(&[]).await.unwrap(), Vec::<bool>::new());
    })
    .await;
}

/// Two workers that both believe they own the partitions: each batch is done once, and they never block each other for good.
#[tokio::test(flavor = "multi_thread")]
async fn each_batch_is_done_once_whoever_says_it() {
    with_control(|control, _| async move {
        for partition in 0..4 {
            control.open_progress(partition).await.unwrap();
        }
        let mut running = tokio::task::JoinSet::new();
        for worker in 0..2 {
            let control = control.clone();
            running.spawn(async move {
                let mut done = 0;
                for batch_seq in 1..=50 {
                    let mut items: Vec<_> =
                        (0..4).map(|partition| advance(partition, batch_seq, batch_seq * 10)).collect();
                    if worker == 1 {
                        items.reverse();
                    }
                    let moved = control.advance(&items).await.unwrap();
                    done += moved.into_iter().filter(|moved| *moved).count();
                }
                done
            });
        }
        assert!(running.join_all().await.into_iter().sum::<usize>() <= 200);
        let progress = control.progress().await.unwrap();
        assert!(
            progress.iter().all(|row| (row.batch_seq, row.next_offset) == (50, Some(500))),
            "{progress:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_statement_that_waits_for_a_lock_ends_and_may_pass() {
    with_control(|control, database| async move {
        control.open_progress(0).await.unwrap();
        let other = database.control().await;
        let mut blocking = other.pool().begin().await.unwrap();
        sqlx::query("LOCK TABLE consumer_progress").execute(&mut *blocking).await.unwrap();
        let error = control.advance(&[advance(0, 1, 1)]).await.unwrap_err();
        assert!(error.may_pass(), "{error:?}");
        blocking.rollback().await.unwrap();
        assert_eq!(control.advance(&[advance(0, 1, 1)]).await.unwrap(), [true]);
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_not_there_may_pass_and_a_wrong_address_not() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let database = DatabaseConfig::new(format!("postgres://usage:hunter2@{nobody}/usage"));
    let error = Control::connect(&database).await.unwrap_err();
    assert!(error.may_pass(), "{error:?}");
    assert!(usage_service::error_chain(&error).contains("refused"), "{error:?}");
    let lazy = Control::connect_lazy(&database).unwrap();
    assert!(lazy.usage_types().await.unwrap_err().may_pass());
    assert!(lazy.migrate().await.unwrap_err().may_pass());
    assert!(!format!("{lazy:?}").contains("hunter2"), "{lazy:?}");
    for wrong in
        ["http://127.0.0.1:8123", "postgres://:::", "127.0.0.1", "", "postgres://usage@db.example/usage"]
    {
        let error = Control::connect_lazy(&DatabaseConfig::new(wrong)).unwrap_err();
        assert!(matches!(error, ControlError::Address(_)) && !error.may_pass(), "{wrong}: {error:?}");
    }
}

#[tokio::test]
async fn a_database_that_was_not_migrated_does_not_pass() {
    with_database(&control_database_url(), |database| async move {
        let control = database.control().await;
        let error = control.usage_types().await.unwrap_err();
        assert!(matches!(error, ControlError::NotMigrated(_)) && !error.may_pass(), "{error:?}");
        assert!(usage_service::error_chain(&error).contains("usage_types"), "{error:?}");
        control.migrate().await.unwrap();
        // As an older version would have left it.
        sqlx::raw_sql("ALTER TABLE usage_types DROP COLUMN unit CASCADE")
            .execute(control.pool())
            .await
            .unwrap();
        let error = control.usage_types().await.unwrap_err();
        assert!(matches!(error, ControlError::NotMigrated(_)), "{error:?}");
    })
    .await;
}
