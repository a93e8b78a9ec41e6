use std::path::Path;

use axum::Router;
use axum::routing::get;
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::server::Server;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Writes a new certificate of `host` and its key into the directory.
fn issue(dir: &Path, authority: &Authority, host: &str) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new([host.to_string()]).unwrap().signed_by(&key, authority).unwrap();
    std::fs::write(dir.join("api.pem"), certificate.pem()).unwrap();
    std::fs::write(dir.join("api.key"), key.serialize_pem()).unwrap();
}

struct Served {
    dir: tempfile::TempDir,
    authority: Authority,
    certificate: Arc<Certificate>,
    address: SocketAddr,
    _stop: tokio_util_guard::Guard,
}

mod tokio_util_guard {
    /// Stops the server when the test ends.
    pub struct Guard(pub usage_service::CancellationToken);

    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.cancel();
        }
    }
}

async fn serve(host: &str) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let authority = authority();
    issue(dir.path(), &authority, host);
    let certificate =
        Arc::new(Certificate::read(dir.path().join("api.pem"), dir.path().join("api.key")).unwrap());
    let router = Router::new().route("/", get(|| async { "done" }));
    let server = Server::bind("127.0.0.1:0", Some(certificate.clone()), router).await.unwrap();
    let address = server.address().unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(server.run(stop.clone()));
    Served { dir, authority, certificate, address, _stop: tokio_util_guard::Guard(stop) }
}

impl Served {
    fn client(&self, authority: &Authority) -> reqwest::ClientBuilder {
        let root = reqwest::Certificate::from_pem(authority.pem().as_bytes()).unwrap();
        reqwest::Client::builder().tls_certs_only([root]).resolve("api.example", self.address)
    }

    async fn ask(&self, client: reqwest::ClientBuilder) -> Result<String, String> {
        let url = format!("https://api.example:{}/", self.address.port());
        let answer = client.build().unwrap().get(url).send().await.map_err(|error| error_chain(&error))?;
        answer.text().await.map_err(|error| error_chain(&error))
    }
}

#[tokio::test]
async fn the_api_speaks_tls_1_2_and_1_3_to_whoever_trusts_its_authority() {
    let served = serve("api.example").await;
    for version in [reqwest::tls::Version::TLS_1_2, reqwest::tls::Version::TLS_1_3] {
        let client = served.client(&served.authority).tls_version_min(version).tls_version_max(version);
        assert_eq!(served.ask(client).await.unwrap(), "done", "{version:?}");
    }
    let error = served.ask(served.client(&authority())).await.unwrap_err();
    assert!(error.contains("invalid peer certificate"), "{error}");
}

#[tokio::test]
async fn a_certificate_of_another_host_is_refused_by_clients() {
    let served = serve("other.example").await;
    let error = served.ask(served.client(&served.authority)).await.unwrap_err();
    assert!(error.contains("not valid for name"), "{error}");
}

#[tokio::test]
async fn plaintext_gets_no_answer_from_a_listener_with_tls() {
    let served = serve("api.example").await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // An alert, or a reset; never HTTP.
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP") && answer.len() < 16, "{answer:?}");
}

#[tokio::test]
async fn a_client_that_says_nothing_keeps_nobody_waiting() {
    let served = serve("api.example").await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(served.address).await.unwrap());
    }
    let ask = served.ask(served.client(&served.authority));
    assert_eq!(
        timeout(HANDSHAKE_WITHIN / 2, ask).await.expect("not behind the silent ones").unwrap(),
        "done"
    );
}

#[tokio::test]
async fn a_renewed_certificate_is_used_without_a_restart_and_a_broken_one_is_not() {
    let served = serve("other.example").await;
    assert!(!served.certificate.renew().unwrap(), "the same certificate");
    issue(served.dir.path(), &served.authority, "api.example");
    assert!(served.certificate.renew().unwrap());
    assert_eq!(served.ask(served.client(&served.authority)).await.unwrap(), "done");

    let key = std::fs::read_to_string(served.dir.path().join("api.key")).unwrap();
    issue(served.dir.path(), &served.authority, "other.example");
    std::fs::write(served.dir.path().join("api.key"), &key).unwrap();
    let error = served.certificate.renew().unwrap_err();
    assert!(error.to_string().contains("don't belong together"), "{error}");
    std::fs::remove_file(served.dir.path().join("api.pem")).unwrap();
    assert!(error_chain(&served.certificate.renew().unwrap_err()).contains("api.pem"));
    assert_eq!(
        served.ask(served.client(&served.authority)).await.unwrap(),
        "done",
        "the old one still serves"
    );
}
