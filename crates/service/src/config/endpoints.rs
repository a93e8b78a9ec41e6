//! The addresses of a configuration: which are refused, and which are worth a warning.

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use toml::{Table, Value};

use super::resolve::lookup;
use super::{Kind, Setting};
use crate::error_chain::error_chain;
use crate::transport::{self, AddressError, TlsFiles, Transport};

/// What an address leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `http://` or `https://`.
    Http,
    /// `postgres://`.
    Postgres,
    /// Brokers, spoken to as `security.protocol` of the same section says.
    Kafka,
    /// `host:port` that this process listens on, by TLS if `tls_certificate` of the same section is given.
    Listen,
}

/// A section whose connections can be read or changed on their way, because `allow_plaintext` is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenSection {
    pub section: &'static str,
    pub transport: Transport,
}

impl OpenSection {
    /// Says so in the log.
    pub fn warn(self) {
        let Self { section, transport } = self;
        match transport {
            Transport::Unverified => tracing::warn!(
                section,
                "{section}.allow_plaintext is set: nobody looks who answers at the other end of its connections"
            ),
            _ => tracing::warn!(
                section,
                "{section}.allow_plaintext is set: its connections leave this machine in plaintext"
            ),
        }
    }
}

/// The section of a setting: its path without the last word.
fn section_of(path: &'static str) -> &'static str {
    path.rsplit_once('.').map_or("", |(section, _)| section)
}

/// Looks at one address and the settings beside it. `None` for what is no address.
pub(super) fn look(setting: &Setting, value: &Value, all: &Table) -> Result<Option<OpenSection>, String> {
    let (Some(endpoint), Some(address)) = (setting.endpoint, value.as_str()) else { return Ok(None) };
    let section = section_of(setting.path);
    let beside = |name: &str| lookup(all, &format!("{section}.{name}"));
    let file = |name: &str| beside(name).and_then(Value::as_str).map(PathBuf::from);
    let files = TlsFiles {
        ca_file: file("ca_file"),
        client_certificate: file("client_certificate"),
        client_key: file("client_key"),
    };
    let allowed = beside("allow_plaintext").and_then(Value::as_bool).unwrap_or(false);
    let transport =
        permitted(endpoint, address, &files, beside("security.protocol"), beside("tls_certificate"), allowed)
            .map_err(|error| error.to_string())?;
    let files = match endpoint {
        // Its key may be encrypted, which only librdkafka reads.
        Endpoint::Kafka => TlsFiles { ca_file: files.ca_file, ..TlsFiles::default() },
        _ => files,
    };
    files.check().map_err(|error| format!("its files for TLS: {}", error_chain(&error)))?;
    Ok(transport.is_open().then_some(OpenSection { section, transport }))
}

fn permitted(
    endpoint: Endpoint,
    address: &str,
    files: &TlsFiles,
    protocol: Option<&Value>,
    certificate: Option<&Value>,
    allowed: bool,
) -> Result<Transport, AddressError> {
    let (transport, how) = match endpoint {
        Endpoint::Http => (transport::http(address)?, transport::HTTPS),
        Endpoint::Postgres => {
            (transport::postgres(&transport::postgres_options(address, files)?), transport::VERIFY_FULL)
        }
        Endpoint::Kafka => {
            let protocol = protocol.and_then(Value::as_str).unwrap_or("plaintext");
            (transport::kafka(address, protocol)?, transport::SSL)
        }
        Endpoint::Listen => (transport::listen(address, certificate.is_some())?, transport::CERTIFICATE),
    };
    transport.permit(allowed, how)
}

/// Checks a declaration: an address is declared as one, and what it needs beside it is there.
pub(super) fn declared(settings: &[Setting], setting: &Setting) -> Result<(), String> {
    let last = setting.path.rsplit('.').next().unwrap_or_default();
    let looks = last == "url" || last.ends_with("_url") || last == "brokers";
    if setting.endpoint.is_none() {
        return if looks {
            Err("an address without an endpoint: its plaintext would be taken".into())
        } else {
            Ok(())
        };
    }
    let section = section_of(setting.path);
    let known = |name: &str, kind| {
        let path = format!("{section}.{name}");
        settings.iter().any(|setting| setting.path == path && setting.kind == kind)
    };
    if known("allow_plaintext", Kind::Bool) {
        Ok(())
    } else {
        Err(format!("{section}.allow_plaintext is not declared"))
    }
}
