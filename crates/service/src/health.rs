//! `/health/live`, `/health/ready` and `/metrics`.
//!
//! A check is either asked at each look (an async closure) or told by the process (a [`Flag`]). All checks run at most once
//! every [`FRESH`], whoever asks; each has [`CHECK_WITHIN`] to answer.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::metric_names::{READY, STORAGE_HEALTH_STATUS};
use crate::telemetry::Telemetry;

/// How long an answer of the checks is used again.
pub const FRESH: Duration = Duration::from_millis(250);
/// How long one check may take.
pub const CHECK_WITHIN: Duration = Duration::from_secs(2);
/// How often the checks run when nobody asks, so that the gauges and the log stay current.
const LOOK_EVERY: Duration = Duration::from_secs(10);

type Answer = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;
type Ask = Arc<dyn Fn() -> Answer + Send + Sync>;

#[derive(Clone)]
enum Source {
    Ask(Ask),
    Told(watch::Receiver<Result<(), String>>),
}

#[derive(Clone)]
struct Check {
    name: String,
    source: Source,
    /// Set for storage: the label of `storage_health_status`.
    plugin: Option<String>,
}

/// The checks of a process. Clones share them.
#[derive(Clone)]
pub struct Health {
    inner: Arc<Inner>,
}

struct Inner {
    telemetry: Telemetry,
    ready: Mutex<Vec<Check>>,
    live: Mutex<Vec<Check>>,
    last: tokio::sync::Mutex<Option<(Instant, Report)>>,
}

/// Reason by name of each check that fails; empty when all is well.
pub type Report = BTreeMap<String, String>;

/// A check that the process sets itself. When the last clone is dropped the check fails: what it spoke of has ended.
#[derive(Clone)]
pub struct Flag {
    sender: Arc<watch::Sender<Result<(), String>>>,
}

impl Flag {
    pub fn pass(&self) {
        self.set(Ok(()));
    }

    pub fn fail(&self, reason: impl Into<String>) {
        self.set(Err(reason.into()));
    }

    fn set(&self, state: Result<(), String>) {
        self.sender.send_if_modified(|current| {
            let changed = *current != state;
            *current = state;
            changed
        });
    }
}

impl Health {
    pub fn new(telemetry: Telemetry) -> Self {
        let inner = Inner {
            telemetry,
            ready: Mutex::default(),
            live: Mutex::default(),
            last: tokio::sync::Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Adds a readiness check that is asked. Its error is the reason shown.
    pub fn check<F, A>(&self, name: impl Into<String>, ask: F)
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.add(Check { name: name.into(), source: asked(ask), plugin: None });
    }

    /// Adds the readiness check `storage`, which also sets `storage_health_status{plugin}`.
    pub fn check_storage<F, A>(&self, plugin: impl Into<String>, ask: F)
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.add(Check { name: "storage".into(), source: asked(ask), plugin: Some(plugin.into()) });
    }

    /// Adds a readiness check that is told; it fails with `starting` until it is set.
    pub fn flag(&self, name: impl Into<String>) -> Flag {
        let (flag, source) = told(Err("starting".into()));
        self.add(Check { name: name.into(), source, plugin: None });
        flag
    }

    /// Adds a liveness check that is told; it passes until it is set. A process that fails it is restarted.
    pub fn live_flag(&self, name: impl Into<String>) -> Flag {
        let (flag, source) = told(Ok(()));
        lock(&self.inner.live).push(Check { name: name.into(), source, plugin: None });
        flag
    }

    fn add(&self, check: Check) {
        lock(&self.inner.ready).push(check);
    }

    /// Runs the readiness checks, or returns what they said at most [`FRESH`] ago.
    pub async fn ready(&self) -> Report {
        let mut last = self.inner.last.lock().await;
        if let Some((at, report)) = last.as_ref()
            && at.elapsed() < FRESH
        {
            return report.clone();
        }
        let checks = lock(&self.inner.ready).clone();
        // Served before the process has said what it depends on: not ready, rather than ready without a look.
        let report = match checks.is_empty() {
            true => Report::from([("process".to_string(), "starting".to_string())]),
            false => run(checks).await,
        };
        let before = last.as_ref().map(|(_, report)| report.clone());
        log_change(before.as_ref(), &report);
        *last = Some((Instant::now(), report.clone()));
        report
    }

    /// Looks at the liveness checks.
    pub fn live(&self) -> Report {
        let checks = lock(&self.inner.live).clone();
        let failing = |check: Check| match check.source {
            Source::Told(state) => Some((check.name, told_reason(&state)?)),
            Source::Ask(_) => None,
        };
        checks.into_iter().filter_map(failing).collect()
    }

    /// The routes, to be merged into a process's own.
    pub fn router(&self) -> Router {
        self.probes().merge(Router::new().route("/metrics", get(metrics)).with_state(self.clone()))
    }

    /// The routes without `/metrics`, for a listener that strangers reach: metrics speak of all tenants.
    pub fn probes(&self) -> Router {
        Router::new()
            .route("/health/live", get(live))
            .route("/health/ready", get(ready))
            .with_state(self.clone())
    }
}

/// Serves the routes of `health` on `listen` (`host:port`, port 0 takes a free one) until `shutdown`; returns the address.
///
/// # Errors
/// When the address can't be bound.
pub async fn serve(listen: &str, health: Health, shutdown: CancellationToken) -> std::io::Result<SocketAddr> {
    let listener = tokio::net::TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    let server =
        axum::serve(listener, health.router()).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    tokio::spawn(async move {
        if let Err(error) = server.await {
            tracing::error!(error = %error, "the health server ended");
        }
    });
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = tick.tick() => {}
            }
            health.inner.telemetry.upkeep();
            health.ready().await;
        }
    });
    tracing::info!(%address, "serving health and metrics");
    Ok(address)
}

fn asked<F, A>(ask: F) -> Source
where
    F: Fn() -> A + Send + Sync + 'static,
    A: Future<Output = Result<(), String>> + Send + 'static,
{
    Source::Ask(Arc::new(move || Box::pin(ask())))
}

fn told(initial: Result<(), String>) -> (Flag, Source) {
    let (sender, receiver) = watch::channel(initial);
    (Flag { sender: Arc::new(sender) }, Source::Told(receiver))
}

fn told_reason(state: &watch::Receiver<Result<(), String>>) -> Option<String> {
    // An error here means that every sender is gone.
    if state.has_changed().is_err() {
        return Some("ended".into());
    }
    state.borrow().clone().err()
}

/// Runs all checks at the same time.
async fn run(checks: Vec<Check>) -> Report {
    let mut running = tokio::task::JoinSet::new();
    for check in checks {
        running.spawn(async move {
            let reason = match &check.source {
                Source::Told(state) => told_reason(state),
                Source::Ask(ask) => match tokio::time::timeout(CHECK_WITHIN, ask()).await {
                    Ok(answer) => answer.err(),
                    Err(_) => Some(format!("no answer within {} s", CHECK_WITHIN.as_secs())),
                },
            };
            (check, reason)
        });
    }
    let mut report = Report::new();
    while let Some(done) = running.join_next().await {
        let Ok((check, reason)) = done else {
            report.insert("unknown".into(), "the check panicked".into());
            continue;
        };
        let healthy = if reason.is_none() { 1 } else { 0 };
        metrics::gauge!(READY, "check" => check.name.clone()).set(healthy);
        if let Some(plugin) = check.plugin {
            metrics::gauge!(STORAGE_HEALTH_STATUS, "plugin" => plugin).set(healthy);
        }
        if let Some(reason) = reason {
            report.insert(check.name, reason);
        }
    }
    report
}

fn log_change(before: Option<&Report>, now: &Report) {
    match before {
        Some(before) if before.keys().eq(now.keys()) => {}
        None if now.is_empty() => tracing::info!("ready"),
        Some(_) if now.is_empty() => tracing::info!("ready again"),
        _ => tracing::warn!(failing = ?now, "not ready"),
    }
}

async fn live(State(health): State<Health>) -> Response {
    answer("live", &health.live(), &health.inner.live)
}

async fn ready(State(health): State<Health>) -> Response {
    answer("ready", &health.ready().await, &health.inner.ready)
}

/// What fails with its reason, beside the names of all that was looked at.
fn answer(word: &str, report: &Report, checks: &Mutex<Vec<Check>>) -> Response {
    let (status, word) = if report.is_empty() {
        (StatusCode::OK, word.to_string())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("not {word}"))
    };
    let checks: BTreeSet<String> = lock(checks).iter().map(|check| check.name.clone()).collect();
    let body = Json(serde_json::json!({ "status": word, "failing": report, "checks": checks }));
    (status, [(header::CACHE_CONTROL, "no-store")], body).into_response()
}

async fn metrics(State(health): State<Health>) -> Response {
    let content_type = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (content_type, health.inner.telemetry.render()).into_response()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests;
