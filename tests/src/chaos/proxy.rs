//! The network between one process and one server: a TCP proxy whose behaviour can be changed while connections are open.
//!
//! It never resets a connection towards the server. `clickhouse local` ends its process when a client resets inside a request's head,
//! which a real server would not do (crates/devstack/src/clickhouse.rs); so connections end by a half-close, after which the rest is read away.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::schedule::{After, Bad};

/// Bytes that pass at once; few on a slow link.
const PIECE: usize = 16 << 10;
const SLOW_PIECE: usize = 2 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Answers,
}

/// What holds now. Connections of an older generation have been given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    bad: Option<Bad>,
    generation: u64,
}

impl State {
    fn holds(self, direction: Direction) -> bool {
        match self.bad {
            Some(Bad::Cut) => true,
            Some(Bad::NoAnswers) => direction == Direction::Answers,
            Some(Bad::NoRequests) => direction == Direction::Requests,
            Some(Bad::Slow(_)) | None => false,
        }
    }
}

/// Forwards to one server. Ends with its runtime.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<watch::Sender<State>>,
}

impl Proxy {
    /// Listens on a free port of loopback.
    pub async fn start(server: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port for a proxy")?;
        let address = listener.local_addr()?;
        let state = Arc::new(watch::channel(State { bad: None, generation: 0 }).0);
        let rules = state.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(connect(client, server, rules.subscribe()));
            }
        });
        Ok(Self { address, state })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Breaks the link for what is sent from now on, on open and on new connections.
    pub fn set(&self, bad: Bad) {
        self.state.send_modify(|state| state.bad = Some(bad));
    }

    /// Makes the link good again.
    pub fn heal(&self, after: After) {
        self.state.send_modify(|state| {
            state.bad = None;
            state.generation += u64::from(after == After::Lost);
        });
    }
}

async fn connect(client: TcpStream, server: SocketAddr, rules: watch::Receiver<State>) {
    // A server that is down: the client sees its connection end.
    let Ok(server) = TcpStream::connect(server).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let generation = rules.borrow().generation;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        forward(from_client, to_server, Direction::Requests, generation, rules.clone()),
        forward(from_server, to_client, Direction::Answers, generation, rules.clone()),
    );
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    generation: u64,
    mut rules: watch::Receiver<State>,
) {
    let mut given_up = rules.clone();
    let lost = async move { given_up.wait_for(|state| state.generation != generation).await.is_err() };
    tokio::select! {
        biased;
        _ = lost => {}
        () = pass(&mut from, &mut to, direction, generation, &mut rules) => {}
    }
    let _ = to.shutdown().await;
    // A socket that is closed with unread bytes resets its connection.
    let mut rest = vec![0; PIECE];
    while from.read(&mut rest).await.is_ok_and(|length| length > 0) {}
}

/// Until either side ends; an end is held back like any other piece.
async fn pass(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    direction: Direction,
    generation: u64,
    rules: &mut watch::Receiver<State>,
) {
    let mut buffer = vec![0; PIECE];
    loop {
        let slow = matches!(rules.borrow().bad, Some(Bad::Slow(_)));
        let room = if slow { SLOW_PIECE } else { PIECE };
        let length = from.read(&mut buffer[..room]).await.unwrap_or(0);
        let open = rules.wait_for(|state| !state.holds(direction)).await.map(|state| *state);
        let Some(state) = open.ok().filter(|state| state.generation == generation) else { return };
        if let Some(Bad::Slow(late)) = state.bad {
            lateness(late).await;
        }
        if length == 0 || to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// A slow network is time that passes; there is nothing to await.
async fn lateness(late: Duration) {
    tokio::time::sleep(late).await;
}

#[cfg(test)]
mod tests;
