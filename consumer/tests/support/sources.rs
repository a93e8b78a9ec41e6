//! Fail points as the sources name them.

use std::path::Path;

/// Adds the name of each `fail_point!` in the Rust files under `directory`.
pub fn fail_points(directory: &Path, found: &mut Vec<String>) {
    let entries = std::fs::read_dir(directory).expect("a directory of sources");
    for entry in entries.map(|entry| entry.expect("it can be read").path()) {
        if entry.is_dir() {
            fail_points(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&entry).expect("a text");
            let names = text.split("fail_point!(\"").skip(1).filter_map(|rest| rest.split_once("\")"));
            found.extend(names.map(|(name, _)| name.to_string()));
        }
    }
}
