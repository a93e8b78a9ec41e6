use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::time::Duration;

use proptest::prelude::*;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use super::*;

const SETTINGS: &[Setting] = crate::settings![
    KAFKA,
    CONTROL_DATABASE,
    &[
        Setting::integer("consumer.batch_rows", "Rows of a batch.").default("50_000"),
        Setting::size("consumer.batch_bytes", "Bytes of a batch.").default("64MiB"),
        Setting::duration("consumer.batch_age", "Age of a batch.").default("1s"),
        Setting::bool("consumer.verify", "Check signatures.").default("true"),
        Setting::list("consumer.tags", "Words.").optional(),
        Setting::tables("consumer.sources", "Sources."),
        Setting::text("consumer.sources[].name", "Name of the source."),
        Setting::text("consumer.sources[].signing.key", "Its key.").secret(),
        Setting::duration("consumer.sources[].pause", "Its pause.").default("5s"),
    ],
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    kafka: KafkaConfig,
    control_database: DatabaseConfig,
    consumer: Consumer,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Consumer {
    batch_rows: usize,
    batch_bytes: u64,
    #[serde(with = "humantime_serde")]
    batch_age: Duration,
    verify: bool,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    sources: Vec<SourceConfig>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceConfig {
    name: String,
    signing: Signing,
    #[serde(with = "humantime_serde")]
    pause: Duration,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signing {
    key: SecretString,
}

/// Resolves the test's settings from the text of a file, an environment and flags.
fn resolve(file: &str, variables: &[(&str, &str)], set: &[&str]) -> Result<Resolved, ConfigError> {
    let mut written = tempfile::NamedTempFile::new().unwrap();
    written.write_all(file.as_bytes()).unwrap();
    let set = set.iter().map(ToString::to_string).collect();
    let cli = Cli { config: Some(written.path().into()), set, check_config: false };
    let variables: HashMap<_, _> = variables.iter().copied().collect();
    Resolved::from_parts(SETTINGS, &cli, |name| variables.get(name).map(OsString::from))
}

fn load(file: &str, variables: &[(&str, &str)], set: &[&str]) -> Result<Config, ConfigError> {
    resolve(file, variables, set)?.value()
}

const LEAST: &str =
    "kafka.brokers = '127.0.0.1:9092'\ncontrol_database.url = 'postgres://u:hunter2@127.0.0.1/d'\n";

#[test]
fn defaults_fill_what_the_file_leaves_out() {
    let config = load(LEAST, &[], &[]).unwrap();
    assert_eq!(config.kafka.brokers, "127.0.0.1:9092");
    assert_eq!(config.kafka.security.protocol, "plaintext");
    assert!(config.kafka.security.sasl_password.is_none());
    assert_eq!(config.control_database.url.expose_secret(), "postgres://u:hunter2@127.0.0.1/d");
    assert_eq!((config.consumer.batch_rows, config.consumer.batch_bytes), (50_000, 64 << 20));
    assert_eq!((config.consumer.batch_age, config.consumer.verify), (Duration::from_secs(1), true));
    assert!(config.consumer.tags.is_empty() && config.consumer.sources.is_empty());
}

#[test]
fn each_source_goes_over_the_one_before() {
    let file = format!("{LEAST}consumer.batch_rows = 1\nconsumer.batch_age = '2m'");
    let variables = [("USAGE_CONSUMER_BATCH_ROWS", "2"), ("USAGE_CONSUMER_TAGS", "a, b,,c")];
    assert_eq!(load(&file, &[], &[]).unwrap().consumer.batch_rows, 1);
    let config = load(&file, &variables, &[]).unwrap();
    assert_eq!(
        (config.consumer.batch_rows, config.consumer.tags),
        (2, vec!["a".into(), "b".into(), "c".into()])
    );
    let flags = [
        "consumer.batch_rows=3",
        "consumer.verify=false",
        "consumer.batch_bytes=1_000",
        "consumer.batch_rows=4",
    ];
    let config = load(&file, &variables, &flags).unwrap();
    assert_eq!((config.consumer.batch_rows, config.consumer.batch_bytes), (4, 1_000));
    assert_eq!((config.consumer.verify, config.consumer.batch_age), (false, Duration::from_secs(120)));
}

#[test]
fn flags_keep_everything_after_the_first_equals_sign() {
    let url = "postgres://localhost/d?sslmode=disable";
    let config = load(LEAST, &[], &[&format!("control_database.url={url}")]).unwrap();
    assert_eq!(config.control_database.url.expose_secret(), url);
}

#[test]
fn an_empty_variable_counts_as_not_set() {
    let config = load(LEAST, &[("USAGE_KAFKA_BROKERS", "")], &[]).unwrap();
    assert_eq!(config.kafka.brokers, "127.0.0.1:9092");
}

#[test]
fn only_declared_variables_are_asked_for() {
    let asked = std::cell::RefCell::new(Vec::new());
    let cli = Cli { set: vec!["kafka.brokers=k".into(), "control_database.url=u".into()], ..Cli::default() };
    Resolved::from_parts(SETTINGS, &cli, |name| {
        asked.borrow_mut().push(name.to_string());
        None
    })
    .unwrap();
    let declared: Vec<_> = SETTINGS.iter().filter_map(Setting::variable).collect();
    assert_eq!(*asked.borrow(), declared);
    assert!(declared.contains(&"USAGE_KAFKA_SECURITY_SASL_PASSWORD".to_string()));
    assert!(!declared.iter().any(|name| name.contains("SOURCES")));
}

fn error(file: &str, variables: &[(&str, &str)], set: &[&str]) -> String {
    crate::error_chain(&load(file, variables, set).unwrap_err())
}

#[test]
fn unknown_keys_name_the_nearest_and_their_place() {
    let text = error(&format!("{LEAST}kafka.broker = 'x'"), &[], &[]);
    assert!(
        text.contains("`kafka.broker`") && text.contains("`kafka.brokers`") && text.contains("file /"),
        "{text}"
    );
    let text = error(&format!("{LEAST}[consumer]\nbatchrows = 1"), &[], &[]);
    assert!(text.contains("did you mean `consumer.batch_rows`?"), "{text}");
    let text = error(LEAST, &[], &["consumer.batch_aeg=1s"]);
    assert!(text.contains("--set") && text.contains("`consumer.batch_age`"), "{text}");
    // The right word in the wrong section is nearer than a similar path.
    let text = error(&format!("batch_rows = 1\n{LEAST}"), &[], &[]);
    assert!(text.contains("`consumer.batch_rows`"), "{text}");
    let text = error(&format!("{LEAST}[[consumer.sources]]\nnam = 'x'"), &[], &[]);
    assert!(text.contains("`consumer.sources[0].nam`") && text.contains("`name`"), "{text}");
}

#[test]
fn missing_settings_say_how_to_give_them() {
    let text = error("kafka.brokers = 'k'", &[], &[]);
    assert!(text.contains("`control_database.url`") && text.contains("USAGE_CONTROL_DATABASE_URL"), "{text}");
    let text = error(&format!("{LEAST}[[consumer.sources]]\nname = 'a'"), &[], &[]);
    assert!(text.contains("`consumer.sources[0].signing.key`"), "{text}");
}

#[test]
fn values_that_do_not_fit_name_setting_and_origin() {
    for (file, variables, set, parts) in [
        ("consumer.batch_rows = 'x'", None, None, ["`consumer.batch_rows`", "file /", "expected an integer"]),
        (
            "kafka.security.protocol = 1",
            None,
            None,
            ["`kafka.security.protocol`", "file /", "expected a string"],
        ),
        ("consumer.batch_age = 5", None, None, ["`consumer.batch_age`", "file /", "a string like"]),
        ("consumer.batch_bytes = -1", None, None, ["`consumer.batch_bytes`", "file /", "number of bytes"]),
        ("consumer.tags = [1]", None, None, ["`consumer.tags`", "file /", "array of strings"]),
        ("consumer.sources = 1", None, None, ["`consumer.sources`", "file /", "array of tables"]),
        (
            "",
            Some(("USAGE_CONSUMER_VERIFY", "yes")),
            None,
            ["`consumer.verify`", "USAGE_CONSUMER_VERIFY", "true or false"],
        ),
        (
            "",
            Some(("USAGE_CONSUMER_BATCH_AGE", "5")),
            None,
            ["`consumer.batch_age`", "variable", "expected a duration"],
        ),
        (
            "",
            None,
            Some("consumer.batch_bytes=1.5MiB"),
            ["`consumer.batch_bytes`", "--set", "expected a size"],
        ),
        ("", None, Some("consumer.batch_rows=1e3"), ["`consumer.batch_rows`", "--set", "whole number"]),
        ("", None, Some("consumer.sources=a"), ["`consumer.sources`", "--set", "only be given in the file"]),
        ("", None, Some("consumer.batch_rows=-1"), ["`consumer.batch_rows`", "--set", "invalid value"]),
    ] {
        let text = error(&format!("{LEAST}{file}"), variables.as_slice(), set.as_slice());
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }
}

#[test]
fn a_section_is_no_setting() {
    let text = error("kafka = 1", &[], &[]);
    assert!(text.contains("`kafka`") && text.contains("is a section"), "{text}");
    assert!(error(LEAST, &[], &["kafka=1"]).contains("unknown setting `kafka`"));
    assert!(error(LEAST, &[], &["kafka.brokers"]).contains("PATH=VALUE"));
}

#[test]
fn broken_and_absent_files_are_named() {
    assert!(error("kafka = [", &[], &[]).contains("is not TOML"));
    let cli = Cli { config: Some("/nonexistent/usage.toml".into()), ..Cli::default() };
    let text = Resolved::from_parts(SETTINGS, &cli, |_| None).unwrap_err().to_string();
    assert!(text.contains("/nonexistent/usage.toml"), "{text}");
}

const WITH_SOURCES: &str = "
kafka.brokers = '127.0.0.1:9092'
control_database.url = 'postgres://u:hunter2@127.0.0.1/d'
[kafka.security]
sasl_password = 'hunter2'
[[consumer.sources]]
name = 'llm-gateway'
signing.key = 'hunter2'
[[consumer.sources]]
name = 'mail'
signing = { key = 'hunter2' }
pause = '1m'
";

#[test]
fn lists_of_tables_are_filled_with_defaults() {
    let sources = load(WITH_SOURCES, &[], &[]).unwrap().consumer.sources;
    let seen: Vec<_> = sources.iter().map(|source| (source.name.as_str(), source.pause.as_secs())).collect();
    assert_eq!(seen, [("llm-gateway", 5), ("mail", 60)]);
    assert!(sources.iter().all(|source| source.signing.key.expose_secret() == "hunter2"));
}

#[test]
fn the_printed_configuration_hides_secrets_and_loads_again() {
    let resolved = resolve(WITH_SOURCES, &[], &["consumer.batch_bytes=2MiB"]).unwrap();
    let text = resolved.to_string();
    assert!(!text.contains("hunter2"), "{text}");
    assert_eq!(text.matches("\"***\"").count(), 4, "{text}");
    assert!(text.contains("batch_bytes = 2097152") && text.contains("llm-gateway"), "{text}");
    let again = resolve(&text, &[], &["control_database.url=postgres://localhost/d"]).unwrap();
    assert_eq!(again.to_string(), text);
    again.value::<Config>().unwrap();
}

#[test]
fn a_secret_that_does_not_fit_is_not_repeated() {
    #[derive(Debug, Deserialize)]
    struct Odd {
        _token: u8,
    }
    const ODD: &[Setting] = &[Setting::text("_token", "A token.").secret()];
    let cli = Cli { set: vec!["_token=hunter2".into()], ..Cli::default() };
    let error = Resolved::from_parts(ODD, &cli, |_| None).unwrap().value::<Odd>().unwrap_err();
    assert_eq!(error.to_string(), "setting `_token` from --set: does not fit");
}

#[test]
fn a_tool_needs_only_the_sections_it_uses() {
    let cli = Cli { set: vec!["kafka.brokers=localhost:1".into()], ..Cli::default() };
    let resolved = Resolved::gather(SETTINGS, &cli, |_| None).unwrap();
    assert_eq!(resolved.section::<KafkaConfig>("kafka").unwrap().brokers, "localhost:1");
    let error = resolved.section::<DatabaseConfig>("control_database").unwrap_err().to_string();
    assert!(error.contains("`control_database.url` is missing"), "{error}");
    #[derive(Debug, Deserialize)]
    struct Narrow {
        _batch_rows: u8,
    }
    let cli = Cli { set: vec!["a._batch_rows=300".into()], ..Cli::default() };
    let resolved = Resolved::gather(&[Setting::integer("a._batch_rows", "x")], &cli, |_| None).unwrap();
    let error = resolved.section::<Narrow>("a").unwrap_err().to_string();
    assert!(error.contains("`a._batch_rows` from --set"), "{error}");
}

#[test]
fn check_config_prints_only_what_would_start() {
    let cli = |set: &str| Cli { set: vec![set.into(), "_token=12".into()], ..Cli::default() };
    #[derive(Debug, Deserialize)]
    struct Tiny {
        _n: u8,
    }
    const TINY: &[Setting] = &[Setting::integer("_n", "n"), Setting::text("_token", "t").secret()];
    assert_eq!(check::<Tiny>(TINY, &cli("_n=7")).unwrap(), "_n = 7\n_token = \"***\"\n");
    assert!(check::<Tiny>(TINY, &cli("_n=300")).is_err());
}

#[test]
fn wrong_declarations_are_found() {
    verify(SETTINGS).unwrap();
    verify(TELEMETRY).unwrap();
    verify(CLICKHOUSE).unwrap();
    verify(SOURCE_DATABASE).unwrap();
    let wrong = |settings: &[Setting]| verify(settings).unwrap_err().to_string();
    assert!(wrong(&[Setting::text("a", "x"), Setting::text("a", "x")]).contains("twice"));
    assert!(wrong(&[Setting::text("a.b_c", "x"), Setting::text("a.b.c", "x")]).contains("USAGE_A_B_C"));
    assert!(wrong(&[Setting::duration("a", "x").default("5")]).contains("default"));
    assert!(wrong(&[Setting::text("a", "")]).contains("no help"));
}

#[test]
fn the_documentation_has_a_row_for_each_setting() {
    let text = markdown(SETTINGS);
    assert!(text.contains("| `kafka.brokers` | text | required | `USAGE_KAFKA_BROKERS` |"), "{text}");
    assert!(text.contains("| `consumer.batch_bytes` | size | `64MiB` |"), "{text}");
    assert!(
        text.contains("| `consumer.sources[].signing.key` | text (secret) | required | file only |"),
        "{text}"
    );
    assert_eq!(text.lines().count(), SETTINGS.len() + 2);
}

#[test]
fn security_goes_to_the_kafka_client() {
    let mut kafka = KafkaConfig::plaintext("k:1");
    assert_eq!(
        kafka.client_properties(),
        [("bootstrap.servers", "k:1".to_string()), ("security.protocol", "plaintext".to_string())]
    );
    kafka.security.sasl_password = Some("hunter2".into());
    kafka.ca_file = Some("/ca.pem".into());
    let properties = kafka.client_properties();
    assert_eq!(properties[2..], [("sasl.password", "hunter2".into()), ("ssl.ca.location", "/ca.pem".into())]);
    assert!(!format!("{kafka:?}").contains("hunter2"));
}

#[test]
fn sizes_are_whole_numbers_with_a_unit() {
    for (text, bytes) in [
        ("0", 0),
        ("512", 512),
        ("1kB", 1_000),
        ("10 MB", 10_000_000),
        ("64KiB", 65_536),
        ("1_0GiB", 10 << 30),
    ] {
        assert_eq!(value::size(text), Ok(bytes), "{text}");
    }
    for text in ["", "MiB", "-1", "1.5KiB", "1 PB", "1kib", "9223372036854775807KiB", "99999999999999999999"]
    {
        assert!(value::size(text).is_err(), "{text}");
    }
}

proptest! {
    /// Whatever a variable or flag holds: an answer, never a panic; and what a size says is what its number and unit say.
    #[test]
    fn any_text_gives_an_answer(text in "\\PC*", kind in 0..7_usize) {
        let kinds = [Kind::Text, Kind::Integer, Kind::Bool, Kind::Duration, Kind::Size, Kind::List, Kind::Tables];
        let _ = value::from_text(kinds[kind], &text);
    }

    #[test]
    fn sizes_multiply(number in 0..1_000_000_i64) {
        prop_assert_eq!(value::size(&format!("{number}MiB")), Ok(number << 20));
    }
}

#[test]
fn an_empty_text_and_a_zero_that_nothing_works_with_are_refused_by_name() {
    const PARTS: &[Setting] = &[
        Setting::integer("a.rows", "Rows.").default("10").positive(),
        Setting::size("a.bytes", "Bytes.").default("1KiB").positive(),
        Setting::duration("a.age", "Age.").default("1s").positive(),
        Setting::text("a.name", "Name.").default("usage"),
        Setting::text("a.file", "File.").optional(),
        Setting::text("a.password", "Password.").default("").secret(),
        Setting::duration("a.keep", "Keep.").default("1s"),
    ];
    verify(PARTS).unwrap();
    let resolve =
        |set: &str| Resolved::from_parts(PARTS, &Cli { set: vec![set.into()], ..Cli::default() }, |_| None);
    for (set, detail) in [
        ("a.rows=0", "must be more than 0"),
        ("a.rows=-1", "must be more than 0"),
        ("a.bytes=0KiB", "must be more than 0"),
        ("a.age=0s", "must be more than 0"),
        ("a.name=", "must not be empty"),
        ("a.name= ", "must not be empty"),
        ("a.file=", "must not be empty"),
    ] {
        let error = resolve(set).expect_err(set).to_string();
        let path = set.split('=').next().unwrap();
        assert_eq!(error, format!("setting `{path}` from --set: {detail}"));
    }
    for set in ["a.password=", "a.keep=0s", "a.rows=1"] {
        resolve(set).unwrap();
    }
    let wrong = [Setting::integer("a.rows", "Rows.").default("0").positive()];
    assert!(verify(&wrong).unwrap_err().to_string().contains("a.rows"));
}
