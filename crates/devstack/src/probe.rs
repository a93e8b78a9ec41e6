//! Whether a server is ready, asked in its own protocol, with the end of its log when it is not.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::interrupt;
use crate::process::{Server, nap};

const TIMEOUT: Duration = Duration::from_secs(2);

/// Asks until the answer is good. Fails with the end of the log when the server ends or the time is over.
pub fn await_ready(
    name: &str,
    server: &mut Server,
    limit: Duration,
    mut ask: impl FnMut() -> Result<()>,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        interrupt::check()?;
        if let Some(status) = server.exited()? {
            bail!("{name} ended while starting ({status})\n{}", tail(server.log(), 30));
        }
        let Err(error) = ask() else { return Ok(()) };
        if Instant::now() >= deadline {
            bail!("{name} was not ready after {limit:?}: {error:#}\n{}", tail(server.log(), 30));
        }
        nap(Duration::from_millis(50));
    }
}

/// The last lines of a log, after a line that names the file.
#[must_use]
pub fn tail(log: &Path, lines: usize) -> String {
    let text = read_end(log, 16 * 1024).unwrap_or_else(|error| format!("(cannot be read: {error:#})"));
    let all: Vec<&str> = text.lines().collect();
    let last = &all[all.len().saturating_sub(lines)..];
    format!("--- end of {}\n{}", log.display(), last.join("\n"))
}

fn read_end(path: &Path, bytes: u64) -> Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut end = Vec::new();
    file.take(bytes).read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).into_owned())
}

fn connect(port: u16) -> Result<TcpStream> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let stream =
        TcpStream::connect_timeout(&address, TIMEOUT).with_context(|| format!("connecting to {address}"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Status and body of a small HTTP GET on loopback.
pub fn http_get(port: u16, path: &str) -> Result<(u16, String)> {
    let mut stream = connect(port)?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(1 << 20).read_to_end(&mut answer)?;
    parse_http(&String::from_utf8_lossy(&answer))
}

fn parse_http(answer: &str) -> Result<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n").context("not an HTTP answer")?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no HTTP status")?;
    Ok((status, body.to_owned()))
}

/// The answer must be 200.
pub fn http_ok(port: u16, path: &str) -> Result<String> {
    let (status, body) = http_get(port, path)?;
    ensure!(status == 200, "HTTP {status}: {}", body.chars().take(300).collect::<String>());
    Ok(body)
}

/// Kafka: a Metadata request must name at least one live broker. Sockets open earlier than that.
pub fn kafka_ready(port: u16) -> Result<()> {
    let mut stream = connect(port)?;
    stream.write_all(&kafka_metadata_request())?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    ensure!((12..1 << 20).contains(&length), "a Kafka answer of {length} bytes");
    let mut answer = vec![0; usize::try_from(length)?];
    stream.read_exact(&mut answer)?;
    ensure!(kafka_brokers_in(&answer)? > 0, "no broker has registered yet");
    Ok(())
}

/// Metadata version 4 for no topic: length, api 3, version 4, correlation id 7, client "devstack", no topics, create none.
fn kafka_metadata_request() -> Vec<u8> {
    let mut body = vec![0, 3, 0, 4, 0, 0, 0, 7, 0, 8];
    body.extend_from_slice(b"devstack");
    body.extend_from_slice(&[0, 0, 0, 0, 0]);
    let mut request = u32::try_from(body.len()).expect("a short request").to_be_bytes().to_vec();
    request.extend_from_slice(&body);
    request
}

/// Number of brokers in a Metadata answer of version 4: correlation id, throttle time, then the array's length.
fn kafka_brokers_in(answer: &[u8]) -> Result<u32> {
    let bytes: [u8; 4] = answer.get(8..12).context("a Kafka answer that is too short")?.try_into()?;
    Ok(u32::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_lines() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("x.log");
        std::fs::write(&log, "one\ntwo\nthree\n").unwrap();
        assert!(tail(&log, 2).ends_with("two\nthree"));
        assert!(tail(&log, 2).contains("x.log"));
    }

    #[test]
    fn a_missing_log_is_said_not_panicked_over() {
        assert!(tail(Path::new("/nonexistent/x.log"), 2).contains("cannot be read"));
    }

    #[test]
    fn http_answers_are_taken_apart() {
        let (status, body) = parse_http("HTTP/1.1 503 Busy\r\nA: b\r\n\r\nwait").unwrap();
        assert_eq!((status, body.as_str()), (503, "wait"));
        assert!(parse_http("").is_err());
    }

    #[test]
    fn the_metadata_request_has_its_length_in_front() {
        let request = kafka_metadata_request();
        let length = u32::from_be_bytes(request[..4].try_into().unwrap());
        assert_eq!(usize::try_from(length).unwrap(), request.len() - 4);
    }

    #[test]
    fn brokers_are_counted_and_short_answers_refused() {
        let answer = [0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 9];
        assert_eq!(kafka_brokers_in(&answer).unwrap(), 1);
        assert!(kafka_brokers_in(&answer[..11]).is_err());
    }
}
