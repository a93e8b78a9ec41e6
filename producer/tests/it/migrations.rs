//! Installing the outbox.

use futures::future::try_join_all;
use sqlx::postgres::PgPoolOptions;
use usage_producer::outbox;
use uuid::Uuid;

use crate::support::{Running, Source, Topic, config, until};

const FILES: [&str; 4] = [
    include_str!("../../migrations/0001_outbox.sql"),
    include_str!("../../migrations/0002_usage_emit.sql"),
    include_str!("../../migrations/0003_completeness.sql"),
    include_str!("../../migrations/0004_source_quota.sql"),
];

#[tokio::test]
async fn several_processes_may_install_it_at_once_and_again() {
    let source = Source::empty().await;
    try_join_all((0..5).map(|_| outbox::migrate(&source.pool))).await.unwrap();
    let identity: Uuid = sqlx::query_scalar("SELECT outbox_id FROM usage_outbox_identity")
        .fetch_one(&source.pool)
        .await
        .unwrap();
    outbox::migrate(&source.pool).await.unwrap();
    let again: Uuid = sqlx::query_scalar("SELECT outbox_id FROM usage_outbox_identity")
        .fetch_one(&source.pool)
        .await
        .unwrap();
    assert_eq!(identity, again, "the outbox's id is made once");
    assert_eq!(source.count("usage_outbox_partitions").await, 4);
    assert_eq!(source.count("usage_outbox_migrations").await, 4);
}

#[tokio::test]
async fn what_psql_installed_is_taken_as_it_is() {
    let source = Source::empty().await;
    for file in FILES {
        sqlx::raw_sql(file).execute(&source.pool).await.unwrap();
    }
    outbox::migrate(&source.pool).await.unwrap();
    source.emit(Uuid::new_v4(), "k").await;
}

#[tokio::test]
async fn the_number_of_partitions_is_a_parameter() {
    let source = Source::empty().await;
    let options = source.pool.connect_options().as_ref().clone().options([("usage_outbox.partitions", "7")]);
    let pool = PgPoolOptions::new().max_connections(2).connect_with(options).await.unwrap();
    outbox::migrate(&pool).await.unwrap();
    assert_eq!(source.count("usage_outbox_partitions").await, 7);
    sqlx::query("SELECT usage_emit(gen_random_uuid(), 'm', 1, 'k' || n) FROM generate_series(1, 200) AS n")
        .execute(&source.pool)
        .await
        .unwrap();
    let parts: Vec<i16> = sqlx::query_scalar("SELECT DISTINCT part FROM usage_outbox ORDER BY 1")
        .fetch_all(&source.pool)
        .await
        .unwrap();
    assert_eq!(parts, [0, 1, 2, 3, 4, 5, 6]);
    for wrong in ["0", "257", "x"] {
        let other = Source::empty().await;
        let options =
            other.pool.connect_options().as_ref().clone().options([("usage_outbox.partitions", wrong)]);
        let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        outbox::migrate(&pool).await.unwrap_err();
    }
}

/// More partitions and fewer ones, while rows of the old number are there and a relay runs.
#[tokio::test]
async fn the_number_of_partitions_can_be_changed() {
    let (source, topic) = (Source::new().await, Topic::new(3).await);
    let tenants: Vec<Uuid> = (0..40).map(|_| Uuid::new_v4()).collect();
    let set = async |n: i32| {
        sqlx::query("SELECT usage_outbox_set_partitions($1)").bind(n).execute(&source.pool).await.unwrap();
        for tenant in &tenants {
            source.emit(*tenant, &format!("{n}-{tenant}")).await;
        }
    };
    set(9).await;
    set(2).await;
    let relay = Running::start(config(&source, &topic));
    source.emptied().await;
    set(12).await;
    source.emptied().await;
    until("all partitions are held", async || (relay.status.borrow().partitions.len() == 12).then_some(()))
        .await;
    relay.stop().await;
    assert_eq!(topic.distinct().await, 3 * tenants.len());
}
