//! SIGKILL and SIGSTOP at every fail point: a reader leaves nothing behind, and the next one answers as if it had never been.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::time::Duration;

use futures::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use usage_access::Scopes;
use usage_storage::StoredRecord;
use uuid::Uuid;

use crate::memory::record;
use crate::process::{Process, WITHIN};
use crate::real::Databases;
use crate::support::bearer;

const QUESTION: &str =
    "/v1/usage/aggregated?from=2025-03-25T00:00:00Z&to=2025-05-04T00:00:00Z&group_by=metric&window_size=DAY";
const TYPE: &str = r#"{"name":"gpu.seconds","kind":"counter","unit":"second"}"#;

/// Each point, and the request on whose way it lies.
const POINTS: &[(&str, Request)] = &[
    ("query.types", Request::Page),
    ("query.types_read", Request::Page),
    ("query.counts", Request::Page),
    ("query.counts_read", Request::Page),
    ("query.read", Request::Page),
    ("query.answered", Request::Page),
    ("query.page", Request::Stream),
    ("query.register", Request::Type),
    ("query.registered", Request::Type),
];

#[derive(Debug, Clone, Copy)]
enum Request {
    Page,
    Stream,
    Type,
}

impl Request {
    fn head(self) -> String {
        match self {
            Self::Page => format!("GET {QUESTION} HTTP/1.1\r\nAccept: application/json\r\n"),
            Self::Stream => format!("GET {QUESTION} HTTP/1.1\r\nAccept: text/csv\r\n"),
            Self::Type => format!(
                "POST /v1/usage/types HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
                TYPE.len()
            ),
        }
    }

    fn body(self) -> &'static str {
        if matches!(self, Self::Type) { TYPE } else { "" }
    }

    /// Status and body; `None` if the answer does not end as one does.
    async fn send(self, address: SocketAddr, authorization: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let (head, body) = (self.head(), self.body());
        let request = format!(
            "{head}Host: {address}\r\nConnection: close\r\nAuthorization: {authorization}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.get(9..12)?.parse().ok()?;
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        (!chunked || body.ends_with("0\r\n\r\n")).then(|| (status, without_chunks(body, chunked)))
    }
}

fn without_chunks(mut body: &str, chunked: bool) -> String {
    if !chunked {
        return body.to_owned();
    }
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        text.push_str(&rest[..size]);
        body = rest[size..].strip_prefix("\r\n").unwrap();
    }
    text
}

/// One that serves. Its own looks at what it depends on may come to a point first, before it serves: then another one is started.
async fn start(directory: &Path, databases: &Databases, points: &str) -> (Process, SocketAddr) {
    // Small pages, so that a stream has several.
    let set = ["limits.aggregated_rows=10", "limits.storage_timeout=60s", "limits.control_timeout=60s"];
    for _ in 0..20 {
        let mut process = Process::armed(directory, databases, points, &set);
        let pid = process.child.id().expect("it was not waited for");
        let served = tokio::select! {
            biased;
            address = process.address_unless_it_ends("serving the API") => address,
            () = frozen(pid) => None,
        };
        match served {
            Some(address) => return (process, address),
            None => process.child.kill().await.unwrap(),
        }
    }
    panic!("of 20 processes none served before it came to {points}");
}

fn records(tenant: Uuid) -> Vec<StoredRecord> {
    let day = |i: usize| format!("2025-04-{:02}T12:00:00Z", 1 + i % 28);
    let metric = |i: usize| if i.is_multiple_of(2) { "tokens" } else { "bytes" };
    (0..80).map(|i| record(tenant, metric(i), &i.to_string(), &day(i))).collect()
}

/// What a process without fail points answers to everything; the type is registered by it, if it was not before.
async fn answers(directory: &Path, databases: &Databases, authorization: &str) -> [(u16, String); 3] {
    let (mut process, address) = start(directory, databases, "").await;
    let mut answers = Vec::new();
    for request in [Request::Page, Request::Stream, Request::Type] {
        answers.push(request.send(address, authorization).await.expect("an answer"));
    }
    process.child.kill().await.unwrap();
    answers.try_into().unwrap()
}

#[tokio::test]
async fn a_reader_that_dies_or_freezes_at_any_point_leaves_nothing_behind() {
    let databases = Databases::create().await;
    let tenant = Uuid::new_v4();
    databases.write(1, &records(tenant)[..40], true).await;
    databases.write(2, &records(tenant)[40..], false).await;
    let directory = tempfile::tempdir().unwrap();
    let authorization = bearer(tenant, Scopes::all());
    let (_, _, registered) = {
        let [page, stream, registered] = answers(directory.path(), &databases, &authorization).await;
        assert_eq!((page.0, stream.0, registered.0), (200, 200, 201), "{page:?} {stream:?} {registered:?}");
        (page, stream, registered)
    };
    let expected = answers(directory.path(), &databases, &authorization).await;
    assert_eq!((expected[2].0, &expected[2].1), (200, &registered.1), "registered once");
    assert!(expected[1].1.lines().count() > 25, "several pages: {}", expected[1].1);

    // A directory each, since a process is started from a file in it.
    let visits = POINTS.iter().map(async |(point, request)| {
        let directory = tempfile::tempdir().unwrap();
        let (mut process, address) = start(directory.path(), &databases, &format!("{point}=kill")).await;
        assert_eq!(request.send(address, &authorization).await, None, "{point}: no answer that looks whole");
        let status = tokio::time::timeout(WITHIN, process.child.wait()).await.expect("it dies").unwrap();
        assert_eq!(status.signal(), Some(9), "{point}");
        assert_eq!(answers(directory.path(), &databases, &authorization).await, expected, "after {point}");

        let (mut process, address) = start(directory.path(), &databases, &format!("{point}=stop@1")).await;
        let (request, authorization) = (*request, authorization.clone());
        let asking = tokio::spawn(async move { request.send(address, &authorization).await });
        frozen(process.child.id().expect("it lives")).await;
        signal(&process, nix::sys::signal::Signal::SIGCONT);
        let answer = tokio::time::timeout(WITHIN, asking).await.expect("it answers").unwrap();
        assert!(expected.contains(&answer.expect("a whole answer")), "{point}: late, not wrong");
        process.child.kill().await.unwrap();
    });
    join_all(visits).await;
    databases.drop().await;
}

fn signal(process: &Process, signal: nix::sys::signal::Signal) {
    let pid = i32::try_from(process.child.id().expect("it lives")).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
}

async fn frozen(pid: u32) {
    let stat = format!("/proc/{pid}/stat");
    let frozen = || {
        let stat = std::fs::read_to_string(&stat).unwrap();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    };
    let wait = async {
        while !frozen() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(WITHIN, wait).await.expect("it freezes");
}

#[test]
fn every_fail_point_of_the_reader_is_visited() {
    fn collect(directory: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                collect(&entry, found);
            } else {
                let text = std::fs::read_to_string(&entry).unwrap();
                let names = text.split("fail_point!(\"").skip(1).filter_map(|rest| rest.split_once("\")"));
                found.extend(names.map(|(name, _)| name.to_owned()));
            }
        }
    }
    let mut found = Vec::new();
    collect("src".as_ref(), &mut found);
    found.sort_unstable();
    let mut visited: Vec<_> = POINTS.iter().map(|(point, _)| *point).collect();
    visited.sort_unstable();
    assert_eq!(found, visited);
}
