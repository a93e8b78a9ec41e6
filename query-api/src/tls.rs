//! TLS of the API: connections whose handshake is done, and a certificate that may be renewed under a running process.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::serve::Listener;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use usage_service::transport::{TlsError, certificates, private_key};
use usage_service::{CancellationToken, error_chain};

/// How long a client may take for its handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Handshakes under way at once; more connections wait in the socket's queue.
const HANDSHAKES: usize = 256;
/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The certificate of the API and its key, as they were last read.
pub struct Certificate {
    certificate: PathBuf,
    key: PathBuf,
    current: ArcSwap<CertifiedKey>,
}

impl Certificate {
    /// Reads both files.
    ///
    /// # Errors
    /// Names the file that can't be used.
    pub fn read(certificate: PathBuf, key: PathBuf) -> Result<Self, TlsError> {
        let current = ArcSwap::new(Arc::new(read(&certificate, &key)?));
        Ok(Self { certificate, key, current })
    }

    /// Reads both files again; true if the certificate is another one. What can't be used leaves the old one in place.
    ///
    /// # Errors
    /// Names the file that can't be used.
    pub fn renew(&self) -> Result<bool, TlsError> {
        let read = read(&self.certificate, &self.key)?;
        let renewed = read.cert != self.current.load().cert;
        if renewed {
            self.current.store(Arc::new(read));
        }
        Ok(renewed)
    }

    /// Looks at the files every 10 s until `shutdown`.
    pub async fn keep_renewed(&self, shutdown: CancellationToken) {
        let mut looks = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Certificate and key are two files: between the two writes they don't belong together. That is worth a word once.
        let mut told = String::new();
        while tokio::select! { _ = looks.tick() => true, () = shutdown.cancelled() => false } {
            match self.renew() {
                Ok(renewed) => {
                    told.clear();
                    if renewed {
                        tracing::info!("the API's certificate was renewed");
                    }
                }
                Err(error) => {
                    let error = error_chain(&error);
                    if told != error {
                        tracing::warn!(error, "the API's certificate can't be renewed: the old one is used");
                        told = error;
                    }
                }
            }
        }
    }
}

impl std::fmt::Debug for Certificate {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

fn read(certificate: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let chain = certificates(certificate)?;
    let key = private_key(key)?;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    // Refuses a key that is not the certificate's.
    CertifiedKey::from_der(chain, key, &provider).map_err(|_| TlsError::Mismatch)
}

/// A listener whose connections speak TLS 1.2 or 1.3.
pub struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
    /// Beside each other, so that a client that is slow or says nothing keeps nobody waiting.
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, SocketAddr)>>,
}

impl TlsListener {
    pub fn new(tcp: TcpListener, certificate: Arc<Certificate>) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has cipher suites for TLS 1.2 and 1.3")
            .with_no_client_auth()
            .with_cert_resolver(certificate);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { tcp, acceptor: TlsAcceptor::from(Arc::new(config)), handshakes: JoinSet::new() }
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            tokio::select! {
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(connection)) = done {
                        return connection;
                    }
                }
                (stream, address) = Listener::accept(&mut self.tcp), if self.handshakes.len() < HANDSHAKES => {
                    let handshake = timeout(HANDSHAKE_WITHIN, self.acceptor.accept(stream));
                    self.handshakes.spawn(async move {
                        match handshake.await {
                            Ok(Ok(stream)) => Some((stream, address)),
                            Ok(Err(error)) => {
                                tracing::debug!(%address, error = %error_chain(&error), "a TLS handshake failed");
                                None
                            }
                            Err(_) => None,
                        }
                    });
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

#[cfg(test)]
mod tests;
