//! The process as a whole: configuration, both listeners, a stop.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use secrecy::ExposeSecret as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStderr, Command};
use usage_access::{Scope, Scopes};
use usage_service::fail_points::VARIABLE;
use uuid::Uuid;

use crate::memory::record;
use crate::real::Databases;
use crate::support::{bearer, keys, token};

/// How long anything may take on a busy machine.
pub const WITHIN: Duration = Duration::from_secs(300);

pub struct Process {
    pub child: Child,
    log: tokio::io::Lines<BufReader<ChildStderr>>,
}

pub fn command(directory: &Path, databases: &Databases) -> Command {
    command_with(directory, databases, &format!("key_file = {:?}", keys().jwks))
}

/// With these settings in the section `auth`.
fn command_with(directory: &Path, databases: &Databases, auth: &str) -> Command {
    let file = directory.join("query-api.toml");
    let text = format!(
        "[api]\nlisten = \"127.0.0.1:0\"\ncursor_key = \"0123456789abcdef0123456789abcdef\"\n\
         [auth]\n{auth}\n[clickhouse]\nurl = {:?}\ndatabase = {:?}\nreader_password = {:?}\n\
         [control_database]\nurl = {:?}\n[telemetry]\nlisten = \"127.0.0.1:0\"\nformat = \"json\"\n",
        databases.clickhouse.url,
        databases.clickhouse.database,
        databases.clickhouse.reader_password.expose_secret(),
        databases.control.url(),
    );
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_usage-query-api"));
    command.arg("--config").arg(file).stderr(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    // Only the file speaks here.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("USAGE_")) {
        command.env_remove(name);
    }
    command
}

impl Process {
    fn start(directory: &Path, databases: &Databases) -> Self {
        Self::armed(directory, databases, "", &[])
    }

    /// One that ends or freezes at the fail points that `points` names.
    pub fn armed(directory: &Path, databases: &Databases, points: &str, set: &[&str]) -> Self {
        let mut command = command(directory, databases);
        command.env(VARIABLE, points);
        for setting in set {
            command.args(["--set", setting]);
        }
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, log }
    }

    /// Reads the log from now on, so that a process with much to say is not held up; it ends with what is returned.
    pub fn drain(mut self) -> Child {
        tokio::spawn(async move { while let Ok(Some(_)) = self.log.next_line().await {} });
        self.child
    }

    /// The address in the log line with this message.
    pub async fn address(&mut self, message: &str) -> SocketAddr {
        self.address_unless_it_ends(message).await.expect("the process ended")
    }

    /// The same of a process that may end first.
    pub async fn address_unless_it_ends(&mut self, message: &str) -> Option<SocketAddr> {
        let found = tokio::time::timeout(WITHIN, async {
            while let Some(line) = self.log.next_line().await.unwrap() {
                let line: serde_json::Value = serde_json::from_str(&line).unwrap();
                if line["message"] == message {
                    return Some(line["address"].as_str().unwrap().parse().unwrap());
                }
            }
            None
        });
        found.await.expect("the process says where it serves")
    }
}

/// Status and body of a GET.
pub async fn get(address: SocketAddr, path: &str, authorization: Option<&str>) -> (u16, String) {
    let (head, body) = exchange(address, path, authorization).await;
    (head[9..12].parse().unwrap(), body)
}

/// Head and body of the answer to a GET.
pub async fn exchange(address: SocketAddr, path: &str, authorization: Option<&str>) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let authorization = authorization.map_or_else(String::new, |value| format!("Authorization: {value}\r\n"));
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{authorization}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Waits until the process is ready; a busy machine may take more than one look.
pub async fn ready(address: SocketAddr) {
    let looked = tokio::time::timeout(WITHIN, async {
        while get(address, "/health/ready", None).await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
    looked.await.expect("it is ready");
}

#[tokio::test]
async fn the_process_serves_and_stops() {
    let databases = Databases::create().await;
    let tenant = Uuid::new_v4();
    let directory = tempfile::tempdir().unwrap();
    let mut process = Process::start(directory.path(), &databases);
    let telemetry = process.address("serving health and metrics").await;
    let api = process.address("serving the API").await;

    for address in [telemetry, api] {
        assert_eq!(get(address, "/health/live", None).await.0, 200);
        ready(address).await;
    }
    let token = bearer(tenant, Scopes::all());
    let (status, body) = get(api, "/v1/usage/metadata/watermarks", Some(&token)).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(get(api, "/v1/usage/metadata/watermarks", None).await.0, 401);
    assert_eq!(get(api, "/metrics", None).await.0, 404, "metrics speak of all tenants");
    let (status, metrics) = get(telemetry, "/metrics", None).await;
    assert_eq!(status, 200);
    for expected in [
        "http_requests_total{method=\"GET\",route=\"/v1/usage/metadata/watermarks\",status=\"401\"} 1",
        "storage_health_status{plugin=\"clickhouse\"} 1",
        "storage_read_seconds_count{query_type=\"watermarks\"} 1",
        &format!("usage_query_latency_ms_count{{tenant_id=\"{tenant}\",query_type=\"watermarks\"}} 1"),
    ] {
        assert!(metrics.contains(expected), "{expected} in {metrics}");
    }

    let asked = Instant::now();
    let pid = process.child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().await.unwrap().success());
    let status = tokio::time::timeout(Duration::from_secs(10), process.child.wait()).await.unwrap().unwrap();
    assert!(status.success(), "{status}");
    assert!(asked.elapsed() < Duration::from_secs(10));
    // Every request left one line with what operators need, and nothing of what they must not see.
    let mut answered = Vec::new();
    while let Some(line) = process.log.next_line().await.unwrap() {
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        if line["message"] == "answered" {
            answered.push(line);
        }
    }
    let line = answered
        .iter()
        .find(|line| line["status"] == 200 && line["tenant_id"] == tenant.to_string())
        .unwrap();
    assert_eq!(line["operation"], "/v1/usage/metadata/watermarks");
    assert!(line["latency_ms"].is_u64() && line["span"]["correlation_id"].is_string(), "{line}");
    databases.drop().await;
}

#[tokio::test]
async fn a_running_process_limits_each_tenant() {
    let databases = Databases::create().await;
    let directory = tempfile::tempdir().unwrap();
    let mut process = Process::armed(directory.path(), &databases, "", &["limits.tenant_requests=1/1d"]);
    let api = process.address("serving the API").await;
    ready(api).await;
    let ask = async |tenant| {
        let token = bearer(tenant, Scopes::all());
        exchange(api, "/v1/usage/types", Some(&token)).await
    };
    let (tenant, other) = (Uuid::new_v4(), Uuid::new_v4());
    let (head, body) = ask(tenant).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
    // A count that a busy machine has no time for lets a request through.
    let refused = tokio::time::timeout(WITHIN, async {
        loop {
            let (head, body) = ask(tenant).await;
            if !head.starts_with("HTTP/1.1 200") {
                return (head, body);
            }
        }
    });
    let (head, body) = refused.await.expect("a tenant that asks all the time is refused");
    assert!(head.starts_with("HTTP/1.1 429"), "{head}\n{body}");
    for field in [
        "retry-after: ",
        "ratelimit: \"api.tenant\";r=0;t=",
        "ratelimit-policy: \"api.tenant\";q=1;w=86400",
        "content-type: application/problem+json",
    ] {
        assert!(head.contains(field), "{field} in {head}");
    }
    let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["api.tenant"]));
    assert!(problem["type"].as_str().unwrap().ends_with("usage/rate-limited"), "{body}");
    assert!(ask(other).await.0.starts_with("HTTP/1.1 200"));
    process.child.kill().await.unwrap();
    databases.drop().await;
}

/// Policies of a folder in place of the shipped ones: this one lets callers see one metric from one source, and no types.
const POLICY: &str = r#"
@id("one-metric")
@metrics("tokens")
@sources("gateway")
permit (principal is Caller, action == Action::"read", resource)
when { resource == principal.tenant && principal.scopes.contains(Scope::"usage:read") };
"#;

#[tokio::test]
async fn a_running_process_answers_within_the_policies_of_its_folder() {
    let databases = Databases::create().await;
    let tenant = Uuid::new_v4();
    let times = ["2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z", "2026-01-01T03:00:00Z"];
    let mut records: Vec<_> = [("tokens", "5"), ("bytes", "70"), ("tokens", "900")]
        .iter()
        .zip(times)
        .map(|((metric, value), time)| record(tenant, metric, value, time))
        .collect();
    records[2].source = "batch".to_owned();
    databases.write(1, &records, true).await;
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("policies");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("one.cedar"), POLICY).unwrap();
    let set = format!("policy.folder={}", folder.display());
    let mut process = Process::armed(directory.path(), &databases, "", &[&set]);
    let api = process.address("serving the API").await;
    ready(api).await;
    let token = bearer(tenant, Scopes::NONE.with(Scope::Read));
    let ask = async |path: &str| get(api, &format!("/v1/usage/{path}"), Some(&token)).await;

    let range = "from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z";
    let (status, body) = ask(&format!("aggregated?{range}&group_by=metric,source")).await;
    let rows: serde_json::Value = serde_json::from_str(&body).unwrap();
    let [row] = &rows["data"].as_array().unwrap()[..] else { panic!("{body}") };
    assert_eq!(
        (status, &row["metric"], &row["source"], &row["value"]),
        (200, &"tokens".into(), &"gateway".into(), &"5".into())
    );
    let (status, body) = ask("metadata/watermarks").await;
    assert!(status == 200 && body.contains("\"records\":\"1\"") && !body.contains("batch"), "{body}");
    for (path, action) in [
        (format!("raw?{range}&metric=bytes"), "read"),
        (format!("raw?{range}&source=batch"), "read"),
        ("types".to_owned(), "read_types"),
        (format!("allowances/{tenant}"), "read_allowances"),
    ] {
        let (status, body) = ask(&path).await;
        assert!(
            status == 403 && body.contains(&format!("the action `{action}` was refused")),
            "{path}: {body}"
        );
    }
    for (record, status) in records.iter().zip([200, 404, 404]) {
        assert_eq!(ask(&format!("records/{}", record.record_id)).await.0, status, "{record:?}");
    }
    process.child.kill().await.unwrap();
    databases.drop().await;
}

/// An issuer that comes late and rotates its keys: the process waits for it, and never needs a restart.
#[tokio::test]
async fn a_running_process_follows_the_keys_of_its_issuer() {
    let databases = Databases::create().await;
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = usage_access::generate_key_pair(first.path()).map(|files| (first, files)).unwrap();
    let second = usage_access::generate_key_pair(second.path()).map(|files| (second, files)).unwrap();
    let published: Arc<Mutex<Option<PathBuf>>> = Arc::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let answer = published.clone();
    let router = axum::Router::new().route(
        "/keys",
        axum::routing::get(async move || match answer.lock().unwrap().as_ref() {
            Some(path) => Ok(std::fs::read(path).unwrap()),
            None => Err(axum::http::StatusCode::SERVICE_UNAVAILABLE),
        }),
    );
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });

    let mut process =
        Process::spawn(command_with(directory.path(), &databases, &format!("jwks_url = {url:?}")));
    let telemetry = process.address("serving health and metrics").await;
    let api = process.address("serving the API").await;
    let tenant = Uuid::new_v4();
    let ask = async |files: &usage_access::KeyFiles| {
        let token = format!("Bearer {}", token(&files.signing, tenant, Scopes::all()));
        exchange(api, "/v1/usage/types", Some(&token)).await
    };
    let (head, body) = ask(&first.1).await;
    assert!(head.starts_with("HTTP/1.1 503") && head.contains("retry-after: 5"), "{head}\n{body}");
    // What readiness said before the first look at the issuer is repeated for a moment.
    let told = tokio::time::timeout(WITHIN, async {
        loop {
            let (status, body) = get(telemetry, "/health/ready", None).await;
            assert!(status == 503 && body.contains("token_keys"), "{body}");
            if body.contains("answered with status 503") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
    told.await.expect("readiness says what the issuer answers");

    *published.lock().unwrap() = Some(first.1.jwks.clone());
    ready(telemetry).await;
    assert!(ask(&first.1).await.0.starts_with("HTTP/1.1 200"));
    let (head, _) = ask(&second.1).await;
    assert!(head.starts_with("HTTP/1.1 401") && head.contains("error=\"invalid_token\""), "{head}");

    *published.lock().unwrap() = Some(second.1.jwks.clone());
    // Not sooner than 10 s after the last look for an unknown key.
    let rotated = tokio::time::timeout(WITHIN, async {
        while !ask(&second.1).await.0.starts_with("HTTP/1.1 200") {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
    rotated.await.expect("the new key is known without a restart");
    assert!(ask(&first.1).await.0.starts_with("HTTP/1.1 401"), "the old one is withdrawn");
    let (_, metrics) = get(telemetry, "/metrics", None).await;
    for status in ["success", "failure"] {
        assert!(metrics.contains(&format!("auth_key_reads_total{{status=\"{status}\"}}")), "{metrics}");
    }
    process.child.kill().await.unwrap();
    databases.drop().await;
}

#[tokio::test]
async fn policies_that_can_not_be_read_keep_the_process_from_starting() {
    let databases = Databases::create().await;
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("policies");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("bad.cedar"), "permit (principal, action, resource").unwrap();
    let set = format!("policy.folder={}", folder.display());
    let refused = command(directory.path(), &databases).args(["--set", &set]).output().await.unwrap();
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && text.contains("bad.cedar"), "{text}");
    databases.drop().await;
}

#[tokio::test]
async fn the_configuration_is_shown_without_secrets_and_checked() {
    let databases = Databases::create().await;
    let directory = tempfile::tempdir().unwrap();
    let shown = command(directory.path(), &databases).arg("--check-config").output().await.unwrap();
    assert!(shown.status.success());
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.contains("aggregated_rows = 10000") && text.contains("cursor_key = \"***\""), "{text}");
    assert!(!text.contains("0123456789abcdef"));
    for (set, complaint) in [
        ("api.cursor_key=short", "api.cursor_key"),
        ("api.listn=127.0.0.1:0", "api.listen"),
        ("limits.storage_timeout=fast", "limits.storage_timeout"),
        ("auth.jwks_url=https://issuer.example.com/keys", "either auth.key_file or auth.jwks_url"),
    ] {
        let refused = command(directory.path(), &databases)
            .args(["--check-config", "--set", set])
            .output()
            .await
            .unwrap();
        assert!(!refused.status.success(), "{set}");
        let text = String::from_utf8(refused.stderr).unwrap();
        assert!(text.contains(complaint), "{set}: {text}");
    }
    databases.drop().await;
}
