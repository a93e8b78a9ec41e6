use std::path::PathBuf;

use usage_service::config::{self, Cli, Resolved};

use super::*;

/// Without telemetry, which only the program has.
const LIBRARY: &[Setting] = settings![KAFKA, SOURCE_DATABASE, RELAY];
const KEY: &str = "000102030405060708090a0b0c0d0e0f";

fn resolve(file: Option<&str>, set: &[&str]) -> RelayConfig {
    let path: Option<PathBuf> = file.map(|text| {
        let path = std::env::temp_dir().join(format!("usage-relay-{}.toml", uuid::Uuid::new_v4()));
        std::fs::write(&path, text).unwrap();
        path
    });
    let mut all = vec![
        "kafka.brokers=127.0.0.1:9092".to_string(),
        "source_database.url=postgres://u@127.0.0.1/d".to_string(),
    ];
    all.extend(set.iter().map(ToString::to_string));
    let cli = Cli { config: path.clone(), set: all, check_config: false };
    let resolved = Resolved::from_parts(LIBRARY, &cli, |_| None);
    if let Some(path) = path {
        std::fs::remove_file(path).unwrap();
    }
    resolved.unwrap().value().unwrap()
}

#[test]
fn the_settings_are_declared_well() {
    config::verify(super::SETTINGS).unwrap();
}

/// Whoever uses the library and whoever uses the program get the same relay.
#[test]
fn the_declared_defaults_are_those_of_the_library() {
    let declared = resolve(None, &[]).relay;
    assert_eq!(format!("{declared:?}"), format!("{:?}", RelaySettings::default()));
}

#[test]
fn sources_come_from_the_file_and_from_one_variable() {
    let file = format!("[[relay.sources]]\nname = \"demo\"\nkey_id = \"demo-1\"\nkey = \"{KEY}\"\n");
    let set = [
        format!("relay.source_keys=llm-gateway:k1:{KEY}{KEY},vm:k:{KEY}"),
        "relay.default_source=demo".into(),
    ];
    let config = resolve(Some(&file), &set.iter().map(String::as_str).collect::<Vec<_>>());
    config.validate().unwrap();
    let keys = config.relay.keys().unwrap();
    let names: Vec<(&str, &str, usize)> =
        keys.iter().map(|(name, id, key)| (name.as_str(), id.as_str(), key.len())).collect();
    assert_eq!(names, [("demo", "demo-1", 16), ("llm-gateway", "k1", 32), ("vm", "k", 16)]);
    assert_eq!(keys[0].2, (0..16).collect::<Vec<u8>>());
}

#[test]
fn faults_name_the_setting_and_never_the_key() {
    let secret = "c0ffee";
    for (set, part) in [
        (format!("relay.source_keys=demo:k:{secret}"), "demo: the key has fewer"),
        (format!("relay.source_keys=demo:k:{secret}x{KEY}"), "not hexadecimal"),
        (format!("relay.source_keys=demo:{secret}{KEY}"), "source_keys[0] is not NAME:KEY_ID:HEX"),
        (format!("relay.source_keys=Demo:k:{KEY}"), "\"Demo\""),
        (format!("relay.source_keys=demo::{KEY}"), "key_id is empty"),
        (format!("relay.source_keys=demo:k:{KEY},demo:k:{KEY}"), "demo is there twice"),
        ("relay.default_source=demo".into(), "relay.default_source"),
    ] {
        let text = resolve(None, &[&set]).validate().unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
        assert!(!text.contains(secret) && !text.contains(KEY), "{text}");
    }
}

#[test]
fn values_that_would_not_work_are_refused() {
    for set in [
        "relay.compression=brotli",
        "relay.backoff_max=15m",
        "relay.backoff_base=2m",
        "relay.backoff_base=0s",
        "relay.lease=100ms",
        "relay.message_timeout=9s",
        "relay.linger=5s",
        "relay.batch_rows=0",
        "relay.poll_min=0s",
        "relay.poll_max=1ms",
        "relay.max_message_bytes=10",
    ] {
        let error = resolve(None, &[set]).validate().expect_err(set).to_string();
        let setting = set.split('=').next().unwrap();
        assert!(error.contains(setting), "{error} does not name {setting}");
    }
    resolve(None, &["relay.backoff_max=14m"]).validate().unwrap();
    // As a program that links the relay may fill it; the settings of usage-relay are refused before.
    let mut linked = resolve(None, &[]);
    linked.relay.instance = Some(String::new());
    assert!(linked.validate().unwrap_err().to_string().contains("relay.instance"));
}
