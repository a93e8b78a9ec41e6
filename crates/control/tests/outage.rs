//! A Postgres of its own that is killed and comes back.

use usage_control::{Advance, Control};
use usage_devstack::Postgres;
use usage_service::config::DatabaseConfig;

#[tokio::test(flavor = "multi_thread")]
async fn calls_during_an_outage_may_pass_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Postgres::start(dir.path()).unwrap();
    server.ensure_database("usage_control").unwrap();
    let control = Control::connect(&DatabaseConfig::new(server.url("usage_control"))).await.unwrap();
    control.migrate().await.unwrap();
    control.open_progress(0).await.unwrap();
    let advance = |batch_seq| [Advance { batch_seq, next_offset: batch_seq * 10, ..Advance::default() }];
    assert_eq!(control.advance(&advance(1)).await.unwrap(), [true]);

    server.kill9();
    let error = control.advance(&advance(2)).await.unwrap_err();
    assert!(error.may_pass(), "{error:?}");
    server.restart_immediate().unwrap();
    // Connections from before are dead; a call that meets one may fail once more, but in a way that may pass.
    let mut backoff = usage_service::retry::Backoff::new(
        std::time::Duration::from_millis(20),
        std::time::Duration::from_secs(1),
    );
    let moved = loop {
        match control.advance(&advance(2)).await {
            Ok(moved) => break moved,
            Err(error) => assert!(error.may_pass() && backoff.attempts() < 50, "{error:?}"),
        }
        tokio::time::sleep(backoff.next()).await;
    };
    assert_eq!(moved, [true]);
    assert_eq!(control.progress().await.unwrap()[0].next_offset, Some(20));
    control.close().await;
    server.stop().unwrap();
}
