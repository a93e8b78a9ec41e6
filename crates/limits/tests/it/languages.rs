//! The plain SQL and the SQL functions, as other drivers and languages use them.

use std::time::Duration;

use usage_devstack::pgwire::Connection;

use crate::support::{allowance, mails, number, refusal, run_on, used, with_database};

const PERIOD: &str = "'2026-11-01 00:00Z'";

#[tokio::test]
async fn the_functions_spend_fail_and_refund() {
    with_database(|pool| async move {
        run_on(&pool, &allowance().migration_sql()).await;
        // A second run changes nothing.
        run_on(&pool, &allowance().migration_sql()).await;
        let call = |amount: &str, limit: &str| {
            format!(
                "SELECT usage_allowance_consume('notifications_usage', 'a', 'mail_sent', {PERIOD}, {amount}, {limit})"
            )
        };
        assert_eq!(number(&pool, &call("3", "5")).await, 3);
        assert_eq!(number(&pool, &call("2", "\"limit\" => 5")).await, 5);
        assert_eq!(used(&pool, mails("a")).await, 5);
        let (code, message) = refusal(&pool, &call("1", "5")).await;
        assert_eq!(code, "23502");
        assert!(message.contains("\"used\"") && message.contains("notifications_usage"), "{message}");
        assert_eq!(number(&pool, &call("95", "NULL")).await, 100);
        let (code, _) = refusal(&pool, &call("9223372036854775807", "NULL")).await;
        assert_eq!(code, "23502");
        assert_eq!(used(&pool, mails("a")).await, 100);

        let refund = |amount: &str| {
            format!(
                "SELECT usage_allowance_refund('notifications_usage', 'a', 'mail_sent', {PERIOD}, {amount})"
            )
        };
        assert_eq!(number(&pool, &refund("60")).await, 40);
        assert_eq!(number(&pool, &refund("60")).await, 0);
        let (code, message) = refusal(&pool, &refund("-1")).await;
        assert_eq!((code.as_str(), message.as_str()), ("22023", "amount must be at least 1"));
    })
    .await;
}

#[tokio::test]
async fn the_functions_name_the_argument_that_is_wrong() {
    with_database(|pool| async move {
        run_on(&pool, &allowance().migration_sql()).await;
        for (arguments, field) in [
            (format!("'', 'mail_sent', {PERIOD}, 1"), "subject"),
            (format!("NULL, 'mail_sent', {PERIOD}, 1"), "subject"),
            (format!("'a', '', {PERIOD}, 1"), "meter"),
            ("'a', 'mail_sent', NULL, 1".to_owned(), "period_start"),
            ("'a', 'mail_sent', 'infinity', 1".to_owned(), "period_start"),
            (format!("'a', 'mail_sent', {PERIOD}, 0"), "amount"),
            (format!("'a', 'mail_sent', {PERIOD}, NULL"), "amount"),
            (format!("'a', 'mail_sent', {PERIOD}, -5, 10"), "amount"),
            (format!("'a', 'mail_sent', {PERIOD}, 1, -1"), "limit"),
        ] {
            let call = format!("SELECT usage_allowance_consume('notifications_usage', {arguments})");
            let (code, message) = refusal(&pool, &call).await;
            assert!(code == "22023" && message.starts_with(field), "{arguments}: {code} {message}");
        }
        assert_eq!(number(&pool, "SELECT count(*) FROM notifications_usage").await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_table_in_a_schema_has_its_functions_there() {
    with_database(|pool| async move {
        run_on(&pool, "CREATE SCHEMA billing").await;
        let placed = usage_limits::Allowance::new("billing.spent").unwrap();
        run_on(&pool, &placed.migration_sql()).await;
        let call = "SELECT billing.usage_allowance_consume('billing.spent', 'a', 'mail_sent', now(), 1, 1)";
        assert_eq!(number(&pool, call).await, 1);
        let mut tx = pool.begin().await.unwrap();
        let error = placed.consume_in(&mut tx, mails("b"), 2, Some(1)).await.unwrap_err();
        assert!(matches!(error, usage_limits::AllowanceError::Exhausted(_)), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn the_plain_statement_works_prepared_and_in_the_batch_of_another_driver() {
    with_database(|pool| async move {
        run_on(&pool, &allowance().migration_sql()).await;
        run_on(&pool, "CREATE TABLE mails (id integer PRIMARY KEY)").await;
        let options = pool.connect_options();
        let (port, database) = (options.get_port(), options.get_database().unwrap().to_owned());
        let talk = move || {
            // Another driver, which knows nothing of types: everything is text, as in psql.
            let mut other = Connection::open(port, "usage", &database, Duration::from_secs(60)).unwrap();
            other.query(&format!("PREPARE spend AS {}", allowance().consume_sql())).unwrap();
            let spend = |amount: u32| format!("EXECUTE spend ('a', 'mail_sent', {PERIOD}, {amount}, 4);");
            assert_eq!(other.query(&spend(3)).unwrap(), [[Some("3".to_owned())]]);
            // A batch whose results nobody looks at.
            let batch = format!("BEGIN; {} INSERT INTO mails VALUES (1); COMMIT;", spend(2));
            let refused = format!("{:#}", other.query(&batch).unwrap_err());
            assert!(
                refused.contains("23502") || refused.contains("null value in column \"used\""),
                "{refused}"
            );
            other.query("ROLLBACK").unwrap();
            other.query(&format!("BEGIN; {} INSERT INTO mails VALUES (2); COMMIT;", spend(1))).unwrap();
            assert_eq!(other.query("SELECT id FROM mails").unwrap(), [[Some("2".to_owned())]]);
            other.query(&format!("PREPARE back AS {}", allowance().refund_sql())).unwrap();
            let back = format!("EXECUTE back ('a', 'mail_sent', {PERIOD}, 1)");
            assert_eq!(other.query(&back).unwrap(), [[Some("3".to_owned())]]);
        };
        tokio::task::spawn_blocking(talk).await.unwrap();
        assert_eq!(used(&pool, mails("a")).await, 3);
    })
    .await;
}
