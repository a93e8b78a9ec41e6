//! A topic that was made anew or whose log was cut off: what the old one held is nobody's progress, on a real Postgres.

mod support;

use support::{batch, forward, marker, outbox, until, with_partitions};
use usage_control::{Control, ControlError, Gap, Gaps};
use uuid::Uuid;

const FIRST: Uuid = Uuid::from_u128(1);
const SECOND: Uuid = Uuid::from_u128(2);

async fn next_offset(control: &Control, partition: i32) -> Option<i64> {
    control.open_progress(partition).await.unwrap().next_offset
}

#[tokio::test]
async fn the_same_gap_in_another_topic_is_accepted_by_nobody() {
    with_partitions(1, |control| async move {
        let accepted = || async {
            let gaps = control.gaps().await.unwrap();
            gaps.iter().map(|gap: &Gap| gap.accepted).collect::<Vec<_>>()
        };
        control.record_gap(0, 0, 1, Some(FIRST)).await.unwrap();
        control.accept_gaps(Gaps::All).await.unwrap();
        // A takeover that begins again, perhaps while the topic's id can't be read.
        for id in [Some(FIRST), None] {
            control.record_gap(0, 0, 1, id).await.unwrap();
            assert_eq!(accepted().await, [true]);
        }
        control.record_gap(0, 0, 1, Some(SECOND)).await.unwrap();
        assert_eq!(accepted().await, [false]);
        control.accept_gaps(Gaps::All).await.unwrap();
        control.record_gap(0, 0, 1, Some(SECOND)).await.unwrap();
        assert_eq!(accepted().await, [true]);
    })
    .await;
}

#[tokio::test]
async fn what_was_forwarded_to_a_topic_that_is_gone_holds_nothing() {
    with_partitions(2, |control| async move {
        for partition in 0..2 {
            control.advance(&[batch(partition, 1, 10, &[marker(outbox(1), 100)], &[])]).await.unwrap();
        }
        // The topic is made anew; one record lay in the old log, one was forwarded into the new one.
        let forwards = [forward(11, 1, 500, false), forward(12, 1, 3, false)];
        control.advance(&[batch(0, 2, 20, &[marker(outbox(1), 200)], &forwards)]).await.unwrap();
        control.set_topic_id(1, FIRST).await.unwrap();
        assert!(control.topics_made_anew().await.unwrap().is_empty());
        for _ in 0..2 {
            control.begin_topic(1, SECOND, 1, (0, 5)).await.unwrap();
        }
        assert_eq!(control.topics_made_anew().await.unwrap(), [(1, 1)].into());
        assert_eq!(control.topic_id(1).await.unwrap(), Some(SECOND));
        assert_eq!(next_offset(&control, 1).await, Some(0));
        control.advance(&[batch(1, 2, 2, &[marker(outbox(1), 200)], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(100), "what lies in the new one is not done");
        control.advance(&[batch(1, 3, 4, &[], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(200));
        let error = control.begin_topic(7, SECOND, 0, (0, 0)).await.unwrap_err();
        assert!(matches!(error, ControlError::NoProgress(7)), "{error}");
    })
    .await;
}

#[tokio::test]
async fn progress_beyond_a_logs_end_goes_back_to_it() {
    with_partitions(2, |control| async move {
        control.lower_progress(0, 5).await.unwrap();
        assert_eq!(next_offset(&control, 0).await, None, "nothing was done");
        control.advance(&[batch(0, 1, 10, &[], &[]), batch(1, 1, 10, &[], &[])]).await.unwrap();
        for (end, then) in [(12, 10), (8, 8), (9, 8)] {
            control.lower_progress(0, end).await.unwrap();
            assert_eq!(next_offset(&control, 0).await, Some(then));
        }
        assert_eq!(next_offset(&control, 1).await, Some(10), "another partition's log");
        assert_eq!(control.advance(&[batch(0, 1, 10, &[], &[])]).await.unwrap(), [false], "done before");
        assert_eq!(control.advance(&[batch(0, 2, 12, &[], &[])]).await.unwrap(), [true]);
    })
    .await;
}
