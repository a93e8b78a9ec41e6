//! `[policy]`: which decision point a process asks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;
use usage_service::config::{Endpoint, Setting};
use usage_service::transport::TlsFiles;
use usage_service::{settings, tls_settings};

use super::cache::{CACHED_DECISIONS, Cached};
use super::{AuthZen, AuthZenConfig, PolicyDecisionPoint};

/// `[policy]`; read into [`PolicyConfig`].
pub const SETTINGS: &[Setting] = settings![&[
    Setting::text(
        "policy.folder",
        "Folder of Cedar policies (`*.cedar`) and entities (`*.json`), read again when it changes. None, and no `policy.url`: the shipped default policies.",
    )
    .optional(),
    Setting::text("policy.url", "Address of an AuthZEN decision point that is asked instead: https, or http to this machine.")
        .optional()
        .endpoint(Endpoint::Http),
    Setting::text("policy.token", "Sent to it as bearer token.").optional().secret(),
    Setting::duration("policy.timeout", "How long one answer of it may take in whole; none in time is a refusal.").default("1s"),
    Setting::duration("policy.cache", "How long a decision is remembered; 0s: not at all.").default("5s"),
], tls_settings!("policy")];

/// Longest time that a decision may be remembered: what was withdrawn must not hold on.
const CACHE_AT_MOST: Duration = Duration::from_secs(300);

/// See [`SETTINGS`].
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyConfig {
    pub folder: Option<PathBuf>,
    pub url: Option<String>,
    pub token: Option<SecretString>,
    #[serde(default)]
    pub allow_plaintext: bool,
    pub ca_file: Option<PathBuf>,
    pub client_certificate: Option<PathBuf>,
    pub client_key: Option<PathBuf>,
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub cache: Duration,
}

impl Default for PolicyConfig {
    /// The shipped default policies.
    fn default() -> Self {
        Self {
            folder: None,
            url: None,
            token: None,
            allow_plaintext: false,
            ca_file: None,
            client_certificate: None,
            client_key: None,
            timeout: Duration::from_secs(1),
            cache: Duration::from_secs(5),
        }
    }
}

/// Why there is no decision point.
#[derive(Debug, thiserror::Error)]
pub enum PolicyConfigError {
    /// Names the setting.
    #[error("{0}")]
    Setting(String),
    #[cfg(feature = "cedar")]
    #[error("policy.folder is refused")]
    Folder(#[from] super::PolicyFolderError),
}

impl PolicyConfig {
    /// What no single setting can say; reads no file and asks nobody.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn validate(&self) -> Result<(), String> {
        if self.folder.is_some() && self.url.is_some() {
            return Err("policy.folder and policy.url exclude each other".into());
        }
        if cfg!(not(feature = "cedar")) && self.url.is_none() {
            return Err("policy.url is missing: this program has no policies of its own".into());
        }
        for (path, given) in
            [("policy.token", self.token.is_some()), ("policy.ca_file", self.ca_file.is_some())]
        {
            if given && self.url.is_none() {
                return Err(format!("{path} is for a decision point at policy.url, which is missing"));
            }
        }
        if self.timeout.is_zero() {
            return Err("policy.timeout must be more than 0s".into());
        }
        if self.cache > CACHE_AT_MOST {
            return Err(
                "policy.cache must be at most 5m: so long would a permission outlive its withdrawal".into()
            );
        }
        if let Some(url) = &self.url {
            super::authzen::endpoint(url, self.allow_plaintext)
                .map_err(|detail| format!("policy.url {detail}"))?;
        }
        Ok(())
    }

    /// The decision point, with its cache. Needs a tokio runtime, on which a folder is watched as long as the point is in use.
    ///
    /// # Errors
    /// [`PolicyConfigError`] names the setting, or the policies' file and line.
    pub fn decision_point(&self) -> Result<Arc<dyn PolicyDecisionPoint>, PolicyConfigError> {
        self.validate().map_err(PolicyConfigError::Setting)?;
        let point = match &self.url {
            Some(url) => self.remote(url)?,
            None => self.embedded()?,
        };
        if self.cache.is_zero() {
            return Ok(point);
        }
        Ok(Arc::new(Cached::new(point, self.cache, CACHED_DECISIONS)))
    }

    fn remote(&self, url: &str) -> Result<Arc<dyn PolicyDecisionPoint>, PolicyConfigError> {
        let config = AuthZenConfig {
            url: url.to_owned(),
            token: self.token.clone(),
            allow_plaintext: self.allow_plaintext,
            files: TlsFiles {
                ca_file: self.ca_file.clone(),
                client_certificate: self.client_certificate.clone(),
                client_key: self.client_key.clone(),
            },
            timeout: self.timeout,
        };
        let point = AuthZen::new(&config).map_err(PolicyConfigError::Setting)?;
        Ok(Arc::new(point))
    }

    #[cfg(feature = "cedar")]
    fn embedded(&self) -> Result<Arc<dyn PolicyDecisionPoint>, PolicyConfigError> {
        use super::EmbeddedPolicies;
        let policies = match &self.folder {
            Some(folder) => EmbeddedPolicies::open(folder)?,
            None => EmbeddedPolicies::shipped()?,
        };
        let policies = Arc::new(policies);
        EmbeddedPolicies::watch(&policies);
        Ok(policies)
    }

    #[cfg(not(feature = "cedar"))]
    fn embedded(&self) -> Result<Arc<dyn PolicyDecisionPoint>, PolicyConfigError> {
        Err(PolicyConfigError::Setting(
            "policy.url is missing: this program has no policies of its own".into(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use usage_service::config::{Cli, Resolved, verify};

    use super::*;

    fn config(set: &[&str]) -> PolicyConfig {
        let cli = Cli { set: set.iter().map(|text| (*text).to_owned()).collect(), ..Cli::default() };
        Resolved::from_parts(SETTINGS, &cli, |_| None).unwrap().section("policy").unwrap()
    }

    #[test]
    fn the_settings_are_declared_well_and_their_defaults_are_those_of_the_struct() {
        verify(SETTINGS).unwrap();
        let (resolved, default) = (config(&[]), PolicyConfig::default());
        assert_eq!(format!("{resolved:?}"), format!("{default:?}"));
    }

    #[test]
    fn each_contradiction_names_its_setting() {
        let url = "policy.url=https://pdp.example";
        for (set, setting) in [
            (&["policy.folder=/etc/usage/policies", url][..], "policy.folder and policy.url"),
            (&["policy.token=secret"], "policy."),
            (&["policy.ca_file=/etc/ca.pem"], "policy."),
            (&[url, "policy.timeout=0s"], "policy.timeout"),
            (&[url, "policy.cache=6m"], "policy.cache"),
        ] {
            let error = config(set).validate().unwrap_err();
            assert!(error.contains(setting), "{set:?}: {error}");
        }
        config(&[url, "policy.token=secret"]).validate().unwrap();
        for address in ["http://pdp.example", "pdp"] {
            let url = Some(address.to_owned());
            let error = PolicyConfig { url, ..PolicyConfig::default() }.validate().unwrap_err();
            assert!(error.contains("policy.url"), "{error}");
        }
    }

    #[test]
    fn the_token_is_never_shown() {
        let config = config(&["policy.url=https://pdp.example", "policy.token=t0p-secret"]);
        assert!(!format!("{config:?}").contains("t0p-secret"));
    }

    #[cfg(feature = "cedar")]
    #[tokio::test]
    async fn without_settings_the_shipped_policies_decide() {
        let point = PolicyConfig::default().decision_point().unwrap();
        point.ready().await.unwrap();
        let folder = PolicyConfig { folder: Some("/nowhere".into()), ..PolicyConfig::default() };
        let error = folder.decision_point().err().unwrap();
        assert!(usage_service::error_chain(&error).contains("/nowhere"));
    }

    #[cfg(not(feature = "cedar"))]
    #[test]
    fn a_program_without_policies_of_its_own_needs_a_remote_point() {
        assert!(PolicyConfig::default().validate().unwrap_err().contains("policy.url"));
    }
}
