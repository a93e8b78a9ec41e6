//! Whether what is sent to an address can be read or changed on its way: the one place that decides it.
//!
//! Loopback is `localhost`, 127.0.0.0/8, `::1` and unix sockets, as they are written: a name that resolves to loopback today may
//! resolve to something else tomorrow. An address that can be read in two ways is refused, and no error repeats any part of one,
//! since it may hold a password.

mod client;
mod postgres;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

pub use client::{
    TlsError, TlsFiles, certificates, http_client, private_key, tls_client, tls_client_of_nobody,
};
pub use postgres::{postgres, postgres_options};

/// What makes a refused address right.
pub const HTTPS: &str = "use https://";
pub const VERIFY_FULL: &str = "add sslmode=verify-full to it";
pub const SSL: &str = "set kafka.security.protocol to ssl or sasl_ssl";
pub const CERTIFICATE: &str = "give tls_certificate and tls_key";

/// How what is sent to an address travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// By TLS, and the other end proves that it is the host of the address.
    Verified,
    /// It does not leave this machine.
    Loopback,
    /// By TLS, but whoever sits in between may answer for the host.
    Unverified,
    /// As it is.
    Plaintext,
}

/// Why an address is not taken. Never holds a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("is not an address like http://host:port or https://host:port")]
    Http,
    #[error("holds a user or a password; they have settings of their own")]
    Credentials,
    #[error("holds a query or a fragment, which is not taken")]
    Query,
    #[error(
        "has a host that can be read in two ways; write it in plain ASCII, an IP address in its usual form"
    )]
    Ambiguous,
    #[error("is not a list of brokers like host:port,host:port")]
    Brokers,
    #[error("comes with a `kafka.security.protocol` that is not plaintext, ssl, sasl_plaintext or sasl_ssl")]
    Protocol,
    #[error("is not an address like postgres://user:password@host:port/name")]
    Postgres,
    #[error(
        "has a parameter that is not known; known are sslmode, sslrootcert, sslcert, sslkey, host, hostaddr, port, dbname, user, \
         password, application_name, options and statement-cache-capacity"
    )]
    Parameter,
    #[error("is not an address like host:port")]
    Listen,
    #[error(
        "would be used in plaintext, and its host is not loopback: {how}, or set allow_plaintext = true beside it"
    )]
    Plaintext { how: &'static str },
    #[error(
        "would be used by TLS without a look at who answers, and its host is not loopback: {how}, or set allow_plaintext = true \
         beside it"
    )]
    Unverified { how: &'static str },
}

impl Transport {
    /// Refuses what can be read or changed on its way, unless `allow_plaintext` is set.
    ///
    /// # Errors
    /// [`AddressError::Plaintext`] or [`AddressError::Unverified`] with `how` to make it right.
    pub fn permit(self, allow_plaintext: bool, how: &'static str) -> Result<Self, AddressError> {
        match self {
            Self::Plaintext if !allow_plaintext => Err(AddressError::Plaintext { how }),
            Self::Unverified if !allow_plaintext => Err(AddressError::Unverified { how }),
            permitted => Ok(permitted),
        }
    }

    /// True for what is worth a warning at each start.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Plaintext | Self::Unverified)
    }

    fn without_tls(loopback: bool) -> Self {
        if loopback { Self::Loopback } else { Self::Plaintext }
    }
}

/// Whether a host, as it is written and without brackets, is this machine and nothing else.
pub fn is_loopback(host: &str) -> bool {
    // `parse` takes four decimal numbers and nothing else: no 127.1, no 0x7f000001, no leading zeros. A mapped address
    // (::ffff:127.0.0.1) is no loopback to `Ipv6Addr` either.
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
        || host.parse::<Ipv6Addr>().is_ok_and(|address| address.is_loopback())
}

/// How a request to an `http://` or `https://` address travels.
///
/// # Errors
/// What is not such an address, holds credentials, a query or a fragment, or has a host that can be read in two ways.
pub fn http(address: &str) -> Result<Transport, AddressError> {
    let (scheme, rest) = address.split_once("://").ok_or(AddressError::Http)?;
    // URL parsers take a backslash for a slash and drop line ends: what is left after that is another address.
    if rest.contains(|letter: char| letter == '\\' || letter.is_whitespace() || letter.is_control()) {
        return Err(AddressError::Http);
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(AddressError::Credentials);
    }
    if rest.contains(['?', '#']) {
        return Err(AddressError::Query);
    }
    let url = Url::parse(address).map_err(|_| AddressError::Http)?;
    let read = url.host_str().ok_or(AddressError::Http)?;
    let written = authority
        .rsplit_once(':')
        .filter(|(_, port)| !port.contains(']'))
        .map_or(authority, |(host, _)| host);
    if !written.eq_ignore_ascii_case(read) {
        return Err(AddressError::Ambiguous);
    }
    let loopback = match url.host().ok_or(AddressError::Http)? {
        Host::Domain(name) => is_loopback(name),
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => address.is_loopback(),
    };
    match scheme.to_ascii_lowercase().as_str() {
        "https" => Ok(Transport::Verified),
        "http" => Ok(Transport::without_tls(loopback)),
        _ => Err(AddressError::Http),
    }
}

/// How messages to Kafka travel. Several brokers: loopback only if all are.
///
/// # Errors
/// What is not a list of `host:port`, or an unknown protocol.
pub fn kafka(brokers: &str, protocol: &str) -> Result<Transport, AddressError> {
    let mut loopback = true;
    for broker in brokers.split(',') {
        loopback &= is_loopback(host_of(broker.trim()).ok_or(AddressError::Brokers)?);
    }
    match protocol.to_ascii_lowercase().as_str() {
        "ssl" | "sasl_ssl" => Ok(Transport::Verified),
        "plaintext" | "sasl_plaintext" => Ok(Transport::without_tls(loopback)),
        _ => Err(AddressError::Protocol),
    }
}

/// How answers of a server that listens on `host:port` travel; loopback only if nobody else can connect.
///
/// # Errors
/// What is not `host:port`.
pub fn listen(address: &str, with_tls: bool) -> Result<Transport, AddressError> {
    let host = host_of(address).filter(|_| address.contains(':')).ok_or(AddressError::Listen)?;
    Ok(if with_tls { Transport::Verified } else { Transport::without_tls(is_loopback(host)) })
}

/// The host of `host`, `host:port`, `[::1]` or `[::1]:port`, where everything else is as plain as that.
fn host_of(text: &str) -> Option<&str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let plain = |letter: char| letter.is_ascii_alphanumeric() || ".-_:".contains(letter);
    let port = port.is_none_or(|port| port.parse::<u16>().is_ok());
    (!host.is_empty() && port && host.chars().all(plain)).then_some(host)
}
