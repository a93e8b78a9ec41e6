//! What the services find when they start: keys, topics, tables, the source `demo` and its usage types.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use usage_devstack::cache::run_quietly;

use crate::demo::TYPES;
use crate::servers::{CLICKHOUSE, CONTROL, Env, KAFKA, SOURCE};

/// The source of the stack.
const DEMO_SOURCE: &str = "demo";
const DEMO_KEY_ID: &str = "demo-1";
/// Of ClickHouse's users in every stack; the servers listen on loopback only.
const CLICKHOUSE_PASSWORD: &str = "usage";
const PASSWORD_VARIABLES: [&str; 3] = [
    "USAGE_CLICKHOUSE_WRITER_PASSWORD",
    "USAGE_CLICKHOUSE_READER_PASSWORD",
    "USAGE_CLICKHOUSE_MAINTENANCE_PASSWORD",
];

/// What the configuration files are made of.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// Addresses of the servers.
    pub env: Env,
    /// Directory of the tokens' keys and of the source's key.
    pub keys: PathBuf,
    /// Signing key of the source `demo`, hex.
    pub demo_key: String,
    /// Key that signs cursors, hex.
    pub cursor_key: String,
}

/// Prepares everything; what is there already stays as it is.
pub fn run(dir: &Path, bin: &Path, env: &Env) -> Result<Prepared> {
    let keys = dir.join("keys");
    fs::create_dir_all(&keys)?;
    let demo_key = secret(&keys.join("demo.key"))?;
    let cursor_key = secret(&keys.join("cursor.key"))?;
    let prepared = Prepared { env: env.clone(), keys, demo_key, cursor_key };
    let usagectl = |arguments: &[&str]| {
        let mut command = Command::new(bin.join("usagectl"));
        command.args(arguments).envs(env).current_dir(dir);
        for variable in PASSWORD_VARIABLES {
            if std::env::var_os(variable).is_none() {
                command.env(variable, CLICKHOUSE_PASSWORD);
            }
        }
        run_quietly(command)
            .with_context(|| format!("usagectl {}", arguments.first().copied().unwrap_or_default()))
    };
    println!("preparing keys, topics and tables");
    let key_dir = prepared.keys.to_string_lossy().into_owned();
    if !prepared.keys.join("jwks.json").exists() {
        usagectl(&["keys", "generate", "--dir", &key_dir])?;
    }
    usagectl(&["topics", "create"])?;
    usagectl(&["control", "migrate"])?;
    usagectl(&["storage", "migrate"])?;
    usagectl(&["outbox", "migrate"])?;
    usagectl(&["source", "add", DEMO_SOURCE, "--key-id", DEMO_KEY_ID, "--key-hex", &prepared.demo_key])?;
    for usage_type in TYPES {
        usagectl(&["types", "add", usage_type.name, "--kind", usage_type.kind, "--unit", usage_type.unit])?;
    }
    Ok(prepared)
}

/// 32 random bytes as hex, made at the first call and readable by the owner only.
fn secret(path: &Path) -> Result<String> {
    if let Ok(text) = fs::read_to_string(path)
        && text.trim().len() == 64
    {
        return Ok(text.trim().to_owned());
    }
    let mut bytes = [0; 32];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut file = fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)?;
    std::io::Write::write_all(&mut file, text.as_bytes())
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(text)
}

impl Prepared {
    fn address(&self, name: &str) -> &str {
        self.env.get(name).map_or("", String::as_str)
    }

    /// The section `[kafka]`.
    #[must_use]
    pub fn kafka(&self) -> String {
        format!("[kafka]\nbrokers = {}\n\n", quoted(self.address(KAFKA)))
    }

    /// The section `[clickhouse]`.
    #[must_use]
    pub fn clickhouse(&self) -> String {
        let mut text = format!("[clickhouse]\nurl = {}\n", quoted(self.address(CLICKHOUSE)));
        for user in ["writer", "reader", "maintenance"] {
            text.push_str(&format!("{user}_password = {}\n", quoted(CLICKHOUSE_PASSWORD)));
        }
        text.push('\n');
        text
    }

    /// The section `[control_database]`.
    #[must_use]
    pub fn control_database(&self) -> String {
        format!("[control_database]\nurl = {}\n\n", quoted(self.address(CONTROL)))
    }

    /// The section `[source_database]`.
    #[must_use]
    pub fn source_database(&self) -> String {
        format!("[source_database]\nurl = {}\n\n", quoted(self.address(SOURCE)))
    }

    /// The sections `[api]` and `[auth]`.
    #[must_use]
    pub fn api(&self, port: u16) -> String {
        format!(
            "[api]\nlisten = \"127.0.0.1:{port}\"\ncursor_key = {}\n\n[auth]\nkey_file = {}\n\n",
            quoted(&self.cursor_key),
            quoted(&self.keys.join("jwks.json").to_string_lossy()),
        )
    }

    /// The section `[relay]`.
    #[must_use]
    pub fn relay(&self) -> String {
        format!(
            "[relay]\ndefault_source = {source}\n\n[[relay.sources]]\nname = {source}\nkey_id = {}\nkey = {}\n",
            quoted(DEMO_KEY_ID),
            quoted(&self.demo_key),
            source = quoted(DEMO_SOURCE),
        )
    }
}

/// A TOML string: what JSON escapes, TOML understands too.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
