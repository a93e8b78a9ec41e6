//! Where public keys come from: a file, or a JWKS behind a URL. Both are read as a whole, within bounds.

use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::ACCEPT;
use reqwest::{Client, StatusCode, Url};
use tokio::io::AsyncReadExt as _;
use usage_service::transport::{self, AddressError, HTTPS, TlsFiles, http_client};

use crate::KeyError;
use crate::public_keys::PublicKeys;

/// Greatest length of a file or an answer; hundreds of keys.
pub const MOST_BYTES: usize = 256 << 10;
/// How long one reading may take.
pub const READ_WITHIN: Duration = Duration::from_secs(3);
/// How often a file is looked at.
const FILE_EVERY: Duration = Duration::from_secs(5);

/// The address of a JWKS and how to reach it.
pub struct KeysUrl {
    url: Url,
    client: Client,
    /// How often it is read when nothing asks for it.
    every: Duration,
}

impl KeysUrl {
    /// The address must be `https`, or `http` of this very machine unless `allow_plaintext`. Redirects are not followed and no
    /// proxy is used.
    ///
    /// # Errors
    /// An address or files that can't be used.
    pub fn new(
        address: &str,
        allow_plaintext: bool,
        files: &TlsFiles,
        every: Duration,
    ) -> Result<Self, KeyError> {
        may_be_asked(address, allow_plaintext)?;
        let url = Url::parse(address).map_err(|_| AddressError::Http)?;
        let client = http_client(address, files)
            .map_err(KeyError::Tls)?
            .timeout(READ_WITHIN)
            .no_proxy()
            .user_agent(concat!("usage-collector/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(KeyError::Client)?;
        Ok(Self { url, client, every })
    }
}

/// Whoever can change the answer can sign any token: plaintext is for this machine only.
fn may_be_asked(address: &str, allow_plaintext: bool) -> Result<(), AddressError> {
    transport::http(address)?.permit(allow_plaintext, HTTPS).map(drop)
}

pub(crate) enum Source {
    File(PathBuf),
    Url(KeysUrl),
}

impl Source {
    /// The text as it is there now.
    pub async fn read(&self) -> Result<Vec<u8>, KeyError> {
        let read = async {
            match self {
                Self::File(path) => read_file(path).await,
                Self::Url(url) => fetch(&url.client, &url.url).await,
            }
        };
        tokio::time::timeout(READ_WITHIN, read)
            .await
            .map_err(|_| KeyError::Timeout { origin: self.to_string() })?
    }

    /// The text at once, for the start of a process.
    pub fn read_now(path: &Path) -> Result<Vec<u8>, KeyError> {
        use std::io::Read as _;
        let mut text = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(MOST_BYTES as u64 + 1).read_to_end(&mut text))
            .map_err(|source| KeyError::File { path: path.into(), source })?;
        bounded(path, text)
    }

    pub fn parse(&self, text: &[u8]) -> Result<PublicKeys, KeyError> {
        match self {
            Self::File(_) => PublicKeys::parse(&self.to_string(), text),
            Self::Url(_) => PublicKeys::parse_jwks(&self.to_string(), text),
        }
    }

    pub fn every(&self) -> Duration {
        match self {
            Self::File(_) => FILE_EVERY,
            Self::Url(url) => url.every,
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Url(KeysUrl { url, .. }) => {
                write!(f, "{}{}", url.origin().ascii_serialization(), url.path())
            }
        }
    }
}

async fn read_file(path: &Path) -> Result<Vec<u8>, KeyError> {
    let read = async {
        let mut text = Vec::new();
        tokio::fs::File::open(path).await?.take(MOST_BYTES as u64 + 1).read_to_end(&mut text).await?;
        Ok(text)
    };
    bounded(path, read.await.map_err(|source| KeyError::File { path: path.into(), source })?)
}

fn bounded(path: &Path, text: Vec<u8>) -> Result<Vec<u8>, KeyError> {
    if text.len() > MOST_BYTES {
        return Err(KeyError::TooLarge { origin: path.display().to_string() });
    }
    Ok(text)
}

async fn fetch(client: &Client, url: &Url) -> Result<Vec<u8>, KeyError> {
    let origin = || format!("{}{}", url.origin().ascii_serialization(), url.path());
    let unreachable =
        |error: reqwest::Error| KeyError::Unreachable { origin: origin(), source: error.without_url() };
    let request = client.get(url.clone()).header(ACCEPT, "application/jwk-set+json, application/json");
    let mut response = request.send().await.map_err(unreachable)?;
    if response.status() != StatusCode::OK {
        return Err(KeyError::Status { origin: origin(), status: response.status().as_u16() });
    }
    let mut text = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        if text.len() + chunk.len() > MOST_BYTES {
            return Err(KeyError::TooLarge { origin: origin() });
        }
        text.extend_from_slice(&chunk);
    }
    Ok(text)
}
