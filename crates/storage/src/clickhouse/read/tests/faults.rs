//! What a reader says when the server is slow, gone, or fails in the middle of an answer.

use std::time::{Duration, Instant};

use tokio::{io::AsyncReadExt as _, net::TcpListener};
use uuid::Uuid;

use super::{aggregates::everything, database::Database, pages::everything_of};
use crate::{
    Reader as _, StorageError, WatermarkQuery,
    clickhouse::{
        ClickHouseReader,
        client::{Client, Profile},
        config::ClickHouseConfig,
        read::sql::Sql,
    },
};

fn reader_of(url: String, timeout: Duration) -> ClickHouseReader {
    let mut config = ClickHouseConfig::new(url, "nowhere").with_dev_passwords();
    config.read_timeout = timeout;
    ClickHouseReader::new(&config)
}

/// All four calls, as errors.
async fn errors(reader: &ClickHouseReader) -> Vec<StorageError> {
    let tenant = Uuid::from_u128(1);
    vec![
        reader.aggregate(&everything()).await.unwrap_err(),
        reader.raw(&everything_of(tenant)).await.unwrap_err(),
        reader.record(tenant, tenant).await.unwrap_err(),
        reader.watermarks(&WatermarkQuery::of_tenant(tenant)).await.unwrap_err(),
    ]
}

#[tokio::test]
async fn a_server_that_never_answers_is_a_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // Takes every request and holds its connection open.
    let silent = tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            held.push(stream);
        }
    });
    let started = Instant::now();
    for error in errors(&reader_of(url, Duration::from_millis(200))).await {
        assert!(matches!(error, StorageError::Timeout), "{error:?}");
    }
    assert!(started.elapsed() < Duration::from_secs(20));
    silent.abort();
}

#[tokio::test]
async fn a_server_that_is_gone_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for error in errors(&reader_of(url, Duration::from_secs(5))).await {
        assert!(matches!(error, StorageError::Unavailable(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_database_that_is_not_there_is_a_matter_of_the_schema() {
    let database = Database::create().await;
    let mut reader = reader_of(database.config().url.clone(), Duration::from_secs(5));
    reader.sizes.rollup_rows = 0;
    for error in errors(&reader).await {
        assert!(matches!(error, StorageError::Schema(_)), "{error:?}");
    }
    database.drop().await;
}

/// After a million rows the status line would long be on its way, were the answer not held back until it is whole.
#[tokio::test]
async fn an_error_in_the_middle_of_an_answer_is_an_error() {
    let database = Database::create().await;
    let mut sql = Sql::new();
    sql.push("SELECT toInt64(number), throwIf(number = 1500000) FROM numbers(2000000)");
    let answer = database
        .reader(false)
        .session
        .ask(&sql, |row| {
            row.i64()?;
            row.u8()
        })
        .await;
    assert!(answer.is_err(), "{} rows", answer.unwrap().len());
    database.drop().await;
}

#[tokio::test]
async fn a_slow_question_times_out_and_ends_on_the_server() {
    let database = Database::create().await;
    let mut config = database.config().clone();
    config.read_timeout = Duration::from_secs(1);
    let session = ClickHouseReader::new(&config).session;
    let mark = Uuid::new_v4().simple().to_string();
    let mut sql = Sql::new();
    sql.push("SELECT count() FROM numbers(1000000000000) WHERE cityHash64(number, ")
        .text(&mark)
        .push(") = 1");
    let error = session.bounded(session.ask(&sql, |row| row.u64())).await.unwrap_err();
    assert!(matches!(error, StorageError::Timeout), "{error:?}");
    let client = Client::new(&config, Profile::Writer).with_timeout(Duration::from_secs(30));
    let running = format!(
        "SELECT count() FROM system.processes WHERE user = 'usage_reader' AND current_database = '{}'",
        config.database
    );
    let gone = async {
        while client.fetch(&running).await.unwrap()[0] != 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), gone).await.expect("the abandoned question still runs");
    database.drop().await;
}

#[tokio::test]
async fn a_reader_can_not_write() {
    let database = Database::create().await;
    let reader = Client::new(database.config(), Profile::Reader);
    assert!(reader.execute("TRUNCATE TABLE usage_records").await.is_err());
    assert!(reader.execute("INSERT INTO usage_fences VALUES (1, 1, 'x', now64(6))").await.is_err());
    database.drop().await;
}
