//! Addresses of Postgres databases.

use std::str::FromStr as _;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use url::Url;

use super::{AddressError, TlsFiles, Transport, is_loopback};

/// The parameters that sqlx reads. It logs any other one with its value.
const PARAMETERS: [&str; 18] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

/// What sqlx needs to connect to `url`, with the files of its section. Without `sslmode`, a `ca_file` means `verify-full`.
///
/// The variables that Postgres' own tools read (`PGSSLMODE`, `PGPASSWORD`, …) fill what the address leaves out.
///
/// # Errors
/// What is no such address, or has a parameter that nobody would read.
pub fn postgres_options(url: &str, files: &TlsFiles) -> Result<PgConnectOptions, AddressError> {
    // sqlx takes any scheme, and would look for Postgres behind ClickHouse's address.
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(AddressError::Postgres);
    }
    let parsed = Url::parse(url).map_err(|_| AddressError::Postgres)?;
    let known = |key: &str| PARAMETERS.contains(&key) || (key.starts_with("options[") && key.ends_with(']'));
    if parsed.fragment().is_some() || !parsed.query_pairs().all(|(key, _)| known(&key)) {
        return Err(AddressError::Parameter);
    }
    // The error could show the address with its password.
    let mut options = PgConnectOptions::from_str(url).map_err(|_| AddressError::Postgres)?;
    // sqlx keeps the brackets, which no resolver understands.
    if let Some(host) = options.get_host().strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        options = options.clone().host(host);
    }
    let said = parsed.query_pairs().any(|(key, _)| key == "sslmode" || key == "ssl-mode");
    if let Some(file) = &files.ca_file {
        options = options.ssl_root_cert(file);
        if !said && std::env::var_os("PGSSLMODE").is_none() {
            options = options.ssl_mode(PgSslMode::VerifyFull);
        }
    }
    if let Some(file) = &files.client_certificate {
        options = options.ssl_client_cert(file);
    }
    if let Some(file) = &files.client_key {
        options = options.ssl_client_key(file);
    }
    Ok(options)
}

/// How statements to a Postgres database travel. `prefer` and `allow` may fall back to plaintext; `require` and `verify-ca` don't look
/// whether it is the host that answers.
pub fn postgres(options: &PgConnectOptions) -> Transport {
    let host = options.get_host();
    // sqlx takes a host that starts with a slash for the directory of a socket.
    let socket = options.get_socket().is_some() || host.starts_with('/');
    match options.get_ssl_mode() {
        _ if socket => Transport::Loopback,
        PgSslMode::VerifyFull => Transport::Verified,
        _ if is_loopback(host) => Transport::Loopback,
        PgSslMode::Require | PgSslMode::VerifyCa => Transport::Unverified,
        PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer => Transport::Plaintext,
    }
}
