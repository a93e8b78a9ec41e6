//! `GET /v1/usage/types` of the query-api.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{ETAG, IF_NONE_MATCH};
use reqwest::{Client, StatusCode, Url};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use usage_schemas::{RegistryError, UsageType};
use usage_service::transport::{self, AddressError, TlsError, TlsFiles};

use super::{Listed, TypesList};

/// How long one question may take, from the connection to the last byte.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// Greatest length of an answer: some 10,000 types with rules.
const MOST_BYTES: usize = 32 << 20;

/// Gives a token that is valid now, with the scope `usage:read`. Called for each question; renewing it is the caller's.
pub type TokenSource = Arc<dyn Fn() -> SecretString + Send + Sync>;

/// The query-api as a list of usage types.
pub struct QueryApi {
    client: Client,
    types: Url,
    token: TokenSource,
}

/// Why no client can be made.
#[derive(Debug, thiserror::Error)]
pub enum HttpRegistryError {
    #[error("the query-api's address {0}")]
    Address(AddressError),
    #[error("the query-api can't be spoken to by TLS")]
    Tls(#[source] TlsError),
    #[error("the HTTP client can't be made")]
    Client(#[source] reqwest::Error),
}

/// An answer that is none.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("the query-api answered {0}")]
    Status(StatusCode),
    #[error("the query-api answered with more than {MOST_BYTES} bytes")]
    TooLarge,
    #[error("the query-api's answer is no list of usage types")]
    Json(#[source] serde_json::Error),
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<UsageType>,
}

impl QueryApi {
    /// The query-api at `address`, such as `https://usage.example.com`; with `allow_plaintext` also by http:// from another machine.
    ///
    /// # Errors
    /// An address or a file of `tls` that can't be used.
    pub fn new(
        address: &str,
        token: TokenSource,
        tls: &TlsFiles,
        allow_plaintext: bool,
    ) -> Result<Self, HttpRegistryError> {
        transport::http(address)
            .and_then(|transport| transport.permit(allow_plaintext, transport::HTTPS))
            .map_err(HttpRegistryError::Address)?;
        let mut types = Url::parse(address).map_err(|_| HttpRegistryError::Address(AddressError::Http))?;
        types.set_path(&format!("{}/v1/usage/types", types.path().trim_end_matches('/')));
        let client = transport::http_client(address, tls).map_err(HttpRegistryError::Tls)?;
        let client = client.timeout(ANSWERS_WITHIN).build().map_err(HttpRegistryError::Client)?;
        Ok(Self { client, types, token })
    }
}

#[async_trait]
impl TypesList for QueryApi {
    async fn list(&self, etag: Option<&str>) -> Result<Option<Listed>, RegistryError> {
        let away = |error: reqwest::Error| RegistryError::Unavailable(error.without_url().into());
        let request = self.client.get(self.types.clone()).bearer_auth((self.token)().expose_secret());
        let request = match etag {
            Some(etag) => request.header(IF_NONE_MATCH, etag),
            None => request,
        };
        let mut response = request.send().await.map_err(away)?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_MODIFIED => return Ok(None),
            status => {
                let passes = status.is_server_error()
                    // A token that has just run out, too many questions, a slow way.
                    || [StatusCode::UNAUTHORIZED, StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status);
                let fault = Box::new(Fault::Status(status));
                return Err(if passes {
                    RegistryError::Unavailable(fault)
                } else {
                    RegistryError::Unusable(fault)
                });
            }
        }
        let etag = response.headers().get(ETAG).and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(away)? {
            if body.len() + piece.len() > MOST_BYTES {
                return Err(RegistryError::Unusable(Box::new(Fault::TooLarge)));
            }
            body.extend_from_slice(&piece);
        }
        let answer: Answer = serde_json::from_slice(&body)
            .map_err(|error| RegistryError::Unusable(Box::new(Fault::Json(error))))?;
        let types = answer.data.into_iter().map(|mut usage_type| {
            // The newest stands first there.
            usage_type.versions.sort_by_key(|version| version.version);
            usage_type
        });
        Ok(Some(Listed { types: types.collect(), etag }))
    }
}
