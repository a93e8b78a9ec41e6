//! A whole pipeline of real processes on the run's servers: databases, topics and keys of its own.

mod process;
mod stack;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _};
use usage_access::{Claims, DEFAULT_AUDIENCE, DEFAULT_ISSUER, JWKS_FILE, SIGNING_FILE, Scopes, TokenSigner};
use usage_devstack::demo::USAGE_TYPES;
use usage_devstack::testing;
use usage_schemas::names::CONSUMER_GROUP;
use uuid::Uuid;

use crate::answers::Api;
use crate::source::{self, Totals};
use crate::workload::SOURCE;

pub use process::Process;
pub use stack::{RelayAgain, stack_api};

/// The signing key of the source `demo`: id and hex digits.
pub const SOURCE_KEY: (&str, &str) =
    ("demo-1", "5a0f1c2e7b10190f3c26f1e7a449d3b5a1f0c2e7b10166c6c6d2d6761746577a");

/// Under which its control database seals it. A file, since the environment of a stack that is up names one, too.
const MASTER_KEY_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/control/testdata/master.key");

/// All time that a test emits into.
pub const RANGE: (&str, &str) = ("2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z");

/// What differs from one pipeline to another.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// ClickHouse's URL, if not the run's.
    pub clickhouse_url: Option<String>,
    /// More settings of the consumer: `path = value` in TOML, grouped by section.
    pub consumer: BTreeMap<&'static str, Vec<String>>,
    /// Partitions of the topics.
    pub partitions: Option<u32>,
    /// Servers of the pipeline's own, if not the run's.
    pub servers: Option<Servers>,
    /// More variables for all programs.
    pub env: BTreeMap<&'static str, String>,
}

impl Options {
    /// For a test that kills workers: their partitions are given away after the shortest time that brokers allow.
    pub fn with_kills() -> Self {
        let settings = vec!["session_timeout = \"6s\"".to_string()];
        Self { consumer: [("consumer", settings)].into(), ..Self::default() }
    }
}

/// Addresses of the servers of one pipeline.
#[derive(Debug, Clone)]
pub struct Servers {
    pub kafka_brokers: String,
    pub clickhouse_url: String,
    pub control_database_url: String,
    pub source_database_url: String,
    /// Where the source's database lies, if not in the default tablespace.
    pub source_tablespace: Option<String>,
}

impl Servers {
    fn of_the_run() -> Self {
        Self {
            kafka_brokers: testing::kafka_brokers(),
            clickhouse_url: testing::clickhouse_url(),
            control_database_url: testing::control_database_url(),
            source_database_url: testing::source_database_url(),
            source_tablespace: None,
        }
    }
}

/// Databases, topics, keys and configuration files of one pipeline; processes are started one by one.
pub struct Pipeline {
    /// Part of every name that this pipeline owns.
    pub id: String,
    /// The source's database.
    pub source: PgPool,
    env: BTreeMap<String, String>,
    options: Options,
    bins: PathBuf,
    dir: tempfile::TempDir,
}

impl Pipeline {
    /// Makes everything but the processes.
    pub async fn prepare(options: Options) -> anyhow::Result<Self> {
        let id = Uuid::new_v4().simple().to_string()[..12].to_string();
        let dir = tempfile::Builder::new().prefix("usage-pipeline-").tempdir()?;
        let servers = options.servers.clone().unwrap_or_else(Servers::of_the_run);
        let control = create_database(&servers.control_database_url, &format!("control_{id}"), None).await?;
        let tablespace = servers.source_tablespace.as_deref();
        let source_url =
            create_database(&servers.source_database_url, &format!("source_{id}"), tablespace).await?;
        let clickhouse = options.clickhouse_url.clone().unwrap_or(servers.clickhouse_url);
        let mut env: BTreeMap<String, String> = [
            ("USAGE_KAFKA_BROKERS", servers.kafka_brokers),
            ("USAGE_KAFKA_RECORDS_TOPIC", format!("usage.records.{id}")),
            ("USAGE_KAFKA_DEAD_LETTERS_TOPIC", format!("usage.dead-letters.{id}")),
            ("USAGE_CLICKHOUSE_URL", clickhouse),
            ("USAGE_CLICKHOUSE_DATABASE", format!("usage_{id}")),
            ("USAGE_CONTROL_DATABASE_URL", control),
            ("USAGE_CONTROL_DATABASE_MASTER_KEY_FILE", MASTER_KEY_FILE.to_string()),
            ("USAGE_SOURCE_DATABASE_URL", source_url.clone()),
            // Of a group that pipelines share each member waits for the others' dead ones, and loses its partitions for a moment.
            ("USAGE_CONSUMER_GROUP", format!("{CONSUMER_GROUP}.{id}")),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into();
        for user in ["WRITER", "READER", "MAINTENANCE"] {
            env.insert(format!("USAGE_CLICKHOUSE_{user}_PASSWORD"), "usage".into());
        }
        env.extend(options.env.iter().map(|(name, value)| (name.to_string(), value.clone())));
        let source = PgPoolOptions::new().max_connections(16).connect(&source_url).await?;
        let pipeline = Self { id, source, env, options, bins: bins()?, dir };
        pipeline.install().await?;
        Ok(pipeline)
    }

    async fn install(&self) -> anyhow::Result<()> {
        let keys = self.keys().to_string_lossy().into_owned();
        let partitions = self.options.partitions.unwrap_or(12).to_string();
        self.usagectl(&["keys", "generate", "--dir", &keys])?;
        self.usagectl(&["control", "migrate"])?;
        self.usagectl(&["topics", "create", "--partitions", &partitions])?;
        self.usagectl(&["storage", "migrate"])?;
        self.usagectl(&["outbox", "migrate"])?;
        let key = ["--key-id", SOURCE_KEY.0, "--key-hex", SOURCE_KEY.1, "--any-tenant"];
        self.usagectl(&[&["source", "add", SOURCE], &key[..]].concat())?;
        for (name, kind, unit) in USAGE_TYPES {
            self.usagectl(&["types", "add", name, "--kind", kind, "--unit", unit])?;
        }
        source::migrate(&self.source).await
    }

    /// usagectl with the addresses of this pipeline.
    pub fn usagectl_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.bins.join("usagectl"));
        command.args(arguments).envs(&self.env).current_dir(self.dir.path());
        command
    }

    /// Runs usagectl on this pipeline; returns what it printed.
    pub fn usagectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let (code, out, error) = self.usagectl_ended(arguments)?;
        if code != Some(0) {
            bail!("usagectl {arguments:?} failed: {error}\n{out}");
        }
        Ok(out)
    }

    /// The same however it ends: its exit code, and what it printed on standard output and standard error.
    pub fn usagectl_ended(&self, arguments: &[&str]) -> anyhow::Result<(Option<i32>, String, String)> {
        let output = self.usagectl_command(arguments).output().context("can't run usagectl")?;
        Ok((output.status.code(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
    }

    /// Runs a statement in this pipeline's ClickHouse database as the server's own user; the answer as tab-separated text.
    pub async fn clickhouse(&self, sql: &str) -> anyhow::Result<String> {
        let request = reqwest::Client::new()
            .post(&self.env["USAGE_CLICKHOUSE_URL"])
            .query(&[("database", self.clickhouse_database())])
            .body(sql.to_owned());
        let answer = request.send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        if !status.is_success() {
            bail!("{sql}: {text}");
        }
        Ok(text.trim_end().to_owned())
    }

    /// Starts a worker and waits until it says that it is ready.
    pub fn consumer(&self) -> anyhow::Result<Process> {
        self.start("usage-consumer", &self.options.consumer)
    }

    /// Starts a relay and waits until it says that it is ready.
    pub fn relay(&self) -> anyhow::Result<Process> {
        self.start_with("usage-relay", &self.relay_config())
    }

    /// The relay's configuration beside the addresses; more lines of `[relay]` can't follow it.
    pub fn relay_config(&self) -> String {
        let (key_id, key) = SOURCE_KEY;
        format!(
            "[relay]\ndefault_source = \"{SOURCE}\"\n\n[[relay.sources]]\nname = \"{SOURCE}\"\nkey_id = \"{key_id}\"\nkey = \"{key}\"\n"
        )
    }

    /// Starts the API; the caller of it mints tokens of this pipeline's key.
    pub fn query_api(&self) -> anyhow::Result<(Process, Api)> {
        let port = usage_devstack::ports::free()?;
        let process = self.start_with("usage-query-api", &self.api_config(port))?;
        Ok((process, self.api(port)?))
    }

    /// The API's configuration beside the addresses.
    pub fn api_config(&self, port: u16) -> String {
        let jwks = self.keys().join(JWKS_FILE);
        format!(
            "[api]\nlisten = \"127.0.0.1:{port}\"\ncursor_key = \"{}\"\n\n[auth]\nkey_file = {:?}\n",
            SOURCE_KEY.1, jwks
        )
    }

    /// A caller of the API on this port.
    pub fn api(&self, port: u16) -> anyhow::Result<Api> {
        api(format!("http://127.0.0.1:{port}"), &self.keys().join(SIGNING_FILE))
    }

    /// The variables that name servers, topics and databases.
    pub fn env(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    /// Where a program is.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bins.join(name)
    }

    fn start(
        &self,
        program: &str,
        sections: &BTreeMap<&'static str, Vec<String>>,
    ) -> anyhow::Result<Process> {
        let text: Vec<String> =
            sections.iter().map(|(name, lines)| format!("[{name}]\n{}\n", lines.join("\n"))).collect();
        self.start_with(program, &text.join("\n"))
    }

    fn start_with(&self, program: &str, config: &str) -> anyhow::Result<Process> {
        let path = self.dir.path().join(format!("{program}-{}.toml", Uuid::new_v4().simple()));
        std::fs::write(&path, config)?;
        Process::start(&self.bins.join(program), &path, &self.env)
    }

    /// Records, relay, worker and API at work.
    pub fn run(&self) -> anyhow::Result<Running> {
        let relay = self.relay()?;
        let consumer = self.consumer()?;
        let (query_api, api) = self.query_api()?;
        Ok(Running { relay, consumer, query_api, api })
    }

    /// Name of the topic of records.
    pub fn records_topic(&self) -> &str {
        &self.env["USAGE_KAFKA_RECORDS_TOPIC"]
    }

    /// Name of the topic of dead letters.
    pub fn dead_letters_topic(&self) -> &str {
        &self.env["USAGE_KAFKA_DEAD_LETTERS_TOPIC"]
    }

    /// Group of the workers.
    pub fn group(&self) -> &str {
        &self.env["USAGE_CONSUMER_GROUP"]
    }

    /// ClickHouse's address.
    pub fn clickhouse_url(&self) -> &str {
        &self.env["USAGE_CLICKHOUSE_URL"]
    }

    /// Name of the database in ClickHouse.
    pub fn clickhouse_database(&self) -> &str {
        &self.env["USAGE_CLICKHOUSE_DATABASE"]
    }

    fn keys(&self) -> PathBuf {
        self.dir.path().join("keys")
    }

    /// Waits until the answers equal the source's truth; fails with every difference otherwise.
    pub async fn judge(&self, api: &Api, within: Duration) -> anyhow::Result<Totals> {
        let truth = source::truth(&self.source).await?;
        if truth.is_empty() {
            bail!("the source has no truth to compare with");
        }
        let answers = api.settle(&truth, RANGE.0, RANGE.1, within).await?;
        let differences = crate::answers::differences(&truth, &answers);
        if !differences.is_empty() {
            bail!("{} totals differ:\n{}", differences.len(), differences.join("\n"));
        }
        Ok(truth)
    }
}

/// One process of each kind, and the API's caller.
pub struct Running {
    pub relay: Process,
    pub consumer: Process,
    pub query_api: Process,
    pub api: Api,
}

/// A caller whose tokens are signed with this key.
fn api(url: String, signing_key: &Path) -> anyhow::Result<Api> {
    let signer = TokenSigner::from_file(signing_key, DEFAULT_ISSUER, DEFAULT_AUDIENCE)?;
    let token = move |tenant_id: Uuid| {
        let ttl = Duration::from_secs(3_600);
        let claims = Claims { tenant_id, subject_id: None, subject_type: None, scopes: Scopes::all(), ttl };
        Ok(signer.sign(&claims)?)
    };
    Api::new(url, Arc::new(token))
}

/// Makes a database beside the one that the URL names; returns its URL.
async fn create_database(url: &str, name: &str, tablespace: Option<&str>) -> anyhow::Result<String> {
    let mut connection =
        PgConnection::connect(url).await.with_context(|| format!("can't connect for {name}"))?;
    let place = tablespace.map(|tablespace| format!(" TABLESPACE {tablespace}")).unwrap_or_default();
    sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}{place}"))).execute(&mut connection).await?;
    connection.close().await?;
    let (server, _) = url.rsplit_once('/').context("a database URL ends with /NAME")?;
    Ok(format!("{server}/{name}"))
}

/// Where the programs are: `$USAGE_BIN_DIR`, else beside this program.
fn bins() -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os("USAGE_BIN_DIR").filter(|dir| !dir.is_empty()) {
        return Ok(dir.into());
    }
    let program = std::env::current_exe()?;
    let dir = program.parent().context("this program is in no directory")?;
    Ok(if dir.ends_with("deps") { dir.parent().unwrap_or(dir).into() } else { dir.into() })
}
