use std::io::Write as _;

use crate::config::{
    CLICKHOUSE, CONTROL_DATABASE, Cli, ConfigError, DatabaseConfig, Endpoint, KAFKA, KafkaConfig, Resolved,
    Setting, verify,
};
use crate::error_chain;
use crate::transport::Transport;

const SETTINGS: &[Setting] = crate::settings![
    KAFKA,
    CONTROL_DATABASE,
    CLICKHOUSE,
    &[
        Setting::text("api.listen", "Address.").default("127.0.0.1:8080").endpoint(Endpoint::Listen),
        Setting::bool("api.allow_plaintext", "Plaintext.").default("false"),
        Setting::text("api.tls_certificate", "Certificate.").optional(),
    ],
];

const LOCAL: [&str; 3] = [
    "kafka.brokers=127.0.0.1:9092",
    "control_database.url=postgres://u:hunter2@localhost/d",
    "clickhouse.url=http://127.0.0.1:8123",
];

#[derive(Debug, serde::Deserialize)]
struct Anything {}

fn resolve(set: &[&str]) -> Resolved {
    let set = LOCAL.iter().chain(set).map(ToString::to_string).collect();
    Resolved::from_parts(SETTINGS, &Cli { set, ..Cli::default() }, |_| None).unwrap()
}

fn refused(set: &[&str]) -> String {
    let resolved = resolve(set);
    let error = resolved.value::<Anything>().unwrap_err();
    assert!(resolved.check_addresses().is_err() && resolved.open_sections().is_err(), "{error}");
    assert!(matches!(error, ConfigError::Invalid { .. }), "{error:?}");
    error_chain(&error)
}

#[test]
fn loopback_needs_no_permission() {
    resolve(&[]).value::<Anything>().unwrap();
    assert_eq!(resolve(&[]).open_sections().unwrap(), []);
}

#[test]
fn plaintext_beyond_loopback_is_refused_by_name_and_without_the_address() {
    for (set, path) in [
        ("kafka.brokers=kafka.internal:9092", "kafka.brokers"),
        ("kafka.brokers=127.0.0.1:9092,kafka.internal:9092", "kafka.brokers"),
        ("control_database.url=postgres://u:hunter2@db.internal/d", "control_database.url"),
        ("control_database.url=postgres://u:hunter2@db.internal/d?sslmode=require", "control_database.url"),
        ("clickhouse.url=http://ch.internal:8123", "clickhouse.url"),
        ("api.listen=0.0.0.0:8080", "api.listen"),
    ] {
        let text = refused(&[set]);
        assert!(text.contains(&format!("`{path}` from --set")) && text.contains("not loopback"), "{text}");
        assert!(text.contains("allow_plaintext = true"), "{text}");
        assert!(!text.contains("internal") && !text.contains("hunter2"), "{text}");
    }
}

#[test]
fn tls_needs_no_permission() {
    let set = [
        "kafka.brokers=kafka.internal:9092",
        "kafka.security.protocol=sasl_ssl",
        "kafka.security.sasl_mechanism=PLAIN",
        "kafka.security.sasl_username=u",
        "kafka.security.sasl_password=hunter2",
        "control_database.url=postgres://u@db.internal/d?sslmode=verify-full",
        "clickhouse.url=https://ch.internal:8443",
        "api.listen=0.0.0.0:8443",
        "api.tls_certificate=/etc/usage/api.pem",
    ];
    resolve(&set).value::<Anything>().unwrap();
    assert_eq!(resolve(&set).open_sections().unwrap(), []);
}

#[test]
fn permission_is_for_one_section_and_is_told() {
    let open = ["clickhouse.url=http://ch.internal:8123", "clickhouse.allow_plaintext=true"];
    resolve(&open).value::<Anything>().unwrap();
    let found = resolve(&open).open_sections().unwrap();
    let found: Vec<_> = found.into_iter().map(|open| (open.section, open.transport)).collect();
    assert_eq!(found, [("clickhouse", Transport::Plaintext)]);
    // No other section profits.
    let text = refused(&[open[0], open[1], "kafka.brokers=kafka.internal:9092"]);
    assert!(text.contains("`kafka.brokers`"), "{text}");

    let unverified =
        ["control_database.url=postgres://u@h/d?sslmode=require", "control_database.allow_plaintext=true"];
    assert_eq!(resolve(&unverified).open_sections().unwrap()[0].transport, Transport::Unverified);
    // Permission that nothing makes use of is not worth a word.
    assert_eq!(resolve(&["kafka.allow_plaintext=true"]).open_sections().unwrap(), []);
}

#[test]
fn a_tool_is_refused_the_section_that_it_asks_for() {
    let set = ["kafka.brokers=kafka.internal:9092"];
    let error = resolve(&set).section::<KafkaConfig>("kafka").unwrap_err();
    assert!(error.to_string().contains("`kafka.brokers`"), "{error}");
    resolve(&set).section::<DatabaseConfig>("control_database").unwrap();
}

#[test]
fn files_for_tls_are_read_before_the_start() {
    let text = refused(&["clickhouse.url=https://ch.internal", "clickhouse.ca_file=/nonexistent/ca.pem"]);
    assert!(text.contains("`clickhouse.url`") && text.contains("/nonexistent/ca.pem"), "{text}");
    let mut key = tempfile::NamedTempFile::new().unwrap();
    key.write_all(b"hunter2").unwrap();
    let text = refused(&[&format!("control_database.ca_file={}", key.path().display())]);
    assert!(text.contains("holds no certificates") && !text.contains("hunter2"), "{text}");
    let text = refused(&["kafka.ca_file=/nonexistent/ca.pem"]);
    assert!(text.contains("`kafka.brokers`"), "{text}");
}

#[test]
fn whoever_fills_the_structs_is_refused_too() {
    let mut kafka = KafkaConfig::plaintext("kafka.internal:9092");
    assert!(kafka.transport().is_err());
    kafka.allow_plaintext = true;
    assert_eq!(kafka.transport(), Ok(Transport::Plaintext));
    let mut database = DatabaseConfig::new("postgres://u:hunter2@db.internal/d");
    let error = database.options().unwrap_err();
    assert!(!error.to_string().contains("hunter2") && !error.to_string().contains("internal"), "{error}");
    database.allow_plaintext = true;
    database.options().unwrap();
}

#[test]
fn no_address_is_declared_without_what_it_needs() {
    let wrong = |settings: &[Setting]| verify(settings).unwrap_err().to_string();
    for path in ["policy.url", "auth.jwks_url", "other.brokers"] {
        assert!(wrong(&[Setting::text(path, "x")]).contains("without an endpoint"), "{path}");
    }
    let url = Setting::text("policy.url", "x").endpoint(Endpoint::Http);
    assert!(wrong(&[url]).contains("policy.allow_plaintext is not declared"));
    verify(crate::settings![
        &[Setting::text("policy.url", "x").endpoint(Endpoint::Http)],
        crate::tls_settings!("policy")
    ])
    .unwrap();
}

#[test]
fn a_file_that_is_not_toml_is_named_by_line_and_never_shown() {
    for text in [
        "[api]\ncursor_key = hunter2hunter2\n",
        "[api]\n\"hunter2hunter2\n",
        "[api]\ncursor_key = \"hunter2hunter2\n",
        "[api]\nlisten = \"a\" hunter2hunter2\n",
        "[api]\npostgres://u:hunter2hunter2@h/d\n",
        "[api]\ncursor_key = \"hunter2hunter2\\q\"\n",
        "[api]\ncursor_key = 'a'\ncursor_key = 'hunter2hunter2'\n",
    ] {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let cli = Cli { config: Some(file.path().into()), ..Cli::default() };
        let error = Resolved::from_parts(SETTINGS, &cli, |_| None).unwrap_err();
        let shown = format!("{} {:?}", error_chain(&error), error);
        assert!(shown.contains("is not TOML: line ") && !shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn flags_and_values_that_do_not_fit_are_not_repeated() {
    for set in [
        "hunter2",
        "clickhouse.read_timeout=hunter2",
        "clickhouse.read_timeout=5hunter2",
        "kafka.allow_plaintext=hunter2",
    ] {
        let set = LOCAL.iter().copied().chain([set]).map(str::to_string).collect();
        let error = Resolved::from_parts(SETTINGS, &Cli { set, ..Cli::default() }, |_| None).unwrap_err();
        let shown = format!("{} {:?}", error_chain(&error), error);
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
