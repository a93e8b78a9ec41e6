//! The program as operators call it, on the run's real servers.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use usage_access::{DEFAULT_AUDIENCE, DEFAULT_ISSUER, Scope, Scopes, TokenVerifier};
use usage_control::Advance;
use usage_control::testing::{MASTER_KEY_FILE, TestDatabase, with_database};
use usage_devstack::testing;
use usage_schemas::{Marker, Timestamp};

const TENANT: &str = "0b4c9e2e-3d6f-4c53-8a3f-0f1a2b3c4d5e";

/// Databases and topics of one test, as environment of the program.
struct Place {
    env: BTreeMap<String, String>,
    dir: tempfile::TempDir,
}

struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Place {
    fn new(database: &TestDatabase) -> Self {
        let id = database.url().rsplit('_').next().unwrap().to_string();
        let mut env: BTreeMap<String, String> = [
            ("USAGE_KAFKA_BROKERS", testing::kafka_brokers()),
            ("USAGE_KAFKA_RECORDS_TOPIC", format!("ctl.records.{id}")),
            ("USAGE_KAFKA_DEAD_LETTERS_TOPIC", format!("ctl.dead-letters.{id}")),
            ("USAGE_CLICKHOUSE_URL", testing::clickhouse_url()),
            ("USAGE_CLICKHOUSE_DATABASE", format!("ctl_{id}")),
            ("USAGE_CONTROL_DATABASE_URL", database.url().to_string()),
            ("USAGE_SOURCE_DATABASE_URL", database.url().to_string()),
            ("USAGE_CONTROL_DATABASE_MASTER_KEY_FILE", MASTER_KEY_FILE.to_string()),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into();
        for user in ["WRITER", "READER", "MAINTENANCE"] {
            env.insert(format!("USAGE_CLICKHOUSE_{user}_PASSWORD"), "usage".into());
        }
        Self { env, dir: tempfile::tempdir().unwrap() }
    }

    fn run(&self, line: &[&str]) -> Ran {
        run(self.dir.path(), &self.env, line)
    }

    /// Runs what must succeed; gives what it printed.
    #[track_caller]
    fn done(&self, line: &[&str]) -> String {
        let ran = self.run(line);
        assert_eq!(ran.code, 0, "{line:?}: {}", ran.err);
        ran.out
    }

    /// Runs what must fail; gives code and error.
    #[track_caller]
    fn failed(&self, line: &[&str]) -> (i32, String) {
        let ran = self.run(line);
        assert_ne!(ran.code, 0, "{line:?}: {}", ran.out);
        (ran.code, ran.err)
    }
}

fn run(dir: &Path, env: &BTreeMap<String, String>, line: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_usagectl"));
    command.args(line).env_clear().envs(env).current_dir(dir).stdin(std::process::Stdio::null());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: status.code().unwrap(), out: text(stdout), err: text(stderr) }
}

#[tokio::test]
async fn a_stack_is_prepared_and_prepared_again() {
    with_database(&testing::control_database_url(), |database| async move {
        let place = Place::new(&database);
        let created = place.done(&["topics", "create", "--partitions", "3"]);
        assert_eq!(created.matches("created ctl.").count(), 2, "{created}");
        let control = database.control().await;
        assert_eq!(control.partition_counts().await.unwrap().current, 3);

        // Again: the recorded count is the default, nothing changes.
        let found = place.done(&["topics", "create"]);
        assert_eq!(
            (found.matches("found ctl.").count(), found.matches(": 3 partitions").count()),
            (2, 2),
            "{found}"
        );
        let (code, error) = place.failed(&["topics", "create", "--partitions", "4"]);
        assert!(code == 2 && error.contains("has 3 as the topic's partition count, not 4"), "{error}");
        assert!(error.contains("`usagectl topics grow --partitions 4`"), "{error}");
        let (code, error) = place.failed(&["topics", "create", "--partitions", "2"]);
        assert!(code == 2 && !error.contains("grow"), "{error}");

        for command in ["control", "storage", "outbox", "control", "storage", "outbox"] {
            assert!(place.done(&[command, "migrate"]).contains("up to date"), "{command}");
        }
        let emit: bool = sqlx::query_scalar(
            "SELECT to_regprocedure IS NOT NULL FROM to_regprocedure(
             'usage_emit(uuid, text, numeric, text, timestamptz, text, uuid, text, uuid, text, json)')",
        )
        .fetch_one(control.pool())
        .await
        .unwrap();
        assert!(emit, "the outbox brings usage_emit");
        control.close().await;
    })
    .await;
}

#[tokio::test]
async fn topics_with_other_settings_are_refused_line_by_line() {
    with_database(&testing::control_database_url(), |database| async move {
        let place = Place::new(&database);
        place.done(&["topics", "create", "--partitions", "2"]);
        drop(place);

        // Another control database, the same topics, other wishes: as after a topic was made by hand.
        with_database(&testing::control_database_url(), |other| async move {
            let mut place = Place::new(&other);
            for (name, value) in
                Place::new(&database).env.into_iter().filter(|(name, _)| name.contains("TOPIC"))
            {
                place.env.insert(name, value);
            }
            let swapped = place.env["USAGE_KAFKA_DEAD_LETTERS_TOPIC"].clone();
            let line = ["topics", "create", "--partitions", "5", "--records", &swapped];
            let (code, error) = place.failed(&line);
            assert_eq!(code, 1, "{error}");
            assert!(error.contains("partitions is 2, must be 5"), "{error}");
            assert!(error.contains("retention.ms is -1, must be 1209600000"), "{error}");
            // Nothing was recorded.
            let control = other.control().await;
            assert!(control.partition_counts().await.is_err());
            control.close().await;
            assert!(
                place
                    .failed(&["topics", "create", "--partitions", "2", "--replication", "3"])
                    .1
                    .contains("replication is 1, must be 3")
            );
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn sources_and_their_keys() {
    with_database(&testing::control_database_url(), |database| async move {
        let place = Place::new(&database);
        place.done(&["control", "migrate"]);
        let key = "00112233445566778899aabbccddeeff";
        let add = ["source", "add", "demo", "--key-id", "demo-1", "--key-hex", key];
        assert!(place.done(&add).contains("added key demo-1 of source demo"));
        place.done(&[
            "source",
            "add",
            "demo",
            "--key-id",
            "demo-1",
            "--key-hex",
            key,
            "--valid-until",
            "2030-01-01T00:00:00Z",
        ]);
        // A stack that comes up again must not undo that.
        assert!(place.done(&add).contains("is there already"));
        let other =
            ["source", "add", "demo", "--key-id", "demo-1", "--key-hex", "ffffffffffffffffffffffffffffffff"];
        assert!(place.failed(&other).1.contains("another key already"));

        let printed = place.done(&["source", "add", "mail", "--key-id", "m", "--generate"]);
        let generated = printed.lines().nth(1).unwrap();
        let control = database.control().await;
        let stored = control.source_key("mail", "m").await.unwrap().unwrap();
        let hex: String = secrecy::ExposeSecret::expose_secret(&stored.key)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!((generated, generated.len()), (hex.as_str(), 64));
        control.close().await;

        let list: serde_json::Value =
            serde_json::from_str(&place.done(&["source", "list", "--json"])).unwrap();
        assert_eq!((list[0]["key_id"].as_str(), list[1]["source"].as_str()), (Some("demo-1"), Some("mail")));
        assert_eq!(list[0]["valid_until"], "2030-01-01T00:00:00.000000Z");
        let table = place.done(&["source", "list"]);
        assert!(table.contains("SOURCE") && !table.contains(key) && !table.contains(generated), "{table}");
        let (code, error) = place.failed(&["source", "add", "demo", "--key-id", "a b", "--generate"]);
        assert!(code == 2 && error.contains("--key-id"), "{code} {error}");
    })
    .await;
}

#[tokio::test]
async fn sources_are_listed_with_their_progress_and_retired() {
    with_database(&testing::control_database_url(), |database| async move {
        let place = Place::new(&database);
        place.done(&["control", "migrate"]);
        let control = database.control().await;
        control.init_partitions(1).await.unwrap();
        control.open_progress(0).await.unwrap();
        for source in ["demo", "silent"] {
            place.done(&["source", "add", source, "--key-id", "k", "--generate"]);
        }
        let outboxes = [uuid::Uuid::from_u128(1), uuid::Uuid::from_u128(2)];
        let marker = |outbox: usize, seconds: i64| Marker {
            source: "demo".into(),
            outbox: outboxes[outbox],
            complete_until: Timestamp::from_micros(seconds * 1_000_000),
        };
        let markers = vec![marker(0, 5), marker(1, 3)];
        let heard = Advance { batch_seq: 1, next_offset: 2, markers, ..Advance::default() };
        control.advance(&[heard]).await.unwrap();
        let listed = || {
            let list: serde_json::Value =
                serde_json::from_str(&place.done(&["source", "list", "--json"])).unwrap();
            [list[0]["complete_until"].clone(), list[1]["complete_until"].clone()]
        };
        assert_eq!(listed(), ["1970-01-01T00:00:03.000000Z".into(), serde_json::Value::Null]);
        let table = place.done(&["source", "list"]);
        for part in ["HEARD UNTIL", "1970-01-01T00:00:05.000000Z", "unknown", &outboxes[1].to_string()] {
            assert!(table.contains(part), "{part} is not in {table}");
        }
        let second = outboxes[1].to_string();
        let retire = ["source", "retire", "demo", "--outbox", &second];
        assert!(place.done(&retire).contains("is retired\n"));
        assert!(place.done(&retire).contains("is retired already"));
        assert_eq!(listed()[0], "1970-01-01T00:00:05.000000Z");
        place.done(&["source", "retire", "silent"]);
        assert!(place.done(&["source", "list"]).contains("retired"));
        assert!(control.completeness().await.unwrap().complete_until::<&str>(&[]).is_some());
        let undo = [retire.as_slice(), &["--undo"]].concat();
        assert!(place.done(&undo).contains("counts again"));
        assert_eq!(listed()[0], "1970-01-01T00:00:03.000000Z");
        assert_eq!(place.failed(&undo).0, 1);
        let (code, error) = place.failed(&["source", "retire", "dmeo"]);
        assert!(code == 2 && error.contains("NAME: there is no source dmeo"), "{error}");
        control.close().await;
    })
    .await;
}

#[tokio::test]
async fn gaps_are_listed_and_accepted() {
    with_database(&testing::control_database_url(), |database| async move {
        let place = Place::new(&database);
        place.done(&["control", "migrate"]);
        let control = database.control().await;
        for (partition, from, to) in [(3, 100, 150), (3, 200, 201), (7, 1, 5)] {
            control.record_gap(partition, from, to, None).await.unwrap();
        }
        let accepted = || {
            let list: serde_json::Value =
                serde_json::from_str(&place.done(&["gaps", "list", "--json"])).unwrap();
            let accepted = |gap: &serde_json::Value| gap["accepted"].as_bool().unwrap();
            list.as_array().unwrap().iter().map(accepted).collect::<Vec<_>>()
        };
        assert_eq!(accepted(), [false, false, false]);
        let (code, error) = place.failed(&["gaps", "accept", "--partition", "3", "--from", "101"]);
        assert!(code == 1 && error.contains("no such gap"), "{error}");
        assert!(place.done(&["gaps", "accept", "--partition", "3", "--from", "200"]).contains("201"));
        assert_eq!(accepted(), [false, true, false]);
        place.done(&["gaps", "accept", "--partition", "3"]);
        assert_eq!(accepted(), [true, true, false]);
        place.done(&["gaps", "accept", "--all"]);
        assert_eq!(accepted(), [true, true, true]);
        let table = place.done(&["gaps", "list"]);
        assert!(table.contains("ACCEPTED") && table.matches("yes").count() == 3, "{table}");
        control.close().await;
    })
    .await;
}

#[tokio::test]
async fn usage_types() {
    with_database(&testing::control_database_url(), |database| async move {
        let place = Place::new(&database);
        place.done(&["control", "migrate"]);
        let add = ["types", "add", "llm.tokens", "--kind", "counter", "--unit", "token"];
        assert!(place.done(&add).contains("registered llm.tokens"));
        assert!(place.done(&add).contains("already"));
        let (code, error) =
            place.failed(&["types", "add", "llm.tokens", "--kind", "gauge", "--unit", "token"]);
        assert!(code == 1 && error.contains("registered as a counter in token"), "{error}");
        let (code, error) = place.failed(&["types", "add", "x", "--kind", "gauge", "--unit", ""]);
        assert!(code == 2 && error.contains("--unit"), "{error}");
        let list: serde_json::Value =
            serde_json::from_str(&place.done(&["types", "list", "--json"])).unwrap();
        assert_eq!(
            (list[0]["name"].as_str(), list[0]["kind"].as_str(), list[1].is_null()),
            (Some("llm.tokens"), Some("counter"), true)
        );
        assert!(place.done(&["types", "list"]).contains("llm.tokens"));

        let second = |from: &'static str, max: &'static str| {
            [
                "types",
                "add",
                "llm.tokens",
                "--kind",
                "counter",
                "--unit",
                "token",
                "--version",
                "2",
                "--valid-from",
                from,
                "--rules",
                max,
            ]
        };
        let (code, error) = place.failed(&second("2026-01-01T00:00:00Z", r#"{"max":"-1"}"#));
        assert!(code == 2 && error.contains("--rules") && error.contains("/max"), "{error}");
        let (code, error) = place.failed(&second("2026-01-01T00:00:00Z", r#"{"max":"5"}"#));
        assert!(code == 1 && error.contains("valid_from: must lie at least 10 minutes from now"), "{error}");
        let version = second("2199-01-01T00:00:00Z", r#"{"max":"5.0"}"#);
        assert!(place.done(&version).contains("registered version 2 of llm.tokens"));
        assert!(place.done(&version).contains("already"));
        let (code, error) = place.failed(&second("2199-01-01T00:00:00Z", r#"{"max":"6"}"#));
        assert!(code == 1 && error.contains(r#"rules {"max":"5"}"#), "{error}");
        let shown: serde_json::Value =
            serde_json::from_str(&place.done(&["types", "show", "llm.tokens", "--json"])).unwrap();
        let field = |version: usize, name: &str| shown[version][name].clone();
        assert_eq!(
            (
                field(0, "version"),
                field(0, "valid_from"),
                field(0, "rules"),
                field(1, "valid_from"),
                field(1, "name")
            ),
            (
                2.into(),
                "2199-01-01T00:00:00.000000Z".into(),
                serde_json::json!({"max": "5"}),
                serde_json::Value::Null,
                "llm.tokens".into()
            )
        );
        assert!(place.done(&["types", "show", "llm.tokens"]).contains("all times"));
        assert!(place.done(&["types", "list"]).contains(r#"{"max":"5"}"#));
        let (code, error) = place.failed(&["types", "show", "llm.token"]);
        assert!(code == 1 && error.contains("no usage type"), "{error}");
    })
    .await;
}

#[test]
fn tokens_are_taken_by_the_verifier() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("target/stack/keys");
    let env = BTreeMap::new();
    let ran = |line: &[&str]| run(dir.path(), &env, line);
    let made = ran(&["keys", "generate", "--dir", "target/stack/keys"]);
    assert_eq!(made.code, 0, "{}", made.err);
    assert!(ran(&["keys", "generate", "--dir", "target/stack/keys"]).out.contains("they stay"));

    let verifier =
        TokenVerifier::from_file(&keys.join("jwks.json"), DEFAULT_ISSUER, DEFAULT_AUDIENCE).unwrap();
    let token = ran(&["token", "--tenant", TENANT]);
    assert_eq!((token.code, token.out.lines().count()), (0, 1), "{}", token.err);
    let context = verifier.verify(token.out.trim()).unwrap();
    assert_eq!(
        (context.tenant_id.to_string().as_str(), context.scopes, context.subject_id),
        (TENANT, Scopes::all(), None)
    );

    let subject = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
    let narrow = ran(&[
        "token",
        "--tenant",
        TENANT,
        "--subject",
        subject,
        "--subject-type",
        "user",
        "--scope",
        "usage:read",
        "--ttl",
        "5m",
    ]);
    let context = verifier.verify(narrow.out.trim()).unwrap();
    assert_eq!(context.subject_id.unwrap().to_string(), subject);
    assert_eq!(
        (context.subject_type.as_deref(), context.scopes),
        (Some("user"), Scopes::NONE.with(Scope::Read))
    );

    // The key by variable and by argument.
    let elsewhere = dir.path().join("elsewhere");
    assert_eq!(ran(&["keys", "generate", "--dir", elsewhere.to_str().unwrap()]).code, 0);
    let key = elsewhere.join("signing.pem").to_string_lossy().into_owned();
    let env = BTreeMap::from([("USAGE_TOKEN_KEY_FILE".to_string(), key.clone())]);
    for token in [
        run(dir.path(), &env, &["token", "--tenant", TENANT]),
        ran(&["token", "--tenant", TENANT, "--key", &key]),
    ] {
        assert!(verifier.verify(token.out.trim()).is_err(), "signed with the other key");
    }
    let absent = ran(&["token", "--tenant", TENANT, "--key", "nothing.pem"]);
    assert!(
        absent.code == 2 && absent.err.contains("--key: can't read nothing.pem") && absent.out.is_empty(),
        "{}",
        absent.err
    );
}

#[test]
fn wrong_input_ends_with_2_and_names_itself() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("bad.toml"), "[kafka]\nbroker = 'x'\n").unwrap();
    let env = BTreeMap::new();
    for (line, part) in [
        (&["token"][..], "--tenant"),
        (&["types", "list"], "`control_database.url` is missing"),
        (&["types", "list", "--config", "bad.toml"], "did you mean `kafka.brokers`?"),
        (&["types", "list", "--set", "kafka.brokers"], "PATH=VALUE"),
        (
            &["types", "list", "--set", "control_database.url=nonsense://"],
            "postgres://user:password@host:port/name",
        ),
        (&["source", "add", "demo", "--key-id", "1", "--key-hex", "-"], "--key-hex"),
        (
            &["source", "add", "demo", "--key-id", "1", "--key-hex", "c0ffee"],
            "--key-hex: expected at least 16 bytes",
        ),
        (&["bogus"], "bogus"),
        (&["--set", "kafka.brokers=k"], "COMMAND"),
    ] {
        let ran = run(dir.path(), &env, line);
        assert!(ran.err.contains(part), "{line:?}: {part:?} is not in {:?}", ran.err);
        assert_eq!(ran.code, 2, "{line:?}: {}", ran.err);
        assert!(!ran.err.contains("c0ffee"), "a mistyped key is repeated: {}", ran.err);
    }
}
