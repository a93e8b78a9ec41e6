//! Growing the topic, as far as the control database goes: steps that can be repeated, in any order of the callers.

use usage_control::testing::with_database;
use usage_control::{Control, ControlError, Partitions};
use usage_devstack::testing::control_database_url;

/// Runs a test with a control database of its own, for a topic of 4 partitions.
async fn with_topic<T>(test: impl FnOnce(Control) -> T + Send + 'static)
where
    T: Future<Output = ()> + Send + 'static,
{
    with_database(&control_database_url(), |database| async move {
        let control = database.control().await;
        control.migrate().await.unwrap();
        control.init_partitions(4).await.unwrap();
        test(control.clone()).await;
        control.close().await;
    })
    .await;
}

async fn counts(control: &Control) -> (i32, Vec<i32>, bool) {
    let Partitions { current, known, growing } = control.partition_counts().await.unwrap();
    (current, known, growing)
}

#[tokio::test]
async fn each_step_changes_one_thing_and_may_be_repeated() {
    with_topic(|control| async move {
        for _ in 0..2 {
            control.announce_partitions(6, 4).await.unwrap();
            assert_eq!(counts(&control).await, (4, vec![4, 6], false), "known, not yet used");
        }
        for _ in 0..2 {
            assert!(control.begin_growing(6).await.unwrap());
            assert_eq!(counts(&control).await, (4, vec![4, 6], true));
        }
        assert!(control.end_growing(6).await.unwrap());
        // Whoever repeats anything now learns that it is done.
        assert!(!control.end_growing(6).await.unwrap() && !control.begin_growing(6).await.unwrap());
        control.announce_partitions(6, 4).await.unwrap();
        assert_eq!(counts(&control).await, (6, vec![4, 6], false));
    })
    .await;
}

#[tokio::test]
async fn a_count_is_neither_taken_back_nor_left_half_way() {
    with_topic(|control| async move {
        let shrinks = control.announce_partitions(3, 4).await.unwrap_err();
        assert!(matches!(shrinks, ControlError::Shrinks { recorded: 4, asked: 3 }), "{shrinks}");
        control.announce_partitions(8, 4).await.unwrap();
        let other = control.announce_partitions(6, 4).await.unwrap_err();
        assert!(matches!(other, ControlError::OtherGrowth { begun: 8, asked: 6 }), "{other}");
        assert!(other.to_string().contains("usagectl topics grow --partitions 8"));
        let unlisted = control.begin_growing(9).await.unwrap_err();
        assert!(!unlisted.may_pass(), "readers would not look there: {unlisted}");
        let not_growing = control.end_growing(8).await.unwrap_err();
        assert!(matches!(not_growing, ControlError::NotGrowing(8)), "{not_growing}");
        assert_eq!(counts(&control).await, (4, vec![4, 8], false));
    })
    .await;
}

/// Two operators: one sleeps after each of its steps while the other grows the topic further.
#[tokio::test]
async fn who_slept_through_another_growth_ends_nothing() {
    with_topic(|control| async move {
        control.announce_partitions(6, 4).await.unwrap();
        control.begin_growing(6).await.unwrap();
        // The other one goes further before this one has recorded its count.
        control.announce_partitions(8, 4).await.unwrap();
        assert!(control.begin_growing(8).await.unwrap());
        for step in [control.begin_growing(6).await, control.end_growing(6).await] {
            assert!(matches!(step, Err(ControlError::OtherGrowth { begun: 8, asked: 6 })), "{step:?}");
        }
        assert_eq!(
            counts(&control).await,
            (4, vec![4, 6, 8], true),
            "workers wait until all are fenced for 8"
        );
        assert!(control.end_growing(8).await.unwrap());
        assert!(!control.begin_growing(6).await.unwrap() && !control.end_growing(6).await.unwrap());
        assert_eq!(counts(&control).await, (8, vec![4, 6, 8], false));
    })
    .await;
}
