//! The database and Kafka go away and come back.

use std::time::Duration;

use rdkafka::mocking::MockCluster;
use usage_devstack::Kafka;
use usage_schemas::partition::partition_of;
use usage_service::config::KafkaConfig;
use uuid::Uuid;

use crate::support::{Running, Source, Topic, config, until};

/// Every connection of the relay is cut, again and again, under load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_lose_nothing() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let mut config = config(&source, &topic);
    config.relay.batch_rows = 20;
    let relay = Running::start(config);
    until("all partitions are held", async || (relay.status.borrow().partitions.len() == 4).then_some(()))
        .await;
    for round in 0..6 {
        for number in 0..50 {
            source.emit(Uuid::from_u64_pair(1, number % 10), &format!("{round}-{number}")).await;
        }
        sqlx::query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = 'usage-relay'",
        )
        .execute(&source.pool)
        .await
        .unwrap();
    }
    source.emptied().await;
    let status = relay.status.clone();
    until("it is well again", async || status.borrow().database.is_none().then_some(())).await;
    relay.stop().await;
    let keys = topic.keys().await;
    assert_eq!(keys.len(), 300);
}

#[tokio::test]
async fn an_outbox_without_its_tables_is_waited_for_and_the_status_says_what_makes_them() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let rename = async |from: &str, to: &str| {
        let sql = format!("ALTER TABLE {from} RENAME TO {to}");
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&source.pool).await.unwrap();
    };
    source.emit(Uuid::new_v4(), "k").await;
    rename("usage_outbox_relays", "elsewhere").await;
    let relay = Running::start(config(&source, &topic));
    let status = relay.status.clone();
    until("it says so", async || {
        let status = status.borrow();
        let reason = status.database.as_deref().unwrap_or_default();
        (reason.contains("usagectl outbox migrate") && reason.contains("usage_outbox_relays")).then_some(())
    })
    .await;
    rename("elsewhere", "usage_outbox_relays").await;
    source.emptied().await;
    assert_eq!(topic.keys().await, ["k"]);
    relay.stop().await;
}

/// The topic appears long after the relay and its rows.
#[tokio::test]
async fn a_missing_topic_is_waited_for() {
    let source = Source::new().await;
    let topic = Topic::named(3);
    let relay = Running::start(config(&source, &topic));
    source.emit(Uuid::new_v4(), "k").await;
    until("it says so", async || {
        relay.status.borrow().kafka.as_ref().filter(|why| *why != "starting").map(|_| ())
    })
    .await;
    assert_eq!(source.count("usage_outbox").await, 1);
    topic.create(&[]).await;
    source.emptied().await;
    assert_eq!(topic.keys().await, ["k"]);
    until("it says so", async || relay.status.borrow().kafka.is_none().then_some(())).await;
    relay.stop().await;
}

/// One partition of the topic has no leader. Its rows, many more than a poll takes, lie in front of the others of the same outbox
/// partition; those go on, late ones too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_without_a_leader_holds_up_nobody_else() {
    let source = Source::new().await;
    let cluster = MockCluster::new(1).unwrap();
    let topic = Topic::named(2).on(&cluster.bootstrap_servers());
    cluster.create_topic(&topic.name, 2, 1).unwrap();
    cluster.partition_leader(&topic.name, 0, None).unwrap();
    let part: i16 = sqlx::query_scalar("SELECT usage_outbox_part($1)")
        .bind(Uuid::from_u128(1))
        .fetch_one(&source.pool)
        .await
        .unwrap();
    let mut tenants: Vec<Option<Uuid>> = vec![None, None];
    for number in 1_u128.. {
        let tenant = Uuid::from_u128(number);
        let found: i16 = sqlx::query_scalar("SELECT usage_outbox_part($1)")
            .bind(tenant)
            .fetch_one(&source.pool)
            .await
            .unwrap();
        let partition = usize::try_from(partition_of(tenant, 2)).unwrap();
        if found == part && tenants[partition].is_none() {
            tenants[partition] = Some(tenant);
        }
        if tenants.iter().all(Option::is_some) {
            break;
        }
    }
    let [Some(stuck), Some(free)] = tenants[..] else { panic!("two tenants") };
    let mut late = source.pool.begin().await.unwrap();
    sqlx::query("SELECT usage_emit($1, 'm', 1, 'late')").bind(free).execute(&mut *late).await.unwrap();
    sqlx::query("SELECT usage_emit($1, 'm', 1, 'stuck' || n) FROM generate_series(1, 1000) AS n")
        .bind(stuck)
        .execute(&source.pool)
        .await
        .unwrap();
    let mut config = config(&source, &topic);
    config.kafka = KafkaConfig {
        records_topic: topic.name.clone(),
        ..KafkaConfig::plaintext(cluster.bootstrap_servers())
    };
    config.relay.batch_rows = 50;
    config.relay.message_timeout = Duration::from_secs(2);
    let relay = Running::start(config);
    for number in 0..20 {
        source.emit(free, &format!("free{number}")).await;
    }
    let left = async |count: i64| (source.count("usage_outbox").await == count).then_some(());
    until("the others are delivered", async || left(1_000).await).await;
    late.commit().await.unwrap();
    until("the late one is delivered", async || left(1_000).await).await;
    source.emit(free, "last").await;
    until("the last one is delivered", async || left(1_000).await).await;
    until("it says so", async || relay.status.borrow().kafka.clone()).await;

    cluster.partition_leader(&topic.name, 0, Some(1)).unwrap();
    source.emptied().await;
    relay.stop().await;
    let keys = topic.keys().await;
    assert_eq!(keys.len(), 1_022);
    assert_eq!(source.count("usage_outbox_dead_letters").await, 0);
}

/// Problem 52: a broker that is down costs no row; a relay that stops meanwhile stops in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_52_rows_outlast_the_broker() {
    let source = Source::new().await;
    let topic = Topic::named(2);
    let directory = std::env::temp_dir().join(format!("usage-kafka-{}", Uuid::new_v4()));
    let started = directory.clone();
    let mut kafka = tokio::task::spawn_blocking(move || Kafka::start(&started)).await.unwrap().unwrap();
    let mut config = config(&source, &topic);
    config.kafka =
        KafkaConfig { records_topic: topic.name.clone(), ..KafkaConfig::plaintext(kafka.brokers()) };
    config.relay.message_timeout = Duration::from_secs(2);
    let topic = topic.on(&kafka.brokers());
    topic.create(&[]).await;

    let relay = Running::start(config.clone());
    source.emit(Uuid::new_v4(), "before").await;
    source.emptied().await;
    let mut kafka = tokio::task::spawn_blocking(move || {
        kafka.kill9();
        kafka
    })
    .await
    .unwrap();
    for number in 0..200 {
        source.emit(Uuid::new_v4(), &format!("during-{number}")).await;
    }
    until("it says so", async || relay.status.borrow().kafka.clone()).await;
    assert_eq!(source.count("usage_outbox").await, 200);
    relay.stop().await;
    assert_eq!(
        (source.count("usage_outbox").await, source.count("usage_outbox_dead_letters").await),
        (200, 0)
    );

    let relay = Running::start(config);
    until("all partitions are held", async || (relay.status.borrow().partitions.len() == 4).then_some(()))
        .await;
    let kafka = tokio::task::spawn_blocking(move || {
        kafka.restart().unwrap();
        kafka
    })
    .await
    .unwrap();
    source.emptied().await;
    relay.stop().await;
    let keys = topic.keys().await;
    assert_eq!(keys.len(), 201);
    tokio::task::spawn_blocking(move || kafka.stop()).await.unwrap().unwrap();
    std::fs::remove_dir_all(directory).unwrap();
}
