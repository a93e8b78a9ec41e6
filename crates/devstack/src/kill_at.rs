//! A library preloaded into a server that kills it inside a chosen rename or fsync: the moments in which "wholly or not at all"
//! is decided, which kills from outside hit too seldom. For tests; needs a C compiler (`cc`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, ensure};

const SOURCE: &str = include_str!("../native/kill_at.c");

/// Where the server dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Before the rename is done.
    RenameEnter,
    /// The rename is done, the server does not know it yet.
    RenameLeave,
    /// Before the fsync is done.
    Fsync,
}

/// The `nth` (from 1) such step of a file whose path holds `name`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shot<'a> {
    pub step: Step,
    pub nth: u32,
    pub name: &'a str,
}

/// A part that an insert makes in a table partitioned by month (until the year 2100).
pub const INSERTED_PART: &str = "/tmp_insert_20";
/// The same of a merge.
pub const MERGED_PART: &str = "/tmp_merge_20";

/// The compiled library and the file that arms it.
#[derive(Debug)]
pub struct KillAt {
    library: PathBuf,
    trigger: PathBuf,
    /// Makes each order another one, also the same shot again.
    serial: AtomicU32,
}

impl KillAt {
    /// Compiles the library into `dir`.
    ///
    /// # Errors
    /// There is no C compiler, or it refuses.
    pub fn build(dir: &Path) -> Result<Self> {
        let (source, library) = (dir.join("kill_at.c"), dir.join("kill_at.so"));
        fs::write(&source, SOURCE).with_context(|| format!("writing {}", source.display()))?;
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).arg("-ldl");
        let status = compiler.status().context("a C compiler (cc) is needed")?;
        ensure!(status.success(), "cc does not compile {}", source.display());
        Ok(Self { library, trigger: dir.join("kill_at.order"), serial: AtomicU32::new(0) })
    }

    /// For the environment of the server.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        [("LD_PRELOAD", &self.library), ("USAGE_KILL_FILE", &self.trigger)]
            .map(|(name, path)| (name.to_owned(), path.display().to_string()))
            .into()
    }

    /// From now on the shot is awaited; it replaces one that was not fired.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn arm(&self, shot: Shot<'_>) -> Result<()> {
        let step = match shot.step {
            Step::RenameEnter => 'E',
            Step::RenameLeave => 'L',
            Step::Fsync => 'S',
        };
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let new = self.trigger.with_extension("new");
        fs::write(&new, format!("{step} {} {} {serial}\n", shot.nth, shot.name))?;
        // At once, so that no half of an order is read.
        fs::rename(&new, &self.trigger).with_context(|| format!("writing {}", self.trigger.display()))
    }

    /// True if a shot is armed that was not fired.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.trigger.exists()
    }

    /// Takes an order back; true if it was not carried out.
    #[must_use]
    pub fn disarm(&self) -> bool {
        fs::remove_file(&self.trigger).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    /// Syncs a file twice and renames its directory, as a server does with a part.
    const PROGRAM: &str = r#"
        #include <fcntl.h>
        #include <stdio.h>
        #include <unistd.h>
        int main(void) {
            int file = open("tmp_insert_202611/data", O_WRONLY | O_CREAT, 0600);
            if (file < 0 || fsync(file) || fdatasync(file)) return 1;
            return rename("tmp_insert_202611", "202611_1_1_0") ? 2 : 0;
        }"#;

    #[test]
    fn a_process_dies_at_the_chosen_step_only() {
        let dir = tempfile::tempdir().unwrap();
        let kill_at = KillAt::build(dir.path()).unwrap();
        let program = dir.path().join("program");
        fs::write(dir.path().join("program.c"), PROGRAM).unwrap();
        let compiled =
            Command::new("cc").arg("-o").arg(&program).arg(dir.path().join("program.c")).status().unwrap();
        assert!(compiled.success());
        let run = |shot: Option<Shot<'_>>| {
            let place = tempfile::tempdir_in(dir.path()).unwrap();
            fs::create_dir(place.path().join("tmp_insert_202611")).unwrap();
            if let Some(shot) = shot {
                kill_at.arm(shot).unwrap();
            }
            let status = Command::new(&program)
                .envs(kill_at.environment())
                .current_dir(place.path())
                .status()
                .unwrap();
            (status.signal(), place.path().join("202611_1_1_0").exists())
        };
        let shot = |step, nth| Some(Shot { step, nth, name: "tmp_insert_20" });
        assert_eq!(run(None), (None, true));
        assert_eq!(run(shot(Step::RenameEnter, 1)), (Some(9), false));
        assert!(!kill_at.is_armed());
        assert_eq!(run(shot(Step::RenameLeave, 1)), (Some(9), true));
        for nth in [1, 2] {
            assert_eq!(run(shot(Step::Fsync, nth)), (Some(9), false));
        }
        for (step, nth) in [(Step::Fsync, 3), (Step::RenameEnter, 2)] {
            assert_eq!(run(shot(step, nth)), (None, true), "there is no such call");
            assert!(kill_at.disarm());
        }
        assert_eq!(run(Some(Shot { step: Step::Fsync, nth: 1, name: MERGED_PART })), (None, true));
        assert!(kill_at.disarm() && !kill_at.disarm());
    }
}
