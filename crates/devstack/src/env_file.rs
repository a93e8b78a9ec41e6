//! Files of `export NAME=value` lines, for shells to source.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Writes the file in one step, so that nobody sources half of it.
pub fn write<K: AsRef<str>>(path: &Path, variables: &BTreeMap<K, String>) -> Result<()> {
    let text: String = variables
        .iter()
        .map(|(name, value)| format!("export {}={}\n", name.as_ref(), quoted(value)))
        .collect();
    let temporary = path.with_extension("tmp");
    fs::write(&temporary, text).with_context(|| format!("writing {}", temporary.display()))?;
    fs::rename(&temporary, path).with_context(|| format!("naming {}", path.display()))
}

/// As it is when the shell leaves it alone, else in single quotes.
fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/:@._-,+=%".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn addresses_are_written_plainly() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("env");
        let url = "postgres://usage:usage@127.0.0.1:5/usage_source".to_owned();
        write(&file, &BTreeMap::from([("USAGE_SOURCE_DATABASE_URL", url.clone())])).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), format!("export USAGE_SOURCE_DATABASE_URL={url}\n"));
    }

    #[test]
    fn a_shell_reads_back_whatever_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("env");
        let value = "it's a $HOME \"and\" `more`\n#;".to_owned();
        write(&file, &BTreeMap::from([("USAGE_X", value.clone())])).unwrap();
        let script = format!(". '{}'; printf %s \"$USAGE_X\"", file.display());
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), value);
    }
}
