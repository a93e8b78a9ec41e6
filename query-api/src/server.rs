//! Serving until the process is asked to stop.

use std::future::{Future, IntoFuture as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use tokio::net::TcpListener;
use usage_service::CancellationToken;
use usage_service::lifecycle::{STOP_WITHIN, graceful};

use crate::tls::{Certificate, TlsListener};

/// A listener that is bound and serves once its future is polled.
pub struct Server {
    listener: TcpListener,
    certificate: Option<Arc<Certificate>>,
    router: Router,
}

impl Server {
    /// Binds `listen` (`host:port`, port 0 takes a free one). With a certificate it speaks TLS only.
    ///
    /// # Errors
    /// The address can't be bound.
    pub async fn bind(
        listen: &str,
        certificate: Option<Arc<Certificate>>,
        router: Router,
    ) -> std::io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(listen).await?, certificate, router })
    }

    pub fn speaks_tls(&self) -> bool {
        self.certificate.is_some()
    }

    /// The address that is served.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown`; then takes no new connections, lets running requests end for at most 10 s, and drops what is
    /// left: the connection of an unfinished stream breaks, so that nobody takes it for complete.
    ///
    /// # Errors
    /// The listener failed.
    pub fn run(self, shutdown: CancellationToken) -> impl Future<Output = std::io::Result<()>> {
        self.run_within(shutdown, STOP_WITHIN)
    }

    async fn run_within(self, shutdown: CancellationToken, bound: Duration) -> std::io::Result<()> {
        let Self { listener, certificate, router } = self;
        let served = match certificate {
            None => graceful(&shutdown, bound, serve(listener, router, &shutdown)).await,
            Some(certificate) => {
                let listener = TlsListener::new(listener, certificate);
                graceful(&shutdown, bound, serve(listener, router, &shutdown)).await
            }
        };
        match served {
            Ok(result) => result,
            Err(late) => {
                tracing::warn!(error = %late, "requests were cut off");
                Ok(())
            }
        }
    }
}

async fn serve<L>(listener: L, router: Router, shutdown: &CancellationToken) -> std::io::Result<()>
where
    L: Listener,
    L::Addr: std::fmt::Debug,
{
    axum::serve(listener, router)
        .with_graceful_shutdown(shutdown.clone().cancelled_owned())
        .into_future()
        .await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::sync::Notify;

    use super::*;

    async fn ask(address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        stream
    }

    async fn started(
        bound: Duration,
    ) -> (SocketAddr, CancellationToken, Arc<Notify>, Arc<Notify>, tokio::task::JoinHandle<std::io::Result<()>>)
    {
        let (entered, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (inside, wait) = (entered.clone(), release.clone());
        let handler = move || {
            let (inside, wait) = (inside.clone(), wait.clone());
            async move {
                inside.notify_one();
                wait.notified().await;
                "done"
            }
        };
        let server = Server::bind("127.0.0.1:0", None, Router::new().route("/", get(handler))).await.unwrap();
        let address = server.address().unwrap();
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(server.run_within(shutdown.clone(), bound));
        (address, shutdown, entered, release, serving)
    }

    #[tokio::test]
    async fn a_running_request_is_answered_after_the_stop_was_asked_for() {
        let (address, shutdown, entered, release, serving) = started(STOP_WITHIN).await;
        let mut stream = ask(address).await;
        entered.notified().await;
        shutdown.cancel();
        release.notify_one();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("done"), "{answer}");
        serving.await.unwrap().unwrap();
        assert!(TcpStream::connect(address).await.is_err(), "the listener is closed");
    }

    #[tokio::test]
    async fn a_request_that_hangs_does_not_hold_the_process() {
        let (address, shutdown, entered, _release, serving) = started(Duration::from_millis(20)).await;
        let _stream = ask(address).await;
        entered.notified().await;
        shutdown.cancel();
        tokio::time::timeout(STOP_WITHIN, serving).await.unwrap().unwrap().unwrap();
    }
}
