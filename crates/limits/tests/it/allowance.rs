//! What a spending means, one caller at a time.

use time::OffsetDateTime;
use time::macros::datetime;
use usage_limits::{AllowanceError, Consumption, Counter, Period, Zone};

use crate::support::{MONTH, NOW, allowance, mails, number, run_on, used, with_database};

#[tokio::test]
async fn a_spending_and_its_work_stand_or_fall_together() {
    with_database(|pool| async move {
        let allowance = allowance();
        run_on(&pool, &allowance.migration_sql()).await;
        run_on(&pool, "CREATE TABLE mails (id integer PRIMARY KEY)").await;

        let mut tx = pool.begin().await.unwrap();
        let consumed = allowance.consume_in(&mut tx, mails("a"), 3, Some(4)).await.unwrap();
        assert_eq!((consumed.used, consumed.remaining()), (3, Some(1)));
        assert_eq!(consumed.period_end, datetime!(2026-12-01 00:00 UTC));
        sqlx::raw_sql("INSERT INTO mails VALUES (1)").execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();

        // The caller ignores that it failed and does the work; the commit can't let it stand.
        let mut tx = pool.begin().await.unwrap();
        let error = allowance.consume_in(&mut tx, mails("a"), 2, Some(4)).await.unwrap_err();
        let AllowanceError::Exhausted(exhausted) = error else { panic!("{error:?}") };
        assert_eq!((exhausted.limit, exhausted.used), (4, None));
        assert_eq!(exhausted.period_end, datetime!(2026-12-01 00:00 UTC));
        assert!(sqlx::raw_sql("INSERT INTO mails VALUES (2)").execute(&mut *tx).await.is_err());
        // Postgres answers COMMIT of a failed transaction with a rollback.
        let _ = tx.commit().await;
        assert_eq!(used(&pool, mails("a")).await, 3);
        assert_eq!(number(&pool, "SELECT count(*) FROM mails").await, 1);

        // Work that fails gives its spending back.
        let mut tx = pool.begin().await.unwrap();
        allowance.consume_in(&mut tx, mails("a"), 1, Some(4)).await.unwrap();
        assert!(sqlx::raw_sql("INSERT INTO mails VALUES (1)").execute(&mut *tx).await.is_err());
        drop(tx);
        assert_eq!(used(&pool, mails("a")).await, 3);
    })
    .await;
}

#[tokio::test]
async fn a_spending_of_its_own_says_what_was_used() {
    with_database(|pool| async move {
        let allowance = allowance();
        run_on(&pool, &allowance.migration_sql()).await;
        for expected in 1..=2 {
            let outcome = allowance.consume(&pool, mails("a"), 1, Some(2)).await.unwrap();
            let Consumption::Consumed(consumed) = outcome else { panic!("{outcome:?}") };
            assert_eq!(consumed.used, expected);
        }
        let Consumption::Exhausted(spent) = allowance.consume(&pool, mails("a"), 1, Some(2)).await.unwrap()
        else {
            panic!("a third of two");
        };
        assert_eq!((spent.meter.as_str(), spent.limit, spent.used), ("mail_sent", 2, Some(2)));

        // More than the whole allowance is exhausted from the start, and leaves no row.
        let outcome = allowance.consume(&pool, mails("b"), 3, Some(2)).await.unwrap();
        assert!(matches!(outcome, Consumption::Exhausted(spent) if spent.used == Some(0)));
        assert_eq!(number(&pool, "SELECT count(*) FROM notifications_usage").await, 1);
        // So is anything of an allowance of nothing.
        let outcome = allowance.consume(&pool, mails("b"), 1, Some(0)).await.unwrap();
        assert!(matches!(outcome, Consumption::Exhausted(spent) if spent.used == Some(0)));

        // A new month is a new row.
        let december = Counter { now: datetime!(2026-12-01 00:00 UTC), ..mails("a") };
        let outcome = allowance.consume(&pool, december, 1, Some(2)).await.unwrap();
        assert!(matches!(outcome, Consumption::Consumed(consumed) if consumed.used == 1));
        assert_eq!(used(&pool, mails("a")).await, 2);
    })
    .await;
}

#[tokio::test]
async fn at_the_greatest_bigint_it_is_exhausted_and_never_wraps() {
    with_database(|pool| async move {
        let allowance = allowance();
        run_on(&pool, &allowance.migration_sql()).await;
        for limit in [None, Some(i64::MAX)] {
            let subject = format!("{limit:?}");
            let counter = mails(&subject);
            let outcome = allowance.consume(&pool, counter, i64::MAX, limit).await.unwrap();
            assert!(matches!(outcome, Consumption::Consumed(consumed) if consumed.used == i64::MAX));
            for amount in [1, i64::MAX] {
                let outcome = allowance.consume(&pool, counter, amount, limit).await.unwrap();
                assert!(matches!(outcome, Consumption::Exhausted(spent) if spent.used == Some(i64::MAX)));
                let mut tx = pool.begin().await.unwrap();
                let error = allowance.consume_in(&mut tx, counter, amount, limit).await.unwrap_err();
                assert!(matches!(error, AllowanceError::Exhausted(spent) if spent.limit == i64::MAX));
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_limit_that_was_lowered_below_what_is_used_refuses() {
    with_database(|pool| async move {
        let allowance = allowance();
        run_on(&pool, &allowance.migration_sql()).await;
        let _ = allowance.consume(&pool, mails("a"), 10, None).await.unwrap();
        let outcome = allowance.consume(&pool, mails("a"), 1, Some(5)).await.unwrap();
        assert!(matches!(outcome, Consumption::Exhausted(spent) if spent.used == Some(10)));
    })
    .await;
}

#[tokio::test]
async fn a_refund_never_leads_below_zero() {
    with_database(|pool| async move {
        let allowance = allowance();
        run_on(&pool, &allowance.migration_sql()).await;
        let mut connection = pool.acquire().await.unwrap();
        let _ = allowance.consume(&pool, mails("a"), 5, Some(5)).await.unwrap();
        assert_eq!(allowance.refund(&mut connection, mails("a"), 2).await.unwrap(), 3);
        assert_eq!(allowance.refund(&mut connection, mails("a"), i64::MAX).await.unwrap(), 0);
        assert_eq!(allowance.refund(&mut connection, mails("nobody"), 1).await.unwrap(), 0);
        assert_eq!(used(&pool, mails("a")).await, 0);
    })
    .await;
}

#[tokio::test]
async fn problem_75_no_amount_mints_an_allowance() {
    with_database(|pool| async move {
        let allowance = allowance();
        run_on(&pool, &allowance.migration_sql()).await;
        let _ = allowance.consume(&pool, mails("a"), 5, Some(9)).await.unwrap();
        let mut connection = pool.acquire().await.unwrap();
        let field = |error: AllowanceError| match error {
            AllowanceError::Invalid(invalid) => invalid.field,
            other => panic!("{other:?}"),
        };
        for amount in [0, -1, i64::MIN] {
            let error = allowance.consume(&pool, mails("a"), amount, Some(9)).await.unwrap_err();
            assert_eq!(field(error), "amount");
            let error = allowance.consume_in(&mut connection, mails("a"), amount, None).await.unwrap_err();
            assert_eq!(field(error), "amount");
            let error = allowance.refund(&mut connection, mails("a"), amount).await.unwrap_err();
            assert_eq!(field(error), "amount");
            // Whoever sends the plain SQL and checks nothing spends nothing either, least of all a negative amount.
            let spent = sqlx::query(sqlx::AssertSqlSafe(allowance.consume_sql().to_owned()))
                .bind("a")
                .bind("mail_sent")
                .bind(datetime!(2026-11-01 00:00 UTC))
                .bind(amount)
                .bind(None::<i64>)
                .execute(&pool)
                .await;
            assert!(spent.unwrap_err().into_database_error().is_some(), "{amount}");
        }
        let error = allowance.consume(&pool, mails("a"), 1, Some(-1)).await.unwrap_err();
        assert_eq!(field(error), "limit");
        assert_eq!(used(&pool, mails("a")).await, 5);
        // And no hand that writes the table can lead below zero.
        let (code, _) = crate::support::refusal(&pool, "UPDATE notifications_usage SET used = -1").await;
        assert_eq!(code, "23514");
    })
    .await;
}

#[tokio::test]
async fn names_that_name_nothing_are_refused_by_field() {
    with_database(|pool| async move {
        let allowance = allowance();
        run_on(&pool, &allowance.migration_sql()).await;
        for (field, counter) in [
            ("subject", mails("")),
            ("subject", mails("a\0b")),
            ("meter", Counter { meter: "", ..mails("a") }),
            ("meter", Counter { meter: "\0", ..mails("a") }),
        ] {
            let error = allowance.consume(&pool, counter, 1, None).await.unwrap_err();
            assert!(matches!(error, AllowanceError::Invalid(invalid) if invalid.field == field), "{field}");
            let error = allowance.read(&mut pool.acquire().await.unwrap(), counter).await.unwrap_err();
            assert!(matches!(error, AllowanceError::Invalid(invalid) if invalid.field == field), "{field}");
        }
        let far = Counter { now: datetime!(9999-12-31 00:00 UTC), ..mails("a") };
        let error = allowance.consume(&pool, far, 1, None).await.unwrap_err();
        assert!(matches!(error, AllowanceError::OutOfCalendar(_)));
    })
    .await;
}

#[tokio::test]
async fn history_has_no_holes_and_no_dates_that_were_skipped() {
    with_database(|pool| async move {
        let allowance = allowance();
        run_on(&pool, &allowance.migration_sql()).await;
        let spend = async |counter: Counter<'_>, amount| {
            let _ = allowance.consume(&pool, counter, amount, None).await.unwrap();
        };
        spend(mails("a"), 7).await;
        spend(Counter { now: datetime!(2026-09-15 00:00 UTC), ..mails("a") }, 5).await;
        spend(Counter { meter: "sms_sent", ..mails("a") }, 90).await;
        spend(mails("b"), 80).await;
        let mut connection = pool.acquire().await.unwrap();
        let history = allowance.history(&mut connection, mails("a"), 4).await.unwrap();
        assert_eq!(history.iter().map(|period| period.used).collect::<Vec<_>>(), [7, 0, 5, 0]);
        assert_eq!(history[0].window, MONTH.window_at(NOW).unwrap());
        assert!(history.windows(2).all(|pair| pair[0].window.start == pair[1].window.end));

        // The 30th of December 2011 did not happen in Apia; the day before and the day after are neighbours.
        let apia = Period::LocalDay { zone: Zone::parse("Pacific/Apia").unwrap() };
        let day = |now: OffsetDateTime| Counter { period: &apia, now, ..mails("c") };
        spend(day(datetime!(2011-12-30 09:00 UTC)), 1).await;
        spend(day(datetime!(2011-12-30 10:00 UTC)), 2).await;
        let history =
            allowance.history(&mut connection, day(datetime!(2011-12-30 10:00 UTC)), 3).await.unwrap();
        assert_eq!(history.iter().map(|period| period.used).collect::<Vec<_>>(), [2, 1, 0]);
    })
    .await;
}

#[tokio::test]
async fn a_purge_keeps_the_newest_periods_and_other_meters() {
    with_database(|pool| async move {
        let allowance = allowance();
        run_on(&pool, &allowance.migration_sql()).await;
        // More than one batch, twelve months of each subject.
        run_on(
            &pool,
            "INSERT INTO notifications_usage (subject, meter, period_start, used) \
             SELECT 's' || s, meter, timestamptz '2026-11-01 00:00Z' - make_interval(months => m), 1 \
             FROM generate_series(1, 600) s, generate_series(0, 11) m, (VALUES ('mail_sent'), ('sms_sent')) v (meter)",
        )
        .await;
        let purged = allowance.purge(&pool, "mail_sent", &MONTH, NOW, 2).await.unwrap();
        assert_eq!(purged, 6_000);
        let kept = "SELECT count(*) FROM notifications_usage WHERE meter = 'mail_sent'";
        assert_eq!(number(&pool, kept).await, 1_200);
        let oldest = format!("{kept} AND period_start < '2026-10-01 00:00Z'");
        assert_eq!(number(&pool, &oldest).await, 0);
        assert_eq!(number(&pool, "SELECT count(*) FROM notifications_usage").await, 1_200 + 7_200);
        let error = allowance.purge(&pool, "mail_sent", &MONTH, NOW, 0).await.unwrap_err();
        assert!(matches!(error, AllowanceError::Invalid(invalid) if invalid.field == "keep_periods"));
    })
    .await;
}

#[tokio::test]
async fn problem_111_work_that_fails_half_way_holds_nothing() {
    with_database(|pool| async move {
        let allowance = allowance();
        run_on(&pool, &allowance.migration_sql()).await;
        run_on(&pool, "CREATE TABLE mails (id integer PRIMARY KEY)").await;
        // A batch of five that spends for each item and fails at the second: there is no reservation to give back.
        let mut tx = pool.begin().await.unwrap();
        for id in [1, 1, 2, 3, 4] {
            if allowance.consume_in(&mut tx, mails("a"), 1, Some(5)).await.is_err() {
                break;
            }
            let _ = sqlx::query("INSERT INTO mails VALUES ($1)").bind(id).execute(&mut *tx).await;
        }
        drop(tx);
        assert_eq!(used(&pool, mails("a")).await, 0);
        // The whole allowance is there for the next batch.
        let outcome = allowance.consume(&pool, mails("a"), 5, Some(5)).await.unwrap();
        assert!(matches!(outcome, Consumption::Consumed(_)));
    })
    .await;
}

#[tokio::test]
async fn problem_112_usage_beyond_the_limit_is_kept_and_the_next_is_refused() {
    with_database(|pool| async move {
        let allowance = allowance();
        run_on(&pool, &allowance.migration_sql()).await;
        // What was used is a fact, only learnt afterwards: it is counted without a bound, in the transaction of its record.
        let mut tx = pool.begin().await.unwrap();
        let consumed = allowance.consume_in(&mut tx, mails("a"), 150, None).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(consumed.used, 150);
        let outcome = allowance.consume(&pool, mails("a"), 1, Some(100)).await.unwrap();
        assert!(matches!(outcome, Consumption::Exhausted(spent) if spent.used == Some(150)));
        assert_eq!(used(&pool, mails("a")).await, 150);
    })
    .await;
}

#[tokio::test]
async fn problem_113_a_threshold_is_crossed_once_in_each_period() {
    with_database(|pool| async move {
        let allowance = allowance();
        run_on(&pool, &allowance.migration_sql()).await;
        for (now, amounts) in [
            // Landed on exactly; jumped over from far below; both thresholds in one jump; again in the next period.
            (datetime!(2026-08-01 00:00 UTC), vec![79, 1, 1, 18, 1]),
            (datetime!(2026-09-01 00:00 UTC), vec![10, 85, 4, 1]),
            (datetime!(2026-10-01 00:00 UTC), vec![100]),
            (NOW, vec![50, 29, 2, 19]),
        ] {
            let mut crossed = [0, 0];
            for amount in amounts {
                let counter = Counter { now, ..mails("a") };
                let outcome = allowance.consume(&pool, counter, amount, Some(100)).await.unwrap();
                let Consumption::Consumed(consumed) = outcome else { panic!("{outcome:?}") };
                crossed[0] += u32::from(consumed.crossed(80));
                crossed[1] += u32::from(consumed.crossed(100));
            }
            assert_eq!(crossed, [1, 1], "{now}");
        }
    })
    .await;
}

#[tokio::test]
async fn problem_109_a_caller_with_a_lock_timeout_is_not_held_in_the_queue() {
    with_database(|pool| async move {
        let allowance = allowance();
        run_on(&pool, &allowance.migration_sql()).await;
        let _ = allowance.consume(&pool, mails("a"), 1, Some(5)).await.unwrap();
        let mut slow = pool.begin().await.unwrap();
        allowance.consume_in(&mut slow, mails("a"), 1, Some(5)).await.unwrap();

        let mut hurried = pool.begin().await.unwrap();
        sqlx::raw_sql("SET LOCAL lock_timeout = '50ms'").execute(&mut *hurried).await.unwrap();
        let error = allowance.consume_in(&mut hurried, mails("a"), 1, Some(5)).await.unwrap_err();
        assert_eq!(error.sqlstate().as_deref(), Some("55P03"), "{error:?}");
        drop(hurried);
        // Other counters of the table wait for nobody.
        let outcome = allowance.consume(&pool, mails("b"), 1, Some(5)).await.unwrap();
        assert!(matches!(outcome, Consumption::Consumed(_)));
        slow.commit().await.unwrap();
        assert_eq!(used(&pool, mails("a")).await, 2);
    })
    .await;
}
