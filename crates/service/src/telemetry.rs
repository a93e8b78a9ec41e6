//! Logs to standard error and metrics for Prometheus.
//!
//! Fields of log lines mean the same everywhere: `correlation_id`, `tenant_id`, `operation`, `latency_ms`, `source`,
//! `partition`, `batch_seq`, `dedup`, `backoff_ms`, `error`. Never logged: values, metadata, subject and resource ids.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::HashMap;
use std::panic::PanicHookInfo;
use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

use metrics::SharedString;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde::Deserialize;
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use uuid::Uuid;

use crate::metric_names::{self, Type};

/// `[telemetry]`, see [`crate::config::TELEMETRY`].
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TelemetryConfig {
    /// `host:port` of [`crate::health::serve`].
    pub listen: String,
    pub format: LogFormat,
    /// Directives of tracing's `EnvFilter`.
    pub filter: String,
    /// Tenants with series of their own.
    pub tenant_labels: usize,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".into(),
            format: LogFormat::Human,
            filter: "info".into(),
            tenant_labels: 100,
        }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Human,
    Json,
}

/// Why telemetry did not start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("telemetry.filter is not a filter")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    #[error("the buckets of {0} are not valid")]
    Buckets(&'static str),
    #[error("telemetry was started before")]
    Twice(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The way to the metrics that were recorded.
#[derive(Clone)]
pub struct Telemetry {
    handle: PrometheusHandle,
}

/// Starts logs and metrics of this process. Once per process.
///
/// # Errors
/// A filter that does not parse, or a second call.
pub fn init(config: &TelemetryConfig, service: &'static str) -> Result<Telemetry, TelemetryError> {
    let twice = |error: Box<dyn std::error::Error + Send + Sync>| TelemetryError::Twice(error);
    let subscriber = subscriber(config, std::io::stderr)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|error| twice(Box::new(error)))?;
    let recorder = builder()?.build_recorder();
    let telemetry = Telemetry { handle: recorder.handle() };
    metrics::set_global_recorder(recorder).map_err(|error| twice(error.to_string().into()))?;
    metric_names::describe_all();
    std::panic::set_hook(Box::new(log_panic));
    // A second start would have failed above.
    let _ = TENANTS.set(TenantLabels::new(config.tenant_labels));
    metrics::gauge!(metric_names::BUILD_INFO, "service" => service, "version" => env!("CARGO_PKG_VERSION"))
        .set(1);
    Ok(telemetry)
}

const WITHHELD: &str = "a text that is withheld, since it may quote data";

/// What a panic says, if that was written in the program. A text that was put together at run time may quote data or a secret.
pub fn panic_message(payload: &(dyn Any + Send)) -> &'static str {
    payload.downcast_ref::<&'static str>().copied().unwrap_or(WITHHELD)
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let message = panic.payload().downcast_ref::<&'static str>().copied().unwrap_or(WITHHELD);
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    // Only where RUST_BACKTRACE asks for it; it names functions, no values.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
    tracing::error!(
        place,
        thread = thread.name().unwrap_or_default(),
        backtrace = backtrace.map(tracing::field::display),
        error = message,
        "panicked"
    );
}

fn builder() -> Result<PrometheusBuilder, TelemetryError> {
    let mut builder = PrometheusBuilder::new();
    for metric in metric_names::ALL {
        if let Type::Histogram(buckets) = metric.r#type {
            builder = builder
                .set_buckets_for_metric(Matcher::Full(metric.name.into()), buckets)
                .map_err(|_| TelemetryError::Buckets(metric.name))?;
        }
    }
    Ok(builder)
}

fn subscriber<W>(
    config: &TelemetryConfig,
    writer: W,
) -> Result<Box<dyn tracing::Subscriber + Send + Sync>, TelemetryError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_new(&config.filter).map_err(TelemetryError::Filter)?;
    let builder = tracing_subscriber::fmt().with_writer(writer).with_env_filter(filter);
    let discreet = filter_fn(is_discreet);
    Ok(match config.format {
        LogFormat::Human => Box::new(builder.with_ansi(false).finish().with(discreet)),
        LogFormat::Json => {
            Box::new(builder.json().flatten_event(true).with_current_span(true).finish().with(discreet))
        }
    })
}

/// ClickHouse's driver repeats at level debug what the server says of data that it refuses, with the data. No filter brings that into the log.
fn is_discreet(metadata: &Metadata<'_>) -> bool {
    let driver = metadata.target().split("::").next() == Some("clickhouse");
    !driver || *metadata.level() <= Level::INFO
}

impl Telemetry {
    /// A recorder of its own that is not the process's: for tests, and for tools that serve no metrics.
    pub fn detached() -> Self {
        Self { handle: PrometheusBuilder::new().build_recorder().handle() }
    }

    /// What `/metrics` answers.
    pub fn render(&self) -> String {
        self.handle.render()
    }

    /// Moves recorded samples into their buckets; [`crate::health::serve`] calls it, so that memory stays bounded unscraped.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

/// Milliseconds for the histograms that end in `_ms`.
#[allow(clippy::float_arithmetic, reason = "metrics take floats; no usage value comes through here")]
pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

static TENANTS: OnceLock<TenantLabels> = OnceLock::new();

/// The value of the label `tenant_id`: the tenant as text for as many tenants as `telemetry.tenant_labels` says, in the order
/// they come, `other` for the rest. Without [`init`] every tenant is `other`.
pub fn tenant_label(tenant: Uuid) -> SharedString {
    TENANTS.get().map_or(OTHER, |labels| labels.get(tenant))
}

const OTHER: SharedString = SharedString::const_str("other");

struct TenantLabels {
    limit: usize,
    known: RwLock<HashMap<Uuid, Arc<str>>>,
}

impl TenantLabels {
    fn new(limit: usize) -> Self {
        Self { limit, known: RwLock::new(HashMap::new()) }
    }

    fn get(&self, tenant: Uuid) -> SharedString {
        {
            let known = self.known.read().unwrap_or_else(|poisoned| poisoned.into_inner());
            if let Some(label) = known.get(&tenant) {
                return SharedString::from_shared(label.clone());
            }
            if known.len() >= self.limit {
                return OTHER;
            }
        }
        let mut known = self.known.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if known.len() >= self.limit && !known.contains_key(&tenant) {
            return OTHER;
        }
        let label = known.entry(tenant).or_insert_with(|| tenant.to_string().into());
        SharedString::from_shared(label.clone())
    }
}

#[cfg(test)]
mod tests;
