use std::sync::atomic::{AtomicU32, Ordering};

use axum::body::Body;
use axum::http::Request;
use tower::ServiceExt as _;

use super::*;

async fn get(router: Router, path: &str) -> (StatusCode, String) {
    let response = router.oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
    let status = response.status();
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

async fn ready(health: &Health) -> (StatusCode, serde_json::Value) {
    let (status, body) = get(health.router(), "/health/ready").await;
    (status, serde_json::from_str(&body).unwrap())
}

/// A look that does not use an answer from before.
async fn fresh(health: &Health) -> Report {
    *health.inner.last.lock().await = None;
    health.ready().await
}

fn health() -> Health {
    Health::new(Telemetry::detached())
}

#[tokio::test]
async fn a_process_is_ready_once_its_checks_pass() {
    let health = health();
    let (status, body) = ready(&health).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body["failing"], serde_json::json!({"process": "starting"}));
    health.check("control_database", || async { Ok(()) });
    fresh(&health).await;
    let (status, body) = ready(&health).await;
    assert_eq!(
        (status, body),
        (
            StatusCode::OK,
            serde_json::json!({"status": "ready", "failing": {}, "checks": ["control_database"]})
        )
    );
}

#[tokio::test]
async fn failing_checks_are_named_with_their_reason() {
    let health = health();
    let flag = health.flag("kafka");
    health.check("control_database", || async { Ok(()) });
    health.check_storage("clickhouse", || async { Err("connection refused".to_string()) });
    let (status, body) = ready(&health).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let failing = serde_json::json!({"kafka": "starting", "storage": "connection refused"});
    let checks = ["control_database", "kafka", "storage"];
    assert_eq!(body, serde_json::json!({"status": "not ready", "failing": failing, "checks": checks}));
    flag.pass();
    assert_eq!(fresh(&health).await.into_keys().collect::<Vec<_>>(), ["storage"]);
    flag.fail("no partition assigned");
    assert_eq!(fresh(&health).await["kafka"], "no partition assigned");
}

#[tokio::test]
async fn a_flag_whose_owner_is_gone_fails() {
    let health = health();
    let flag = health.flag("relay");
    flag.pass();
    let clone = flag.clone();
    drop(flag);
    assert!(fresh(&health).await.is_empty());
    drop(clone);
    assert_eq!(fresh(&health).await["relay"], "ended");
}

#[tokio::test(start_paused = true)]
async fn a_check_that_hangs_is_cut() {
    let health = health();
    health.check("storage", std::future::pending);
    health.check("other", || async { Ok(()) });
    let report = health.ready().await;
    assert_eq!(report.into_iter().collect::<Vec<_>>(), [("storage".into(), "no answer within 2 s".into())]);
}

#[tokio::test]
async fn a_check_that_panics_is_a_failure() {
    let health = health();
    health.check("broken", || async { panic!("in the test") });
    assert_eq!(health.ready().await.len(), 1);
}

#[tokio::test]
async fn many_probes_ask_once() {
    let health = health();
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    health.check("storage", move || {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    futures::future::join_all((0..20).map(|_| health.ready())).await;
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn liveness_is_apart_from_readiness() {
    let health = health();
    health.check_storage("clickhouse", || async { Err("away".to_string()) });
    let flag = health.live_flag("poll_loop");
    assert_eq!(get(health.router(), "/health/live").await.0, StatusCode::OK);
    flag.fail("partition 3 stalled");
    let (status, body) = get(health.router(), "/health/live").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(body.contains("partition 3 stalled") && body.contains("not live"), "{body}");
}

#[test]
fn checks_set_their_gauges() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let health = health();
            health.check_storage("clickhouse", || async { Ok(()) });
            health.check("control_database", || async { Err("away".to_string()) });
            health.ready().await;
        });
    });
    let text = handle.render();
    assert!(text.contains("storage_health_status{plugin=\"clickhouse\"} 1"), "{text}");
    assert!(text.contains("ready{check=\"control_database\"} 0"), "{text}");
    assert!(text.contains("ready{check=\"storage\"} 1"), "{text}");
}

/// One request over a real socket.
async fn over_tcp(address: SocketAddr, path: &str) -> std::io::Result<String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

#[tokio::test]
async fn serves_until_it_is_stopped() {
    let shutdown = CancellationToken::new();
    let address = serve("127.0.0.1:0", health(), shutdown.clone()).await.unwrap();
    assert_ne!(address.port(), 0);
    let live = over_tcp(address, "/health/live").await.unwrap();
    assert!(live.starts_with("HTTP/1.1 200") && live.contains("\"status\":\"live\""), "{live}");
    let metrics = over_tcp(address, "/metrics").await.unwrap();
    assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
    assert!(over_tcp(address, "/nothing").await.unwrap().starts_with("HTTP/1.1 404"));
    assert!(serve(&address.to_string(), health(), shutdown.clone()).await.is_err());

    shutdown.cancel();
    // The listener closes when the server's task has seen the token; until then connections may still be taken.
    let closed = async {
        while tokio::net::TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), closed).await.unwrap();
}
