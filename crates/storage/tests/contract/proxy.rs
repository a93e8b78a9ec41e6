//! A proxy in front of the server that can freeze a connection at a chosen byte: a client that stops half-way, or an answer
//! that never arrives, without knowing the plugin's protocol.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What is let through before a connection freezes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freeze {
    Never,
    /// After this many bytes of requests.
    Requests(usize),
    /// All requests pass, no answer does.
    Answers,
}

/// Forwards until frozen; `frozen` tells when a connection has come to its point.
pub struct Proxy {
    pub address: SocketAddr,
    freeze: Arc<watch::Sender<Freeze>>,
    frozen: watch::Receiver<u32>,
}

impl Proxy {
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let freeze = Arc::new(watch::channel(Freeze::Never).0);
        let (count, frozen) = watch::channel(0);
        let (rules, count) = (Arc::clone(&freeze), Arc::new(count));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(server).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(forward(from_client, to_server, rules.subscribe(), Arc::clone(&count), true));
                tokio::spawn(forward(from_server, to_client, rules.subscribe(), Arc::clone(&count), false));
            }
        });
        Self { address, freeze, frozen }
    }

    /// Applies to what comes from now on, on every connection; `Freeze::Never` lets frozen ones go on.
    pub fn set(&self, freeze: Freeze) {
        self.freeze.send_replace(freeze);
    }

    /// Waits until some connection is frozen.
    pub async fn frozen(&mut self) {
        self.frozen.wait_for(|count| *count > 0).await.unwrap();
    }
}

async fn forward(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut rule: watch::Receiver<Freeze>,
    frozen: Arc<watch::Sender<u32>>,
    requests: bool,
) {
    let mut buffer = vec![0; 8192];
    let mut passed = 0;
    let mut under = Freeze::Never;
    loop {
        let len = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(len) => len,
        };
        let now = *rule.borrow_and_update();
        if now != under {
            (under, passed) = (now, 0);
        }
        passed += len;
        let stop = match now {
            Freeze::Never => false,
            Freeze::Requests(limit) => requests && passed > limit,
            Freeze::Answers => !requests,
        };
        if stop {
            frozen.send_modify(|count| *count += 1);
            let thawed = rule.wait_for(|rule| *rule == Freeze::Never).await.is_ok();
            frozen.send_modify(|count| *count -= 1);
            if !thawed {
                return;
            }
        }
        if to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
    }
}
