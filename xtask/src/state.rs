//! What `up` started, kept in a file so that `down` and the next `up` find it.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use usage_devstack::process::ProcessId;

/// A started process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Id and start time, so that a process that got the number later is left alone.
    pub process: ProcessId,
    /// Its ports; which is which is known to who started it.
    pub ports: Vec<u16>,
    /// Its log file.
    pub log: PathBuf,
}

/// All started processes by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Kafka, ClickHouse, Postgres and the services.
    pub parts: BTreeMap<String, Part>,
}

impl State {
    /// The state in `dir`; none there is an empty one.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = file(dir);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        serde_json::from_slice(&text).with_context(|| format!("{} is not what `up` writes", path.display()))
    }

    /// Writes it in one step.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let path = file(dir);
        let temporary = path.with_extension("tmp");
        fs::write(&temporary, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("writing {}", temporary.display()))?;
        fs::rename(&temporary, &path).with_context(|| format!("naming {}", path.display()))
    }

    /// The part, if its process still runs.
    #[must_use]
    pub fn running(&self, name: &str) -> Option<&Part> {
        self.parts.get(name).filter(|part| part.process.is_running())
    }

    /// Whether anything runs.
    #[must_use]
    pub fn any_running(&self) -> bool {
        self.parts.values().any(|part| part.process.is_running())
    }
}

fn file(dir: &Path) -> PathBuf {
    dir.join("state.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(process: ProcessId) -> Part {
        Part { process, ports: vec![1, 2], log: "x.log".into() }
    }

    fn own() -> ProcessId {
        ProcessId::of(std::process::id()).unwrap()
    }

    #[test]
    fn what_was_saved_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(State::load(dir.path()).unwrap(), State::default());
        let mut state = State::default();
        state.parts.insert("kafka".to_owned(), part(own()));
        state.save(dir.path()).unwrap();
        assert_eq!(State::load(dir.path()).unwrap(), state);
    }

    #[test]
    fn a_process_that_got_the_number_later_is_not_ours() {
        let mut state = State::default();
        state.parts.insert("ours".to_owned(), part(own()));
        assert!(state.running("ours").is_some() && state.any_running());
        let reused = ProcessId { start_ticks: own().start_ticks + 1, ..own() };
        state.parts.insert("ours".to_owned(), part(reused));
        assert!(state.running("ours").is_none() && !state.any_running());
        assert!(state.running("never started").is_none());
    }

    #[test]
    fn a_spoilt_file_is_an_error_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("state.json"), "{").unwrap();
        let error = format!("{:#}", State::load(dir.path()).unwrap_err());
        assert!(error.contains("state.json"), "{error}");
    }
}
