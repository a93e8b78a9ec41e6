//! What is marked, and what was written.

use anyhow::Context as _;
use base64::Engine as _;
use usage_tests::answers::Api;
use usage_tests::pipeline::{Pipeline, RANGE, SOURCE_KEY};
use uuid::Uuid;

/// Secrets of one run, each a text that nothing else holds.
pub struct Secrets {
    pub postgres: String,
    pub clickhouse: String,
    pub sasl: String,
    pub key_password: String,
    pub bearer: String,
    pub key_hex: String,
    pub plain: String,
}

impl Secrets {
    pub fn new() -> Self {
        let mark = |name: &str| format!("marked-{name}-{}", Uuid::new_v4().simple());
        Self {
            postgres: mark("postgres"),
            clickhouse: mark("clickhouse"),
            sasl: mark("sasl"),
            key_password: mark("key-password"),
            bearer: mark("bearer"),
            key_hex: [Uuid::new_v4(), Uuid::new_v4()].map(|id| id.simple().to_string()).concat(),
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

    fn all(&self) -> [&str; 8] {
        let Self { postgres, clickhouse, sasl, key_password, bearer, key_hex, plain } = self;
        [postgres, clickhouse, sasl, key_password, bearer, key_hex, plain, SOURCE_KEY.1]
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
                    .map(|user| format!("clickhouse.{user}_password={}", self.clickhouse))),
                config.to_owned(),
            ),
            ("clickhouse away", set(&["clickhouse.url=http://127.0.0.1:1".to_owned()]), config.to_owned()),
            (
                "sasl to a broker without",
                set(&["kafka.security.protocol=sasl_plaintext".to_owned()]),
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
        for secret in self.all() {
            assert!(!text.contains(secret), "{what} holds {secret}:\n{}", around(text, secret));
        }
    }

    /// Also nothing of the private key that signs tokens.
    pub fn assert_absent_all(&self, written: &Written, pipeline: &Pipeline) -> anyhow::Result<()> {
        let config = pipeline.api_config(1);
        let jwks = config.rsplit("key_file = ").next().context("a key file")?.trim().trim_matches('"');
        let key =
            std::fs::read_to_string(std::path::Path::new(jwks).with_file_name(usage_access::SIGNING_FILE))?;
        for (what, text) in &written.0 {
            self.assert_absent(what, text);
            for line in key.lines().filter(|line| line.len() > 20 && !line.starts_with("-----")) {
                assert!(!text.contains(line), "{what} holds a line of the private key");
            }
            assert!(!text.contains("BEGIN PRIVATE KEY") && !text.contains("Bearer ey"), "{what}");
        }
        Ok(())
    }
}

/// What one source emits, each part of it a text that nothing else holds.
pub struct Marked {
    pub tenant: Uuid,
    pub value: String,
    pub other_value: String,
    pub subject: Uuid,
    pub resource: Uuid,
    pub metadata: String,
}

impl Marked {
    pub fn new() -> Self {
        let digits = || (Uuid::new_v4().as_u128() % 10_u128.pow(15) + 10_u128.pow(15)).to_string();
        Self {
            tenant: Uuid::new_v4(),
            value: format!("{}.5", digits()),
            other_value: format!("{}.25", digits()),
            subject: Uuid::new_v4(),
            resource: Uuid::new_v4(),
            metadata: format!("marked-metadata-{}", Uuid::new_v4().simple()),
        }
    }

    pub async fn emit(
        &self,
        pipeline: &Pipeline,
        metric: &str,
        key: &str,
        at: &'static str,
    ) -> anyhow::Result<()> {
        self.emit_value(pipeline, metric, key, at, &self.value).await
    }

    pub async fn emit_value(
        &self,
        pipeline: &Pipeline,
        metric: &str,
        key: &str,
        at: &'static str,
        value: &str,
    ) -> anyhow::Result<()> {
        let sql = format!(
            "SELECT usage_emit($1, $2, $3::numeric, $4, {at}, resource_id => $5, resource_type => 'vm', subject_id => $6, \
             subject_type => 'user', metadata => $7::json)"
        );
        let metadata = serde_json::json!({"note": self.metadata}).to_string();
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(self.tenant)
            .bind(metric)
            .bind(value)
            .bind(key)
            .bind(self.resource)
            .bind(self.subject)
            .bind(metadata)
            .execute(&pipeline.source)
            .await?;
        Ok(())
    }

    /// Questions that are answered and questions that are refused, all of them with what is marked.
    pub async fn ask(&self, api: &Api, secrets: &Secrets) -> anyhow::Result<Vec<(u16, String)>> {
        let (subject, resource) = (self.subject.to_string(), self.resource.to_string());
        let (from, to) = RANGE;
        let mut answers = Vec::new();
        let raw = "/v1/usage/raw";
        for (path, query) in [
            (raw, vec![("from", from), ("to", to), ("subject_id", subject.as_str())]),
            (raw, vec![("from", from), ("to", to), ("resource_id", resource.as_str())]),
            (raw, vec![("from", subject.as_str()), ("to", self.value.as_str())]),
            (raw, vec![("from", from), ("to", to), (self.metadata.as_str(), self.value.as_str())]),
            (raw, vec![("from", from), ("to", to), ("cursor", self.metadata.as_str())]),
            (raw, vec![("from", from), ("to", to), ("subject_id", self.metadata.as_str())]),
            (
                "/v1/usage/aggregated",
                vec![("from", from), ("to", to), ("group_by", "metric,subject"), ("subject_id", &subject)],
            ),
            ("/v1/usage/aggregated", vec![("from", from), ("to", to), ("metric", self.metadata.as_str())]),
            (&format!("/v1/usage/records/{resource}"), vec![]),
            (&format!("/v1/usage/records/{}", self.metadata), vec![]),
            (&format!("/v1/usage/{subject}"), vec![]),
        ] {
            answers.push(api.try_get(self.tenant, path, &query).await?);
        }
        let client = reqwest::Client::new();
        for token in [secrets.bearer.clone(), format!("ey{}.{}.x", secrets.bearer, self.metadata)] {
            let answer = client.get(format!("{}{raw}", api.url)).bearer_auth(token).send().await?;
            answers.push((answer.status().as_u16(), answer.text().await?));
        }
        Ok(answers)
    }

    /// The answers are the caller's own; everything else must not hold a part of a record.
    pub fn assert_absent_all(&self, written: &Written) {
        let bare = self.metadata.trim_start_matches("marked-metadata-");
        let base64 = base64::engine::general_purpose::STANDARD_NO_PAD.encode(&self.metadata);
        let mut parts = vec![bare.to_owned(), base64];
        for value in [&self.value, &self.other_value] {
            parts.push(value.split('.').next().unwrap_or(value).to_owned());
        }
        for id in [self.subject, self.resource] {
            parts.extend([id.to_string(), id.simple().to_string()]);
        }
        for (what, text) in written.0.iter().filter(|(what, _)| what != "answers") {
            for part in &parts {
                assert!(!text.contains(part), "{what} holds {part}:\n{}", around(text, part));
            }
        }
    }
}

/// Everything that was written, by who wrote it.
#[derive(Default)]
pub struct Written(Vec<(String, String)>);

impl Written {
    pub fn add(&mut self, what: &str, text: impl Into<String>) {
        self.0.push((what.to_owned(), text.into()));
    }
}

/// The lines that hold a text.
fn around(text: &str, part: &str) -> String {
    text.lines().filter(|line| line.contains(part)).take(3).collect::<Vec<_>>().join("\n")
}
