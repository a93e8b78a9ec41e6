//! `usagectl source …` and `source-key …` as operators call them.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use secrecy::ExposeSecret as _;
use usage_control::testing::{MASTER_KEY_FILE, TestDatabase, with_database};
use usage_devstack::testing;

const OTHER: &str = "0202020202020202020202020202020202020202020202020202020202020202";
const HOME: &str = "0b4c9e2e-3d6f-4c53-8a3f-0f1a2b3c4d5e";

/// The program on one test's control database.
struct Place {
    env: BTreeMap<String, String>,
    dir: tempfile::TempDir,
}

impl Place {
    fn new(database: &TestDatabase) -> Self {
        let env = BTreeMap::from([
            ("USAGE_CONTROL_DATABASE_URL".to_string(), database.url().to_string()),
            ("USAGE_CONTROL_DATABASE_MASTER_KEY_FILE".to_string(), MASTER_KEY_FILE.to_string()),
        ]);
        let place = Self { env, dir: tempfile::tempdir().unwrap() };
        place.done(&["control", "migrate"]);
        place
    }

    /// Exit code, output and errors.
    fn run(&self, line: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_usagectl"));
        command.args(line).env_clear().envs(&self.env).current_dir(self.dir.path());
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    #[track_caller]
    fn done(&self, line: &[&str]) -> String {
        let (code, out, error) = self.run(line);
        assert_eq!(code, 0, "{line:?}: {error}");
        out
    }

    #[track_caller]
    fn refused(&self, line: &[&str], part: &str) {
        let (code, out, error) = self.run(line);
        assert!(code == 2 && error.contains(part), "{line:?} ended with {code}: {error}{out}");
    }

    #[track_caller]
    fn json(&self, line: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.done(line)).unwrap()
    }
}

#[tokio::test]
async fn a_key_is_shown_once_and_its_validity_is_ended_and_restored() {
    with_database(&testing::control_database_url(), |database| async move {
        let place = Place::new(&database);
        let (code, created, hint) = place.run(&["source-key", "create", "mail"]);
        assert!(code == 0 && hint.contains("usagectl source set mail"), "{code}: {hint}");
        let key = created.lines().nth(1).unwrap();
        assert!(key.len() == 64 && created.contains("only time"), "{created}");
        let made = place.json(&[
            "source-key",
            "create",
            "mail",
            "--key-id",
            "m2",
            "--valid-from",
            "2026-01-01T00:00:00Z",
            "--json",
        ]);
        let (id, second) = (made["key_id"].as_str(), made["key"].as_str().unwrap());
        assert!(id == Some("m2") && second.len() == 64 && second != key);
        assert_eq!(place.run(&["source-key", "create", "mail", "--key-id", "m2"]).0, 1, "it is another key");

        let control = database.control().await;
        let stored = control.source_key("mail", "m2").await.unwrap().unwrap();
        let hex: String = stored.key.expose_secret().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, second);
        control.close().await;

        let end = "2026-06-01T00:00:00Z";
        let (_, revoked, warning) = place.run(&["source-key", "revoke", "mail", "m2", "--at", end]);
        assert!(revoked.contains("valid until 2026-06-01T00:00:00.000000Z"), "{revoked}");
        assert!(warning.contains("replayed") && warning.contains("retention"), "{warning}");
        assert!(place.done(&["source-key", "revoke", "mail", "m2"]).contains("valid until 2026-06-01"));
        let listed = place.json(&["source-key", "list", "mail", "--json"]);
        let states: Vec<_> =
            listed.as_array().unwrap().iter().map(|key| key["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["valid", "ended"]);
        assert!(place.done(&["source-key", "revoke", "mail", "m2", "--undo"]).contains("valid without end"));
        let early = ["source-key", "revoke", "mail", "m2", "--at", "2025-01-01T00:00:00Z"];
        assert!(place.done(&early).contains("removed"));
        place.refused(&early, "KEY_ID: source mail has no key m2");
        assert_eq!(place.json(&["source-key", "list", "llm", "--json"]), serde_json::json!([]));

        for line in [&["source-key", "list"][..], &["source-key", "list", "--json"], &["source", "list"]] {
            let shown = place.done(line);
            assert!(shown.contains("mail") && !shown.contains(key) && !shown.contains(second), "{shown}");
        }
    })
    .await;
}

/// A key that somebody else has must not live on because an operator's clock is ahead, nor take back what was sent before.
#[tokio::test]
async fn a_key_that_is_revoked_now_ends_by_the_databases_clock() {
    with_database(&testing::control_database_url(), |database| async move {
        let place = Place::new(&database);
        place.done(&["source-key", "create", "mail", "--key-id", "m1"]);
        // Two hours behind this machine's.
        for statement in [
            "CREATE SCHEMA slow",
            "CREATE FUNCTION slow.clock_timestamp() RETURNS timestamptz LANGUAGE sql
             RETURN pg_catalog.clock_timestamp() - interval '2 hours'",
            "DO $do$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = slow, pg_catalog, public', current_database()); END $do$",
        ] {
            database.execute(statement).await;
        }
        place.done(&["source-key", "revoke", "mail", "m1"]);
        let control = database.control().await;
        let until = control.source_key("mail", "m1").await.unwrap().unwrap().valid_until.unwrap();
        let behind = usage_service::clock::now_micros() - until;
        assert!((7_200_000_000..7_800_000_000).contains(&behind), "{behind}");
        control.close().await;
    })
    .await;
}

#[tokio::test]
async fn it_is_said_whose_usage_a_source_emits() {
    with_database(&testing::control_database_url(), |database| async move {
        let place = Place::new(&database);
        let add = |more: &[&str]| {
            let key =
                ["source", "add", "mail", "--key-id", "m", "--key-hex", "00112233445566778899aabbccddeeff"];
            place.done(&[&key[..], more].concat())
        };
        let said = || {
            let list = place.json(&["source", "list", "--json"]);
            (list[0]["home_tenant"].as_str().map(str::to_owned), list[0]["any_tenant"].as_bool().unwrap())
        };
        add(&["--home-tenant", HOME]);
        assert_eq!(said(), (Some(HOME.into()), false));
        // A stack that comes up again does not undo what an operator said.
        add(&["--any-tenant"]);
        assert_eq!(said(), (Some(HOME.into()), false));
        assert!(place.done(&["source", "set", "mail", "--any-tenant"]).contains("any tenant"));
        assert_eq!(said(), (None, true));
        assert!(place.done(&["source", "list"]).contains("EMITS USAGE OF"));
        place.done(&["source", "set", "mail", "--by-policy"]);
        assert_eq!(said(), (None, false));
    })
    .await;
}

#[tokio::test]
async fn a_master_key_that_is_missing_or_another_is_named_and_can_be_exchanged() {
    with_database(&testing::control_database_url(), |database| async move {
        let mut place = Place::new(&database);
        let key = place.done(&["source-key", "create", "mail", "--key-id", "m"]);
        let first = place.env.remove("USAGE_CONTROL_DATABASE_MASTER_KEY_FILE").unwrap();
        place.refused(&["source-key", "create", "mail"], "`control_database.master_key`");
        place.refused(&["source-key", "rewrap"], "`control_database.master_key`");
        assert!(place.done(&["source-key", "list"]).contains("mail"), "showing needs none");
        place.env.insert("USAGE_CONTROL_DATABASE_MASTER_KEY".into(), OTHER.into());
        place.refused(&["source-key", "rewrap"], "is sealed under master key");
        place.env.insert("USAGE_CONTROL_DATABASE_OTHER_MASTER_KEY_FILE".into(), first);
        assert!(place.done(&["source-key", "rewrap"]).starts_with("1 keys are sealed anew, 0 were"));
        place.env.remove("USAGE_CONTROL_DATABASE_OTHER_MASTER_KEY_FILE");
        assert!(place.done(&["source-key", "rewrap"]).starts_with("0 keys are sealed anew, 1 were"));
        // The key itself is the one that was shown.
        let hex = key.lines().nth(1).unwrap();
        let same = ["source", "add", "mail", "--key-id", "m", "--key-hex", hex];
        assert!(place.done(&same).contains("is there already"));

        place.env.insert("USAGE_CONTROL_DATABASE_MASTER_KEY".into(), "c0ffee".into());
        let (code, _, error) = place.run(&["source-key", "list"]);
        assert!(code == 2 && error.contains("control_database.master_key: expected 32 bytes"), "{error}");
        assert!(!error.contains("c0ffee"), "{error}");
        place.env.insert("USAGE_CONTROL_DATABASE_MASTER_KEY".into(), OTHER.into());
        let shown = place.done(&["--check-config"]);
        assert!(shown.contains("master_key = \"***\"") && !shown.contains(OTHER), "{shown}");
    })
    .await;
}

#[tokio::test]
async fn a_key_that_can_t_be_shown_is_not_made() {
    with_database(&testing::control_database_url(), |database| async move {
        let place = Place::new(&database);
        let into = |line: &[&str], out: Stdio| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_usagectl"));
            command.args(line).env_clear().envs(&place.env).stdin(Stdio::null()).stdout(out);
            let output = command.stderr(Stdio::piped()).output().unwrap();
            (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
        };
        let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
        let gone = || Stdio::from(std::io::pipe().unwrap().1);
        for out in [full, gone] as [fn() -> Stdio; 2] {
            for line in [
                &["source-key", "create", "mail"][..],
                &["source", "add", "mail", "--key-id", "m", "--generate"],
            ] {
                let (code, error) = into(line, out());
                assert!(
                    code == 1 && error.contains("standard output") && error.contains("the key was not"),
                    "{error}"
                );
            }
        }
        assert_eq!(place.json(&["source-key", "list", "--json"]), serde_json::json!([]));
        let (code, error) = into(&["source-key", "list"], full());
        assert!(code == 1 && error.starts_with("error: standard output: "), "{code}: {error}");
        assert_eq!(into(&["source-key", "list"], gone()), (141, String::new()));
    })
    .await;
}

#[tokio::test]
async fn what_is_said_of_nobody_is_warned_of_and_refused_where_it_would_find_nothing() {
    with_database(&testing::control_database_url(), |database| async move {
        let place = Place::new(&database);
        place.done(&["source-key", "create", "mail", "--key-id", "m"]);
        for line in [
            &["source", "set", "mial", "--any-tenant"][..],
            &["quota", "set", "mial", "--records", "5", "--window", "1m"],
            &["quota", "set", "mial", "--tenant", HOME, "--unlimited"],
        ] {
            let (code, _, warning) = place.run(line);
            let part = "warning: source mial has no key";
            assert!(
                code == 0 && warning.contains(part) && warning.contains("did you mean mail?"),
                "{warning}"
            );
        }
        for line in [&["source", "set", "mail", "--any-tenant"][..], &["quota", "set", "mail", "--unlimited"]]
        {
            assert_eq!(place.run(line).2, "", "{line:?}");
        }
        place.run(&["quota", "set", "llm", "--unlimited"]);
        let listed = place.done(&["source", "list"]);
        assert!(listed.lines().any(|line| line.contains("mial") && line.contains("(no key)")), "{listed}");
        let listed = place.json(&["source", "list", "--json"]);
        let listed: Vec<_> = listed
            .as_array()
            .unwrap()
            .iter()
            .map(|row| (row["source"].as_str().unwrap(), row["key_id"].as_str()))
            .collect();
        assert_eq!(listed, [("mail", Some("m")), ("llm", None), ("mial", None)]);

        place.refused(&["verify", "--metric", "mail.snt"], "--metric: no usage type has the name mail.snt");
        let token = ["token", "--tenant", HOME];
        place.refused(&token, "token.key_file (or --key): can't read target/stack/keys/signing.pem");
        place.refused(&[&token[..], &["--key", "absent.pem"]].concat(), "--key: can't read absent.pem");
        place.done(&["types", "add", "mail.sent", "--kind", "counter", "--unit", "mail"]);
        let types = place.done(&["types", "list"]);
        assert!(types.contains("VALID FROM") && types.contains("all times"), "{types}");
    })
    .await;
}
