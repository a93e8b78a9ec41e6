use usage_service::config::{self, TELEMETRY, markdown};

use super::*;

/// What every process can be told. The relay's program puts its sections together itself.
const PROCESSES: [(&str, &[Setting]); 4] = [
    ("usage-consumer", usage_consumer::config::SETTINGS),
    ("usage-query-api", usage_query_api::config::SETTINGS),
    ("usage-relay", settings![TELEMETRY, KAFKA, SOURCE_DATABASE, usage_producer::relay::RELAY]),
    ("usagectl", SETTINGS),
];

#[test]
fn the_declarations_are_right() {
    for (process, settings) in PROCESSES {
        config::verify(settings).unwrap_or_else(|error| panic!("{process}: {error}"));
    }
}

/// Compares the tables in the document with the declarations. With USAGE_BLESS=1 it writes them into the document instead.
#[test]
fn the_document_holds_every_setting() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
    let document = std::fs::read_to_string(path).unwrap();
    let mut expected = document.clone();
    for (process, settings) in PROCESSES {
        let begin = format!("<!-- settings {process} -->\n");
        let (head, rest) = expected.split_once(&begin).unwrap_or_else(|| panic!("no table of {process}"));
        let (_, tail) = rest.split_once("<!-- end -->").unwrap();
        expected = format!("{head}{begin}{}<!-- end -->{tail}", markdown(settings));
    }
    if std::env::var_os("USAGE_BLESS").is_some() {
        std::fs::write(path, expected).unwrap();
        return;
    }
    for (ours, theirs) in expected.lines().zip(document.lines()) {
        assert_eq!(ours, theirs, "docs/config.md is not up to date; USAGE_BLESS=1 brings it up to date");
    }
    assert_eq!(expected, document);
}
