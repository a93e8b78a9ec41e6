//! A decision point behind TLS.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;

use super::*;

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-length: 18\r\nconnection: close\r\n\r\n{\"decision\": true}";

struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Its certificate.
    file: tempfile::NamedTempFile,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), issuer.pem()).unwrap();
        Self { issuer, file }
    }

    fn path(&self) -> Option<PathBuf> {
        Some(self.file.path().to_owned())
    }

    /// Permits everything, with a certificate for `host`; gives its port.
    async fn serve(&self, host: &str) -> u16 {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([host.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A client that does not trust the certificate goes away here.
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut read = vec![0; 64 << 10];
                let mut question = 0;
                while !read[..question].ends_with(b"}}}") {
                    match stream.read(&mut read[question..]).await {
                        Ok(bytes) if bytes > 0 => question += bytes,
                        _ => break,
                    }
                }
                let _ = stream.write_all(ANSWER).await;
                let _ = stream.shutdown().await;
            }
        });
        port
    }
}

async fn ask_over_tls(port: u16, host: &str, ca_file: Option<PathBuf>) -> Result<Decision, PolicyError> {
    let config = AuthZenConfig {
        files: TlsFiles { ca_file, ..TlsFiles::default() },
        ..config(&format!("https://{host}:{port}"))
    };
    AuthZen::new(&config).unwrap().decide(&ask(&caller())).await
}

#[tokio::test]
async fn a_point_is_trusted_by_the_authorities_of_the_file_and_no_others() {
    let (authority, other) = (Authority::new(), Authority::new());
    let port = authority.serve("127.0.0.1").await;
    let decision = ask_over_tls(port, "127.0.0.1", authority.path()).await.unwrap();
    assert_eq!(decision, Decision::Permit(Constraints::default()));
    for ca_file in [other.path(), None] {
        let error = ask_over_tls(port, "127.0.0.1", ca_file).await.unwrap_err();
        assert!(matches!(error, PolicyError::Unavailable(_)), "{error:?}");
        assert!(usage_service::error_chain(&error).contains("certificate"), "{error:?}");
    }
}

#[tokio::test]
async fn a_certificate_for_another_host_is_no_permission() {
    let authority = Authority::new();
    let port = authority.serve("pdp.example").await;
    let error = ask_over_tls(port, "127.0.0.1", authority.path()).await.unwrap_err();
    assert!(matches!(error, PolicyError::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn an_answer_in_plain_text_where_tls_belongs_is_no_permission() {
    let fake = Fake::answering(200, r#"{"decision": true}"#).await;
    let port: u16 = fake.url.rsplit(':').next().unwrap().parse().unwrap();
    assert!(ask_over_tls(port, "127.0.0.1", None).await.is_err());
    assert_eq!(fake.asked(), 0);
}
