//! `docs/problems.md`: every known problem of other systems has a test here, or a reason why it can't happen.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The rows of `problems.md` among the case files, by number.
const ROWS: &str = "1-7 9-13 15-17 19 22 24 26 30-34 36 38-42 44-48 50-55 57 60-64 66 68-73 75-78 80 81 83 85-87 89-91 94-96 98 \
                    100-103 105 106 108 109 111-113 115 116";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn numbers(text: &str) -> BTreeSet<u32> {
    let number = |text: &str| text.parse::<u32>().unwrap();
    text.split_ascii_whitespace()
        .flat_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            number(first)..=number(last)
        })
        .collect()
}

/// The last column of each row, by the number in its first.
fn mapped() -> BTreeMap<u32, String> {
    let page = std::fs::read_to_string(root().join("docs/problems.md")).unwrap();
    let mut rows = BTreeMap::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [number, _, shown] = cells[..] else { continue };
        let Ok(number) = number.parse() else { continue };
        assert!(rows.insert(number, shown.to_owned()).is_none(), "row {number} is there twice");
    }
    rows
}

fn sources(dir: &Path, text: &mut String) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                sources(&path, text);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

/// Names of all functions that are tests.
fn tests() -> BTreeSet<String> {
    let mut text = String::new();
    sources(&root(), &mut text);
    let mut found = BTreeSet::new();
    let mut marked = false;
    for line in text.lines().map(str::trim) {
        marked |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let function = ["fn ", "async fn "].iter().find_map(|start| line.strip_prefix(start));
        if let (true, Some(function)) = (marked, function) {
            found.insert(function.split(['(', '<']).next().unwrap_or_default().to_owned());
            marked = false;
        }
    }
    found
}

#[test]
fn every_problem_is_mapped() {
    let rows: BTreeSet<u32> = mapped().into_keys().collect();
    assert_eq!(rows, numbers(ROWS));
}

#[test]
fn every_test_that_the_map_names_exists() {
    let tests = tests();
    assert!(tests.contains("every_test_that_the_map_names_exists"));
    let mut missing = Vec::new();
    for (number, shown) in mapped() {
        assert!(!shown.is_empty(), "row {number} says nothing");
        // Between backticks: names of tests, and nothing else.
        let named = shown.split('`').skip(1).step_by(2);
        missing.extend(named.filter(|name| !tests.contains(*name)).map(|name| format!("{number}: {name}")));
    }
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn tests_named_after_a_problem_are_in_the_map() {
    let shown: String = mapped().into_values().collect();
    let named: BTreeSet<&str> = shown.split('`').skip(1).step_by(2).collect();
    let tests = tests();
    let of_a_row = |test: &&String| {
        test.strip_prefix("problem_")
            .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    let absent: Vec<&String> =
        tests.iter().filter(of_a_row).filter(|test| !named.contains(test.as_str())).collect();
    assert_eq!(absent, Vec::<&String>::new());
}
