//! Each real server: it starts, survives `kill -9` with its data, comes back at the same address, and can be frozen.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use usage_devstack::pgwire::Connection;
use usage_devstack::process::wait_until;
use usage_devstack::{ClickHouse, Kafka, Postgres};

/// Runs a statement over HTTP; the answer's body, or the error's.
fn clickhouse(server: &ClickHouse, user: &str, sql: &str, timeout: Duration) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.http_port()))?;
    stream.set_read_timeout(Some(timeout))?;
    let password = if user == "default" { "" } else { "usage" };
    let length = sql.len();
    let head = format!(
        "POST / HTTP/1.0\r\nX-ClickHouse-User: {user}\r\nX-ClickHouse-Key: {password}\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(sql.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok(body.trim_end().to_owned())
}

fn ask(server: &ClickHouse, user: &str, sql: &str) -> String {
    clickhouse(server, user, sql, Duration::from_secs(120)).unwrap()
}

#[test]
fn clickhouse_keeps_its_data_and_address() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = ClickHouse::start(&dir.path().join("clickhouse")).unwrap();
    let url = server.url();
    ask(&server, "default", "CREATE DATABASE d");
    ask(&server, "default", "CREATE TABLE d.t (a UInt64) ENGINE = MergeTree ORDER BY a");
    ask(&server, "usage_writer", "INSERT INTO d.t SETTINGS async_insert=0 VALUES (41)");

    let before = server.pid();
    server.kill9();
    assert!(clickhouse(&server, "default", "SELECT 1", Duration::from_secs(1)).is_err());
    server.restart().unwrap();
    assert_ne!(server.pid(), before);
    assert_eq!(server.url(), url);
    assert_eq!(ask(&server, "usage_reader", "SELECT sum(a) FROM d.t"), "41");

    server.stop().unwrap();
    let server = ClickHouse::start(&dir.path().join("clickhouse")).unwrap();
    assert_eq!(server.url(), url);
    assert_eq!(ask(&server, "usage_reader", "SELECT sum(a) FROM d.t"), "41");
    // The logs of queries work after a restart too.
    ask(&server, "default", "SYSTEM FLUSH LOGS");
    assert_ne!(ask(&server, "default", "SELECT count() FROM system.query_log"), "0");
}

#[test]
fn clickhouse_has_users_apart() {
    let dir = tempfile::tempdir().unwrap();
    let server = ClickHouse::start(dir.path()).unwrap();
    let settings =
        "SELECT getSetting('priority'), getSetting('readonly'), getSetting('http_receive_timeout')";
    assert_eq!(ask(&server, "default", settings), "0\t0\t5");
    assert_eq!(ask(&server, "usage_writer", settings), "1\t0\t5");
    assert_eq!(ask(&server, "usage_reader", settings), "5\t2\t5");
    assert_eq!(ask(&server, "usage_maintenance", settings), "10\t0\t5");
    let refused = ask(&server, "usage_reader", "CREATE DATABASE d");
    assert!(refused.contains("READONLY"), "{refused}");
    let unknown = ask(&server, "stranger", "SELECT 1");
    assert!(unknown.contains("AUTHENTICATION_FAILED"), "{unknown}");
}

#[test]
fn clickhouse_can_be_frozen() {
    let dir = tempfile::tempdir().unwrap();
    let server = ClickHouse::start(dir.path()).unwrap();
    server.pause();
    let frozen = clickhouse(&server, "default", "SELECT 1", Duration::from_millis(300)).unwrap_err();
    assert!(
        matches!(frozen.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
        "{frozen}"
    );
    server.resume();
    assert_eq!(ask(&server, "default", "SELECT 1"), "1");
}

#[test]
fn postgres_keeps_its_data_and_address() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Postgres::start(&dir.path().join("postgres")).unwrap();
    let url = server.url("d");
    server.ensure_database("d").unwrap();
    server.ensure_database("d").unwrap();
    server.query("d", "CREATE TABLE t (a bigint)").unwrap();
    server.query("d", "INSERT INTO t VALUES (1)").unwrap();
    let sum = |server: &Postgres| server.query("d", "SELECT sum(a) FROM t").unwrap()[0][0].clone().unwrap();

    server.kill9();
    assert!(server.query("d", "SELECT 1").is_err());
    server.restart().unwrap();
    assert_eq!(sum(&server), "1");
    server.query("d", "INSERT INTO t VALUES (10)").unwrap();
    server.restart_immediate().unwrap();
    assert_eq!(sum(&server), "11");
    assert_eq!(server.url("d"), url);

    server.stop().unwrap();
    let server = Postgres::start(&dir.path().join("postgres")).unwrap();
    assert_eq!(sum(&server), "11");
    assert_eq!(server.url("d"), url);
}

#[test]
fn postgres_comes_back_when_only_its_postmaster_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Postgres::start(dir.path()).unwrap();
    // A backend that is busy does not notice at once that its postmaster is gone.
    let port = server.port();
    let busy = std::thread::spawn(move || {
        let mut connection = Connection::open(port, "usage", "postgres", Duration::from_secs(60)).unwrap();
        connection.query("SELECT count(*) FROM generate_series(1, 20000000)").is_ok()
    });
    let running =
        "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%generate_series%' AND pid <> pg_backend_pid()";
    assert!(wait_until(Duration::from_secs(120), || !server.query("postgres", running).unwrap().is_empty()));
    server.id().signal(Signal::SIGKILL).unwrap();
    server.restart().unwrap();
    server.query("postgres", "SELECT 1").unwrap();
    busy.join().unwrap();
}

#[test]
fn postgres_can_be_frozen() {
    let dir = tempfile::tempdir().unwrap();
    let server = Postgres::start(dir.path()).unwrap();
    let mut before = Connection::open(server.port(), "usage", "postgres", Duration::from_secs(5)).unwrap();
    before.query("SELECT 1").unwrap();
    server.pause();
    assert!(before.query("SELECT 1").is_err());
    server.resume();
    server.query("postgres", "SELECT 1").unwrap();
}

#[test]
fn postgres_has_the_settings_that_the_tests_count_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = Postgres::start(dir.path()).unwrap();
    for (name, value) in [
        ("max_connections", "400"),
        ("max_prepared_transactions", "20"),
        ("fsync", "on"),
        ("listen_addresses", "127.0.0.1"),
    ] {
        let rows = server.query("postgres", &format!("SHOW {name}")).unwrap();
        assert_eq!(rows[0][0].as_deref(), Some(value), "{name}");
    }
    let error = server.query("postgres", "SELECT 1/0").unwrap_err();
    assert!(format!("{error:#}").contains("division by zero"), "{error:#}");
}

fn topics(kafka: &Kafka, arguments: &[&str]) -> String {
    let mut command = kafka.tool("org.apache.kafka.tools.TopicCommand").unwrap();
    command.args(["--bootstrap-server", &kafka.brokers()]).args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn kafka_keeps_its_data_and_address() {
    let dir = tempfile::tempdir().unwrap();
    let mut kafka = Kafka::start(dir.path()).unwrap();
    let brokers = kafka.brokers();
    topics(&kafka, &["--create", "--topic", "kept", "--partitions", "3"]);
    kafka.kill9();
    assert!(TcpStream::connect(&brokers).is_err());
    kafka.restart().unwrap();
    assert_eq!(kafka.brokers(), brokers);
    assert!(topics(&kafka, &["--describe", "--topic", "kept"]).contains("PartitionCount: 3"));
    kafka.stop().unwrap();
    assert!(TcpStream::connect(&brokers).is_err());
}

#[test]
fn a_server_that_cannot_start_shows_its_log() {
    let dir = tempfile::tempdir().unwrap();
    Postgres::start(dir.path()).unwrap().stop().unwrap();
    std::fs::write(find(dir.path(), "postgresql.conf"), "no_such_setting = 1\n").unwrap();
    let error = format!("{:#}", Postgres::start(dir.path()).unwrap_err());
    assert!(error.contains("ended while starting") && error.contains("no_such_setting"), "{error}");
}

/// The data may lie elsewhere when the directory is closed to the server's user, so it is looked for.
fn find(dir: &Path, name: &str) -> std::path::PathBuf {
    let inside = dir.join("data").join(name);
    assert!(inside.is_file(), "{} is not there", inside.display());
    inside
}
