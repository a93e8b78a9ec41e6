//! What the services find when they start: keys, topics, tables, the source `demo` and its usage types.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;
use usage_devstack::demo::USAGE_TYPES;
use usage_devstack::interrupt::{self, Foreground};
use usage_devstack::process::{self, Life};

use crate::run::describe;
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

/// The private key of the stack's tokens.
#[must_use]
pub fn signing_key(dir: &Path) -> PathBuf {
    dir.join("keys/signing.pem")
}

/// The file with the key under which the sources' keys are sealed.
#[must_use]
pub fn master_key(dir: &Path) -> PathBuf {
    dir.join("keys/master.key")
}

/// Prepares everything; what is there already stays as it is.
pub fn run(dir: &Path, bin: &Path, env: &Env) -> Result<Prepared> {
    let keys = dir.join("keys");
    fs::create_dir_all(&keys)?;
    let demo_key = secret(&keys.join("demo.key"))?;
    let cursor_key = secret(&keys.join("cursor.key"))?;
    secret(&master_key(dir))?;
    let prepared = Prepared { env: env.clone(), keys, demo_key, cursor_key };
    let usagectl = |arguments: &[&str]| usagectl(&bin.join("usagectl"), dir, env, arguments, "");
    println!("preparing keys, topics and tables");
    let key_dir = prepared.keys.to_string_lossy().into_owned();
    if !prepared.keys.join("jwks.json").exists() {
        usagectl(&["keys", "generate", "--dir", &key_dir])?;
    }
    usagectl(&["topics", "create"])?;
    usagectl(&["control", "migrate"])?;
    usagectl(&["storage", "migrate"])?;
    usagectl(&["outbox", "migrate"])?;
    // The key goes by standard input: arguments can be seen by every user of the machine.
    let add = ["source", "add", DEMO_SOURCE, "--key-id", DEMO_KEY_ID, "--key-hex", "-", "--any-tenant"];
    self::usagectl(&bin.join("usagectl"), dir, env, &add, &prepared.demo_key)?;
    for (name, kind, unit) in USAGE_TYPES {
        usagectl(&["types", "add", name, "--kind", kind, "--unit", unit])?;
    }
    Ok(prepared)
}

/// Runs `usagectl`; the error has what it printed.
fn usagectl(program: &Path, dir: &Path, env: &Env, arguments: &[&str], input: &str) -> Result<()> {
    interrupt::check()?;
    let mut command = Command::new(program);
    command.args(arguments).envs(env).current_dir(dir);
    for variable in PASSWORD_VARIABLES {
        if std::env::var_os(variable).is_none() {
            command.env(variable, CLICKHOUSE_PASSWORD);
        }
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let text = describe(&command);
    let mut child = process::spawn(command, Life::Attached(Signal::SIGTERM))
        .with_context(|| format!("running `{text}`"))?;
    let foreground = Foreground::set(child.id());
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read its input may have ended before.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    drop(foreground);
    interrupt::check()?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        bail!("`{text}` failed ({}):\n{}", output.status, String::from_utf8_lossy(&said).trim_end());
    }
    Ok(())
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
    file.write_all(text.as_bytes()).with_context(|| format!("writing {}", path.display()))?;
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

    /// The section `[control_database]` of a process that reads the sources' keys.
    #[must_use]
    pub fn control_database_with_keys(&self) -> String {
        let master_key = self.keys.join("master.key").to_string_lossy().into_owned();
        let url = quoted(self.address(CONTROL));
        format!("[control_database]\nurl = {url}\nmaster_key_file = {}\n\n", quoted(&master_key))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn prepared() -> Prepared {
        let env = Env::from([
            (KAFKA, "127.0.0.1:1".to_owned()),
            (CLICKHOUSE, "http://127.0.0.1:2".to_owned()),
            (CONTROL, "postgres://u:\"p\"@127.0.0.1:3/c".to_owned()),
            (SOURCE, "postgres://u@127.0.0.1:3/s".to_owned()),
        ]);
        Prepared { env, keys: "/keys".into(), demo_key: "ab".repeat(32), cursor_key: "cd".repeat(32) }
    }

    #[test]
    fn a_secret_is_made_once_and_only_the_owner_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("demo.key");
        let first = secret(&path).unwrap();
        assert_eq!(first.len(), 64);
        assert_eq!(secret(&path).unwrap(), first);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_ne!(secret(&dir.path().join("other.key")).unwrap(), first);
        // What a killed run left half-written is no key.
        fs::write(&path, "ab").unwrap();
        assert_eq!(secret(&path).unwrap().len(), 64);
    }

    #[test]
    fn sections_hold_addresses_and_keys() {
        let prepared = prepared();
        assert_eq!(prepared.kafka(), "[kafka]\nbrokers = \"127.0.0.1:1\"\n\n");
        assert!(prepared.clickhouse().contains("writer_password = \"usage\""));
        assert!(prepared.control_database().contains(r#"url = "postgres://u:\"p\"@127.0.0.1:3/c""#));
        let with_keys = prepared.control_database_with_keys();
        assert!(with_keys.contains("\nmaster_key_file = \"/keys/master.key\"\n"), "{with_keys}");
        assert!(!prepared.control_database().contains("master"));
        assert!(prepared.api(7).contains("listen = \"127.0.0.1:7\""));
        assert!(prepared.api(7).contains("key_file = \"/keys/jwks.json\""));
        let relay = prepared.relay();
        assert!(relay.contains("default_source = \"demo\"") && relay.contains(&prepared.demo_key), "{relay}");
    }

    #[test]
    fn a_failing_usagectl_shows_what_it_said_and_gets_its_input() {
        let dir = tempfile::tempdir().unwrap();
        let shell = Path::new("/bin/sh");
        let script = "read key; echo \"key $key, $USAGE_CLICKHOUSE_WRITER_PASSWORD, $USAGE_KAFKA_BROKERS\" >&2; exit 3";
        let error = usagectl(shell, dir.path(), &prepared().env, &["-c", script], "secret\n")
            .unwrap_err()
            .to_string();
        assert!(error.contains("key secret, usage, 127.0.0.1:1"), "{error}");
        assert!(error.contains("exit status: 3"), "{error}");
    }
}
