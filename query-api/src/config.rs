//! What the process can be told.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use secrecy::SecretString;
use serde::Deserialize;
use usage_access::policy::PolicyConfig;
use usage_access::{KeysUrl, TokenVerifier};
use usage_control::READERS_RELOAD_WITHIN;
use usage_service::config::{CLICKHOUSE, CONTROL_DATABASE, DatabaseConfig, Endpoint, Setting, TELEMETRY};
use usage_service::error_chain;
use usage_service::telemetry::TelemetryConfig;
use usage_service::transport::TlsFiles;
use usage_storage::clickhouse::ClickHouseConfig;

use crate::allowances::Spending;
use crate::rates::Rules;
use crate::tls::Certificate;

/// All settings, see `docs/config.md`.
pub const SETTINGS: &[Setting] = usage_service::settings![
    &[
        Setting::text("api.listen", "Address of the API; port 0 takes a free one.")
            .default("127.0.0.1:8080")
            .endpoint(Endpoint::Listen),
        Setting::bool("api.allow_plaintext", "Listens beyond loopback without TLS, for a proxy that ends it. Warned of at each start.")
            .default("false"),
        Setting::text(
            "api.tls_certificate",
            "Certificate (PEM) of the API, with those that lead to its authority: it then speaks TLS 1.2 or 1.3 only. Read again when it changes.",
        )
        .optional(),
        Setting::text("api.tls_key", "Private key (PEM) of that certificate.").optional(),
        Setting::text(
            "api.cursor_key",
            "Signs page cursors: at least 32 characters, the same for all instances, so that any of them can go on with a page.",
        )
        .secret(),
        Setting::text(
            "auth.key_file",
            "Public keys that tokens are verified with: a JWKS, or one key in PEM. It is looked at every 5 s. Either this or `auth.jwks_url`.",
        )
        .optional(),
        Setting::text("auth.jwks_url", "The issuer's JWKS: https://host:port/path, or http:// on loopback. Redirects are not followed.")
            .optional()
            .endpoint(Endpoint::Http),
        Setting::duration("auth.jwks_refresh", "How often the URL is read; so long a withdrawn key is still taken. 10 s to 1 h.")
            .default("5m"),
        Setting::text("auth.issuer", "Issuer that a token must name.").default(usage_access::DEFAULT_ISSUER),
        Setting::text("auth.audience", "Audience that a token must name.").default(usage_access::DEFAULT_AUDIENCE),
        Setting::duration("limits.storage_timeout", "How long one question to storage may take.").default("5s").positive(),
        Setting::duration(
            "limits.breaker_half_open_after",
            "How long storage is not asked after it failed 5 times in a row within 10 s; then one probe decides.",
        )
        .default("30s").positive(),
        Setting::duration("limits.control_timeout", "How long one question to the control database may take.").default("5s").positive(),
        Setting::integer("limits.concurrent_questions", "Questions to storage at the same time.").default("64").positive(),
        Setting::integer("limits.concurrent_questions_per_tenant", "Of these, questions of one tenant.").default("16").positive(),
        Setting::integer("limits.aggregated_rows", "Rows of a page of aggregates.").default("10000").positive(),
        Setting::integer("limits.window_days", "Longest range, in days, that is cut into windows.").default("3660").positive(),
        Setting::size("limits.body", "Largest request body.").default("64KiB").positive(),
        Setting::duration("limits.cache", "How long usage types and partition counts are remembered; at most 10 s, since growing the topic waits twice as long; 0s: not at all.").default("5s"),
        Setting::list(
            "limits.tenant_requests",
            "Requests that one tenant may send, like `50/1s` or `2000/1m`; several hold together. None: no limit.",
        )
        .optional(),
        Setting::list("limits.token_requests", "The same for one token.").optional(),
        Setting::bool(
            "limits.requests_fail_closed",
            "Refuse requests while the control database can't count them, instead of letting them through.",
        )
        .default("false"),
        Setting::text("allowances.database_url", "Postgres with a table of allowances that `GET /v1/usage/allowances` reads.")
            .optional()
            .secret()
            .endpoint(Endpoint::Postgres),
        Setting::text("allowances.table", "That table.").default("usage_allowances"),
        Setting::tables("allowances.meters", "The meters that can be read."),
        Setting::text("allowances.meters[].name", "The meter's name in the table."),
        Setting::text("allowances.meters[].period", "`month`, `day` or `anchored`."),
        Setting::text("allowances.meters[].zone", "IANA zone of a month or day; UTC if absent.").optional(),
        Setting::text(
            "allowances.meters[].anchor",
            "Where the first period of an anchored meter starts, like `2026-01-31T00:00:00Z`; the others start on the same day of their month, or its last.",
        )
        .optional(),
        Setting::integer("allowances.meters[].every_months", "Months of a period of an anchored meter; 1 if absent.")
            .optional(),
        Setting::integer("allowances.meters[].limit", "The limit of each period; none if absent.").optional(),
    ],
    usage_service::tls_settings!("auth"),
    usage_service::tls_settings!("allowances"),
    usage_access::policy::SETTINGS,
    CLICKHOUSE,
    CONTROL_DATABASE,
    TELEMETRY,
];

/// The resolved configuration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub api: Api,
    pub auth: Auth,
    pub limits: Limits,
    pub allowances: AllowancesConfig,
    pub policy: PolicyConfig,
    pub clickhouse: ClickHouseConfig,
    pub control_database: DatabaseConfig,
    pub telemetry: TelemetryConfig,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Api {
    pub listen: String,
    /// Looked at with `listen` when the configuration is read.
    pub allow_plaintext: bool,
    pub tls_certificate: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub cursor_key: SecretString,
}

impl Api {
    /// The certificate, if the API speaks TLS.
    ///
    /// # Errors
    /// A sentence that names the settings.
    pub fn certificate(&self) -> Result<Option<Certificate>, String> {
        match (&self.tls_certificate, &self.tls_key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Certificate::read(certificate.clone(), key.clone())
                .map(Some)
                .map_err(|error| format!("api.tls_certificate, api.tls_key: {}", error_chain(&error))),
            _ => Err("api.tls_certificate and api.tls_key are only of use together".into()),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    pub key_file: Option<PathBuf>,
    pub jwks_url: Option<String>,
    #[serde(with = "humantime_serde")]
    pub jwks_refresh: Duration,
    pub issuer: String,
    pub audience: String,
    pub allow_plaintext: bool,
    pub ca_file: Option<PathBuf>,
    pub client_certificate: Option<PathBuf>,
    pub client_key: Option<PathBuf>,
}

enum Keys<'a> {
    File(&'a Path),
    Url(KeysUrl),
}

/// What `auth.jwks_refresh` may be.
const JWKS_REFRESH: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(3_600);

impl Auth {
    /// The verifier of tokens. Keys of a file are read now, those of a URL later.
    ///
    /// # Errors
    /// A setting that is wrong, by its name.
    pub fn verifier(&self) -> anyhow::Result<TokenVerifier> {
        match self.keys()? {
            Keys::Url(url) => Ok(TokenVerifier::from_url(url, &self.issuer, &self.audience)),
            Keys::File(path) => {
                TokenVerifier::from_file(path, &self.issuer, &self.audience).context("auth.key_file")
            }
        }
    }

    fn keys(&self) -> anyhow::Result<Keys<'_>> {
        match (&self.key_file, self.keys_url()?) {
            (Some(path), None) => Ok(Keys::File(path)),
            (None, Some(url)) => Ok(Keys::Url(url)),
            _ => anyhow::bail!("set either auth.key_file or auth.jwks_url"),
        }
    }

    fn keys_url(&self) -> anyhow::Result<Option<KeysUrl>> {
        let Some(url) = &self.jwks_url else {
            return Ok(None);
        };
        anyhow::ensure!(
            JWKS_REFRESH.contains(&self.jwks_refresh),
            "auth.jwks_refresh must be from {:?} to {:?}",
            JWKS_REFRESH.start(),
            JWKS_REFRESH.end()
        );
        let files = TlsFiles {
            ca_file: self.ca_file.clone(),
            client_certificate: self.client_certificate.clone(),
            client_key: self.client_key.clone(),
        };
        KeysUrl::new(url, self.allow_plaintext, &files, self.jwks_refresh).context("auth.jwks_url").map(Some)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    #[serde(with = "humantime_serde")]
    pub storage_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub breaker_half_open_after: Duration,
    #[serde(with = "humantime_serde")]
    pub control_timeout: Duration,
    pub concurrent_questions: usize,
    pub concurrent_questions_per_tenant: usize,
    pub aggregated_rows: usize,
    pub window_days: u32,
    pub body: usize,
    #[serde(with = "humantime_serde")]
    pub cache: Duration,
    #[serde(default)]
    pub tenant_requests: Vec<String>,
    #[serde(default)]
    pub token_requests: Vec<String>,
    pub requests_fail_closed: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowancesConfig {
    pub database_url: Option<SecretString>,
    pub table: String,
    #[serde(default)]
    pub meters: Vec<MeterConfig>,
    #[serde(default)]
    pub allow_plaintext: bool,
    pub ca_file: Option<PathBuf>,
    pub client_certificate: Option<PathBuf>,
    pub client_key: Option<PathBuf>,
}

impl AllowancesConfig {
    /// The database, if one is configured.
    pub fn database(&self) -> Option<DatabaseConfig> {
        Some(DatabaseConfig {
            allow_plaintext: self.allow_plaintext,
            ca_file: self.ca_file.clone(),
            client_certificate: self.client_certificate.clone(),
            client_key: self.client_key.clone(),
            ..DatabaseConfig::new(self.database_url.clone()?)
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeterConfig {
    pub name: String,
    pub period: String,
    pub zone: Option<String>,
    pub anchor: Option<String>,
    pub every_months: Option<u32>,
    pub limit: Option<i64>,
}

/// Shortest cursor key that is taken, in bytes.
const CURSOR_KEY_BYTES: usize = 32;

impl Config {
    /// What no single setting can say.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn validate(&self) -> Result<(), String> {
        use secrecy::ExposeSecret as _;
        if self.api.cursor_key.expose_secret().len() < CURSOR_KEY_BYTES {
            return Err(format!("api.cursor_key must have at least {CURSOR_KEY_BYTES} characters"));
        }
        self.api.certificate()?;
        self.auth.keys().map_err(|error| format!("{error:#}"))?;
        Rules::read(&self.limits)?;
        Spending::read(&self.allowances)?;
        self.policy.validate()?;
        if self.limits.cache * 2 > READERS_RELOAD_WITHIN {
            return Err(format!(
                "limits.cache must be at most {:?}: growing the topic waits no longer for what readers remember",
                READERS_RELOAD_WITHIN / 2
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use usage_service::config::{Cli, ConfigError, Resolved, verify};

    use super::*;

    fn resolved(set: &[&str]) -> Config {
        resolve(set).unwrap()
    }

    fn resolve(set: &[&str]) -> Result<Config, ConfigError> {
        let mut cli = Cli::default();
        let required = [
            "auth.key_file=/etc/usage/jwks.json",
            "clickhouse.url=http://127.0.0.1:8123",
            "control_database.url=postgres://usage@127.0.0.1/control",
        ];
        cli.set = required.iter().chain(set).map(|text| (*text).to_owned()).collect();
        let variable = |name: &str| {
            (name == "USAGE_API_CURSOR_KEY").then(|| OsString::from("0123456789abcdef0123456789abcdef"))
        };
        Resolved::from_parts(SETTINGS, &cli, variable)?.value()
    }

    #[test]
    fn the_declaration_is_sound_and_fills_the_struct() {
        verify(SETTINGS).unwrap();
        let config = resolved(&[]);
        config.validate().unwrap();
        assert_eq!(config.limits.storage_timeout, Duration::from_secs(5));
        assert_eq!(config.limits.concurrent_questions_per_tenant, 16);
        assert_eq!(config.limits.aggregated_rows, 10_000);
        assert_eq!(config.limits.body, 65_536);
    }

    #[test]
    fn a_short_cursor_key_is_refused_by_name() {
        assert!(resolved(&["api.cursor_key=short"]).validate().unwrap_err().contains("api.cursor_key"));
        for (setting, path) in [
            ("limits.tenant_requests=50", "limits.tenant_requests"),
            ("limits.token_requests=0/1s", "limits.token_requests"),
            ("limits.token_requests=5/1s,6/1s", "limits.token_requests"),
            ("allowances.table=a b", "allowances.table"),
            ("policy.cache=6m", "policy.cache"),
        ] {
            let url = "allowances.database_url=postgres://usage@127.0.0.1/mails";
            let error = resolved(&[setting, url]).validate().unwrap_err();
            assert!(error.contains(path), "{error}");
        }
        resolved(&["limits.tenant_requests=50/1s,2000/1m"]).validate().unwrap();
    }

    #[test]
    fn zeros_and_empty_names_are_refused_by_name() {
        for set in [
            "limits.concurrent_questions=0",
            "limits.concurrent_questions_per_tenant=0",
            "limits.aggregated_rows=0",
            "limits.window_days=0",
            "limits.body=0",
            "limits.storage_timeout=0s",
            "limits.control_timeout=0s",
            "limits.breaker_half_open_after=0s",
            "clickhouse.read_timeout=0s",
            "auth.issuer=",
            "auth.audience=",
            "auth.key_file=",
            "api.listen=",
            "allowances.table=",
            "clickhouse.database=",
            "clickhouse.reader_user=",
        ] {
            let error = resolve(&[set]).expect_err(set).to_string();
            assert!(error.contains(&format!("`{}`", set.split('=').next().unwrap())), "{error}");
        }
    }

    #[test]
    fn keys_come_from_one_place_that_can_be_trusted() {
        let url = "auth.jwks_url=https://issuer.example.com/keys";
        let check = |set: &[&str]| {
            let mut config = resolved(set);
            config.auth.key_file = None;
            config.validate()
        };
        check(&[url]).unwrap();
        check(&["auth.jwks_url=http://127.0.0.1:9/keys", "auth.jwks_refresh=10s"]).unwrap();
        for (set, part) in [
            (&[][..], "either auth.key_file or auth.jwks_url"),
            (&[url, "auth.jwks_refresh=9s"], "auth.jwks_refresh"),
            (&[url, "auth.jwks_refresh=2h"], "auth.jwks_refresh"),
        ] {
            let error = check(set).unwrap_err();
            assert!(error.contains(part), "{part} in {error}");
        }
        assert!(resolved(&[url]).validate().unwrap_err().contains("either"), "both");
    }

    #[test]
    fn nobody_remembers_counts_longer_than_growing_waits() {
        assert!(resolved(&["limits.cache=10s"]).validate().is_ok());
        let error = resolved(&["limits.cache=10001ms"]).validate().unwrap_err();
        assert!(error.contains("limits.cache must be at most 10s"), "{error}");
    }
}
