//! What is known of the sources' completeness, on a real Postgres.

mod support;

use support::{batch, forward, marker, outbox, until, with_partitions};
use usage_control::{Control, ControlError, Gap, Gaps, SourceKey};

/// Partitions 0 and 1 have heard outbox 1 of source `s` until 100.
async fn heard(control: &Control) {
    for partition in 0..2 {
        let heard = batch(partition, 1, 10, &[marker(outbox(1), 100)], &[]);
        assert_eq!(control.advance(&[heard]).await.unwrap(), [true]);
    }
    assert_eq!(until(control, "s").await, Some(100));
}

#[tokio::test]
async fn the_slowest_partition_and_outbox_count_and_all_must_have_been_heard() {
    with_partitions(2, |control| async move {
        assert_eq!(until(&control, "s").await, None);
        let markers = [marker(outbox(1), 70), marker(outbox(1), 50), marker(outbox(1), 60)];
        control.advance(&[batch(0, 1, 10, &markers, &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, None, "nothing was heard in partition 1");
        control.advance(&[batch(1, 1, 10, &[marker(outbox(1), 80)], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(70), "the greatest of a batch counts");
        // A marker that another relay sent before never moves it back.
        control.advance(&[batch(0, 2, 20, &[marker(outbox(1), 65)], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(70));
        // A second outbox under the same name: it must be heard everywhere, and the slower one counts.
        control.advance(&[batch(0, 3, 30, &[marker(outbox(2), 40)], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, None);
        control.advance(&[batch(1, 2, 20, &[marker(outbox(2), 45)], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(40));
        let slowest = control.outbox_progress().await.unwrap();
        let shown: Vec<_> = slowest
            .iter()
            .map(|found| (found.outbox, found.partitions, found.complete_until, found.slowest_partition))
            .collect();
        assert_eq!(shown, [(outbox(1), 2, 70, 0), (outbox(2), 2, 40, 0)]);
    })
    .await;
}

#[tokio::test]
async fn a_batch_that_was_done_before_moves_no_progress() {
    with_partitions(2, |control| async move {
        heard(&control).await;
        let again = batch(0, 1, 10, &[marker(outbox(1), 900)], &[forward(5, 1, 50, false)]);
        let ahead = batch(1, 2, 20, &[marker(outbox(1), 900)], &[]);
        assert_eq!(control.advance(&[again, ahead]).await.unwrap(), [false, true]);
        assert_eq!(until(&control, "s").await, Some(100));
        control.advance(&[batch(0, 2, 20, &[marker(outbox(1), 800)], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(800), "nothing of the repetition was noted as forwarded");
    })
    .await;
}

#[tokio::test]
async fn a_forwarded_record_holds_its_source_until_the_target_has_passed_it() {
    with_partitions(2, |control| async move {
        heard(&control).await;
        let sent = batch(0, 2, 20, &[marker(outbox(1), 200)], &[forward(11, 1, 30, false)]);
        control.advance(&[sent]).await.unwrap();
        control.advance(&[batch(1, 2, 30, &[marker(outbox(1), 300)], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(100), "offset 30 is not done, 29 is");
        control.advance(&[batch(1, 3, 31, &[], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(200));
    })
    .await;
}

#[tokio::test]
async fn a_record_that_is_forwarded_again_hands_its_bound_on() {
    with_partitions(3, |control| async move {
        for partition in 0..3 {
            control.advance(&[batch(partition, 1, 10, &[marker(outbox(1), 100)], &[])]).await.unwrap();
        }
        control
            .advance(&[batch(0, 2, 20, &[marker(outbox(1), 200)], &[forward(11, 1, 30, false)])])
            .await
            .unwrap();
        control.advance(&[batch(1, 2, 20, &[marker(outbox(1), 220)], &[])]).await.unwrap();
        // Partition 1 has been further for long; the record is of before.
        control
            .advance(&[batch(1, 3, 40, &[marker(outbox(1), 230)], &[forward(30, 2, 50, true)])])
            .await
            .unwrap();
        control.advance(&[batch(2, 2, 50, &[marker(outbox(1), 240)], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(100));
        control.advance(&[batch(2, 3, 51, &[], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(200));
    })
    .await;
}

/// The target is faster than the transaction of the one who forwarded.
#[tokio::test]
async fn a_forward_that_is_noted_late_neither_stays_nor_is_lost() {
    with_partitions(3, |control| async move {
        for partition in 0..3 {
            control.advance(&[batch(partition, 1, 10, &[marker(outbox(1), 100)], &[])]).await.unwrap();
        }
        // Stored before it was noted: it holds until the target's next batch.
        control.advance(&[batch(1, 2, 31, &[marker(outbox(1), 150)], &[])]).await.unwrap();
        control
            .advance(&[batch(0, 2, 20, &[marker(outbox(1), 200)], &[forward(11, 1, 30, false)])])
            .await
            .unwrap();
        control.advance(&[batch(2, 2, 20, &[marker(outbox(1), 200)], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(100));
        control.advance(&[batch(1, 3, 32, &[], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(150));
        // Forwarded again before it was noted: its bound is not known, so nothing is until it is stored.
        control
            .advance(&[batch(1, 4, 41, &[marker(outbox(1), 400)], &[forward(40, 2, 60, true)])])
            .await
            .unwrap();
        assert_eq!(until(&control, "s").await, None);
        control
            .advance(&[batch(0, 3, 30, &[marker(outbox(1), 400)], &[forward(21, 1, 40, false)])])
            .await
            .unwrap();
        control.advance(&[batch(1, 5, 42, &[], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, None, "it lies at offset 60 of partition 2");
        control.advance(&[batch(2, 3, 61, &[marker(outbox(1), 400)], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(400));
    })
    .await;
}

#[tokio::test]
async fn a_forwarded_record_of_an_outbox_that_was_not_heard_yet_has_no_bound() {
    with_partitions(2, |control| async move {
        heard(&control).await;
        // It is the second outbox's, emitted at 90; the bound is the first one's.
        control.advance(&[batch(0, 2, 20, &[], &[forward(11, 1, 30, false)])]).await.unwrap();
        control.advance(&[batch(0, 3, 21, &[marker(outbox(2), 95)], &[])]).await.unwrap();
        control.advance(&[batch(1, 2, 20, &[marker(outbox(2), 95)], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, None);
        control.advance(&[batch(1, 3, 31, &[], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(95));
    })
    .await;
}

#[tokio::test]
async fn sources_and_outboxes_are_retired_and_taken_in_again() {
    with_partitions(2, |control| async move {
        heard(&control).await;
        let key = SourceKey {
            source: "silent".into(),
            key_id: "k".into(),
            key: vec![7; 32].into(),
            valid_from: 0,
            valid_until: None,
        };
        control.put_source_key(&key).await.unwrap();
        let all = || async { control.completeness().await.unwrap().complete_until::<&str>(&[]) };
        assert_eq!(all().await, None, "a source with a key never sent a marker");
        assert!(control.retire("silent", None).await.unwrap());
        assert!(!control.retire("silent", None).await.unwrap());
        assert_eq!(all().await, Some(100));
        assert!(control.unretire("silent", None).await.unwrap());
        assert!(!control.unretire("silent", None).await.unwrap());
        assert_eq!(all().await, None);

        for partition in 0..2 {
            control.advance(&[batch(partition, 2, 20, &[marker(outbox(2), 50)], &[])]).await.unwrap();
        }
        assert_eq!(until(&control, "s").await, Some(50));
        assert!(control.retire("s", Some(outbox(2))).await.unwrap());
        assert_eq!(until(&control, "s").await, Some(100));
        assert!(control.retire("s", Some(outbox(1))).await.unwrap());
        assert_eq!(until(&control, "s").await, None, "nobody vouches for the source");
        for (source, of) in [("nobody", None), ("s", Some(outbox(3))), ("silent", Some(outbox(1)))] {
            let error = control.retire(source, of).await.unwrap_err();
            assert!(matches!(error, ControlError::NoSource { .. }) && !error.may_pass(), "{source}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_gap_hides_everything_until_it_is_accepted() {
    with_partitions(2, |control| async move {
        heard(&control).await;
        control.record_gap(1, 100, 150, None).await.unwrap();
        control.record_gap(1, 100, 150, None).await.unwrap();
        control.record_gap(1, 200, 210, None).await.unwrap();
        control.record_gap(0, 5, 6, None).await.unwrap();
        assert!(matches!(control.record_gap(1, 6, 6, None).await, Err(ControlError::Invalid { .. })));
        assert_eq!(until(&control, "s").await, None);
        let places = |gaps: Vec<Gap>| -> Vec<_> {
            gaps.iter()
                .map(|gap| (gap.kafka_partition, gap.from_offset, gap.to_offset, gap.accepted))
                .collect()
        };
        let one = Gaps::At { kafka_partition: 1, from_offset: 100 };
        assert_eq!(places(control.accept_gaps(one).await.unwrap()), [(1, 100, 150, true)]);
        assert_eq!(control.accept_gaps(one).await.unwrap(), []);
        assert_eq!(until(&control, "s").await, None);
        let of = Gaps::Of { kafka_partition: 1 };
        assert_eq!(places(control.accept_gaps(of).await.unwrap()), [(1, 200, 210, true)]);
        let all = [(0, 5, 6, false), (1, 100, 150, true), (1, 200, 210, true)];
        assert_eq!(places(control.gaps().await.unwrap()), all);
        assert_eq!(control.accept_gaps(Gaps::All).await.unwrap().len(), 1);
        assert_eq!(until(&control, "s").await, Some(100));
        // A takeover that is repeated asks nobody again; what was lost once more does.
        control.record_gap(1, 100, 150, None).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(100));
        control.record_gap_anew(1, 100, 150).await.unwrap();
        assert_eq!(until(&control, "s").await, None);
        control.record_gap_anew(0, 7, 8).await.unwrap();
        let again = [(0, 7, 8, true), (1, 100, 150, true)];
        assert_eq!(places(control.accept_gaps(Gaps::All).await.unwrap()), again);
    })
    .await;
}

#[tokio::test]
async fn after_a_restore_nothing_is_known_until_every_partition_is_where_it_was() {
    with_partitions(2, |control| async move {
        heard(&control).await;
        control.forget_source_progress().await.unwrap();
        assert_eq!(until(&control, "s").await, None);
        // Offsets go back, numbers go on.
        control.advance(&[batch(0, 2, 5, &[marker(outbox(1), 90)], &[])]).await.unwrap();
        control.advance(&[batch(1, 2, 10, &[marker(outbox(1), 100)], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, None, "partition 0 was at offset 10");
        control.advance(&[batch(0, 3, 10, &[], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(90));
    })
    .await;
}

#[tokio::test]
async fn a_new_partition_starts_where_its_sources_are() {
    with_partitions(2, |control| async move {
        heard(&control).await;
        control
            .advance(&[batch(0, 2, 20, &[marker(outbox(1), 300), marker(outbox(2), 250)], &[])])
            .await
            .unwrap();
        control.advance(&[batch(1, 2, 20, &[marker(outbox(2), 280)], &[])]).await.unwrap();
        control.announce_partitions(4, 2).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(100), "no moment without an answer");
        for (partition, outbox_1) in [(1, 310), (2, 320), (3, 90)] {
            control.open_progress(partition).await.unwrap();
            control.advance(&[batch(partition, 3, 30, &[marker(outbox(1), outbox_1)], &[])]).await.unwrap();
        }
        assert_eq!(until(&control, "s").await, Some(100), "partition 3 has heard nothing newer");
        // Resumed after everything has moved.
        control.announce_partitions(4, 2).await.unwrap();
        control.advance(&[batch(3, 4, 40, &[marker(outbox(1), 330)], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(250));
        assert!(matches!(control.announce_partitions(3, 2).await, Err(ControlError::OtherGrowth { .. })));
        assert_eq!(control.partition_counts().await.unwrap().known, [2, 4]);
    })
    .await;
}

#[tokio::test]
async fn a_partition_that_was_added_by_hand_is_complete_when_a_marker_has_passed_there() {
    with_partitions(2, |control| async move {
        heard(&control).await;
        // Kafka has a third one already, and perhaps records in it; the fourth is still to be made.
        control.announce_partitions(4, 3).await.unwrap();
        control.open_progress(2).await.unwrap();
        assert_eq!(until(&control, "s").await, None);
        let found = control.outbox_progress().await.unwrap();
        assert_eq!(found[0].partitions, 3, "the fourth has the minimum");
        control.advance(&[batch(2, 1, 10, &[marker(outbox(1), 90)], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(90));
    })
    .await;
}

#[tokio::test]
async fn who_is_taken_in_again_may_have_records_under_way() {
    with_partitions(2, |control| async move {
        heard(&control).await;
        for partition in 0..2 {
            control.advance(&[batch(partition, 2, 20, &[marker(outbox(2), 50)], &[])]).await.unwrap();
        }
        control.retire("s", Some(outbox(2))).await.unwrap();
        // It is outbox 2's, emitted at 60: the bound is outbox 1's 100.
        control.advance(&[batch(0, 3, 30, &[], &[forward(21, 1, 40, false)])]).await.unwrap();
        assert!(control.unretire("s", Some(outbox(2))).await.unwrap());
        for partition in 0..2 {
            let markers = [marker(outbox(1), 300), marker(outbox(2), 90)];
            control.advance(&[batch(partition, 4, 35, &markers, &[])]).await.unwrap();
        }
        assert_eq!(until(&control, "s").await, None, "it is not known whose is under way");
        control.advance(&[batch(1, 5, 41, &[], &[])]).await.unwrap();
        assert_eq!(until(&control, "s").await, Some(90));
    })
    .await;
}
