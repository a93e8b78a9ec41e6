//! `usagectl quota …` as operators call it, on the run's real Postgres.

use std::process::Command;

use serde_json::{Value, json};
use usage_control::testing::with_database;
use usage_control::{Advance, QuotaKey};
use usage_devstack::testing::control_database_url;

const TENANT: &str = "0b4c9e2e-3d6f-4c53-8a3f-0f1a2b3c4d5e";

/// Exit code and what was printed, on standard output and error together.
fn run(url: &str, line: &str) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_usagectl"))
        .args(line.split_whitespace())
        .env_clear()
        .env("USAGE_CONTROL_DATABASE_URL", url)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn quotas_are_set_listed_shown_and_removed() {
    with_database(&control_database_url(), |database| async move {
        let done = |line: &str| {
            let (code, text) = run(database.url(), line);
            assert_eq!(code, Some(0), "{line}: {text}");
            text
        };
        let json = |line: &str| serde_json::from_str::<Value>(&done(line)).unwrap();
        done("control migrate");
        assert_eq!(json("quota list --json"), json!([]));
        let show = format!("quota show mail --tenant {TENANT}");
        assert!(done(&show).starts_with("no bound: nothing is set"));

        done("quota set --every-source --records 100 --window 1h");
        assert_eq!(
            done("quota set mail --records 5 --window 90s"),
            "source mail: 5 records in 1m 30s\n\
             warning: source mail has no key, so nothing of it is taken, see `usagectl source list`\n"
        );
        assert!(done(&show).starts_with("5 records in 1m 30s, set for source mail\n"));
        done(&format!("quota set mail --tenant {TENANT} --unlimited"));
        assert!(done(&show).starts_with(&format!("no bound, set for tenant {TENANT} of source mail\n")));
        let listed = json("quota list --json");
        let columns = |rule: &Value| {
            ["source", "tenant_id", "max_records", "window_seconds"].map(|name| rule[name].clone())
        };
        let listed: Vec<_> = listed.as_array().unwrap().iter().map(columns).collect();
        let expected = json!([[null, null, 100, 3600], ["mail", null, 5, 90], ["mail", TENANT, null, null],]);
        assert_eq!(json!(listed), expected);
        let table = done("quota list");
        for part in ["(every source)", "(every tenant)", "no bound", "100 records in 1h"] {
            assert!(table.contains(part), "{part} is not in {table}");
        }

        let control = database.control().await;
        control.open_progress(0).await.unwrap();
        let tenant_id = TENANT.parse().unwrap();
        let key = QuotaKey { source: "mail".into(), tenant_id, window_seconds: 90, window_start: 180 };
        let quota_counts = vec![(key, 4)];
        control
            .advance(&[Advance { batch_seq: 1, next_offset: 1, quota_counts, ..Advance::default() }])
            .await
            .unwrap();
        control.close().await;
        let remove = format!("quota remove mail --tenant {TENANT}");
        assert!(done(&remove).contains("removed"));
        let shown = json(&format!("{show} --json"));
        assert_eq!((&shown["holds"]["source"], &shown["holds"]["max_records"]), (&json!("mail"), &json!(5)));
        let window = json!([{
            "window_seconds": 90,
            "from": "1970-01-01T00:03:00.000000Z",
            "to": "1970-01-01T00:04:30.000000Z",
            "kept": 4,
        }]);
        assert_eq!(shown["windows"], window);
        let (code, text) = run(database.url(), &remove);
        assert!(code == Some(1) && text.contains("has no quota of its own"), "{text}");
    })
    .await;
}
