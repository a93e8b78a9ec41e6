//! Asks a decision point that speaks AuthZEN 1.0 (access evaluation). No answer, and any answer that is not understood, is no permission.

mod wire;

use std::error::Error;
use std::time::{Duration, Instant};

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, StatusCode, Url};
use secrecy::{ExposeSecret as _, SecretString};
use usage_service::error_chain;
use usage_service::trace::TraceId;
use usage_service::transport::{self, AddressError, HTTPS, TlsFiles, http_client};
use uuid::Uuid;

use super::bounds;
use super::measure;
use super::{Action, Decision, PolicyDecisionPoint, PolicyError, PolicyRequest, Principal};
use crate::{Scopes, SecurityContext};

/// Where the evaluation lies under the point's address.
const PATH: &str = "access/v1/evaluation";
/// Bytes of an answer that are read: room for some thousand tenants.
const ANSWER_BYTES: usize = 256 << 10;

/// How to reach a decision point.
#[derive(Debug, Clone)]
pub struct AuthZenConfig {
    /// `https://host[:port][/path]`, or `http://` to this machine; `/access/v1/evaluation` comes after it.
    pub url: String,
    /// Sent as bearer token.
    pub token: Option<SecretString>,
    /// Whether it may be plaintext beyond this machine.
    pub allow_plaintext: bool,
    pub files: TlsFiles,
    /// For one answer in whole.
    pub timeout: Duration,
}

/// A decision point on another machine.
#[derive(Debug)]
pub struct AuthZen {
    client: Client,
    endpoint: Url,
    authorization: Option<HeaderValue>,
    timeout: Duration,
}

impl AuthZen {
    /// # Errors
    /// A sentence that names the setting (`policy.url`, …) which can't be used.
    pub fn new(config: &AuthZenConfig) -> Result<Self, String> {
        let endpoint =
            endpoint(&config.url, config.allow_plaintext).map_err(|detail| format!("policy.url {detail}"))?;
        let authorization = match &config.token {
            None => None,
            Some(token) => {
                let mut value = HeaderValue::try_from(format!("Bearer {}", token.expose_secret()))
                    .map_err(|_| "policy.token has characters that a header can't hold".to_owned())?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        // A proxy would see the question, and perhaps the token.
        let client = http_client(&config.url, &config.files)
            .map_err(|error| format!("policy.ca_file, policy.client_certificate: {}", error_chain(&error)))?
            .no_proxy()
            .build()
            .map_err(|error| error_chain(&error))?;
        Ok(Self { client, endpoint, authorization, timeout: config.timeout })
    }

    async fn ask(&self, request: &PolicyRequest<'_>) -> Result<Decision, PolicyError> {
        let question = wire::question(request).ok_or_else(|| invalid("the request speaks of no tenant"))?;
        let body = serde_json::to_vec(&question).map_err(|error| invalid(error.to_string()))?;
        match tokio::time::timeout(self.timeout, self.exchange(body)).await {
            Ok(answer) => {
                Ok(wire::constraints(&answer?)?
                    .map_or(Decision::Deny, |found| bounds::decide([found], request)))
            }
            Err(_) => Err(PolicyError::Unavailable("no answer in time".into())),
        }
    }

    async fn exchange(&self, body: Vec<u8>) -> Result<Vec<u8>, PolicyError> {
        let mut question = self
            .client
            .post(self.endpoint.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .body(body);
        if let Some(authorization) = &self.authorization {
            question = question.header(AUTHORIZATION, authorization.clone());
        }
        if let Some(trace) = TraceId::current() {
            question = question.header("x-request-id", trace.to_string());
        }
        let mut answer = question.send().await.map_err(unavailable)?;
        let status = answer.status();
        if status != StatusCode::OK {
            let passing = status.is_server_error()
                || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS);
            let detail = format!("status {}", status.as_u16());
            return Err(if passing { PolicyError::Unavailable(detail.into()) } else { invalid(detail) });
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(unavailable)? {
            if bytes.len() + chunk.len() > ANSWER_BYTES {
                return Err(invalid(format!("more than {ANSWER_BYTES} bytes")));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

fn unavailable(error: reqwest::Error) -> PolicyError {
    let error: Box<dyn Error + Send + Sync> = Box::new(error.without_url());
    PolicyError::Unavailable(error)
}

fn invalid(detail: impl Into<String>) -> PolicyError {
    PolicyError::InvalidAnswer { detail: detail.into() }
}

/// The evaluation endpoint under an address; else what is wrong with the address.
pub(super) fn endpoint(url: &str, allow_plaintext: bool) -> Result<Url, String> {
    let wrong = |error: AddressError| error.to_string();
    transport::http(url).and_then(|found| found.permit(allow_plaintext, HTTPS)).map_err(wrong)?;
    let mut url = Url::parse(url).map_err(|_| wrong(AddressError::Http))?;
    let path = format!("{}/{PATH}", url.path().trim_end_matches('/'));
    url.set_path(&path);
    Ok(url)
}

#[async_trait::async_trait]
impl PolicyDecisionPoint for AuthZen {
    async fn decide(&self, request: &PolicyRequest<'_>) -> Result<Decision, PolicyError> {
        let start = Instant::now();
        let answer = self.ask(request).await;
        measure::decided("remote", request.action, start, &answer);
        answer
    }

    /// Asks whether nobody may read: any decision will do, since it shows that the point answers and is understood.
    async fn ready(&self) -> Result<(), PolicyError> {
        let nobody = SecurityContext::for_tenant(Uuid::nil(), Scopes::NONE);
        let request = PolicyRequest {
            principal: Principal::Caller(&nobody),
            action: Action::Read,
            tenant_id: None,
            metric: None,
            source: None,
        };
        self.ask(&request).await.map(drop)
    }
}

#[cfg(test)]
mod tests;
