use std::io;
use std::sync::Mutex;

use super::*;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn logged(format: LogFormat, filter: &str) -> String {
    let lines = Lines::default();
    let writer = lines.clone();
    let config = TelemetryConfig { format, filter: filter.into(), ..TelemetryConfig::default() };
    let subscriber = subscriber(&config, move || writer.clone()).unwrap();
    tracing::subscriber::with_default(subscriber, || {
        let span = tracing::info_span!("request", correlation_id = "4bf92f35");
        let _entered = span.enter();
        tracing::info!(partition = 3, batch_seq = 17_i64, "batch stored");
        tracing::debug!("not shown at info");
    });
    lines.text()
}

#[test]
fn json_lines_have_fields_at_the_top() {
    let text = logged(LogFormat::Json, "info");
    assert_eq!(text.lines().count(), 1, "{text}");
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["message"], "batch stored");
    assert_eq!((line["partition"].as_i64(), line["batch_seq"].as_i64()), (Some(3), Some(17)));
    assert_eq!(
        (line["level"].as_str(), line["span"]["correlation_id"].as_str()),
        (Some("INFO"), Some("4bf92f35"))
    );
    assert!(line["timestamp"].is_string());
}

#[test]
fn human_lines_are_plain_text() {
    let text = logged(LogFormat::Human, "debug");
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(
        text.contains("batch stored partition=3 batch_seq=17")
            && text.contains("correlation_id=\"4bf92f35\""),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[test]
fn directives_choose_by_module() {
    assert!(logged(LogFormat::Human, "off").is_empty());
    assert!(logged(LogFormat::Human, "warn,usage_service=debug").contains("not shown at info"));
    let config = TelemetryConfig { filter: "usage=loudly".into(), ..TelemetryConfig::default() };
    assert!(matches!(subscriber(&config, io::sink), Err(TelemetryError::Filter(_))));
}

/// The driver's own crate: `usage_storage::clickhouse` is ours, and quotes nothing.
#[test]
fn no_filter_shows_what_the_driver_quotes() {
    for filter in ["trace", "debug", "clickhouse=trace", "clickhouse::response=trace,usage_storage=debug"] {
        for format in [LogFormat::Human, LogFormat::Json] {
            let lines = Lines::default();
            let writer = lines.clone();
            let config = TelemetryConfig { format, filter: filter.into(), ..TelemetryConfig::default() };
            let subscriber = subscriber(&config, move || writer.clone()).unwrap();
            tracing::subscriber::with_default(subscriber, || {
                tracing::debug!(target: "clickhouse::response", error = "value = hunter2", "response error");
                tracing::trace!(target: "clickhouse", "hunter2");
                tracing::debug!(target: "usage_storage::clickhouse", "ours");
                tracing::warn!(target: "clickhouse::response", "a warning");
            });
            let text = lines.text();
            assert!(!text.contains("hunter2") && text.contains("a warning"), "{filter}: {text}");
            assert_eq!(text.contains("ours"), !filter.starts_with("clickhouse="), "{filter}: {text}");
        }
    }
}

#[test]
fn histograms_have_our_buckets_and_metrics_their_help() {
    let recorder = builder().unwrap().build_recorder();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        metric_names::describe_all();
        metrics::histogram!(metric_names::USAGE_QUERY_LATENCY_MS, "tenant_id" => "other", "query_type" => "raw").record(3);
        metrics::counter!(metric_names::USAGE_DEDUP_TOTAL, "tenant_id" => "other").increment(2);
    });
    let text = handle.render();
    assert!(
        text.contains("usage_query_latency_ms_bucket{tenant_id=\"other\",query_type=\"raw\",le=\"2\"} 0"),
        "{text}"
    );
    assert!(
        text.contains("usage_query_latency_ms_bucket{tenant_id=\"other\",query_type=\"raw\",le=\"5\"} 1"),
        "{text}"
    );
    assert!(text.contains("# HELP usage_dedup_total Records whose identity"), "{text}");
    assert!(text.contains("# TYPE usage_dedup_total counter"), "{text}");
    assert!(text.contains("usage_dedup_total{tenant_id=\"other\"} 2"), "{text}");
}

#[test]
fn tenants_beyond_the_limit_share_a_label() {
    let labels = TenantLabels::new(2);
    let tenants: Vec<Uuid> = (0..4).map(|_| Uuid::new_v4()).collect();
    let seen: Vec<String> = tenants.iter().map(|tenant| labels.get(*tenant).to_string()).collect();
    assert_eq!(seen, [tenants[0].to_string(), tenants[1].to_string(), "other".into(), "other".into()]);
    assert_eq!(labels.get(tenants[1]).as_ref(), tenants[1].to_string());
    assert_eq!(TenantLabels::new(0).get(tenants[0]).as_ref(), "other");
}

#[test]
fn the_limit_holds_for_threads_that_come_together() {
    let labels = TenantLabels::new(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..200).for_each(|_| drop(labels.get(Uuid::new_v4()))));
        }
    });
    assert_eq!(labels.known.read().unwrap().len(), 3);
}

#[test]
fn milliseconds_keep_their_fraction() {
    let parts = [(0, 0.0), (1_500, 1.5), (2_000_000, 2_000.0)];
    for (micros, expected) in parts {
        assert_eq!(millis(Duration::from_micros(micros)).to_bits(), f64::to_bits(expected));
    }
}

/// The only test that starts the process's telemetry: a second start is refused.
#[test]
fn the_second_start_is_refused() {
    let config = TelemetryConfig { filter: "off".into(), tenant_labels: 1, ..TelemetryConfig::default() };
    let telemetry = init(&config, "test").unwrap();
    assert!(telemetry.render().contains("build_info{service=\"test\""), "{}", telemetry.render());
    assert!(matches!(init(&config, "test"), Err(TelemetryError::Twice(_))));
    let tenant = Uuid::new_v4();
    assert_eq!(tenant_label(tenant).as_ref(), tenant.to_string());
    assert_eq!(tenant_label(Uuid::new_v4()).as_ref(), "other");
}
