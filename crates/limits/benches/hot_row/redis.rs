//! As much of Redis as INCR and EXPIRE take.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

pub struct Server {
    process: Child,
    pub address: String,
}

impl Server {
    /// None where it is not installed. It keeps nothing on disk: the least that it can take.
    pub fn start() -> Result<Option<Self>> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        let Ok(process) = command.stdout(Stdio::null()).spawn() else { return Ok(None) };
        let server = Self { process, address: format!("127.0.0.1:{port}") };
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(&server.address).is_err() {
            ensure!(Instant::now() < deadline, "redis-server does not answer");
            std::thread::yield_now();
        }
        Ok(Some(server))
    }

    #[tokio::main(flavor = "current_thread")]
    pub async fn counted(&self) -> Result<i64> {
        // One more, taken off again.
        Ok(Client::connect(&self.address, 1).await?.count(0).await? - 1)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Connections that callers share.
pub struct Client(Vec<Mutex<BufStream<TcpStream>>>);

impl Client {
    pub async fn connect(address: &str, connections: u32) -> Result<Self> {
        let mut all = Vec::new();
        for _ in 0..connections {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            all.push(Mutex::new(BufStream::new(stream)));
        }
        Ok(Self(all))
    }

    /// Counts, in one round trip, and gives the new count.
    pub async fn count(&self, caller: u64) -> Result<i64> {
        let mut stream = self.0[usize::try_from(caller)? % self.0.len()].lock().await;
        stream.write_all(b"INCR hot\r\nEXPIRE hot 3600\r\n").await?;
        stream.flush().await?;
        let (mut count, mut expiry) = (String::new(), String::new());
        stream.read_line(&mut count).await?;
        stream.read_line(&mut expiry).await?;
        count.trim().trim_start_matches(':').parse().with_context(|| format!("{count:?}"))
    }
}
