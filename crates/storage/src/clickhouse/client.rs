//! A thin layer over the `clickhouse` crate: a client per user, deadlines, and errors by exception code.

use std::time::Duration;

use ::clickhouse::error::Error as DriverError;
use ::clickhouse::query::BytesCursor;
use bytes::Bytes;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use secrecy::{ExposeSecret, SecretString};
use usage_service::error_chain;
use usage_service::transport::{tls_client, tls_client_of_nobody};

use super::codes;
use super::config::ClickHouseConfig;
use crate::StorageError;

const TCP_KEEPALIVE: Duration = Duration::from_secs(60);
/// The server closes an idle connection after 3 s.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(2);
/// How a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// No connection came about: the server has seen nothing.
    #[error("can't connect to clickhouse")]
    NotSent(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The deadline passed; the server may still be at work.
    #[error("clickhouse did not answer in time")]
    Timeout,
    /// The server answered with an exception. Only the code's name is kept: the text quotes data and statements; the server's own log
    /// has it.
    #[error("clickhouse exception {code}: {message}")]
    Exception { code: u32, message: String },
    /// The connection or the answer broke.
    #[error("clickhouse's answer was lost")]
    Lost(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<DriverError> for CallError {
    fn from(error: DriverError) -> Self {
        match error {
            DriverError::BadResponse(message) => match codes::parse(&message) {
                Some(code) => Self::Exception { code, message: codes::name(&message).into() },
                None => Self::Lost(
                    format!("an answer of {} bytes that is not clickhouse's", message.len()).into(),
                ),
            },
            DriverError::Network(source) => {
                let not_sent = source.downcast_ref::<legacy::Error>().is_some_and(legacy::Error::is_connect);
                if not_sent { Self::NotSent(source) } else { Self::Lost(source) }
            }
            DriverError::TimedOut => Self::Timeout,
            other => Self::Lost(Box::new(other)),
        }
    }
}

impl CallError {
    /// What a failed read means.
    pub(crate) fn of_read(self) -> StorageError {
        match self {
            Self::Timeout | Self::Exception { code: codes::TIMEOUT_EXCEEDED, .. } => StorageError::Timeout,
            Self::Exception { code: codes::UNKNOWN_TABLE | codes::UNKNOWN_DATABASE, .. } => {
                StorageError::Schema(format!("{self}; run `usagectl storage migrate`"))
            }
            other => StorageError::Unavailable(Box::new(other)),
        }
    }

    /// What a failed insert means, if nothing else of the same call was sent before. A fence is not looked at here.
    pub(crate) fn of_write(self) -> StorageError {
        match self {
            Self::NotSent(_) => StorageError::Unavailable(Box::new(self)),
            Self::Exception { code, message } if codes::is_final(code) => {
                StorageError::Final { code, message }
            }
            other => StorageError::Unknown(Box::new(other)),
        }
    }
}

impl From<CallError> for StorageError {
    fn from(error: CallError) -> Self {
        error.of_read()
    }
}

/// Which user a client works as; each has its own settings profile and priority on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Writer,
    Reader,
    Maintenance,
}

impl Profile {
    /// The first word of the settings of its user.
    fn user(self) -> &'static str {
        match self {
            Self::Writer => "writer",
            Self::Reader => "reader",
            Self::Maintenance => "maintenance",
        }
    }
}

/// A client of one user.
#[derive(Clone)]
pub(crate) struct Client {
    driver: ::clickhouse::Client,
    profile: Profile,
    /// Deadline of one call, from the connection to the last byte of the answer.
    timeout: Duration,
}

impl Client {
    pub(crate) fn new(config: &ClickHouseConfig, profile: Profile) -> Self {
        let (user, password): (&str, &SecretString) = match profile {
            Profile::Writer => (&config.writer_user, &config.writer_password),
            Profile::Reader => (&config.reader_user, &config.reader_password),
            Profile::Maintenance => (&config.maintenance_user, &config.maintenance_password),
        };
        let driver = trusting_driver(config)
            .with_url(config.url.as_str())
            .with_user(user)
            .with_password(password.expose_secret())
            .with_database(config.database.as_str())
            .with_product_info("usage-storage", env!("CARGO_PKG_VERSION"));
        Self { driver, profile, timeout: config.read_timeout }
    }

    pub(crate) fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// For statements that must not name a database because it may not exist yet.
    pub(crate) fn with_database(mut self, database: &str) -> Self {
        self.driver = self.driver.with_database(database);
        self
    }

    pub(crate) fn with_setting(mut self, name: &str, value: impl Into<String>) -> Self {
        self.driver = self.driver.with_setting(name, value);
        self
    }

    pub(crate) fn driver(&self) -> &::clickhouse::Client {
        &self.driver
    }

    /// Runs a statement without an answer.
    pub(crate) async fn execute(&self, sql: &str) -> Result<(), CallError> {
        let query = self.driver.query_raw(sql).with_setting("wait_end_of_query", "1");
        within(self.timeout, query.execute()).await.map_err(|error| self.named(error))
    }

    /// Runs a query and collects its whole answer as RowBinary; decode it with [`super::rowbinary::RowReader`].
    pub(crate) async fn fetch(&self, sql: &str) -> Result<Bytes, CallError> {
        within(self.timeout, async { self.driver.query_raw(sql).fetch_bytes("RowBinary")?.collect().await })
            .await
            .map_err(|error| self.named(error))
    }

    /// The error of one of this client's calls; a refused user is named by its settings.
    pub(crate) fn named(&self, error: CallError) -> CallError {
        match error {
            CallError::Exception { code: code @ codes::AUTHENTICATION_FAILED, message } => {
                let user = self.profile.user();
                let message = format!(
                    "{message}: `clickhouse.{user}_user` or `clickhouse.{user}_password` is not as the server has it"
                );
                CallError::Exception { code, message }
            }
            other => other,
        }
    }

    /// Runs a query whose answer is read chunk by chunk (chunks end anywhere); the caller bounds its time. For ids and hashes,
    /// which don't compress.
    pub(crate) fn stream(&self, sql: &str) -> Result<BytesCursor, CallError> {
        let driver = self.driver.clone().with_compression(::clickhouse::Compression::None);
        Ok(driver.query_raw(sql).fetch_bytes("RowBinary")?)
    }
}

/// The driver with an HTTP client that is its own but for the trust: that one has a list of authorities compiled in.
fn trusting_driver(config: &ClickHouseConfig) -> ::clickhouse::Client {
    let mut connector = HttpConnector::new();
    connector.set_keepalive(Some(TCP_KEEPALIVE));
    connector.enforce_http(false);
    let tls = tls_client(&config.tls_files()).unwrap_or_else(|error| {
        tracing::error!(error = %error_chain(&error), "clickhouse's TLS can't be used as it is configured: no server is trusted");
        tls_client_of_nobody()
    });
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
    let builder =
        if config.url.starts_with("http://") { builder.https_or_http() } else { builder.https_only() };
    let client = legacy::Client::builder(TokioExecutor::new())
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .build(builder.enable_http1().wrap_connector(connector));
    ::clickhouse::Client::with_http_client(client)
}

/// Bounds a call by a deadline. What is dropped at the deadline closes its connection.
pub(crate) async fn within<T>(
    timeout: Duration,
    call: impl Future<Output = Result<T, DriverError>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(timeout, call).await {
        Ok(result) => result.map_err(CallError::from),
        Err(_) => Err(CallError::Timeout),
    }
}

/// Appends a text as a SQL string literal.
pub(crate) fn push_literal(sql: &mut String, text: &str) {
    sql.push('\'');
    for c in text.chars() {
        match c {
            '\'' => sql.push_str("\\'"),
            '\\' => sql.push_str("\\\\"),
            '\0' => sql.push_str("\\0"),
            c => sql.push(c),
        }
    }
    sql.push('\'');
}

/// A text as a SQL string literal.
pub(crate) fn literal(text: &str) -> String {
    let mut sql = String::with_capacity(text.len() + 2);
    push_literal(&mut sql, text);
    sql
}

/// A database or table name, quoted.
pub(crate) fn identifier(name: &str) -> String {
    format!("`{}`", name.replace('\\', "\\\\").replace('`', "\\`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_escaped() {
        assert_eq!(literal(r"it's \ ok"), r"'it\'s \\ ok'");
        assert_eq!(literal("a\0b"), "'a\\0b'");
        assert_eq!(identifier("a`b"), "`a\\`b`");
    }

    #[test]
    fn errors_are_sorted_by_what_is_known() {
        let refused =
            CallError::from(DriverError::BadResponse("Code: 469. DB::Exception: constraint".into()));
        assert!(matches!(refused.of_write(), StorageError::Final { code: 469, .. }));
        let parts =
            CallError::from(DriverError::BadResponse("Code: 252. DB::Exception: too many parts".into()));
        assert!(matches!(parts.of_write(), StorageError::Unknown(_)));
        let proxy = CallError::from(DriverError::BadResponse("502 Bad Gateway".into()));
        assert!(matches!(proxy.of_write(), StorageError::Unknown(_)));
        assert!(matches!(CallError::Timeout.of_write(), StorageError::Unknown(_)));
        assert!(matches!(CallError::Timeout.of_read(), StorageError::Timeout));
        let table = CallError::from(DriverError::BadResponse("Code: 60. DB::Exception: no table".into()));
        assert!(matches!(table.of_read(), StorageError::Schema(_)));
    }

    #[test]
    fn a_refused_user_is_named_by_its_settings_and_a_missing_database_by_one_hint() {
        let config = ClickHouseConfig::new("http://127.0.0.1:1", "x");
        let refused = || {
            CallError::from(DriverError::BadResponse(
                "Code: 516. DB::Exception: eve: Authentication failed: password is incorrect (AUTHENTICATION_FAILED)".into(),
            ))
        };
        for (profile, user) in
            [(Profile::Writer, "writer"), (Profile::Reader, "reader"), (Profile::Maintenance, "maintenance")]
        {
            let error = Client::new(&config, profile).named(refused()).of_read();
            let text = error_chain(&error);
            for part in
                ["516", &format!("`clickhouse.{user}_user`"), &format!("`clickhouse.{user}_password`")]
            {
                assert!(text.contains(part), "{part} in {text}");
            }
            assert!(!text.contains("migrate") && !text.contains("eve"), "{text}");
        }
        let absent = "Code: 81. DB::Exception: Database x does not exist (UNKNOWN_DATABASE)";
        let absent = CallError::from(DriverError::BadResponse(absent.into()));
        let text = error_chain(&Client::new(&config, Profile::Writer).named(absent).of_read());
        assert_eq!(text.matches("usagectl storage migrate").count(), 1, "{text}");
    }

    #[tokio::test]
    async fn a_refused_connection_was_not_sent() {
        // A listener that is bound and dropped leaves a port that refuses.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = ClickHouseConfig::new(format!("http://127.0.0.1:{port}"), "x");
        let error = Client::new(&config, Profile::Writer).execute("SELECT 1").await.unwrap_err();
        assert!(matches!(error, CallError::NotSent(_)), "{error:?}");
        assert!(matches!(error.of_write(), StorageError::Unavailable(_)));
    }

    #[test]
    fn what_a_server_says_is_not_repeated() {
        let text = "Code: 27. DB::Exception: Cannot parse input: expected 'x' before: 'hunter2': (at row 1) (CANNOT_PARSE_INPUT_ASSERTION_FAILED) (version 26.7)";
        for text in [text, "<html>hunter2</html>", "502 hunter2"] {
            let error = CallError::from(DriverError::BadResponse(text.into()));
            assert!(!format!("{error:?} {}", error_chain(&error)).contains("hunter2"), "{error:?}");
        }
        let error = CallError::from(DriverError::BadResponse(text.into()));
        assert_eq!(error.to_string(), "clickhouse exception 27: CANNOT_PARSE_INPUT_ASSERTION_FAILED");
    }
}
