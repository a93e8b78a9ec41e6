//! TLS of this process's clients: whom they trust and who they are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};

use super::{AddressError, Transport, http};

/// The files that a section names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities to trust (PEM); the system's if absent.
    pub ca_file: Option<PathBuf>,
    /// This process's certificate (PEM), with those that lead to its authority.
    pub client_certificate: Option<PathBuf>,
    /// Its private key (PEM).
    pub client_key: Option<PathBuf>,
}

/// Why TLS can't be used as configured. Names files, never what is in them.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("can't read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} holds no {what} in PEM", path.display())]
    Empty { path: PathBuf, what: &'static str },
    #[error("{} holds something that is not a certificate that can be trusted", path.display())]
    Root { path: PathBuf },
    #[error("client_certificate and client_key are only of use together")]
    Half,
    #[error("certificate and private key don't belong together, or are of a kind that is not supported")]
    Mismatch,
    #[error(transparent)]
    Address(#[from] AddressError),
}

impl TlsFiles {
    /// Reads all files, as [`tls_client`] would.
    ///
    /// # Errors
    /// Names the file.
    pub fn check(&self) -> Result<(), TlsError> {
        if let Some(path) = &self.ca_file {
            given_roots(path)?;
        }
        match (&self.client_certificate, &self.client_key) {
            (None, None) => Ok(()),
            _ => tls_client(self).map(|_| ()),
        }
    }

    fn identity(&self) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, TlsError> {
        match (&self.client_certificate, &self.client_key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Ok(Some((certificates(certificate)?, private_key(key)?))),
            _ => Err(TlsError::Half),
        }
    }
}

/// A TLS client (1.2 and 1.3) that trusts the authorities of `ca_file` alone, or those of the system.
///
/// # Errors
/// A file that can't be used.
pub fn tls_client(files: &TlsFiles) -> Result<ClientConfig, TlsError> {
    let roots = match &files.ca_file {
        Some(path) => given_roots(path)?,
        None => system_roots(),
    };
    let builder = builder(roots);
    match files.identity()? {
        None => Ok(builder.with_no_client_auth()),
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|_| TlsError::Mismatch),
    }
}

/// A TLS client that refuses every server.
pub fn tls_client_of_nobody() -> ClientConfig {
    builder(RootCertStore::empty()).with_no_client_auth()
}

fn builder(roots: RootCertStore) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has cipher suites for TLS 1.2 and 1.3")
        .with_root_certificates(roots)
}

/// The start of an HTTP client for one address: it goes nowhere else, by no other way.
///
/// # Errors
/// The address or a file of `files`.
pub fn http_client(address: &str, files: &TlsFiles) -> Result<reqwest::ClientBuilder, TlsError> {
    let encrypted = http(address)? == Transport::Verified;
    let builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls_client(files)?)
        // An answer must not send what the request carries to another host, or on in plaintext.
        .redirect(reqwest::redirect::Policy::none())
        .https_only(encrypted);
    // By a proxy of the environment's, plaintext to loopback would leave the machine.
    Ok(if encrypted { builder } else { builder.no_proxy() })
}

fn given_roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|_| TlsError::Root { path: path.into() })?;
    }
    Ok(roots)
}

/// Without any, every server is refused.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // A store holds odd ones everywhere; what can't be read is not trusted.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// The certificates of a file (PEM), at least one.
///
/// # Errors
/// Names the file.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(path)?;
    let found: Result<Vec<_>, PemError> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(TlsError::Empty { path: path.into(), what: "certificates" }),
    }
}

/// The first private key of a file (PEM).
///
/// # Errors
/// Names the file.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path)?)
        .map_err(|_| TlsError::Empty { path: path.into(), what: "private key" })
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { path: path.into(), source })
}
