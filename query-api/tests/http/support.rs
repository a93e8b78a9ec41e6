//! The API over readers in memory, and what asks it.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tower::ServiceExt as _;
use usage_access::policy::PolicyDecisionPoint;
use usage_access::{
    Claims, DEFAULT_AUDIENCE, DEFAULT_ISSUER, KeyFiles, Scope, Scopes, TokenSigner, TokenVerifier,
};
use usage_limits::http::RateLimitLayer;
use usage_query_api::allowances::Allowances;
use usage_query_api::app;
use usage_query_api::config::{Config, SETTINGS};
use usage_query_api::cursor::Cursors;
use usage_query_api::process::watch;
use usage_query_api::registry::{Catalog, Registry};
use usage_query_api::state::{App, Limits};
use usage_query_api::store::{Bounds, Store};
use usage_schemas::Kind;
use usage_service::config::Resolved;
use usage_service::health::Health;
use usage_service::telemetry::Telemetry;
use usage_storage::Reader;
use uuid::Uuid;

use crate::memory::{Memory, MemoryRegistry};
use crate::policy::Scripted;

/// How the API under test is set up.
pub struct Setup {
    pub limits: Limits,
    pub cursor_key: &'static [u8],
    /// Of one question to the control database.
    pub timeout: Duration,
    pub bounds: Bounds,
    pub cache: Duration,
    pub rates: RateLimitLayer,
    pub allowances: Option<Arc<Allowances>>,
    pub policy: Arc<Scripted>,
    pub verifier: TokenVerifier,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            cursor_key: b"a key that all instances share",
            timeout: Duration::from_secs(5),
            bounds: Bounds::default(),
            cache: Duration::from_secs(5),
            rates: RateLimitLayer::new(),
            allowances: None,
            policy: Arc::default(),
            verifier: TokenVerifier::from_file(&keys().jwks, DEFAULT_ISSUER, DEFAULT_AUDIENCE).unwrap(),
        }
    }
}

impl Setup {
    pub fn page_rows(rows: usize) -> Self {
        Self { limits: Limits { aggregated_rows: rows, ..Limits::default() }, ..Self::default() }
    }
}

/// The API with a store and a registry in memory, and a caller with all scopes.
pub struct Harness {
    pub router: Router,
    pub memory: Arc<Memory>,
    pub registry: Arc<MemoryRegistry>,
    pub policy: Arc<Scripted>,
    pub tenant: Uuid,
}

impl Harness {
    /// With the usage types `tokens` (counter, token), `bytes` (counter, byte) and `level` (gauge, percent).
    pub fn new() -> Self {
        Self::with(Setup::default())
    }

    pub fn with(setup: Setup) -> Self {
        let memory = Arc::new(Memory::default());
        let registry = Arc::new(MemoryRegistry::default());
        registry.put("tokens", Kind::Counter, "token");
        registry.put("bytes", Kind::Counter, "byte");
        registry.put("level", Kind::Gauge, "percent");
        let policy = setup.policy.clone();
        let router = router(setup, memory.clone(), registry.clone());
        Self { router, memory, registry, policy, tenant: Uuid::new_v4() }
    }

    /// Another instance over the same stores and policies.
    pub fn instance(&self, mut setup: Setup) -> Self {
        setup.policy = self.policy.clone();
        Self {
            router: router(setup, self.memory.clone(), self.registry.clone()),
            memory: self.memory.clone(),
            registry: self.registry.clone(),
            policy: self.policy.clone(),
            tenant: self.tenant,
        }
    }

    pub fn add(&self, metric: &str, value: &str, timestamp: &str) {
        self.memory.add(crate::memory::record(self.tenant, metric, value, timestamp));
    }

    /// Another tenant's caller of the same instance.
    pub fn stranger(&self) -> Self {
        Self {
            router: self.router.clone(),
            memory: self.memory.clone(),
            registry: self.registry.clone(),
            policy: self.policy.clone(),
            tenant: Uuid::new_v4(),
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.get_as(path, "application/json").await
    }

    pub async fn get_as(&self, path: &str, accept: &str) -> Answer {
        let request = Request::get(path)
            .header("accept", accept)
            .header("authorization", bearer(self.tenant, Scopes::all()));
        self.send(request.body(Body::empty()).unwrap()).await
    }

    /// The `data` of a JSON answer that must be 200.
    pub async fn rows(&self, path: &str) -> Vec<Value> {
        let answer = self.get(path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
        answer.json()["data"].as_array().unwrap().clone()
    }

    /// All rows over all pages, and the number of pages.
    pub async fn all_rows(&self, path: &str) -> (Vec<Value>, usize) {
        let (mut rows, mut pages, mut next) = (Vec::new(), 0, path.to_owned());
        loop {
            let answer = self.get(&next).await;
            assert_eq!(answer.status, StatusCode::OK, "{next}: {}", answer.text);
            let json = answer.json();
            rows.extend(json["data"].as_array().unwrap().iter().cloned());
            pages += 1;
            assert!(pages < 10_000, "pages without end");
            let Some(cursor) = json["next_cursor"].as_str() else { return (rows, pages) };
            next = format!("{path}&cursor={cursor}");
        }
    }

    pub async fn post(&self, path: &str, body: &str) -> Answer {
        let request = Request::post(path)
            .header("content-type", "application/json")
            .header("authorization", bearer(self.tenant, Scopes::all()));
        self.send(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        send(&self.router, request).await
    }
}

pub async fn send(router: &Router, mut request: Request<Body>) -> Answer {
    // As every client says it.
    request.headers_mut().entry("host").or_insert(HeaderValue::from_static("api.example"));
    let response = router.clone().oneshot(request).await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let body = response.into_body().collect().await;
    let broken = body.is_err();
    let bytes = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    Answer { status, headers, text: String::from_utf8(bytes.to_vec()).unwrap(), broken }
}

/// An answer that was read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
    /// The body did not end cleanly.
    pub broken: bool,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Checks that this is a problem of the kind, in its whole shape, and gives its errors as `place:code`.
    #[track_caller]
    pub fn problem(&self, status: u16, slug: &str) -> Vec<String> {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        assert_eq!(self.header("content-type"), "application/problem+json");
        let json = self.json();
        assert_eq!(json["type"], format!("usage/{slug}"), "{}", self.text);
        assert_eq!(json["status"], status);
        assert!(json["title"].as_str().is_some_and(|title| !title.is_empty()));
        assert_eq!(json["trace_id"].as_str().map(str::len), Some(32), "{}", self.text);
        assert_eq!(json["trace_id"], self.header("trace-id"));
        let errors = json["errors"].as_array().cloned().unwrap_or_default();
        let place = |error: &Value| {
            error.get("parameter").or(error.get("pointer")).unwrap().as_str().unwrap().to_owned()
        };
        let mut errors: Vec<_> = errors
            .iter()
            .map(|error| format!("{}:{}", place(error), error["code"].as_str().unwrap()))
            .collect();
        errors.sort();
        errors
    }

    pub fn detail(&self) -> String {
        self.json()["detail"].as_str().unwrap_or_default().to_owned()
    }
}

pub fn router(setup: Setup, reader: Arc<dyn Reader>, registry: Arc<dyn Registry>) -> Router {
    let catalog = Arc::new(Catalog::new(registry, setup.cache, setup.timeout));
    let store = Store::new("memory", reader, setup.bounds);
    let policy: Arc<dyn PolicyDecisionPoint> = setup.policy;
    let health = Health::new(Telemetry::detached());
    let verifier = Arc::new(setup.verifier);
    watch(&health, &verifier, &store, &catalog, &policy);
    let app = App {
        verifier,
        policy,
        store,
        catalog,
        cursors: Cursors::new(setup.cursor_key),
        limits: setup.limits,
        rates: setup.rates,
        allowances: setup.allowances,
    };
    app::router(app, &health)
}

/// The configuration with these settings beside those that it can't do without.
pub fn config(settings: &[&str]) -> Config {
    let mut cli = usage_service::config::Cli::default();
    let required = [
        "auth.key_file=jwks.json",
        "clickhouse.url=http://127.0.0.1:8123",
        "control_database.url=postgres://usage@127.0.0.1/control",
    ];
    cli.set = required.iter().chain(settings).map(|text| (*text).to_owned()).collect();
    let key =
        |name: &str| (name == "USAGE_API_CURSOR_KEY").then(|| "0123456789abcdef0123456789abcdef".into());
    Resolved::from_parts(SETTINGS, &cli, key).unwrap().value().unwrap()
}

/// One key pair for all tests of the process.
pub fn keys() -> &'static KeyFiles {
    static KEYS: OnceLock<(tempfile::TempDir, KeyFiles)> = OnceLock::new();
    &KEYS
        .get_or_init(|| {
            let directory = tempfile::tempdir().unwrap();
            let files = usage_access::generate_key_pair(directory.path()).unwrap();
            (directory, files)
        })
        .1
}

pub fn bearer(tenant_id: Uuid, scopes: Scopes) -> String {
    format!("Bearer {}", token(&keys().signing, tenant_id, scopes))
}

pub fn token(signing: &std::path::Path, tenant_id: Uuid, scopes: Scopes) -> String {
    let signer = TokenSigner::from_file(signing, DEFAULT_ISSUER, DEFAULT_AUDIENCE).unwrap();
    let claims =
        Claims { tenant_id, subject_id: None, subject_type: None, scopes, ttl: Duration::from_secs(600) };
    signer.sign(&claims).unwrap()
}

pub fn only(scope: Scope) -> Scopes {
    Scopes::NONE.with(scope)
}

/// Rows of a case file, without its header.
pub fn case_rows(file: &str) -> Vec<Vec<String>> {
    let path: PathBuf = usage_devstack::testing::cases_dir().join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    text.lines()
        .skip(1)
        .filter(|line| !line.is_empty())
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect()
}
