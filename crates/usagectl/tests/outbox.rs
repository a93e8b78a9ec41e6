//! `usagectl outbox repair` and `outbox dead-letters`, as operators call them, on a real Postgres.

use std::process::Command;

use serde_json::Value;
use sqlx::{Connection as _, PgConnection};
use usage_control::testing::with_database;
use usage_devstack::testing;

const TENANT: &str = "0b4c9e2e-3d6f-4c53-8a3f-0f1a2b3c4d5e";

/// Runs the program on a source database; gives exit code and what it printed, on both streams.
fn run(url: &str, line: &str) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_usagectl"))
        .args(line.split_whitespace())
        .env_clear()
        .env("USAGE_SOURCE_DATABASE_URL", url)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[track_caller]
fn done(url: &str, line: &str) -> String {
    let (code, out, err) = run(url, line);
    assert_eq!(code, 0, "{line}: {err}");
    out
}

#[track_caller]
fn json(url: &str, line: &str) -> Value {
    serde_json::from_str(&done(url, &format!("{line} --json"))).unwrap()
}

/// Three dead letters: ids 1 to 3.
async fn dead_letters(url: &str) -> PgConnection {
    let mut connection = PgConnection::connect(url).await.unwrap();
    for (source, reason) in [(None, "too_large"), (Some("vm-manager"), "too_large"), (None, "not_encodable")]
    {
        sqlx::query(
            "INSERT INTO usage_outbox_dead_letters (part, id, tenant_id, emitted_at, payload_type, source, payload, reason, error) \
             VALUES (0, 1, $1::uuid, '2026-01-02T03:04:05Z', 't', $2, '{}', $3, 'it is so')",
        )
        .bind(TENANT)
        .bind(source)
        .bind(reason)
        .execute(&mut connection)
        .await
        .unwrap();
    }
    connection
}

#[tokio::test]
async fn dead_letters_are_listed_and_decided() {
    with_database(&testing::control_database_url(), |database| async move {
        let url = database.url();
        done(url, "outbox migrate");
        let connection = dead_letters(url).await;
        let table = done(url, "outbox dead-letters list");
        assert!(
            table.contains("vm-manager") && table.contains(TENANT) && table.contains("it is so"),
            "{table}"
        );
        let found = json(url, "outbox dead-letters list --source - --reason too_large");
        assert_eq!(found.as_array().unwrap().len(), 1);
        assert_eq!(found[0]["dead_letter_id"], 1);
        assert_eq!(found[0]["emitted_at"], "2026-01-02T03:04:05.000000Z");
        assert_eq!((&found[0]["state"], &found[0]["source"]), (&Value::from("open"), &Value::Null));
        let (code, out, err) = run(url, "outbox dead-letters list --limit 2 --json");
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap().as_array().unwrap().len(), 2);
        assert!(code == 0 && err.contains("more than 2"), "{err}");

        let dry = json(url, &format!("outbox dead-letters retry --tenant {TENANT} --dry-run"));
        assert_eq!(dry, serde_json::json!({ "dry_run": true, "count": 3, "dead_letter_ids": [1, 2, 3] }));
        assert!(done(url, "outbox dead-letters discard --all --dry-run").contains("3 would be discarded"));
        assert_eq!(json(url, "outbox dead-letters list").as_array().unwrap().len(), 3, "nothing has changed");

        assert_eq!(json(url, "outbox dead-letters resolve 3 --by ada --note ticket-17")["count"], 1);
        assert!(done(url, "outbox dead-letters discard --source vm-manager").contains("1 discarded"));
        assert!(done(url, "outbox dead-letters retry --all").contains("1 retried"));
        assert_eq!(json(url, "outbox dead-letters list"), serde_json::json!([]));
        let resolved = json(url, "outbox dead-letters list --state resolved");
        assert_eq!((&resolved[0]["decided_by"], &resolved[0]["note"]), (&"ada".into(), &"ticket-17".into()));
        assert_eq!(json(url, "outbox dead-letters list --state all").as_array().unwrap().len(), 3);
        connection.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_lagging_sequence_is_repaired() {
    with_database(&testing::control_database_url(), |database| async move {
        let url = database.url();
        let (code, _, err) = run(url, "outbox repair");
        assert!(code == 1 && err.contains("usage_outbox"), "without an outbox: {err}");
        done(url, "outbox migrate");
        assert!(done(url, "outbox repair").contains("nothing to repair"));
        let mut connection = PgConnection::connect(url).await.unwrap();
        sqlx::raw_sql(
            "SELECT usage_emit(gen_random_uuid(), 'm', 1, 'k' || n) FROM generate_series(1, 20) AS n; \
             INSERT INTO usage_outbox_waiting (part, id, tenant_id, emitted_at, payload_type, payload) \
             VALUES (0, 40, gen_random_uuid(), now(), 't', ''); \
             SELECT setval('usage_outbox_id_seq', 7); \
             UPDATE usage_outbox_partitions SET complete_until = '2199-01-01T00:00:00Z' WHERE part = 1",
        )
        .execute(&mut connection)
        .await
        .unwrap();
        let said = done(url, "outbox repair");
        assert!(said.contains("stood at 7, a row has id 40: set it to 1040"), "{said}");
        assert!(said.contains("behind 2199-01-01T00:00:00"), "{said}");
        let again = json(url, "outbox repair");
        assert_eq!((&again["stood_at"], &again["set_to"]), (&1_040.into(), &Value::Null));
        let next: i64 = sqlx::query_scalar("SELECT nextval('usage_outbox_id_seq')")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(next, 1_041);
        connection.close().await.unwrap();
    })
    .await;
}
