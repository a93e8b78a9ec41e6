//! ClickHouse behind TLS: only the host that the authority vouches for is spoken to.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use usage_devstack::testing;
use usage_service::error_chain;
use usage_storage::Storage as _;
use usage_storage::clickhouse::{ClickHouseConfig, ClickHouseStorage};
use uuid::Uuid;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// What stands before ClickHouse and ends TLS, with a certificate of `localhost`; gives its port.
async fn tls_before_clickhouse(authority: &Authority) -> u16 {
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(["localhost".to_string()]).unwrap().signed_by(&key, authority).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let target = testing::clickhouse_url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, target) = (acceptor.clone(), target.clone());
            tokio::spawn(async move {
                let Ok(mut outside) = acceptor.accept(stream).await else { return };
                let mut inside = TcpStream::connect(target).await.unwrap();
                // Either side may end it.
                let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
            });
        }
    });
    port
}

fn storage(url: String, ca: &Path) -> ClickHouseStorage {
    let name = format!("test_tls_{}", Uuid::new_v4().simple());
    let mut config = ClickHouseConfig::new(url, name).with_dev_passwords();
    config.ca_file = Some(PathBuf::from(ca));
    ClickHouseStorage::connect(config)
}

#[tokio::test(flavor = "multi_thread")]
async fn clickhouse_has_to_prove_by_tls_that_it_is_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, other) = (authority("ours"), authority("theirs"));
    let (ca, other_ca) = (dir.path().join("ca.pem"), dir.path().join("other-ca.pem"));
    std::fs::write(&ca, authority.pem()).unwrap();
    std::fs::write(&other_ca, other.pem()).unwrap();
    let port = tls_before_clickhouse(&authority).await;

    storage(format!("https://localhost:{port}"), &ca).migrate().await.unwrap();
    for (url, ca, part) in [
        (format!("https://127.0.0.1:{port}"), &ca, "not valid for name"),
        (format!("https://localhost:{port}"), &other_ca, "invalid peer certificate"),
        // A file that has gone since the start: nobody is trusted.
        (format!("https://localhost:{port}"), &dir.path().join("gone.pem"), "invalid peer certificate"),
    ] {
        let error = error_chain(&storage(url.clone(), ca).migrate().await.unwrap_err());
        assert!(error.contains(part), "{url}: {error}");
    }
    // TLS where the server speaks plaintext, and the other way round.
    let plain = testing::clickhouse_url().replace("http://", "https://");
    assert!(storage(plain, &ca).migrate().await.is_err());
    assert!(storage(format!("http://localhost:{port}"), &ca).migrate().await.is_err());
}
