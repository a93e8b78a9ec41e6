//! Quotas and their counters, on a real Postgres.

mod support;

use support::with_partitions;
use usage_control::{
    Advance, Control, ControlError, Quota, QuotaCounts, QuotaKey, QuotaScope, QuotaUse, Quotas,
};
use uuid::Uuid;

const TENANT: Uuid = Uuid::from_u128(7);

fn key(source: &str, window_start: i64) -> QuotaKey {
    QuotaKey { source: source.into(), tenant_id: TENANT, window_seconds: 60, window_start }
}

fn batch(partition: i32, batch_seq: i64, quota_counts: &[(QuotaKey, i64)]) -> Advance {
    let next_offset = batch_seq * 10;
    Advance { partition, batch_seq, next_offset, quota_counts: quota_counts.into(), ..Advance::default() }
}

async fn records(control: &Control, key: &QuotaKey) -> i64 {
    control.quota_counts(0, std::slice::from_ref(key)).await.unwrap().records[0]
}

#[tokio::test]
async fn what_is_set_is_listed_and_taken_away() {
    with_partitions(1, |control| async move {
        let quota = |max_records| Some(Quota { max_records, window_seconds: 60 });
        let mail = QuotaScope::Source("mail".into());
        let tenant = QuotaScope::Tenant("mail".into(), TENANT);
        control.set_quota(&tenant, None).await.unwrap();
        control.set_quota(&mail, quota(5)).await.unwrap();
        control.set_quota(&QuotaScope::EverySource, quota(9)).await.unwrap();
        control.set_quota(&mail, quota(6)).await.unwrap();
        let set = control.quotas().await.unwrap();
        let shown: Vec<_> = set.iter().map(|rule| (rule.scope.clone(), rule.quota)).collect();
        let expected =
            [(QuotaScope::EverySource, quota(9)), (mail.clone(), quota(6)), (tenant.clone(), None)];
        assert_eq!(shown, expected);
        let quotas = Quotas::new(set);
        assert_eq!(quotas.rule_of("mail", TENANT).unwrap().scope, tenant);

        assert!(control.remove_quota(&tenant).await.unwrap());
        assert!(!control.remove_quota(&tenant).await.unwrap());
        let quotas = Quotas::new(control.quotas().await.unwrap());
        assert_eq!(quotas.rule_of("mail", TENANT).unwrap().scope, mail);
        let error = control.set_quota(&mail, quota(-1)).await.unwrap_err();
        assert!(error.to_string().starts_with("max_records"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_batch_is_counted_once_however_often_it_is_said_to_be_done() {
    with_partitions(2, |control| async move {
        let (a, b) = (key("mail", 0), key("mail", 60));
        let first = batch(0, 1, &[(a.clone(), 3), (b.clone(), 2)]);
        assert_eq!(control.advance(std::slice::from_ref(&first)).await.unwrap(), [true]);
        // Again after a lost answer, together with another partition that goes on; and again an older one.
        let other = batch(1, 1, &[(key("disk", 0), 8)]);
        assert_eq!(control.advance(&[first.clone(), other]).await.unwrap(), [false, true]);
        control.advance(&[batch(0, 2, &[(a.clone(), 4)])]).await.unwrap();
        assert_eq!(control.advance(&[first]).await.unwrap(), [false]);
        let keys = [b.clone(), key("disk", 0), key("mail", 120), a.clone()];
        let counts = control.quota_counts(0, &keys).await.unwrap();
        assert_eq!(counts, QuotaCounts { batch_seq: 2, records: vec![2, 8, 0, 7] });

        let used = |window_start, records| QuotaUse { window_seconds: 60, window_start, records };
        let shown = control.quota_use("mail", TENANT, 10).await.unwrap();
        assert_eq!(shown, [used(60, 2), used(0, 7)]);
        assert_eq!(control.quota_use("mail", TENANT, 1).await.unwrap(), [used(60, 2)]);
    })
    .await;
}

#[tokio::test]
async fn a_partition_that_was_not_taken_over_has_no_counts() {
    with_partitions(1, |control| async move {
        let error = control.quota_counts(5, &[key("mail", 0)]).await.unwrap_err();
        assert!(matches!(error, ControlError::NoProgress(5)), "{error}");
        assert_eq!(control.quota_counts(0, &[]).await.unwrap(), QuotaCounts::default());
    })
    .await;
}

/// While a tenant moves to another partition both may count it.
#[tokio::test]
async fn one_key_in_two_partitions_of_one_call_is_counted_together() {
    with_partitions(2, |control| async move {
        let key = key("mail", 0);
        let both = [batch(0, 1, &[(key.clone(), 3)]), batch(1, 1, &[(key.clone(), 4)])];
        assert_eq!(control.advance(&both).await.unwrap(), [true, true]);
        assert_eq!(records(&control, &key).await, 7);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_and_the_batch_that_they_go_up_to_are_of_one_moment() {
    with_partitions(1, |control| async move {
        let writer = control.clone();
        let writing = tokio::spawn(async move {
            for batch_seq in 1..=200 {
                let counts = [(key("mail", 0), 1), (key("disk", 0), 2)];
                writer.advance(&[batch(0, batch_seq, &counts)]).await.unwrap();
            }
        });
        let mut seen = 0;
        while seen < 200 {
            let keys = [key("mail", 0), key("disk", 0)];
            let QuotaCounts { batch_seq, records } = control.quota_counts(0, &keys).await.unwrap();
            assert_eq!(records, [batch_seq, 2 * batch_seq]);
            seen = batch_seq;
        }
        writing.await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn only_windows_that_ended_long_ago_are_swept_by_their_own_partition() {
    with_partitions(2, |control| async move {
        let counts: Vec<_> = (0..5).map(|window| (key("mail", window * 60), 1)).collect();
        control.advance(&[batch(0, 1, &counts), batch(1, 1, &[(key("disk", 0), 1)])]).await.unwrap();
        // Windows end at 60, 120, …: those at 120 are not over before 121.
        assert_eq!(control.sweep_quota_counters(&[(0, 120), (1, 60)], 100).await.unwrap(), 1);
        assert_eq!(control.sweep_quota_counters(&[(0, 1_000)], 3).await.unwrap(), 3);
        assert_eq!(records(&control, &key("mail", 240)).await, 1, "the latest goes last");
        assert_eq!(records(&control, &key("disk", 0)).await, 1);
        assert_eq!(control.sweep_quota_counters(&[(0, 1_000), (1, 1_000)], 100).await.unwrap(), 2);
        assert_eq!(control.sweep_quota_counters(&[], 100).await.unwrap(), 0);
    })
    .await;
}

#[tokio::test]
async fn what_a_restore_reads_again_is_spared_until_the_topic_is_another() {
    with_partitions(2, |control| async move {
        let from = |control: Control| async move {
            control.progress().await.unwrap().iter().map(|found| found.quotas_from).collect::<Vec<_>>()
        };
        control.advance(&[batch(0, 5, &[])]).await.unwrap();
        control.spare_quotas().await.unwrap();
        assert_eq!(from(control.clone()).await, [Some(50), None], "partition 1 has nothing to read again");
        // Offsets were set back, and half-way through the storage is restored once more.
        sqlx::query("UPDATE consumer_progress SET next_offset = 20").execute(control.pool()).await.unwrap();
        control.spare_quotas().await.unwrap();
        assert_eq!(from(control.clone()).await, [Some(50), Some(20)]);
        assert_eq!(control.open_progress(0).await.unwrap().quotas_from, Some(50));

        // A log that was cut off gets other records from its end on.
        control.lower_progress(0, 30).await.unwrap();
        let progress = control.open_progress(0).await.unwrap();
        assert_eq!((progress.next_offset, progress.quotas_from), (Some(20), Some(30)));
        control.lower_progress(1, 10).await.unwrap();
        let progress = control.open_progress(1).await.unwrap();
        assert_eq!((progress.next_offset, progress.quotas_from), (Some(10), Some(10)));
        control.begin_topic(0, Uuid::from_u128(9), 5, (0, 7)).await.unwrap();
        assert_eq!(control.open_progress(0).await.unwrap().quotas_from, None);
    })
    .await;
}
