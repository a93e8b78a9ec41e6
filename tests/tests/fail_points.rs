//! Fail points of all rooms: each has a name of its own, and a test that visits it by that name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Rust files below `directory`, but for what is built.
fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            rust_files(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
}

#[test]
fn each_fail_point_has_one_place_and_a_test_that_names_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    let (mut places, mut tests) = (BTreeMap::<String, Vec<PathBuf>>::new(), String::new());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        // Of this workspace alone: what is below it counts, not where it lies.
        if is_test(file.strip_prefix(&root).unwrap()) {
            tests.push_str(&text);
            continue;
        }
        // Documentation shows one, too.
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            for rest in line.split("fail_point!(\"").skip(1) {
                let name = rest.split('"').next().unwrap();
                places.entry(name.to_owned()).or_default().push(file.clone());
            }
        }
    }
    assert!(places.len() > 40, "{places:?}");
    for (name, places) in &places {
        assert_eq!(places.len(), 1, "{name}: {places:?}");
        let named = [format!("\"{name}\""), format!("\"{name}=")].iter().any(|text| tests.contains(text));
        assert!(named, "no test visits {name}");
    }
}
