//! The circuit breaker around a real ClickHouse server that freezes.

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use usage_access::Scopes;
use usage_devstack::ClickHouse;
use uuid::Uuid;

use crate::process::{Process, exchange, get, ready};
use crate::real::Databases;
use crate::support::bearer;

const PATH: &str = "/v1/usage/metadata/watermarks";
const LONGEST: Duration = Duration::from_secs(300);

/// Asks until the answer is as wanted.
async fn until(address: SocketAddr, path: &str, token: &str, wanted: impl Fn(&str, &str) -> bool) -> String {
    let asking = async {
        loop {
            // Several at once, as failures must come close together.
            for (head, body) in join_all((0..6).map(|_| exchange(address, path, Some(token)))).await {
                if wanted(&head, &body) {
                    return head;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LONGEST, asking).await.expect("the answer comes")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_opens_the_circuit_and_its_return_closes_it() {
    let directory = tempfile::tempdir().unwrap();
    let server = ClickHouse::start(&directory.path().join("clickhouse")).unwrap();
    let databases = Databases::on(server.url()).await;
    let set = ["limits.storage_timeout=1s", "limits.breaker_half_open_after=3s"];
    let mut process = Process::armed(directory.path(), &databases, "", &set);
    let telemetry = process.address("serving health and metrics").await;
    let address = process.address("serving the API").await;
    let _running = process.drain();
    ready(address).await;
    let token = bearer(Uuid::new_v4(), Scopes::all());
    until(address, PATH, &token, |head, _| head.starts_with("HTTP/1.1 200")).await;

    server.pause();
    let open = |head: &str, body: &str| head.starts_with("HTTP/1.1 503") && body.contains("not asked");
    let head = until(address, PATH, &token, open).await.to_lowercase();
    let (_, after) = head.split_once("retry-after: ").expect("it says when to come back");
    let seconds: u64 = after.lines().next().unwrap().trim().parse().unwrap();
    assert!((1..=3).contains(&seconds), "{head}");
    let unready = |head: &str, body: &str| head.starts_with("HTTP/1.1 503") && body.contains("left alone");
    until(address, "/health/ready", &token, unready).await;
    let (_, metrics) = get(telemetry, "/metrics", None).await;
    assert!(metrics.contains("storage_breaker_open{plugin=\"clickhouse\"} 1"), "{metrics}");

    server.resume();
    until(address, PATH, &token, |head, _| head.starts_with("HTTP/1.1 200")).await;
    ready(address).await;
    let (_, metrics) = get(telemetry, "/metrics", None).await;
    assert!(metrics.contains("storage_breaker_open{plugin=\"clickhouse\"} 0"), "{metrics}");
    databases.drop().await;
}
