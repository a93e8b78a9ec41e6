//! The server dies on entering or leaving the very rename that makes a part visible, and at fsyncs before it: the moments where
//! "wholly or not at all" is decided, which random kills hit too seldom.

use std::sync::Arc;

use usage_devstack::kill_at::{INSERTED_PART, KillAt, MERGED_PART, Shot, Step};
use usage_storage::{StorageError, Writer};

use crate::contract::batches::Maker;
use crate::contract::fences::settled_exactly_once;
use crate::contract::oracle::Oracle;
use crate::contract::verifying::{everything, verify};
use crate::contract::worker::{again, settle, store, take};
use crate::contract::{Bench, Server};
use crate::harness::{Database, OwnServer};

/// In inserts of two months, which make two parts: the renames of both, and fsyncs of the first and of the second.
const OF_INSERTS: [(Step, u32); 8] = [
    (Step::RenameEnter, 1),
    (Step::RenameLeave, 1),
    (Step::RenameEnter, 2),
    (Step::RenameLeave, 2),
    (Step::Fsync, 1),
    (Step::Fsync, 3),
    (Step::Fsync, 10),
    (Step::Fsync, 21),
];

/// A server that a shot can be prepared for, with two partitions.
struct Range {
    kill_at: KillAt,
    server: OwnServer,
    database: Database,
    writer: Arc<dyn Writer>,
    oracle: Oracle,
    makers: Vec<Maker>,
    _dir: tempfile::TempDir,
}

impl Range {
    async fn new(seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kill_at = KillAt::build(dir.path()).unwrap();
        let (server, database) = OwnServer::start_with(kill_at.environment());
        database.storage().migrate().await.unwrap();
        let writer = database.storage().writer();
        take(&*writer, &[0, 1]).await;
        let makers = [0, 1].map(|partition| Maker::new(seed, partition, 1)).into();
        Self { kill_at, server, database, writer, oracle: Oracle::default(), makers, _dir: dir }
    }

    fn arm(&self, step: Step, nth: u32, name: &str) {
        self.kill_at.arm(Shot { step, nth, name }).unwrap();
    }

    /// The server has died where it should; it comes back.
    #[track_caller]
    fn died(&mut self, shot: (Step, u32)) {
        assert!(!self.kill_at.is_armed(), "{shot:?}: the server died elsewhere, or not at all");
        self.server.restart();
    }

    async fn all_is_right(&self) {
        settled_exactly_once(&self.database, &self.oracle, &self.makers).await;
        let storage = self.database.storage();
        assert_eq!(verify(&*storage, &everything()).await.unwrap().1, []);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_42_46_116_killed_at_each_step_of_an_insert() {
    let mut range = Range::new(89).await;
    for shot in OF_INSERTS {
        let batches: Vec<_> = range.makers.iter_mut().map(|maker| maker.batch(200)).collect();
        batches.iter().for_each(|batch| range.oracle.begin(batch));
        range.arm(shot.0, shot.1, INSERTED_PART);
        let error = range.writer.write(&batches).await.unwrap_err();
        assert!(matches!(error, StorageError::Unknown(_)), "{shot:?}: {error:?}");
        range.died(shot);
        settle(&*range.writer, &batches).await.unwrap();
        batches.iter().for_each(|batch| range.oracle.acknowledge(batch));
        range.all_is_right().await;
    }
    // What the deaths left has been rolled up by nobody yet.
    again(|| range.writer.tick(&[0, 1])).await;
    range.all_is_right().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_116_killed_at_each_step_of_a_flush() {
    let mut range = Range::new(90).await;
    // Afterwards the same owner proves the flush, or the next one rebuilds: both after each rename.
    for (i, shot) in OF_INSERTS.into_iter().chain(OF_INSERTS.into_iter().take(4)).enumerate() {
        let batches: Vec<_> = range.makers.iter_mut().map(|maker| maker.batch(200)).collect();
        store(&*range.writer, &range.oracle, &batches).await.unwrap();
        range.arm(shot.0, shot.1, INSERTED_PART);
        let error = range.writer.tick(&[0, 1]).await.unwrap_err();
        assert!(error.may_pass(), "{shot:?}: {error:?}");
        range.died(shot);
        if i > 5 {
            range.writer = range.database.storage().writer();
            take(&*range.writer, &[0, 1]).await;
        }
        again(|| range.writer.tick(&[0, 1])).await;
        range.all_is_right().await;
    }
}

/// A merge makes no row visible, and a dead one must make none vanish or count twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problem_116_killed_at_each_step_of_a_merge() {
    let mut range = Range::new(91).await;
    for table in ["usage_records", "usage_rollups"] {
        for shot in [(Step::RenameEnter, 1), (Step::RenameLeave, 1), (Step::RenameLeave, 2)] {
            let batches: Vec<_> = range.makers.iter_mut().map(|maker| maker.batch(100)).collect();
            store(&*range.writer, &range.oracle, &batches).await.unwrap();
            again(|| range.writer.tick(&[0, 1])).await;
            range.arm(shot.0, shot.1, MERGED_PART);
            let merged = range.database.try_query(&format!("OPTIMIZE TABLE {table} FINAL")).await;
            assert!(merged.is_err(), "{table} {shot:?}: the merge is answered");
            range.died(shot);
            range.all_is_right().await;
        }
    }
    // Merged parts are not synced: the parts that they replace stay for `old_parts_lifetime`.
    range.arm(Step::Fsync, 1, MERGED_PART);
    for table in ["usage_records", "usage_rollups"] {
        range.database.query(&format!("OPTIMIZE TABLE {table} FINAL")).await;
    }
    assert!(range.kill_at.disarm(), "there is no fsync to die at");
    range.all_is_right().await;
}
