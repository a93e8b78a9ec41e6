//! Requests that hide another one, or that two servers could read differently: each has one answer, and what hides is never answered.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use usage_access::Scopes;
use usage_query_api::server::Server;
use usage_service::CancellationToken;
use uuid::Uuid;

use crate::memory::record;
use crate::support::{Harness, bearer};

const RANGE: &str = "from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z";
/// What the other tenant has; no trace id looks like it.
const THEIRS: &str = "70707071";
const TYPE: &str = r#"{"name":"smuggled","kind":"counter","unit":"piece"}"#;
/// How long anything may take: a server that waits for more has not ended the connection.
const WITHIN: Duration = Duration::from_secs(30);

struct World {
    api: Harness,
    address: SocketAddr,
    /// Header line with a token of the caller's own.
    own: String,
    /// A whole request of another tenant's, as a proxy might have it on the same connection.
    hidden: String,
    theirs: String,
    stop: CancellationToken,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn world() -> World {
    let api = Harness::new();
    let other = Uuid::new_v4();
    api.add("tokens", "5", "2026-01-01T01:00:00Z");
    api.memory.add(record(other, "tokens", THEIRS, "2026-01-01T01:00:00Z"));
    let server = Server::bind("127.0.0.1:0", None, api.router.clone()).await.unwrap();
    let (address, stop) = (server.address().unwrap(), CancellationToken::new());
    tokio::spawn(server.run(stop.clone()));
    let line = |tenant| format!("Authorization: {}", bearer(tenant, Scopes::all()));
    let theirs = line(other);
    let hidden = format!("GET /v1/usage/raw?{RANGE} HTTP/1.1\r\nHost: {address}\r\n{theirs}\r\n\r\n");
    World { own: line(api.tenant), api, address, hidden, theirs, stop }
}

impl World {
    /// Sends all of it on one connection, then a request that ends it; the statuses of all answers, and their text.
    async fn send(&self, bytes: &str) -> (Vec<u16>, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let last =
            format!("GET /health/live HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        // A server that has refused does not read the rest.
        let _ = stream.write_all(format!("{bytes}{last}").as_bytes()).await;
        let mut answers = Vec::new();
        let read = tokio::time::timeout(WITHIN, stream.read_to_end(&mut answers)).await;
        let text = String::from_utf8_lossy(&answers).into_owned();
        assert!(read.is_ok(), "it waits for more of {bytes:?}: {text}");
        let statuses = text.split("HTTP/1.1 ").skip(1).map(|answer| answer[..3].parse().unwrap());
        (statuses.collect(), text)
    }

    fn get(&self, lines: &[&str]) -> String {
        format!("GET /v1/usage/raw?{RANGE} HTTP/1.1\r\n{}\r\n\r\n", lines.join("\r\n"))
    }

    fn post(&self, lines: &str, body: &str) -> String {
        let (address, own) = (self.address, &self.own);
        format!(
            "POST /v1/usage/types HTTP/1.1\r\nHost: {address}\r\n{own}\r\nContent-Type: application/json\r\n{lines}\r\n\r\n{body}"
        )
    }
}

#[tokio::test]
async fn what_two_servers_could_read_differently_has_one_answer_and_ends_the_connection() {
    let world = world().await;
    let (host, own) = (format!("Host: {}", world.address), world.own.as_str());
    let http_10 = |request: String| request.replacen("HTTP/1.1", "HTTP/1.0", 1);
    for (what, request) in [
        ("two hosts", world.get(&[&host, "Host: other.example", own])),
        ("the same host twice", world.get(&[&host, &host, own])),
        ("no host", world.get(&[own])),
        ("a host of two", world.get(&["Host: a, b", own])),
        ("a host with a user", world.get(&["Host: user@a", own])),
        ("an empty host", world.get(&["Host:", own])),
        ("two lengths", world.post("Content-Length: 0\r\nContent-Length: 60", "")),
        ("a list of two lengths", world.post("Content-Length: 0, 60", "")),
        ("a length with a sign", world.post("Content-Length: +0", "")),
        ("a length in hex", world.post("Content-Length: 0x0", "")),
        ("a length below zero", world.post("Content-Length: -1", "")),
        ("a length beyond all numbers", world.post("Content-Length: 99999999999999999999999", "")),
        ("an unknown encoding", world.post("Transfer-Encoding: xchunked", "0\r\n\r\n")),
        ("no encoding by name", world.post("Transfer-Encoding: identity", "")),
        ("chunked twice", world.post("Transfer-Encoding: chunked, chunked", "0\r\n\r\n")),
        ("compressed", world.post("Transfer-Encoding: gzip, chunked", "0\r\n\r\n")),
        (
            "two encodings",
            world.post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "0\r\n\r\n"),
        ),
        ("a vertical tab before it", world.post("Transfer-Encoding: \x0bchunked", "0\r\n\r\n")),
        ("chunks in HTTP/1.0", http_10(world.post("Transfer-Encoding: chunked", "0\r\n\r\n"))),
        ("a space after a name", world.get(&[&host, &own.replace(": ", " : ")])),
        ("a folded line", world.get(&[&host, own, "X-A: b", " Authorization: c"])),
        ("a zero in a name", world.get(&[&host, own, "X-\0A: b"])),
        ("a bare CR", world.get(&[&host, own, "X-A: b\rX-B: c"])),
        ("a zero in a value", world.get(&[&host, own, "X-A: b\0c"])),
    ] {
        let (statuses, text) = world.send(&format!("{request}{}", world.hidden)).await;
        assert_eq!(statuses, [400], "{what}: {text}");
        assert!(!text.contains(THEIRS), "{what}: {text}");
    }
    assert_eq!((world.api.memory.calls(), world.api.registry.calls()), (0, 0), "nobody behind was asked");
}

/// The encoding goes before the length, as RFC 9112 wants it, and nothing that follows is answered.
#[tokio::test]
async fn a_length_beside_chunks_is_not_looked_at_and_ends_the_connection() {
    let world = world().await;
    let (chunks, length) = ("Transfer-Encoding: chunked", "Content-Length: 4");
    let body = format!("{:x}\r\n{TYPE}\r\n0\r\n\r\n", TYPE.len());
    for (lines, status) in [(format!("{chunks}\r\n{length}"), 201), (format!("{length}\r\n{chunks}"), 200)] {
        let (statuses, text) = world.send(&format!("{}{}", world.post(&lines, &body), world.hidden)).await;
        // Registered by the first, the same by the second.
        assert_eq!(statuses, [status], "{lines}: {text}");
        assert!(!text.contains(THEIRS), "{lines}: {text}");
    }
    assert_eq!(world.api.memory.calls(), 0);
}

/// Else the tests above would see nothing to be wrong: requests that follow in order are answered in order.
#[tokio::test]
async fn whole_requests_on_one_connection_are_answered_one_by_one() {
    let world = world().await;
    let body = format!("{:x}\r\n{TYPE}\r\n0\r\n\r\n", TYPE.len());
    let requests = [
        world.post("Transfer-Encoding: chunked", &body),
        world.post(&format!("Content-Length: {}", TYPE.len()), TYPE),
        // Twice the same is one reading.
        world.post(&format!("Content-Length: {0}\r\nContent-Length: {0}", TYPE.len()), TYPE),
        world.hidden.clone(),
    ];
    let (statuses, text) = world.send(&requests.concat()).await;
    assert_eq!(statuses, [201, 200, 200, 200, 200], "{text}");
    assert!(text.contains(THEIRS), "{text}");
}

/// A body that nobody asked for is not the next request.
#[tokio::test]
async fn what_lies_in_a_body_is_not_answered() {
    let world = world().await;
    let host = format!("Host: {}", world.address);
    let length = format!("Content-Length: {}", world.hidden.len());
    let (chunked, chunk) =
        ("Transfer-Encoding: chunked", format!("{:x}\r\n{}\r\n0\r\n\r\n", world.hidden.len(), world.hidden));
    for (request, first) in [
        (format!("{}{}", world.get(&[&host, &world.own, &length]), world.hidden), 200),
        (format!("{}{chunk}", world.get(&[&host, &world.own, chunked])), 200),
        (world.post(&length, &world.hidden), 400),
        (world.post(chunked, &chunk), 400),
    ] {
        let (statuses, text) = world.send(&request).await;
        // The connection may end with an answer that the body was not read for.
        assert!(statuses == [first, 200] || statuses == [first], "{request}: {statuses:?} {text}");
        assert!(!text.contains(THEIRS), "{request}: {text}");
    }
}

#[tokio::test]
async fn chunks_that_are_none_end_the_connection() {
    let world = world().await;
    for chunks in [
        "0x5\r\nhello\r\n0\r\n\r\n",
        "-1\r\nhello\r\n0\r\n\r\n",
        "FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
        "5\nhello\n0\n\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "5\r\nhelloX\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        " 5 6\r\nhello\r\n0\r\n\r\n",
    ] {
        let request = world.post("Transfer-Encoding: chunked", chunks);
        let (statuses, text) = world.send(&format!("{request}{}", world.hidden)).await;
        assert_eq!(statuses, [400], "{chunks:?}: {text}");
        assert!(!text.contains(THEIRS), "{chunks:?}: {text}");
    }
}

/// Who asks is said once, by one header, whatever lies in between adds.
#[tokio::test]
async fn a_token_beside_another_one_is_a_doubt_however_it_came_in() {
    let world = world().await;
    let (host, own, theirs) = (format!("Host: {}", world.address), world.own.as_str(), world.theirs.as_str());
    for lines in [
        vec![own, theirs],
        vec![theirs, own],
        vec![own, own],
        // Lines may end without a CR: then this is a header of its own, for us as for others.
        vec![own, &format!("X-A: b\n{theirs}")],
        vec![own, "AUTHORIZATION: Basic eDp5"],
    ] {
        let lines: Vec<&str> = std::iter::once(host.as_str()).chain(lines).collect();
        let (statuses, text) = world.send(&world.get(&lines)).await;
        assert_eq!(statuses, [401, 200], "{lines:?}: {text}");
    }
    let target = format!("/v1/usage/raw?{RANGE}");
    for (request, status) in [
        // Nothing of the request comes back.
        (world.get(&[&host, own]).replacen("GET", "TRACE", 1), 405),
        (world.get(&[&host, own]).replacen("GET", "DEBUG", 1), 405),
        (world.get(&[&host, own]).replacen(&target, "*", 1).replacen("GET", "OPTIONS", 1), 404),
        // No other protocol on the same connection.
        (
            world.get(&[
                &host,
                own,
                "Connection: Upgrade, HTTP2-Settings",
                "Upgrade: h2c",
                "HTTP2-Settings: AAMAAABkAAQ",
            ]),
            200,
        ),
        // Whose host it is plays no part in who asks.
        (world.get(&["Host: other.example", own, "X-Forwarded-Host: a", "X-Forwarded-For: 127.0.0.1"]), 200),
        (world.get(&[&host, own]).replacen(&target, &format!("http://other.example{target}"), 1), 200),
    ] {
        let (statuses, text) = world.send(&request).await;
        assert_eq!(statuses, [status, 200], "{request}: {text}");
        assert!(!text.contains(THEIRS) && !text.contains("Bearer ey"), "{request}: {text}");
    }
}
