//! The server dies on entering or leaving the very rename that makes a part visible: the moments where "wholly or not at all"
//! is decided, which random kills hit too seldom.

use std::path::{Path, PathBuf};
use std::process::Command;

use usage_storage::StorageError;

use crate::contract::batches::Maker;
use crate::contract::fences::settled_exactly_once;
use crate::contract::oracle::Oracle;
use crate::contract::worker::{again, settle, take};
use crate::contract::{Bench, Server};
use crate::harness::OwnServer;

/// On entering and on leaving the rename of the first and of the second part.
const SHOTS: [&str; 4] = ["E 1", "L 1", "E 2", "L 2"];

/// Compiles the shim that the server is started with.
fn shim(dir: &Path) -> PathBuf {
    let library = dir.join("kill_at_rename.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clickhouse/kill_at_rename.c");
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
    assert!(compiled.expect("a C compiler (cc) is installed").success());
    library
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_each_rename() {
    let dir = tempfile::tempdir().unwrap();
    let trigger = dir.path().join("kill");
    let environment = [("LD_PRELOAD", shim(dir.path())), ("USAGE_KILL_FILE", trigger.clone())];
    let environment = environment.map(|(name, path)| (name.to_owned(), path.display().to_string()));
    let (mut server, database) = OwnServer::start_with(environment.to_vec());
    database.storage().migrate().await.unwrap();
    let oracle = Oracle::default();
    let mut makers: Vec<Maker> = [0, 1].map(|partition| Maker::new(89, partition, 1)).into();
    let mut writer = database.storage().writer();
    take(&*writer, &[0, 1]).await;
    // A joint write of two months makes two parts.
    for shot in SHOTS {
        let batches: Vec<_> = makers.iter_mut().map(|maker| maker.batch(200)).collect();
        batches.iter().for_each(|batch| oracle.begin(batch));
        std::fs::write(&trigger, shot).unwrap();
        let error = writer.write(&batches).await.expect_err(shot);
        assert!(matches!(error, StorageError::Unknown(_)), "{shot}: {error:?}");
        assert!(!trigger.exists(), "{shot}: the server died at that rename");
        server.restart();
        settle(&*writer, &batches).await.unwrap();
        batches.iter().for_each(|batch| oracle.acknowledge(batch));
        settled_exactly_once(&database, &oracle, &makers).await;
    }
    // A flush of two months; afterwards the same owner proves it, or the next one rebuilds.
    for shot in SHOTS {
        for same_owner in [true, false] {
            let batches: Vec<_> = makers.iter_mut().map(|maker| maker.batch(200)).collect();
            batches.iter().for_each(|batch| oracle.begin(batch));
            writer.write(&batches).await.unwrap();
            batches.iter().for_each(|batch| oracle.acknowledge(batch));
            std::fs::write(&trigger, shot).unwrap();
            let error = writer.tick(&[0, 1]).await.expect_err(shot);
            assert!(error.may_pass(), "{shot}: {error:?}");
            assert!(!trigger.exists(), "{shot}: the server died at that rename");
            server.restart();
            if !same_owner {
                writer = database.storage().writer();
                take(&*writer, &[0, 1]).await;
            }
            again(|| writer.tick(&[0, 1])).await;
            settled_exactly_once(&database, &oracle, &makers).await;
        }
    }
}
