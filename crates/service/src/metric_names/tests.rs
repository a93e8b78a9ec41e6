use std::collections::{BTreeMap, BTreeSet};

use super::*;

const BEGIN: &str = "<!-- metrics -->\n";
const END: &str = "<!-- end -->";

/// Compares the table in the document with ours. With USAGE_BLESS=1 it writes ours into the document instead.
#[test]
fn the_document_holds_the_same_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let document = std::fs::read_to_string(path).unwrap();
    let (head, rest) = document.split_once(BEGIN).expect("the document marks where its table begins");
    let (table, tail) = rest.split_once(END).expect("and where it ends");
    if std::env::var_os("USAGE_BLESS").is_some() {
        std::fs::write(path, format!("{head}{BEGIN}{}{END}{tail}", markdown())).unwrap();
        return;
    }
    let rows = |text: &str| -> BTreeMap<String, String> {
        text.lines()
            .filter_map(|line| Some((line.split('`').nth(1)?.to_string(), line.to_string())))
            .collect()
    };
    let (ours, theirs) = (rows(&markdown()), rows(table));
    for (name, row) in &ours {
        assert_eq!(
            theirs.get(name),
            Some(row),
            "docs/metrics.md differs in {name}; USAGE_BLESS=1 brings it up to date"
        );
    }
    for name in theirs.keys() {
        assert!(ours.contains_key(name), "docs/metrics.md has {name}, which metric_names.rs has not");
    }
    assert_eq!(table, markdown());
}

/// The text of all Rust files of the workspace but those of this module.
fn sources() -> Vec<(std::path::PathBuf, String)> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders: Vec<_> =
        ["producer", "consumer", "query-api", "crates"].iter().map(|room| root.join(room)).collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let ours = path.to_string_lossy().contains("metric_names");
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !ours {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    found
}

#[test]
fn every_metric_is_recorded_and_none_by_a_name_of_its_own() {
    let sources = sources();
    for constant in CONSTANTS {
        let used = sources.iter().any(|(_, text)| text.contains(constant));
        assert!(used, "{constant} is documented, but nothing records it");
    }
    for (path, text) in &sources {
        for macro_name in ["counter!(", "gauge!(", "histogram!("] {
            for (at, _) in text.match_indices(macro_name) {
                let argument = text[at + macro_name.len()..].trim_start();
                assert!(!argument.starts_with('"'), "{} records a metric without a constant", path.display());
            }
        }
    }
}

#[test]
fn names_are_unique_and_plain() {
    let names: BTreeSet<_> = ALL.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), ALL.len());
    for metric in ALL {
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        assert!(plain(metric.name) && metric.labels.iter().all(|label| plain(label)), "{}", metric.name);
        assert_eq!(metric.name.ends_with("_total"), metric.r#type == Type::Counter, "{}", metric.name);
        assert!(metric.help.ends_with('.'), "{}", metric.name);
    }
}

#[test]
fn buckets_ascend() {
    for metric in ALL {
        if let Type::Histogram(buckets) = metric.r#type {
            assert!(buckets.windows(2).all(|pair| pair[0] < pair[1]), "{}", metric.name);
        }
    }
}

/// Requirement 3.8, without the metrics of rooms that later issues build.
#[test]
fn the_required_metrics_are_there() {
    for (name, kind, labels) in [
        ("usage_ingestion_total", "counter", "tenant_id usage_type status"),
        ("usage_ingestion_latency_ms", "histogram", "tenant_id"),
        ("usage_ingestion_batch_size", "histogram", "source_module"),
        ("outbox_pending_rows", "gauge", "source_module"),
        ("outbox_dead_letters_total", "counter", "source_module"),
        ("outbox_delivery_attempts_total", "counter", "source_module status"),
        ("outbox_delivery_latency_ms", "histogram", "source_module"),
        ("usage_dedup_total", "counter", "tenant_id"),
        ("usage_schema_validation_errors_total", "counter", "tenant_id usage_type"),
        ("usage_query_latency_ms", "histogram", "tenant_id query_type"),
        ("storage_health_status", "gauge", "plugin"),
    ] {
        let metric = ALL.iter().find(|metric| metric.name == name).expect(name);
        assert_eq!((metric.r#type.as_str(), metric.labels.join(" ").as_str()), (kind, labels), "{name}");
    }
}
