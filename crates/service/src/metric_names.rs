//! The names of all metrics, each with type, labels and help. `docs/metrics.md` holds the same table; a test compares them.
//!
//! Values of labels are bounded: `tenant_id` by [`crate::telemetry::tenant_label`], `usage_type` by the registry (an unregistered
//! metric counts as `unregistered`), `source` and `source_module` by the configured sources (an unknown one counts as `unknown`),
//! `partition` by the topic. Metrics are for alarms, never for bills: they are lost at a restart.

use metrics::{describe_counter, describe_gauge, describe_histogram};

/// What a metric does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Type {
    Counter,
    Gauge,
    /// With the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

impl Type {
    /// The word in the documentation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metric {
    pub name: &'static str,
    pub r#type: Type,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

/// Milliseconds of something a person waits for.
const MILLIS: &[f64] = &[1., 2., 5., 10., 20., 50., 100., 200., 500., 1e3, 2e3, 5e3, 10e3, 30e3];
/// Milliseconds of something that may also wait for an outage to end.
const LONG_MILLIS: &[f64] =
    &[10., 50., 100., 250., 500., 1e3, 2.5e3, 5e3, 10e3, 30e3, 60e3, 300e3, 900e3, 3600e3];
const SECONDS: &[f64] = &[0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1., 2.5, 5., 10., 30., 60.];
const ROWS: &[f64] = &[1., 10., 100., 1e3, 2.5e3, 5e3, 10e3, 25e3, 50e3, 100e3, 250e3, 500e3];
const BYTES: &[f64] = &[1e3, 10e3, 100e3, 500e3, 1e6, 2.5e6, 5e6, 10e6, 25e6, 50e6, 100e6];
/// A plan is at most 4,095 characters.
const CHARACTERS: &[f64] = &[64., 128., 256., 512., 1024., 2048., 3072., 3583., 4095.];

macro_rules! metric {
    ($($name:ident $type:ident $(($buckets:ident))? [$($label:literal)*] $text:literal $help:literal)*) => {
        $(#[doc = $help] pub const $name: &str = $text;)*

        /// All metrics, in the order of the documentation.
        pub const ALL: &[Metric] = &[$(Metric {
            name: $text,
            r#type: Type::$type $(($buckets))?,
            labels: &[$($label),*],
            help: $help,
        }),*];

        /// The names of the constants, for the test that looks for their use.
        #[cfg(test)]
        const CONSTANTS: &[&str] = &[$(stringify!($name)),*];
    };
}

metric! {
    // ingestion
    USAGE_INGESTION_TOTAL Counter ["tenant_id" "usage_type" "status"] "usage_ingestion_total"
        "Records that the consumer decided; status is success, dedup, validation_error, auth_denied or quota_exceeded."
    USAGE_INGESTION_LATENCY_MS Histogram(LONG_MILLIS) ["tenant_id"] "usage_ingestion_latency_ms"
        "Milliseconds from the broker's timestamp of a record until its row is in storage."
    USAGE_INGESTION_BATCH_SIZE Histogram(ROWS) ["source_module"] "usage_ingestion_batch_size"
        "Records that the relay takes from the outbox at once."
    USAGE_DEDUP_TOTAL Counter ["tenant_id"] "usage_dedup_total"
        "Records whose identity and content were stored before."
    USAGE_SCHEMA_VALIDATION_ERRORS_TOTAL Counter ["tenant_id" "usage_type"] "usage_schema_validation_errors_total"
        "Records that contradict their usage type or whose usage type is not registered."
    // outbox and relay
    OUTBOX_PENDING_ROWS Gauge ["source_module"] "outbox_pending_rows"
        "Outbox rows that are not yet in Kafka; an estimate above some 10,000."
    OUTBOX_DEAD_LETTERS_TOTAL Counter ["source_module"] "outbox_dead_letters_total"
        "Outbox rows that can never be produced."
    OUTBOX_DELIVERY_ATTEMPTS_TOTAL Counter ["source_module" "status"] "outbox_delivery_attempts_total"
        "Messages handed to Kafka; status is success or failure."
    OUTBOX_DELIVERY_LATENCY_MS Histogram(LONG_MILLIS) ["source_module"] "outbox_delivery_latency_ms"
        "Milliseconds from the row's insert to Kafka's acknowledgement."
    OUTBOX_WAITING_ROWS Gauge ["source_module"] "outbox_waiting_rows"
        "Outbox rows that wait for their source to be configured or for a relay that knows their payload type."
    OUTBOX_COMPLETENESS_LAG_SECONDS Gauge ["source_module"] "outbox_completeness_lag_seconds"
        "How far what the relay says of a source's completeness is behind the source database's clock."
    OUTBOX_MARKERS_TOTAL Counter ["status"] "outbox_markers_total"
        "Completeness markers handed to Kafka; status is success or failure."
    OUTBOX_MARKERS_HELD Gauge ["reason"] "outbox_markers_held"
        "1 while no completeness marker may be sent; reason is sequence_behind, clock_behind or refused."
    EMIT_REFUSED_TOTAL Counter ["source_module" "reason"] "emit_refused_total"
        "Authorizations and emits that were refused, in the process of the source; reason is a fixed word for the kind of error."
    EMIT_QUOTA_FLUSH_FAILURES_TOTAL Counter ["source_module"] "emit_quota_flush_failures_total"
        "Times that a process of the source could not tell the shared counter of its quota what it admitted."
    // consumer
    CONSUMER_LAG_RECORDS Gauge ["partition"] "consumer_lag_records"
        "Messages between the committed offset and the end of the partition."
    CONSUMER_LAG_SECONDS Gauge ["partition"] "consumer_lag_seconds"
        "Age of the oldest message that is not done, by the broker's timestamp; 0 when there is none."
    CONSUMER_BATCH_ROWS Histogram(ROWS) [] "consumer_batch_rows"
        "Kept rows of a batch."
    CONSUMER_BATCH_BYTES Histogram(BYTES) [] "consumer_batch_bytes"
        "Bytes of a batch as received."
    CONSUMER_PLAN_CHARACTERS Histogram(CHARACTERS) [] "consumer_plan_characters"
        "Length of a plan in the commit's metadata."
    CONSUMER_COMMIT_SECONDS Histogram(SECONDS) [] "consumer_commit_seconds"
        "Duration of one synchronous commit of plans."
    CONSUMER_CONTROL_SECONDS Histogram(SECONDS) [] "consumer_control_seconds"
        "Duration of the transaction in the control database that ends batches."
    CONSUMER_FILTER_IDS Gauge [] "consumer_filter_ids"
        "Record ids in the duplicate filters of the held partitions."
    CONSUMER_FILTER_BYTES Gauge [] "consumer_filter_bytes"
        "Memory of the duplicate filters."
    CONSUMER_POLICY_QUESTIONS_TOTAL Counter ["answer"] "consumer_policy_questions_total"
        "Questions to the policy point whether a source may emit for a tenant that is not its home; answer is permit, deny or error."
    CONSUMER_FILTER_HITS_TOTAL Counter ["result"] "consumer_filter_hits_total"
        "Filter hits that were checked in storage; result is stored or false."
    CONSUMER_DEAD_LETTERS_TOTAL Counter ["reason" "severity"] "consumer_dead_letters_total"
        "Messages written to the topic of dead letters, by reason; severity is error or info."
    CONSUMER_DEAD_LETTERS_TRUNCATED_TOTAL Counter [] "consumer_dead_letters_truncated_total"
        "Dead letters without their value, which was too large: only their place, the value's length and its SHA-256 are left."
    CONSUMER_FORWARDED_TOTAL Counter [] "consumer_forwarded_total"
        "Records produced again onto their right partition."
    CONSUMER_MARKERS_AHEAD_TOTAL Counter ["source"] "consumer_markers_ahead_total"
        "Completeness markers more than 5 minutes ahead of the broker's clock, which move nothing: the source's clock is wrong."
    CONSUMER_OVER_QUOTA_TOTAL Counter ["source"] "consumer_over_quota_total"
        "Records that became dead letters because the quota of their source and tenant was used up."
    USAGE_SOURCE_LAG_SECONDS Gauge ["source"] "usage_source_lag_seconds"
        "Now minus the time until which the source is complete; infinite while that is not known, 0 once it is retired."
    CONSUMER_PARTITIONS Gauge ["state"] "consumer_partitions"
        "Partitions assigned to this worker; state is running, taking_over, waiting or stopped (an alarm says for what, or why)."
    CONSUMER_REBALANCES_TOTAL Counter ["event"] "consumer_rebalances_total"
        "Rebalance callbacks; event is assigned, revoked or lost."
    CONSUMER_TAKEOVER_SECONDS Histogram(SECONDS) [] "consumer_takeover_seconds"
        "From the assignment of a partition until it runs."
    CONSUMER_BUDGET_BYTES Gauge [] "consumer_budget_bytes"
        "Bytes of messages in hand."
    RETRIES_TOTAL Counter ["operation"] "retries_total"
        "Attempts that failed in a way that may pass and are repeated after a backoff."
    BACKOFF_SECONDS Gauge ["operation"] "backoff_seconds"
        "The wait before the next attempt; 0 while all is well."
    // storage
    STORAGE_HEALTH_STATUS Gauge ["plugin"] "storage_health_status"
        "1 when the storage backend answers, 0 when it does not."
    STORAGE_BREAKER_OPEN Gauge ["plugin"] "storage_breaker_open"
        "1 while the circuit to the storage backend is open or half open and questions are refused, 0 while it is closed."
    STORAGE_INSERT_SECONDS Histogram(SECONDS) ["table"] "storage_insert_seconds"
        "Duration of one insert; table is records or rollups."
    STORAGE_INSERT_ROWS Histogram(ROWS) ["table"] "storage_insert_rows"
        "Rows of one insert."
    STORAGE_HORIZON_AGE_SECONDS Gauge ["partition"] "storage_horizon_age_seconds"
        "Age of the oldest stored record that is not rolled up."
    STORAGE_READ_SECONDS Histogram(SECONDS) ["query_type"] "storage_read_seconds"
        "Duration of one question to storage."
    // policy decision point
    POLICY_DECISIONS_TOTAL Counter ["point" "action" "decision"] "policy_decisions_total"
        "Decisions that were not in the cache; point is embedded or remote, decision is permit, deny or error."
    POLICY_DECISION_SECONDS Histogram(SECONDS) ["point"] "policy_decision_seconds"
        "Duration of one decision that was not in the cache."
    POLICY_CACHE_TOTAL Counter ["result"] "policy_cache_total"
        "Questions to the cache of decisions; result is hit or miss."
    POLICY_RELOADS_TOTAL Counter ["result"] "policy_reloads_total"
        "Changes of the policy folder; result is taken or refused."
    POLICY_FOLDER_REFUSED Gauge [] "policy_folder_refused"
        "1 while the policy folder holds something that is refused and the policies before hold on, 0 otherwise."
    // query-api
    USAGE_QUERY_LATENCY_MS Histogram(MILLIS) ["tenant_id" "query_type"] "usage_query_latency_ms"
        "Milliseconds to answer a query; query_type is aggregated, raw, record or watermarks."
    HTTP_REQUESTS_TOTAL Counter ["method" "route" "status"] "http_requests_total"
        "Requests by route template and status."
    HTTP_REQUEST_SECONDS Histogram(SECONDS) ["method" "route"] "http_request_seconds"
        "Duration of a request until the head of its answer."
    RATE_LIMIT_DECISIONS_TOTAL Counter ["rule" "decision"] "rate_limit_decisions_total"
        "Decisions of a limit on requests; decision is allowed, denied, or, without the control database, failed_open or failed_closed."
    // access
    AUTH_KEY_READS_TOTAL Counter ["status"] "auth_key_reads_total"
        "Readings of the keys that tokens are verified with, from the file or the URL; status is success or failure."
    // every process
    READY Gauge ["check"] "ready"
        "1 when the readiness check passes, 0 when it does not."
    BUILD_INFO Gauge ["service" "version"] "build_info"
        "Always 1; says what runs."
}

/// Tells the installed recorder the help of every metric.
pub fn describe_all() {
    for metric in ALL {
        match metric.r#type {
            Type::Counter => describe_counter!(metric.name, metric.help),
            Type::Gauge => describe_gauge!(metric.name, metric.help),
            Type::Histogram(_) => describe_histogram!(metric.name, metric.help),
        }
    }
}

/// The metrics as a Markdown table, as `docs/metrics.md` holds it.
pub fn markdown() -> String {
    let mut text = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for metric in ALL {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "none".to_string() } else { labels.join(", ") };
        text.push_str(&format!(
            "| `{}` | {} | {labels} | {} |\n",
            metric.name,
            metric.r#type.as_str(),
            metric.help
        ));
    }
    text
}

#[cfg(test)]
mod tests;
