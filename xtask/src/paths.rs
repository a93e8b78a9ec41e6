//! Where things are in the checkout.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The root of the checkout.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned()
}

/// What belongs to `up`.
#[must_use]
pub fn stack() -> PathBuf {
    root().join("target/stack")
}

/// Cargo's target directory: the one this program was built in.
pub fn target() -> Result<PathBuf> {
    let program = env::current_exe().context("asking for the running program")?;
    let profile = program.parent().context("the program has no directory")?;
    let profile = if profile.ends_with("deps") { profile.parent().unwrap_or(profile) } else { profile };
    Ok(profile.parent().context("the program is not in a target directory")?.to_owned())
}

/// Where cargo puts programs of a profile.
pub fn bin_dir(release: bool) -> Result<PathBuf> {
    Ok(target()?.join(if release { "release" } else { "debug" }))
}
