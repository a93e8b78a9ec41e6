//! Postgres' programs: the distribution's, else those of an npm package.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::apt;

/// The directory with `initdb` and `postgres`.
pub fn bin_dir() -> Result<PathBuf> {
    if let Some(dir) = distribution(Path::new("/usr/lib/postgresql")) {
        return Ok(dir);
    }
    if apt::can_install() {
        apt::install(&["postgresql"])?;
        if let Some(dir) = distribution(Path::new("/usr/lib/postgresql")) {
            return Ok(dir);
        }
    }
    anyhow::bail!("no postgres")
}

/// The newest version that Debian's layout has: `ROOT/15/bin`.
fn distribution(root: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(root).ok()?;
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let version = path.file_name()?.to_str()?.parse().ok()?;
            let bin = path.join("bin");
            (bin.join("initdb").is_file() && bin.join("postgres").is_file()).then_some((version, bin))
        })
        .collect();
    found.sort();
    found.pop().map(|(_, bin)| bin)
}
