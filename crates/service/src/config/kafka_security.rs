//! What the settings of `[kafka.security]` must say together.
//!
//! librdkafka finds some of it out, but only once a client is made: a process that waits for its brokers would wait for ever.

use super::resolve::{Resolved, invalid, is_below};
use super::{ConfigError, Origin};

const PROTOCOL: &str = "kafka.security.protocol";
const MECHANISM: &str = "kafka.security.sasl_mechanism";
const PROTOCOLS: [&str; 4] = ["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"];
/// Those that a user and a password are enough for; the clients have no part for the others.
const MECHANISMS: [&str; 3] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"];

/// Refuses an unknown protocol, and SASL without what it needs; the empty section is the whole.
pub(super) fn look(resolved: &Resolved, section: &str) -> Result<(), ConfigError> {
    let Some(protocol) = resolved.text(PROTOCOL) else { return Ok(()) };
    if !section.is_empty() && !is_below(PROTOCOL, section) {
        return Ok(());
    }
    let refused = |path: &str, detail: String| {
        Err(invalid(path, resolved.origin(path).unwrap_or(&Origin::Default), detail))
    };
    let protocol = protocol.to_ascii_lowercase();
    if !PROTOCOLS.contains(&protocol.as_str()) {
        return refused(PROTOCOL, format!("is none of {}", PROTOCOLS.join(", ")));
    }
    if !protocol.starts_with("sasl_") {
        return Ok(());
    }
    for path in [MECHANISM, "kafka.security.sasl_username", "kafka.security.sasl_password"] {
        if resolved.text(path).is_none() {
            let way = format!("`{PROTOCOL}` = {protocol} needs it");
            return Err(ConfigError::Missing { path: path.into(), way });
        }
    }
    match resolved.text(MECHANISM) {
        Some(mechanism) if !MECHANISMS.contains(&mechanism) => {
            refused(MECHANISM, format!("is none of {}", MECHANISMS.join(", ")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, KAFKA, Resolved};

    fn resolve(set: &[&str]) -> Result<(), String> {
        let brokers = "kafka.brokers=127.0.0.1:9092";
        let set = std::iter::once(&brokers).chain(set).map(|text| text.to_string()).collect();
        let resolved = Resolved::from_parts(KAFKA, &Cli { set, ..Cli::default() }, |_| None).unwrap();
        resolved.check_addresses().map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_unknown_or_missing_is_named() {
        let sasl = "kafka.security.protocol=sasl_ssl";
        let [user, password] = ["kafka.security.sasl_username=u", "kafka.security.sasl_password=hunter2"];
        for (set, part) in [
            (&["kafka.security.protocol=tls"][..], "`kafka.security.protocol` from --set: is none of plain"),
            (&[sasl, user, password], "`kafka.security.sasl_mechanism` is missing"),
            (&["kafka.security.protocol=SASL_PLAINTEXT"], "`kafka.security.sasl_mechanism` is missing"),
            (&[sasl, user, "kafka.security.sasl_mechanism=PLAIN"], "`kafka.security.sasl_password`"),
            (&[sasl, password, "kafka.security.sasl_mechanism=PLAIN"], "`kafka.security.sasl_username`"),
            (
                &[sasl, user, password, "kafka.security.sasl_mechanism=SCRAM"],
                "`kafka.security.sasl_mechanism` from --set: is none of PLAIN, SCRAM-SHA-256",
            ),
        ] {
            let error = resolve(set).expect_err(part);
            assert!(error.contains(part) && !error.contains("hunter2"), "{part} in {error}");
        }
        resolve(&[sasl, user, password, "kafka.security.sasl_mechanism=SCRAM-SHA-512"]).unwrap();
        resolve(&["kafka.security.protocol=SSL"]).unwrap();
    }
}
