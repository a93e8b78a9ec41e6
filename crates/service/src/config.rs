//! Configuration: defaults, then one TOML file, then the environment, then `--set`.
//!
//! A process declares what it can be told in a `const SETTINGS: &[Setting]` (see [`settings!`](crate::settings)) and a struct
//! that serde fills. A setting's environment variable is `USAGE_` and its path in upper case with `_` for `.` and `-`. Only
//! declared variables are read; an empty one counts as not set. Keys that are not declared are errors that name the nearest one.

mod endpoints;
mod kafka_security;
mod resolve;
mod sections;
#[cfg(test)]
mod tests;
mod value;

use std::path::PathBuf;

use serde::de::DeserializeOwned;

pub use endpoints::{Endpoint, OpenSection};
pub use resolve::Resolved;
pub use sections::{
    CLICKHOUSE, CONTROL_DATABASE, DatabaseConfig, KAFKA, KafkaConfig, KafkaSecurity, MASTER_KEY,
    SOURCE_DATABASE, TELEMETRY,
};

/// What a setting's value looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// A whole number.
    Integer,
    /// `true` or `false`.
    Bool,
    /// `250ms`, `10s`, `14d`: text for `humantime_serde`.
    Duration,
    /// Bytes as a number or as `64MiB`; the struct's field is an integer.
    Size,
    /// A list of texts; outside of the file separated by commas.
    List,
    /// A list of tables, only in the file. Its fields are settings of their own: `relay.sources[].name`.
    Tables,
}

impl Kind {
    /// The word in the documentation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Integer => "integer",
            Self::Bool => "bool",
            Self::Duration => "duration",
            Self::Size => "size",
            Self::List => "list",
            Self::Tables => "tables",
        }
    }
}

/// One thing a process can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Where it stands in the file: `kafka.brokers`.
    pub path: &'static str,
    pub kind: Kind,
    /// Its value when nothing else is said, as it would be written in the environment.
    pub default: Option<&'static str>,
    /// Must be given. Never together with a default.
    pub required: bool,
    /// A number, size or duration that is refused if it is not above 0.
    pub positive: bool,
    /// Never printed.
    pub secret: bool,
    /// An address that is refused if what is sent there can be read on its way.
    pub endpoint: Option<Endpoint>,
    /// One sentence for `docs/config.md`.
    pub help: &'static str,
}

impl Setting {
    const fn new(path: &'static str, kind: Kind, help: &'static str) -> Self {
        Self {
            path,
            kind,
            default: None,
            required: true,
            positive: false,
            secret: false,
            endpoint: None,
            help,
        }
    }

    /// A text that must be given, unless [`Setting::default`] or [`Setting::optional`] follows.
    pub const fn text(path: &'static str, help: &'static str) -> Self {
        Self::new(path, Kind::Text, help)
    }

    pub const fn integer(path: &'static str, help: &'static str) -> Self {
        Self::new(path, Kind::Integer, help)
    }

    pub const fn bool(path: &'static str, help: &'static str) -> Self {
        Self::new(path, Kind::Bool, help)
    }

    pub const fn duration(path: &'static str, help: &'static str) -> Self {
        Self::new(path, Kind::Duration, help)
    }

    pub const fn size(path: &'static str, help: &'static str) -> Self {
        Self::new(path, Kind::Size, help)
    }

    pub const fn list(path: &'static str, help: &'static str) -> Self {
        Self::new(path, Kind::List, help)
    }

    pub const fn tables(path: &'static str, help: &'static str) -> Self {
        Self::new(path, Kind::Tables, help).optional()
    }

    pub const fn default(mut self, value: &'static str) -> Self {
        self.default = Some(value);
        self.required = false;
        self
    }

    /// May be absent: the struct's field is an `Option` or has `#[serde(default)]`.
    pub const fn optional(mut self) -> Self {
        self.required = false;
        self
    }

    /// Nothing works with 0 of it.
    pub const fn positive(mut self) -> Self {
        self.positive = true;
        self
    }

    pub const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    /// An address: refused in plaintext beyond loopback unless `allow_plaintext` of its section is set, see [`tls_settings!`](crate::tls_settings).
    pub const fn endpoint(mut self, endpoint: Endpoint) -> Self {
        self.endpoint = Some(endpoint);
        self
    }

    /// The environment variable; none for what only the file can hold.
    pub fn variable(&self) -> Option<String> {
        if self.kind == Kind::Tables || self.path.contains("[]") {
            return None;
        }
        Some(format!("USAGE_{}", self.path.to_uppercase().replace(['.', '-'], "_")))
    }
}

/// Joins lists of settings into one `&'static [Setting]`: `settings![TELEMETRY, KAFKA, &[Setting::text(…)]]`.
#[macro_export]
macro_rules! settings {
    ($($part:expr),* $(,)?) => {{
        const PARTS: &[&[$crate::config::Setting]] = &[$($part),*];
        const JOINED: [$crate::config::Setting; $crate::config::count(PARTS)] = $crate::config::join(PARTS);
        &JOINED
    }};
}

/// The settings beside the address of a section: `allow_plaintext`, `ca_file`, `client_certificate` and `client_key`.
#[macro_export]
macro_rules! tls_settings {
    ($section:literal) => {
        &[
            $crate::config::Setting::bool(
                concat!($section, ".allow_plaintext"),
                "Takes an address beyond loopback to which nothing is encrypted, or nobody looks who answers. Warned of at each start.",
            )
            .default("false"),
            $crate::config::Setting::text(
                concat!($section, ".ca_file"),
                "Certificates (PEM) of the authorities to trust; those of the system if absent.",
            )
            .optional(),
            $crate::config::Setting::text(
                concat!($section, ".client_certificate"),
                "This client's certificate (PEM), with those that lead to its authority.",
            )
            .optional(),
            $crate::config::Setting::text(
                concat!($section, ".client_key"),
                "Private key (PEM) of that certificate.",
            )
            .optional(),
        ]
    };
}

/// Used by [`settings!`](crate::settings).
#[doc(hidden)]
pub const fn count(parts: &[&[Setting]]) -> usize {
    let (mut total, mut part) = (0, 0);
    while part < parts.len() {
        total += parts[part].len();
        part += 1;
    }
    total
}

/// Used by [`settings!`](crate::settings).
#[doc(hidden)]
pub const fn join<const N: usize>(parts: &[&[Setting]]) -> [Setting; N] {
    let mut joined = [Setting::text("", ""); N];
    let (mut at, mut part) = (0, 0);
    while part < parts.len() {
        let mut item = 0;
        while item < parts[part].len() {
            joined[at] = parts[part][item];
            at += 1;
            item += 1;
        }
        part += 1;
    }
    joined
}

/// The flags of configuration; `#[command(flatten)]` it.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Cli {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Overrides one setting, e.g. --set kafka.brokers=127.0.0.1:9092
    #[arg(long, value_name = "PATH=VALUE")]
    pub set: Vec<String>,
    /// Prints the resolved configuration with secrets hidden and ends
    #[arg(long)]
    pub check_config: bool,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    File(PathBuf),
    Variable(String),
    Flag,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("the default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Flag => f.write_str("--set"),
        }
    }
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("can't read the configuration file {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Without the line itself, which may hold a secret.
    #[error("the configuration file {} is not TOML: line {line}: {detail}", path.display())]
    Syntax { path: PathBuf, line: usize, detail: String },
    #[error("unknown setting `{path}` in {origin}: did you mean `{nearest}`?")]
    Unknown { path: String, origin: Origin, nearest: String },
    /// Without its text, which may be a secret.
    #[error("argument {number} of --set is not of the form PATH=VALUE")]
    Flag { number: usize },
    #[error("setting `{path}` is missing: {way}")]
    Missing { path: String, way: String },
    #[error("setting `{path}` from {origin}: {detail}")]
    Invalid { path: String, origin: Origin, detail: String },
    #[error("the declaration of setting `{path}` is wrong: {detail}")]
    Declaration { path: String, detail: String },
}

/// Reads the configuration from the file and flags of `cli` and from the process's environment.
///
/// # Errors
/// [`ConfigError`] names the setting and where its value came from.
pub fn load<T: DeserializeOwned>(settings: &[Setting], cli: &Cli) -> Result<T, ConfigError> {
    Resolved::from_process(settings, cli)?.value()
}

/// What `--check-config` prints: the resolved configuration as TOML, secrets as `***`. The text comes only if [`load`] would succeed.
///
/// # Errors
/// As [`load`].
pub fn check<T: DeserializeOwned>(settings: &[Setting], cli: &Cli) -> Result<String, ConfigError> {
    let resolved = Resolved::from_process(settings, cli)?;
    resolved.value::<T>()?;
    Ok(resolved.to_string())
}

/// Checks a declaration: unique paths and variables, defaults that fit. For the test of each process.
///
/// # Errors
/// [`ConfigError::Declaration`].
pub fn verify(settings: &[Setting]) -> Result<(), ConfigError> {
    let mut seen = std::collections::HashSet::new();
    for setting in settings {
        let wrong = |detail: String| ConfigError::Declaration { path: setting.path.into(), detail };
        if !seen.insert(setting.path.to_string()) {
            return Err(wrong("declared twice".into()));
        }
        if let Some(name) = setting.variable()
            && !seen.insert(name.clone())
        {
            return Err(wrong(format!("another setting has the variable {name}")));
        }
        if let Some(default) = setting.default {
            let value = value::from_text(setting.kind, default);
            value
                .and_then(|value| value::permitted(setting, value))
                .map_err(|detail| wrong(format!("default: {detail}")))?;
        }
        if setting.help.is_empty() {
            return Err(wrong("no help".into()));
        }
        endpoints::declared(settings, setting).map_err(wrong)?;
    }
    Ok(())
}

/// The settings as rows of a Markdown table, for `docs/config.md`.
pub fn markdown(settings: &[Setting]) -> String {
    let mut text = String::from("| setting | kind | default | variable | meaning |\n|---|---|---|---|---|\n");
    for setting in settings {
        let default = match (setting.default, setting.required) {
            (Some(value), _) if setting.secret && !value.is_empty() => "(hidden)".to_string(),
            (Some(""), _) => "empty".to_string(),
            (Some(value), _) => format!("`{value}`"),
            (None, true) => "required".to_string(),
            (None, false) => "none".to_string(),
        };
        let secret = if setting.secret { " (secret)" } else { "" };
        let variable = setting.variable().map_or_else(|| "file only".to_string(), |name| format!("`{name}`"));
        text.push_str(&format!(
            "| `{}` | {}{secret} | {default} | {variable} | {} |\n",
            setting.path,
            setting.kind.as_str(),
            setting.help.replace('|', "\\|"),
        ));
    }
    text
}
