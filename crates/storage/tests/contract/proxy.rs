//! A proxy in front of the server that can freeze a connection at a chosen byte: a client that stops half-way, or an answer
//! that never arrives, without knowing the plugin's protocol.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What is let through before a connection freezes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freeze {
    Never,
    /// After this many bytes of requests on a connection.
    Requests(usize),
    /// The first request is answered, the next one does not begin.
    SecondRequest,
    /// All requests pass, no answer does.
    Answers,
}

/// Forwards until frozen; `frozen` tells when a connection has come to its point.
pub struct Proxy {
    pub address: SocketAddr,
    freeze: Arc<watch::Sender<Freeze>>,
    frozen: watch::Receiver<u32>,
    answered: Arc<AtomicBool>,
}

impl Proxy {
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let freeze = Arc::new(watch::channel(Freeze::Never).0);
        let (count, frozen) = watch::channel(0);
        let (rules, count) = (Arc::clone(&freeze), Arc::new(count));
        let answered = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&answered);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(server).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let link = |requests| Link {
                    rule: rules.subscribe(),
                    frozen: Arc::clone(&count),
                    answered: Arc::clone(&flag),
                    requests,
                };
                tokio::spawn(forward(from_client, to_server, link(true)));
                tokio::spawn(forward(from_server, to_client, link(false)));
            }
        });
        Self { address, freeze, frozen, answered }
    }

    /// Applies to what comes from now on, on every connection; `Freeze::Never` lets frozen ones go on.
    pub fn set(&self, freeze: Freeze) {
        self.answered.store(false, Ordering::SeqCst);
        self.freeze.send_replace(freeze);
    }

    /// Waits until some connection is frozen.
    pub async fn frozen(&mut self) {
        self.frozen.wait_for(|count| *count > 0).await.unwrap();
    }
}

/// One direction of a connection.
struct Link {
    rule: watch::Receiver<Freeze>,
    frozen: Arc<watch::Sender<u32>>,
    /// Some answer has passed under the present rule.
    answered: Arc<AtomicBool>,
    requests: bool,
}

impl Link {
    /// How many of `len` more bytes may pass; `None` for all. `passed` have passed under this rule before.
    fn allowed(&self, rule: Freeze, passed: usize, len: usize) -> Option<usize> {
        match rule {
            Freeze::Requests(limit) if self.requests && passed + len > limit => {
                Some(limit.saturating_sub(passed))
            }
            Freeze::SecondRequest if self.requests && self.answered.load(Ordering::SeqCst) => Some(0),
            Freeze::Answers if !self.requests => Some(0),
            _ => None,
        }
    }

    /// Waits until everything may pass; false if the proxy is gone.
    async fn thawed(&mut self) -> bool {
        self.frozen.send_modify(|count| *count += 1);
        let thawed = self.rule.wait_for(|rule| *rule == Freeze::Never).await.is_ok();
        self.frozen.send_modify(|count| *count -= 1);
        thawed
    }
}

async fn forward(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut link: Link,
) {
    let mut buffer = vec![0; 8192];
    let mut passed = 0;
    let mut under = Freeze::Never;
    loop {
        let len = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(len) => len,
        };
        let now = *link.rule.borrow_and_update();
        if now != under {
            (under, passed) = (now, 0);
        }
        let mut bytes = &buffer[..len];
        if let Some(allowed) = link.allowed(now, passed, len) {
            let (first, rest) = bytes.split_at(allowed);
            if to.write_all(first).await.is_err() || !link.thawed().await {
                return;
            }
            bytes = rest;
        }
        passed += len;
        if !link.requests {
            link.answered.store(true, Ordering::SeqCst);
        }
        if to.write_all(bytes).await.is_err() {
            return;
        }
    }
}
