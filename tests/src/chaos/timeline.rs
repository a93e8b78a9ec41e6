//! What happened and when: printed as it happens, kept in a file beside the logs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::Instant;

use super::schedule::Kind;

/// Shared by everything that has something to say.
#[derive(Debug)]
pub struct Timeline {
    start: Instant,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    faults: BTreeMap<Kind, u32>,
}

impl Timeline {
    /// Time counts from here.
    pub fn start(file: &Path) -> anyhow::Result<Self> {
        let file = File::create(file).with_context(|| format!("making {}", file.display()))?;
        Ok(Self { start: Instant::now(), inner: Mutex::new(Inner { file, faults: BTreeMap::new() }) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// One line.
    pub fn say(&self, text: &str) {
        let line = line(self.elapsed(), text);
        println!("{line}");
        // The same is on the terminal.
        let _ = writeln!(self.inner().file, "{line}");
    }

    /// A fault that took effect.
    pub fn count(&self, kind: Kind) {
        *self.inner().faults.entry(kind).or_default() += 1;
    }

    /// Whether a fault of this kind took effect.
    pub fn had(&self, kind: Kind) -> bool {
        self.inner().faults.contains_key(&kind)
    }

    /// `kill 3, network 5`
    pub fn faults(&self) -> String {
        let counts: Vec<String> =
            self.inner().faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        if counts.is_empty() { "none".into() } else { counts.join(", ") }
    }
}

fn line(elapsed: Duration, text: &str) -> String {
    format!("{:>4}.{} s  {text}", elapsed.as_secs(), elapsed.subsec_millis() / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_their_time_and_are_kept() {
        assert_eq!(line(Duration::from_millis(12_345), "kill -9 relay-0"), "  12.3 s  kill -9 relay-0");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("timeline.txt");
        let timeline = Timeline::start(&path).unwrap();
        timeline.say("one");
        timeline.say("two");
        let kept = std::fs::read_to_string(path).unwrap();
        assert!(kept.lines().count() == 2 && kept.ends_with("two\n"), "{kept}");
    }

    #[test]
    fn faults_are_counted_by_kind() {
        let dir = tempfile::tempdir().unwrap();
        let timeline = Timeline::start(&dir.path().join("t")).unwrap();
        assert_eq!(timeline.faults(), "none");
        for kind in [Kind::Kill, Kind::Network, Kind::Kill] {
            timeline.count(kind);
        }
        assert_eq!(timeline.faults(), "kill 2, network 1");
    }
}
