//! Secrets that are marked, and what was written.

use anyhow::Context as _;
use usage_tests::pipeline::{Pipeline, SOURCE_KEY};
use uuid::Uuid;

/// Secrets of one run, each a text that nothing else holds.
pub struct Secrets {
    pub postgres: String,
    /// What the server's users have.
    pub clickhouse: String,
    pub wrong_clickhouse: String,
    pub master_key: String,
    /// Bearer token for the decision point.
    pub policy: String,
    pub sasl: String,
    pub key_password: String,
    pub bearer: String,
    pub key_hex: String,
    pub plain: String,
}

impl Secrets {
    pub fn new() -> Self {
        let mark = |name: &str| format!("marked-{name}-{}", Uuid::new_v4().simple());
        let key_hex = || [Uuid::new_v4(), Uuid::new_v4()].map(|id| id.simple().to_string()).concat();
        Self {
            postgres: mark("postgres"),
            clickhouse: mark("clickhouse"),
            wrong_clickhouse: mark("wrong-clickhouse"),
            master_key: key_hex(),
            policy: mark("policy"),
            sasl: mark("sasl"),
            key_password: mark("key-password"),
            bearer: mark("bearer"),
            key_hex: key_hex(),
            plain: mark("plain"),
        }
    }

    /// The address with the marked password.
    pub fn in_url(&self, url: &str) -> String {
        let (head, host) = url.split_once('@').expect("a user");
        let user = head.rsplit('/').next().unwrap_or_default().split(':').next().unwrap_or_default();
        format!("postgres://{user}:{}@{host}", self.postgres)
    }

    /// An address where nobody listens.
    pub fn nowhere(&self) -> String {
        format!("postgres://usage:{}@127.0.0.1:1/usage", self.postgres)
    }

    fn all(&self) -> [&str; 11] {
        let Self { postgres, clickhouse, wrong_clickhouse, master_key, policy, .. } = self;
        let Self { sasl, key_password, bearer, key_hex, plain, .. } = self;
        [
            postgres,
            clickhouse,
            wrong_clickhouse,
            master_key,
            policy,
            sasl,
            key_password,
            bearer,
            key_hex,
            plain,
            SOURCE_KEY.1,
        ]
    }

    /// Configuration files with a secret where none belongs.
    pub fn broken_files(&self) -> Vec<(&'static str, String)> {
        let secret = &self.plain;
        vec![
            ("a secret without quotes", format!("[control_database]\nurl = {secret}\n")),
            ("a secret as a line", format!("[kafka]\npostgres://u:{secret}@h/d\n")),
            ("a quote that is not closed", format!("[kafka.security]\nsasl_password = \"{secret}\n")),
            ("a list for a secret", format!("[kafka.security]\nsasl_password = [\"{secret}\"]\n")),
            (
                "a password in clickhouse.url",
                format!("[clickhouse]\nurl = \"http://u:{secret}@127.0.0.1:1\"\n"),
            ),
            (
                "a password in clickhouse.url's query",
                format!("[clickhouse]\nurl = \"http://127.0.0.1:1?password={secret}\"\n"),
            ),
            ("a password in kafka.brokers", format!("[kafka]\nbrokers = \"u:{secret}@127.0.0.1:1\"\n")),
            ("a secret in a duration", format!("[clickhouse]\nread_timeout = \"5{secret}\"\n")),
            (
                "a parameter that nobody reads",
                format!(
                    "[control_database]\nurl = \"postgres://u@127.0.0.1:1/d?pasword={secret}\"\n[source_database]\nurl = \"postgres://u@127.0.0.1:1/d?pasword={secret}\"\n"
                ),
            ),
        ]
    }

    /// What goes wrong: its name, flags, and the configuration file.
    pub fn failures(
        &self,
        config: &str,
        broken: &[(&'static str, String)],
    ) -> Vec<(&'static str, Vec<String>, String)> {
        let set =
            |settings: &[String]| settings.iter().flat_map(|one| ["--set".to_owned(), one.clone()]).collect();
        let nowhere = self.nowhere();
        let mut all = vec![
            ("databases that are away", set(&[format!("control_database.url={nowhere}")]), config.to_owned()),
            ("a source that is away", set(&[format!("source_database.url={nowhere}")]), config.to_owned()),
            (
                "a wrong password of clickhouse",
                set(&["writer", "reader", "maintenance"]
                    .map(|user| format!("clickhouse.{user}_password={}", self.wrong_clickhouse))),
                config.to_owned(),
            ),
            (
                "a master key that is too long",
                set(&[format!("control_database.master_key={}00", self.master_key)]),
                config.to_owned(),
            ),
            (
                "a master key that opens nothing",
                set(&[format!("control_database.master_key={}", self.key_hex)]),
                config.to_owned(),
            ),
            (
                "a decision point that is away",
                set(&["policy.url=http://127.0.0.1:1".to_owned()]),
                config.to_owned(),
            ),
            (
                "a token that is no header",
                set(&[format!("policy.token={}\u{7f}", self.policy)]),
                config.to_owned(),
            ),
            ("clickhouse away", set(&["clickhouse.url=http://127.0.0.1:1".to_owned()]), config.to_owned()),
            (
                "sasl to a broker without",
                set(&[
                    "kafka.security.protocol=sasl_plaintext",
                    "kafka.security.sasl_mechanism=PLAIN",
                    "kafka.security.sasl_username=u",
                ]
                .map(str::to_owned)),
                config.to_owned(),
            ),
            (
                "plaintext to another host",
                set(&[
                    format!("control_database.url=postgres://u:{}@db.example/d", self.postgres),
                    format!("source_database.url=postgres://u:{}@db.example/d", self.postgres),
                ]),
                config.to_owned(),
            ),
            ("a flag without its path", vec!["--set".to_owned(), self.plain.clone()], config.to_owned()),
        ];
        all.extend(broken.iter().map(|(what, text)| (*what, Vec::new(), format!("{text}\n"))));
        all
    }

    pub fn assert_absent(&self, what: &str, text: &str) {
        let found = leaks(what, text, self.all());
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    /// Also nothing of the private key that signs tokens.
    pub fn assert_absent_all(&self, written: &Written, pipeline: &Pipeline) -> anyhow::Result<()> {
        let config = pipeline.api_config(1);
        let jwks = config.rsplit("key_file = ").next().context("a key file")?.trim().trim_matches('"');
        let key =
            std::fs::read_to_string(std::path::Path::new(jwks).with_file_name(usage_access::SIGNING_FILE))?;
        let found: Vec<_> = written.0.iter().flat_map(|(what, text)| leaks(what, text, self.all())).collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
        for (what, text) in &written.0 {
            for line in key.lines().filter(|line| line.len() > 20 && !line.starts_with("-----")) {
                assert!(!text.contains(line), "{what} holds a line of the private key");
            }
            assert!(!text.contains("BEGIN PRIVATE KEY") && !text.contains("Bearer ey"), "{what}");
        }
        Ok(())
    }
}

/// Everything that was written, by who wrote it.
#[derive(Default)]
pub struct Written(Vec<(String, String)>);

impl Written {
    pub fn add(&mut self, what: &str, text: impl Into<String>) {
        self.0.push((what.to_owned(), text.into()));
    }

    pub fn iter(&self) -> impl Iterator<Item = &(String, String)> {
        self.0.iter()
    }

    /// Statements may have values in them: what the programs log has none. Postgres's driver shows its own question about types, which
    /// has none of ours.
    pub fn assert_no_statement(&self) {
        for (what, text) in &self.0 {
            let ours = text.lines().filter(|line| !line.contains("resolve: fill_cache"));
            let text = ours.collect::<Vec<_>>().join("\n");
            for word in ["SELECT ", "INSERT INTO", "UPDATE ", "DELETE FROM", "CREATE TABLE", "ON CONFLICT"] {
                assert!(!text.contains(word), "{what} holds a statement:\n{}", around(&text, word));
            }
        }
    }
}

/// Which of these texts something holds, and where.
pub fn leaks<'a>(what: &str, text: &str, parts: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let held = parts.into_iter().filter(|part| text.contains(part));
    held.map(|part| format!("{what} holds {part}:\n{}", around(text, part))).collect()
}

/// The lines that hold a text.
fn around(text: &str, part: &str) -> String {
    text.lines().filter(|line| line.contains(part)).take(3).collect::<Vec<_>>().join("\n")
}
