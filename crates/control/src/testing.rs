//! A database of its own for each test.

use std::future::Future;

use secrecy::SecretString;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use usage_service::config::DatabaseConfig;
use uuid::Uuid;

use crate::{Control, MasterKeys};

/// File with the master key of all tests. A file, since the environment of a stack that is up names one, too.
pub const MASTER_KEY_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/master.key");

/// A new, empty database beside the one that `url` names, for as long as [`with_database`] runs.
#[derive(Debug, Clone)]
pub struct TestDatabase {
    server: PgConnectOptions,
    name: String,
    url: String,
}

impl TestDatabase {
    /// Creates `test_<uuid>` on the server of `url`.
    ///
    /// # Panics
    /// When the server refuses: a test can do nothing else.
    pub async fn create(url: &str) -> Self {
        let server: PgConnectOptions = url.parse().expect("a postgres url");
        let name = format!("test_{}", Uuid::new_v4().simple());
        let mut connection = server.connect().await.expect("the test's Postgres server answers");
        let create = format!("CREATE DATABASE {name} TEMPLATE template0");
        sqlx::query(AssertSqlSafe(create))
            .execute(&mut connection)
            .await
            .expect("the role may create databases");
        connection.close().await.expect("the connection ends");
        let url = with_name(url, &name);
        Self { server, name, url }
    }

    /// Address of the database.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The control database in it, not migrated.
    ///
    /// # Panics
    /// When the server does not answer.
    pub async fn control(&self) -> Control {
        let control = Control::connect(&DatabaseConfig::new(self.url.clone())).await;
        control.expect("the new database answers").with_master_keys(master_keys())
    }

    /// Runs a statement in it.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn execute(&self, sql: &str) {
        let options: PgConnectOptions = self.url.parse().expect("a postgres url");
        let mut connection = options.connect().await.expect("the test's Postgres server answers");
        sqlx::query(AssertSqlSafe(sql)).execute(&mut connection).await.expect("the statement is right");
        connection.close().await.expect("the connection ends");
    }

    /// Drops the database, whoever is connected.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn drop(self) {
        let mut connection = self.server.connect().await.expect("the test's Postgres server answers");
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        sqlx::query(AssertSqlSafe(drop)).execute(&mut connection).await.expect("the database can be dropped");
        connection.close().await.expect("the connection ends");
    }
}

/// Runs a test with a database of its own on the server of `url` and drops it afterwards, also when the test panics.
///
/// # Panics
/// As the test does.
pub async fn with_database<F, T>(url: &str, test: F)
where
    F: FnOnce(TestDatabase) -> T,
    T: Future<Output = ()> + Send + 'static,
{
    let database = TestDatabase::create(url).await;
    let result = tokio::spawn(test(database.clone())).await;
    database.drop().await;
    if let Err(error) = result {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// The master keys of all tests.
///
/// # Panics
/// Never: the key is one.
pub fn master_keys() -> MasterKeys {
    MasterKeys::new(&SecretString::from(include_str!("../testdata/master.key")), None).expect("64 hex digits")
}

/// Replaces the database in `scheme://authority/database?parameters`.
fn with_name(url: &str, name: &str) -> String {
    let (head, parameters) = url.split_once('?').map_or((url, None), |(head, tail)| (head, Some(tail)));
    let authority = head.find("://").map_or(0, |at| at + 3);
    let end = head[authority..].find('/').map_or(head.len(), |at| authority + at);
    let parameters = parameters.map_or_else(String::new, |tail| format!("?{tail}"));
    format!("{}/{name}{parameters}", &head[..end])
}

#[cfg(test)]
mod tests {
    use super::with_name;

    #[test]
    fn replaces_the_database_of_a_url() {
        assert_eq!(with_name("postgres://u:p@h:5/old", "new"), "postgres://u:p@h:5/new");
        assert_eq!(with_name("postgres://u@h", "new"), "postgres://u@h/new");
        assert_eq!(
            with_name("postgres://h/old?sslmode=disable&a=b/c", "new"),
            "postgres://h/new?sslmode=disable&a=b/c"
        );
    }
}
