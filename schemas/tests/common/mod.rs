//! What the test files share.

use std::path::PathBuf;

/// `$USAGE_CASES_DIR`, or `tests/cases` at the repository's root.
fn cases_dir() -> PathBuf {
    match std::env::var_os("USAGE_CASES_DIR") {
        Some(dir) => dir.into(),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/cases"),
    }
}

/// A case file's text.
pub fn case_file(name: &str) -> String {
    let path = cases_dir().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of a case file as their columns, which must be those that the test knows.
#[allow(dead_code, reason = "not every test file reads a table")]
pub fn case_rows<const N: usize>(name: &str, columns: [&str; N]) -> Vec<[String; N]> {
    let text = case_file(name);
    let mut rows = text.lines().map(|line| {
        let cells: Vec<String> = line.split('\t').map(String::from).collect();
        <[String; N]>::try_from(cells).unwrap_or_else(|cells| panic!("{name}: {cells:?} has other columns"))
    });
    assert_eq!(rows.next().expect("a header"), columns);
    let rows: Vec<_> = rows.collect();
    assert!(!rows.is_empty(), "{name} has no rows");
    rows
}

/// Bytes of a hex text.
#[allow(dead_code, reason = "not every test file reads hex")]
pub fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "{text}");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
