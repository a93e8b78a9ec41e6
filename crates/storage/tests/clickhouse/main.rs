//! The contract suite on ClickHouse, and what is ClickHouse's own.

#[path = "../contract/mod.rs"]
mod contract;
mod harness;
mod own;
mod problems;
mod renames;
mod verify;

use contract::{basics, crash, fences, late, zombies};
use harness::{Database, OwnServer};

macro_rules! on_shared_server {
    ($($room:ident :: $name:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            $room::$name(&Database::shared()).await;
        }
    )*};
}

on_shared_server! {
    basics::migrations_run_at_once,
    basics::what_is_written_is_read,
    basics::ids_are_streamed_by_partition,
    basics::stored_ids_are_found,
    basics::numbers_never_go_back,
    basics::large_values_are_exact,
    basics::a_final_error_in_a_joint_insert_is_split_and_bisected,
    fences::a_stale_writer_is_fenced,
    fences::a_joint_insert_is_fenced_as_a_whole,
    fences::a_takeover_ends_joint_inserts,
    fences::a_fence_for_nobody_stops_every_owner,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_writer_stores_nothing_later() {
    let (server, database) = OwnServer::start();
    fences::a_frozen_writer_stores_nothing_later(&database, &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_request_is_never_stored_twice() {
    let (server, database) = OwnServer::start();
    late::a_late_request_is_never_stored_twice(&database, &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_write_does_not_stop_flushes() {
    let (server, database) = OwnServer::start();
    late::a_hanging_write_does_not_stop_flushes(&database, &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_calls_are_in_doubt() {
    let (server, database) = OwnServer::start();
    late::dropped_calls_are_in_doubt(&database, &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_flush_is_never_counted_twice() {
    let (server, database) = OwnServer::start();
    late::a_late_flush_is_never_counted_twice(&database, &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_the_middle_of_writes() {
    let (mut server, database) = OwnServer::start();
    crash::killed_in_the_middle_of_writes(&database, &mut server, 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_the_middle_of_flushes() {
    let (mut server, database) = OwnServer::start();
    crash::killed_in_the_middle_of_flushes(&database, &mut server, 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zombies_of_every_stop_point_store_nothing() {
    let (server, database) = OwnServer::start();
    zombies::zombies_of_every_stop_point_store_nothing(&database, &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_fence_costs_a_takeover_and_nothing_else() {
    let (server, database) = OwnServer::start();
    zombies::a_late_fence_costs_a_takeover_and_nothing_else(&database, &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_two_months_with_a_write_error_between_them() {
    let (server, database) = OwnServer::start();
    late::a_batch_of_two_months_with_a_write_error_between_them(&database, &server).await;
}
